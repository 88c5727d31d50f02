"""Which tests are about which source file: they hunt a bug in it first.

All of them run in one process. Within a row the fast and close ones stand first, because a hunt
ends at the first failure. All others of the folders that belong to the package hunt later.
``test_every_source_file_has_its_tests`` fails if a file of these packages has no row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["FOLDERS", "PROCESS_TESTS", "SUITES", "folders_of", "suite_of"]

# Packages and files that need a row, and the folders whose tests hunt what those of the row miss.
FOLDERS: dict[str, tuple[str, ...]] = {
    "raft/": ("unit", "paper", "regressions", "scenarios"),
    "replica/": ("replica", "unit"),
    "storage/": ("storage", "unit"),
    "state/": ("state", "unit"),
    "server/": ("server",),
    "wire/": ("wire",),
    "net/": ("net",),
    "client/": ("client",),
    "batch.py": ("unit",),
    "config.py": ("unit",),
    "entry.py": ("unit", "storage"),
    "single.py": ("unit",),
}

_BUGS = (
    "regressions/test_dledger_bugs.py", "regressions/test_jraft_bugs.py",
    "regressions/test_jraft_standstill.py",
)  # fmt: skip
_WEDGES = (
    "unit/test_damaged_feeding.py", "unit/test_full_disk_elections.py",
    "unit/test_too_many_files.py", "unit/test_damaged_replica.py", "unit/test_wanted_room.py",
    "unit/test_last_resort.py",
)  # fmt: skip
_ROLES = (
    "paper", *_WEDGES, "unit/test_unasked_messages.py", "unit/test_bad_messages.py",
    "unit/test_election_hint.py", "unit/test_damaged_replica.py", *_BUGS,
    "scenarios/test_scenarios.py",
)  # fmt: skip
_FEEDING = (
    "unit/test_progress.py", "unit/test_feeding.py", "paper/test_paper_replication.py",
    "paper/test_paper_commit.py", "unit/test_bad_messages.py", "unit/test_unasked_messages.py",
    "paper", *_WEDGES, *_BUGS, "unit/test_engine_proposals.py", "scenarios/test_scenarios.py",
    "regressions/test_dledger_windows.py",
)  # fmt: skip
_ENGINE = (
    "unit/test_engine_turns.py", "unit/test_engine_state.py", "unit/test_engine_proposals.py",
    "unit/test_engine_reads.py", "unit/test_disk_full.py", *_WEDGES, "unit/test_durability.py",
    "paper", *_BUGS, "scenarios/test_scenarios.py",
)  # fmt: skip
_PROPOSALS = (
    "unit/test_proposals.py", "unit/test_proposals_answers.py", "unit/test_proposals_staging.py",
    "unit/test_proposals_together.py", "unit/test_proposals_work.py", "unit/test_agreement.py",
    "unit/test_engine_proposals.py",
)  # fmt: skip
_STATE = (
    "state/test_state_judge.py", "state/test_staging_judge.py", "state/test_staging.py",
    "state/test_succession.py",
    "state/test_state_apply.py", "state/test_state_whole.py", "state/test_state_producers.py",
    "state/test_state_operations.py", "state/test_state_checkpoint.py", "state/test_state_age.py",
    "state/test_state_work.py", "state/test_state_model.py", *_PROPOSALS,
)  # fmt: skip
_LOG = (
    "storage/test_cuts.py", "storage/test_rotten_ends.py", "storage/test_old_pages.py",
    "storage/test_old_cuts.py",
    "storage/test_vote_copies.py",
    "storage/test_growth.py", "storage/test_archive.py", "storage/test_old_frames.py",
    "storage/test_stale_damage.py", "storage/test_index_files.py", "storage/test_long_looks.py",
    "storage/test_log_conformance.py", "storage/test_window.py", "storage/test_long_log.py",
    "storage/test_log_stateful.py", "storage/test_crash_states.py",
)  # fmt: skip
_OPENING = (
    "unit/test_damaged_replica.py", "storage/test_verify_crashes.py", "storage/test_directory.py",
    "server/test_halted_logs.py",
)  # fmt: skip
_VERIFY = (
    "storage/test_verify.py", "storage/test_verify_lies.py", "storage/test_verify_copies.py",
    "storage/test_verify_crashes.py", "cli/test_cli_verify.py", "cli/test_cli_inspect.py",
)  # fmt: skip
_READING = (
    "replica/test_published.py", "replica/test_reader_uncommitted.py", "replica/test_reader.py",
    "replica/test_reader_staging.py", "replica/test_reader_damage.py",
)  # fmt: skip
_SHELL = (
    "replica/test_writer.py", "replica/test_chores.py", "replica/test_gate.py",
    "replica/test_opening.py", "replica/test_shell.py", "replica/test_stopping.py",
    "replica/test_lowered_limits.py",
)  # fmt: skip
_NODE = (
    "server/test_service.py", "server/test_service_limits.py", "server/test_calls.py",
    "server/test_members.py", "server/test_peers.py", "server/test_node.py",
    "server/test_unsent.py",
)  # fmt: skip
_WIRE = (
    "wire/test_wire_frames.py", "wire/test_wire_messages.py", "wire/test_wire_requests.py",
    "wire/test_wire_calls.py", "wire/test_wire_handshake.py", "wire/test_plain.py",
    "wire/test_wire_hostile.py", "wire/test_format_wire.py",
)  # fmt: skip
_NET = (
    "net/test_connection.py", "net/test_connection_limits.py", "net/test_listener.py",
    "net/test_dial.py", "net/test_links.py", "net/test_link_calls.py", "net/test_loop.py",
)  # fmt: skip
_PRODUCER = (
    "client/test_producer_window.py", "client/test_producer_model.py",
    "client/test_producer_records.py", "client/test_producer_sending.py",
    "client/test_producer_opening.py", "client/test_producer_room.py",
)  # fmt: skip
_CALLS = (
    "client/test_client_retries.py", "client/test_client_routing.py", "client/test_client_doubt.py",
    "client/test_client_arguments.py", "client/test_client_appends.py",
    "client/test_client_nodes.py", "client/test_client_reads.py", "client/test_client_silence.py",
    "client/test_client_slow_line.py",
)  # fmt: skip
_SUBMISSIONS = (
    "client/test_client_submissions.py", "client/test_submission_outcomes.py",
    "client/test_client_worker.py",
)  # fmt: skip
_RECORDS = (
    "client/test_read_singles.py", "client/test_client_reads.py", "client/test_read_ahead.py",
    "client/test_async_reads.py", "client/test_read_arrow.py",
)  # fmt: skip

# Tests of real nodes: they hunt a bug that all others missed. A bug that only they notice needs a
# test that is closer to it.
PROCESS_TESTS = (
    "server/test_serve.py", "client/test_client_cluster.py", "client/test_producer_cluster.py",
    "client/test_read_cluster.py", "client/test_client_staging.py", "client/test_client_docs.py",
    "cli", "server/test_dev.py",
)  # fmt: skip

# Files, and the tests about them.
SUITES: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    # -- consensus -----------------------------------------------------------------------------
    (("raft/quorum.py",), ("unit/test_quorum.py", *_FEEDING)),
    (("raft/log.py",), ("unit/test_raft_log.py", *_FEEDING)),
    (("raft/progress.py", "raft/leader.py", "raft/handover.py"), _FEEDING),
    (
        ("raft/reads.py",),
        ("paper/test_paper_reads.py", "unit/test_engine_reads.py", "unit/test_unasked_messages.py",
         *_BUGS, "scenarios/test_scenarios.py"),
    ),
    (
        ("raft/follower.py",),
        ("paper/test_paper_replication.py", "unit/test_bad_messages.py", *_ROLES),
    ),
    (
        ("raft/election.py", "raft/roles.py", "raft/core.py", "raft/messages.py", "raft/output.py",
         "raft/patience.py"),
        _ROLES,
    ),
    # -- one replica ---------------------------------------------------------------------------
    (("replica/durability.py",), ("unit/test_durability.py", *_ENGINE)),
    (("replica/agreement.py",), ("unit/test_agreement.py", *_PROPOSALS)),
    (
        ("replica/proposals.py", "replica/drafts.py", "replica/allowance.py",
         "replica/admission.py"),
        (*_PROPOSALS, *_WEDGES, "state/test_state_age.py", "storage/test_growth.py",
         "unit/test_disk_full.py"),
    ),
    (("replica/reader.py", "replica/published.py"), _READING),
    (("replica/engine.py", "replica/exchange.py", "replica/status.py"), _ENGINE),
    (
        ("replica/gate.py",),
        ("unit/test_engine_proposals.py", "replica/test_gate.py", "unit/test_disk_full.py",
         "unit/test_last_resort.py",
         "unit/test_wanted_room.py", *_PROPOSALS),
    ),
    (
        ("replica/shell.py", "replica/writer.py", "replica/opening.py", "replica/upkeep.py"),
        (*_SHELL, *_READING),
    ),
    # -- what a log means ----------------------------------------------------------------------
    (
        ("state/judge.py", "state/labels.py", "state/operations.py", "state/producers.py",
         "state/attempts.py", "state/runs.py", "state/staging.py", "state/state.py",
         "state/succession.py", "state/checkpoint.py", "state/untracked.py"),
        _STATE,
    ),
    # -- disks ---------------------------------------------------------------------------------
    (("storage/recovered.py", "storage/checkpoint.py"), (*_ENGINE, *_OPENING, *_LOG)),
    (
        ("storage/recovery.py", "storage/survey.py", "storage/scan.py", "storage/rows.py",
         "storage/damage.py"),
        (*_LOG, *_OPENING),
    ),
    (
        ("storage/cutting.py", "storage/flusher.py", "storage/log.py", "storage/segment.py",
         "storage/steps.py", "storage/memory.py", "storage/window.py", "storage/layout.py",
         "storage/index.py", "storage/publishing.py"),
        (*_LOG, *_OPENING, "replica/test_writer.py", "storage/test_verify.py"),
    ),
    (
        ("storage/vfs.py",),
        ("storage/test_real_vfs.py", "storage/test_simulated_disk.py", "storage/test_directory.py",
         "storage/test_log_conformance.py"),
    ),
    (
        ("storage/directory.py", "storage/manifest.py"),
        ("storage/test_directory.py", "server/test_manifest.py", "replica/test_shell.py"),
    ),
    (
        ("storage/audit.py", "storage/difference.py", "storage/findings.py",
         "storage/inspection.py", "storage/strict.py", "storage/verify.py", "storage/walk.py"),
        _VERIFY,
    ),
    # -- one node ------------------------------------------------------------------------------
    (
        ("server/catalog.py", "server/table.py", "server/reconciler.py"),
        ("server/test_catalog.py", "server/test_table.py", "server/test_reconciler.py",
         "server/test_node.py"),
    ),
    (
        ("server/keeper.py", "server/carrier.py", "server/replicas.py", "server/disk.py"),
        ("server/test_halted_logs.py", "server/test_stopping_node.py", "server/test_carrier.py",
         "server/test_keeper.py", "server/test_node.py", "server/test_service.py"),
    ),
    (("server/manifest.py",), ("server/test_manifest.py", "server/test_keeper.py")),
    (("server/settings.py",), ("server/test_settings.py",)),
    (("server/http.py",), ("server/test_http.py", "server/test_metrics.py")),
    (("server/loglines.py",), ("server/test_loglines.py",)),
    (("server/refusals.py",), ("server/test_refusals.py", "server/test_members.py")),
    (("server/presence.py",), ("server/test_presence.py", "server/test_service.py")),
    (
        ("server/roster.py", "server/advice.py"),
        ("server/test_roster.py", "server/test_members.py", "server/test_node.py"),
    ),
    (
        ("server/members.py",),
        ("server/test_members.py", "server/test_roster.py", "server/test_node.py"),
    ),
    (("server/peers.py",), ("server/test_peers.py", "server/test_node.py")),
    (
        ("server/appends.py", "server/calls.py", "server/node.py", "server/service.py",
         "server/session.py"),
        (*_NODE, "server/test_stopping_node.py", "server/test_keeper.py",
         "server/test_metrics.py"),
    ),
    # -- what goes over the network ------------------------------------------------------------
    (("wire/plain.py",), ("wire/test_plain.py", *_WIRE, "server/test_service.py")),
    (
        ("wire/calls.py", "wire/frames.py", "wire/handshake.py", "wire/messages.py",
         "wire/requests.py", "wire/shapes.py"),
        _WIRE,
    ),
    (("net/links.py",), ("net/test_link_calls.py", "net/test_links.py", *_NET)),
    (("net/listener.py",), ("net/test_listener.py", *_NET)),
    (("net/dialling.py",), ("net/test_dial.py", *_NET)),
    (("net/connection.py", "net/limits.py", "net/loop.py"), _NET),
    # -- clients -------------------------------------------------------------------------------
    (
        ("client/window.py", "client/accumulator.py", "client/sender.py", "client/tickets.py",
         "client/producer.py"),
        _PRODUCER,
    ),
    (("client/status.py",), ("client/test_client_status.py",)),
    (
        ("client/staging.py", "client/blocking_staging.py"),
        ("client/test_stager_failures.py", "client/test_client_slow_line.py"),
    ),
    (
        ("client/submission.py", "client/submitting.py", "client/overdue.py",
         "client/blocking.py", "client/asynchronous.py"),
        (*_SUBMISSIONS, *_RECORDS, *_CALLS),
    ),
    (
        ("client/reading.py", "client/prefetch.py", "client/ranges.py", "client/arrow_reading.py"),
        _RECORDS,
    ),
    (
        ("client/administration.py", "client/pool.py", "client/requests.py", "client/results.py",
         "client/retries.py", "client/routing.py", "client/session.py", "client/silence.py"),
        (*_CALLS, *_SUBMISSIONS, *_RECORDS),
    ),
    # -- what all share ------------------------------------------------------------------------
    (
        ("batch.py", "single.py"),
        ("unit/test_single.py", "unit/test_batch.py", "unit/test_batch_fuzz.py",
         "unit/test_batch_arrow.py"),
    ),
    (("config.py",), ("unit/test_config.py", "server/test_settings.py", *_FEEDING)),
    (("entry.py",), ("unit/test_entry.py", *_LOG)),
)  # fmt: skip


def suite_of(files: Iterable[str]) -> tuple[str, ...]:
    """The tests about ``files``; each once, in the order to run."""
    found: list[str] = []
    for file in files:
        found += next((tests for rows, tests in SUITES if file in rows), ())
    return tuple(dict.fromkeys(found))


def folders_of(files: Iterable[str]) -> tuple[str, ...]:
    """The folders of tests that belong to the packages of ``files``."""
    found: list[str] = []
    for file in files:
        found += next((names for start, names in FOLDERS.items() if file.startswith(start)), ())
    return tuple(dict.fromkeys(found))
