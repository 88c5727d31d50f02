"""The tests about each source file: they hunt a bug in it first.

All of them run in one process. Within a row the fast and close ones stand first, because a hunt
ends at the first failure. All others of the folders that belong to the package hunt later.
``test_every_source_file_has_its_tests`` fails if a file of these packages has no row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["FOLDERS", "PROCESS_TESTS", "SUITES", "folders_of", "suite_of"]

# Packages and files that need a row, and the folders whose tests hunt the bugs that those of the
# row miss.
FOLDERS: dict[str, tuple[str, ...]] = {
    "raft/": ("raft", "paper", "regressions", "scenarios"),
    "replica/": ("replica", "raft"),
    "storage/": ("storage", "replica"),
    "state/": ("state", "replica"),
    "server/": ("server",),
    "wire/": ("wire",),
    "net/": ("net",),
    "client/": ("client",),
    "batch.py": ("wire", "client"),
    "batch_columns.py": ("wire", "client"),
    "config/": ("raft", "replica"),
    "entry.py": ("replica", "storage"),
    "entry_body.py": ("replica", "storage"),
    "membership.py": ("raft", "state"),
}

_BUGS = (
    "regressions/test_dledger_bugs.py", "regressions/test_jraft_bugs.py",
    "regressions/test_jraft_standstill.py",
)  # fmt: skip
_WEDGES = (
    "raft/test_damaged_feeding.py", "raft/test_full_disk_elections.py",
    "replica/test_too_many_files.py", "replica/test_damaged_replica.py", "raft/test_wanted_room.py",
    "raft/test_last_resort.py",
)  # fmt: skip
_ROLES = (
    "paper", *_WEDGES, "raft/test_unasked_messages.py", "raft/test_bad_messages.py",
    "raft/test_election_hint.py", "replica/test_damaged_replica.py", *_BUGS,
    "scenarios/test_scenarios.py",
)  # fmt: skip
_FEEDING = (
    "raft/test_progress.py", "raft/test_feeding.py", "raft/test_passing_over.py",
    "paper/test_paper_replication.py",
    "paper/test_paper_commit.py", "raft/test_bad_messages.py", "raft/test_unasked_messages.py",
    "paper", *_WEDGES, *_BUGS, "replica/test_engine_proposals.py", "scenarios/test_scenarios.py",
    "regressions/test_dledger_windows.py",
)  # fmt: skip
_ENGINE = (
    "replica/test_engine_turns.py", "replica/test_applying.py", "replica/test_engine_state.py",
    "replica/test_engine_proposals.py", "replica/test_engine_reads.py",
    "replica/test_disk_full.py", *_WEDGES, "replica/test_durability.py", "paper", *_BUGS,
    "scenarios/test_scenarios.py", "replica/test_proposals.py",
)  # fmt: skip
_PROPOSALS = (
    "replica/test_proposals.py", "replica/test_proposals_answers.py",
    "replica/test_proposals_staging.py", "replica/test_proposals_together.py",
    "replica/test_proposals_work.py", "replica/test_state_check.py",
    "replica/test_proposals_deadline.py", "replica/test_engine_proposals.py",
    "raft/test_transfer.py",
)  # fmt: skip
_STATE = (
    "state/test_state_judge.py", "state/test_staging_judge.py", "state/test_staging.py",
    "state/test_succession.py",
    "state/test_state_apply.py", "state/test_state_whole.py", "state/test_state_producers.py",
    "state/test_state_operations.py", "state/test_state_checkpoint.py", "state/test_state_age.py",
    "state/test_state_work.py", "state/test_state_model.py", "state/test_state_membership.py",
    *_PROPOSALS,
)  # fmt: skip
_LOG = (
    "storage/test_checkpoint_proof.py", "storage/test_cuts.py", "storage/test_rotten_ends.py",
    "storage/test_old_pages.py", "storage/test_old_blocks.py", "storage/test_refused_pages.py",
    "storage/test_old_cuts.py", "storage/test_old_headers.py", "storage/test_unconfirmed.py",
    "storage/test_vote_copies.py", "storage/test_old_marks.py", "storage/test_strange_pages.py",
    "storage/test_growth.py", "storage/test_kept_room.py", "storage/test_later_blocks.py",
    "storage/test_stored_entries.py",
    "storage/test_old_frames.py",
    "storage/test_stale_damage.py", "storage/test_index_files.py", "storage/test_long_looks.py",
    "storage/test_unread.py", "replica/test_unread_entries.py",
    "storage/test_log_conformance.py", "storage/test_window.py", "storage/test_long_log.py",
    "storage/test_log_stateful.py", "storage/test_named_memberships.py",
    "storage/test_crash_states.py",
)  # fmt: skip
_OPENING = (
    "replica/test_damaged_replica.py", "storage/test_verify_crashes.py",
    "storage/test_directory.py", "server/test_halted_logs.py",
)  # fmt: skip
_VERIFY = (
    "storage/test_verify.py", "storage/test_verify_lies.py", "storage/test_verify_copies.py",
    "storage/test_verify_crashes.py", "cli/test_cli_verify.py", "cli/test_cli_inspect.py",
    "storage/test_old_marks.py", "storage/test_later_blocks.py",
)  # fmt: skip
_READING = (
    "replica/test_publish_index.py", "replica/test_reader_uncommitted.py", "replica/test_reader.py",
    "replica/test_reader_staging.py", "replica/test_reader_damage.py",
)  # fmt: skip
_SHELL = (
    "replica/test_log_writer.py", "replica/test_chores.py", "replica/test_request_filter.py",
    "replica/test_opening.py", "replica/test_replica.py", "replica/test_stopping.py",
    "replica/test_lowered_limits.py",
)  # fmt: skip
_NODE = (
    "server/test_service.py", "server/test_service_limits.py", "server/test_client_parts.py",
    "server/test_calls.py", "server/test_members.py", "server/test_peers.py", "server/test_node.py",
    "server/test_unsent.py", "server/test_unread_answers.py", "server/test_arrivals.py",
)  # fmt: skip
_WIRE = (
    "wire/test_wire_frames.py", "wire/test_wire_messages.py", "wire/test_wire_requests.py",
    "wire/test_wire_calls.py", "wire/test_wire_handshake.py", "wire/test_plain.py",
    "wire/test_wire_hostile.py", "wire/test_format_wire.py",
)  # fmt: skip
_NET = (
    "net/test_connection.py", "net/test_connection_limits.py", "net/test_frame_floods.py",
    "net/test_listener.py",
    "net/test_dial.py", "net/test_links.py", "net/test_link_calls.py", "net/test_loop.py",
)  # fmt: skip
_PRODUCER = (
    "client/test_producer_window.py", "client/test_producer_model.py",
    "client/test_producer_records.py", "client/test_producer_interrupted.py",
    "client/test_producer_sending.py", "client/test_client_reentrance.py",
    "client/test_producer_opening.py", "client/test_producer_room.py",
)  # fmt: skip
_CALLS = (
    "client/test_client_retries.py", "client/test_client_routing.py",
    "client/test_client_unknown_outcomes.py",
    "client/test_client_arguments.py", "client/test_client_appends.py",
    "client/test_client_nodes.py", "client/test_client_reads.py", "client/test_client_stall.py",
    "client/test_client_slow_line.py",
)  # fmt: skip
_SUBMISSIONS = (
    "client/test_client_submissions.py", "client/test_submission_outcomes.py",
    "client/test_client_worker.py", "client/test_client_reentrance.py",
)  # fmt: skip
_RECORDS = (
    "client/test_read_singles.py", "client/test_client_reads.py", "client/test_read_ahead.py",
    "client/test_async_reads.py", "client/test_read_arrow.py", "client/test_batch_arrow.py",
)  # fmt: skip

# Tests of real nodes: they hunt a bug that all others missed. A bug that only they notice needs a
# test that is closer to it.
PROCESS_TESTS = (
    "server/test_serve.py", "client/test_client_cluster.py", "client/test_producer_cluster.py",
    "client/test_read_cluster.py", "client/test_client_staging.py", "client/test_client_docs.py",
    "cli", "server/test_dev.py", "server/test_flooded_leader.py",
)  # fmt: skip

# Files, and the tests about them.
SUITES: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    # -- consensus -----------------------------------------------------------------------------
    (
        ("raft/electorate.py", "raft/memberships.py", "raft/changes.py", "membership.py"),
        ("raft/test_electorate.py", "raft/test_memberships.py", "test_membership.py",
         "raft/test_changes.py", "verification/test_change_steps.py", *_FEEDING),
    ),
    (("raft/log.py",), ("raft/test_raft_log.py", *_FEEDING)),
    (
        ("raft/progress.py", "raft/leader.py", "raft/feeder.py", "raft/step_down.py"),
        (*_FEEDING, "raft/test_changes.py"),
    ),
    (
        ("raft/reads.py",),
        ("paper/test_paper_reads.py", "replica/test_engine_reads.py",
         "raft/test_unasked_messages.py", "replica/test_damaged_replica.py", *_BUGS,
         "scenarios/test_scenarios.py"),
    ),
    (
        ("raft/follower.py",),
        ("paper/test_paper_replication.py", "raft/test_bad_messages.py", *_ROLES),
    ),
    (
        ("raft/election.py", "raft/state.py", "raft/core.py", "raft/messages.py", "raft/output.py",
         "raft/patience.py", "raft/transfer.py"),
        ("raft/test_transfer.py", *_ROLES, "raft/test_changes.py",
         "verification/test_change_steps.py"),
    ),
    # -- one replica ---------------------------------------------------------------------------
    (("replica/durability.py",), ("replica/test_durability.py", *_ENGINE)),
    (("replica/state_check.py",), ("replica/test_state_check.py", *_PROPOSALS)),
    (
        ("replica/proposals.py", "replica/entry_drafts.py", "replica/disk_space.py",
         "replica/peer_filter.py"),
        (*_PROPOSALS, *_WEDGES, "state/test_state_age.py", "storage/test_growth.py",
         "replica/test_disk_full.py"),
    ),
    (("replica/expiry.py",), (*_PROPOSALS, "raft/test_last_resort.py", "storage/test_growth.py")),
    (("replica/reader.py", "replica/publish_index.py"), _READING),
    (
        ("replica/engine.py", "replica/applying.py", "replica/engine_io.py", "replica/status.py"),
        ("raft/test_transfer.py", "replica/test_unread_entries.py", *_ENGINE,
         "raft/test_changes.py"),
    ),
    (
        ("replica/request_filter.py",),
        ("replica/test_engine_proposals.py", "replica/test_request_filter.py",
         "replica/test_disk_full.py", "raft/test_last_resort.py", "raft/test_wanted_room.py",
         *_PROPOSALS),
    ),
    (
        ("replica/replica.py", "replica/callbacks.py", "replica/writer.py", "replica/log_writer.py",
         "replica/opening.py", "replica/halting.py", "replica/chores.py", "replica/second_look.py"),
        (*_SHELL, *_READING),
    ),
    # -- the state of a log --------------------------------------------------------------------
    (
        ("state/judge.py", "state/operations.py", "state/producers.py",
         "state/attempts.py", "state/runs.py", "state/staging.py", "state/staged_attempts.py",
         "state/state.py", "state/succession.py", "state/checkpoint.py", "state/untracked.py"),
        _STATE,
    ),
    (("commands.py",), (*_STATE, *_WIRE)),
    # -- disks ---------------------------------------------------------------------------------
    (
        ("storage/recovery/result.py", "storage/stored_entries.py", "storage/checkpoint.py",
         "storage/unread.py"),
        (*_ENGINE, *_OPENING, *_LOG),
    ),
    (
        ("storage/recovery/open.py", "storage/recovery/inventory.py",
         "storage/recovery/headers.py", "storage/segment_scan.py", "storage/scan_result.py",
         "storage/rows.py", "storage/damage.py"),
        (*_LOG, *_OPENING, "raft/test_changes.py"),
    ),
    (
        ("storage/truncate.py", "storage/flusher.py", "storage/spare.py", "storage/seal.py",
         "storage/log.py", "storage/segment.py",
         "storage/vote.py", "storage/disk_errors.py", "storage/buffered.py", "storage/layout.py",
         "storage/index.py", "storage/publishing.py"),
        (*_LOG, *_OPENING, "replica/test_log_writer.py", "storage/test_verify.py"),
    ),
    (
        ("storage/vfs.py",),
        ("storage/test_real_vfs.py", "storage/test_simulated_disk.py", "storage/test_directory.py",
         "storage/test_log_conformance.py"),
    ),
    (
        ("storage/directory.py", "storage/manifest.py", "storage/used.py"),
        ("storage/test_directory.py", "server/test_manifest.py", "replica/test_replica.py"),
    ),
    (
        ("storage/offline/verify_log.py", "storage/offline/compare.py",
         "storage/offline/report.py", "storage/offline/inspect.py",
         "storage/offline/verify_segment.py", "storage/offline/verify_end.py",
         "storage/offline/verify_votes.py", "storage/offline/verify.py",
         "storage/offline/owner.py", "storage/blocks.py"),
        _VERIFY,
    ),
    # -- one node ------------------------------------------------------------------------------
    (
        ("server/logs/catalog.py", "server/logs/table.py", "server/logs/reconciler.py"),
        ("server/test_catalog.py", "server/test_table.py", "server/test_reconciler.py",
         "server/test_node.py"),
    ),
    (
        ("server/logs/catalog_service.py", "server/logs/log_lifecycle.py",
         "server/logs/replicas.py", "server/logs/disk.py"),
        ("server/test_halted_logs.py", "server/test_stopping_node.py",
         "server/test_log_lifecycle.py",
         "server/test_opening_logs.py", "server/test_log_files.py",
         "server/test_foreign_files.py", "server/test_table.py", "server/test_catalog_service.py",
         "server/test_node.py", "server/test_service.py"),
    ),
    (
        ("server/logs/placing.py", "server/logs/attempt.py"),
        ("server/test_placing.py", "server/test_catalog_service.py",
         "client/test_priorities_cluster.py"),
    ),
    (
        ("server/logs/handover.py",),
        ("server/test_handover.py", "server/test_stopping_node.py",
         "client/test_transfer_cluster.py"),
    ),
    (
        ("server/manifest.py",),
        ("server/test_manifest.py", "server/test_foreign_files.py",
         "server/test_catalog_service.py"),
    ),
    (("server/settings.py",), ("server/test_settings.py",)),
    (("server/sessions/arrivals.py",), ("server/test_arrivals.py",)),
    # A signal has no effect without a process.
    (("cli/serve.py",), ("server/test_serve.py",)),
    (("server/http.py",), ("server/test_http.py", "server/test_metrics.py")),
    (("server/loglines.py",), ("server/test_loglines.py",)),
    (("server/identity/refusals.py",), ("server/test_refusals.py", "server/test_members.py")),
    (
        ("server/identity/reachability.py",),
        ("server/test_reachability.py", "server/test_service.py"),
    ),
    (
        ("server/identity/roster.py", "server/identity/advice.py"),
        ("server/test_roster.py", "server/test_members.py", "server/test_node.py"),
    ),
    (
        ("server/identity/members.py", "server/identity/meeting.py"),
        ("server/test_members.py", "server/test_roster.py", "server/test_node.py"),
    ),
    (("server/sessions/peers.py",), ("server/test_peers.py", "server/test_node.py")),
    (
        ("server/sessions/client_limits.py", "server/sessions/fair_share.py",
         "server/sessions/answers.py"),
        ("server/test_client_parts.py", *_NODE),
    ),
    (
        ("server/sessions/batch_checker.py", "server/sessions/calls.py",
         "server/sessions/client_session.py", "server/node.py", "server/disk_failures.py",
         "server/sessions/service.py"),
        (*_NODE, "server/test_stopping_node.py", "server/test_opening_logs.py",
         "server/test_catalog_service.py",
         "server/test_metrics.py"),
    ),
    # -- data on the network -------------------------------------------------------------------
    (("wire/plain.py",), ("wire/test_plain.py", *_WIRE, "server/test_service.py")),
    (
        ("wire/calls.py", "wire/frames.py", "wire/handshake.py", "wire/messages.py",
         "wire/requests.py", "wire/shapes.py", "fields.py"),
        _WIRE,
    ),
    (("net/links.py",), ("net/test_link_calls.py", "net/test_links.py", *_NET)),
    (("net/listener.py",), ("net/test_listener.py", *_NET)),
    (("net/dialling.py",), ("net/test_dial.py", *_NET)),
    (("net/connection.py", "net/open_files.py", "net/loop.py"), _NET),
    # -- clients -------------------------------------------------------------------------------
    (
        ("client/produce/window.py", "client/produce/accumulator.py", "client/produce/sender.py",
         "client/produce/tickets.py", "client/produce/producer.py", "client/produce/settings.py"),
        _PRODUCER,
    ),
    (("client/status.py",), ("client/test_client_status.py",)),
    (
        ("client/staging.py",),
        ("client/test_stager_failures.py", "client/test_client_slow_line.py"),
    ),
    (
        ("client/submission.py", "client/blocking.py", "client/asynchronous.py",
         "client/worker.py", "client/waiting.py"),
        (*_SUBMISSIONS, *_RECORDS, *_CALLS),
    ),
    (
        ("client/read/reading.py", "client/read/prefetch.py", "client/read/ranges.py",
         "client/read/arrow.py"),
        _RECORDS,
    ),
    (
        ("client/administration.py", "client/node_connection.py", "client/pool.py",
         "client/request_numbers.py",
         "client/results.py", "client/retries.py", "client/routing.py", "client/session.py",
         "client/stall.py"),
        (*_CALLS, *_SUBMISSIONS, *_RECORDS),
    ),
    # -- shared files --------------------------------------------------------------------------
    (
        ("batch.py", "batch_columns.py"),
        ("test_single.py", "test_batch.py", "test_batch_fuzz.py", "client/test_batch_arrow.py"),
    ),
    (
        ("config/__init__.py", "config/section.py", "config/replica.py", "config/node.py"),
        ("test_config.py", "server/test_settings.py", *_FEEDING),
    ),
    (("entry.py", "entry_body.py"), ("test_entry.py", "state/test_staging.py", *_LOG)),
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
