"""Scripted adversaries: one for each deep case that random faults hardly ever reach.

Each repeats its play until the run has its events. ``SETTINGS`` holds the options that a play
needs; all others are drawn as for any other seed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from verification.sim.adversaries.departures import (
    early_voter,
    removed_campaigner,
    removed_leader,
    returning_disk,
    unaware_voter,
)
from verification.sim.adversaries.disks import (
    forgetful_voter,
    spoiled_copy,
    spoiled_old_entry,
    torn_catch_up,
)
from verification.sim.adversaries.elections import (
    behind_campaigner,
    crash_loop,
    flapping_link,
    late_vote,
    lost_vote,
    slow_leader,
    torn_open,
    unheard_leader,
)
from verification.sim.adversaries.full import (
    big_entry,
    full_disks,
    late_shortage,
    lone_big_entry,
    replaced_entries,
)
from verification.sim.adversaries.members import (
    disjoint_voters,
    diverging_changes,
    one_half,
    orphaned_joint,
    reverted_change,
)
from verification.sim.adversaries.reads import (
    answer_of_an_earlier_boot,
    late_vouch,
    stale_read,
)
from verification.sim.adversaries.replication import (
    cut_off_follower,
    delayed_control,
    eager_leader,
    figure_8,
    foreign_entry,
    forged_append,
    hung_follower,
    late_ack,
    overwritten_suffix,
    slow_line,
)
from verification.sim.adversaries.rots import (
    marked_tail,
    returned_mark,
    returned_page,
    rotten_replay,
    torn_cut,
    two_new_rots,
    two_old_rots,
)
from verification.sim.adversaries.states import (
    hasty_refusal,
    idle_producers,
    stale_refusal,
    strayed_state,
)
from verification.sim.adversaries.transfers import (
    late_transfer,
    late_transfer_vote,
    lost_transfer,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from verification.sim.script import Script, ScriptStage

__all__ = ["ADVERSARIES", "SETTINGS"]

ADVERSARIES: dict[str, Callable[[ScriptStage], Script]] = {
    script.__name__: script
    for script in (
        figure_8,
        overwritten_suffix,
        delayed_control,
        lost_vote,
        stale_read,
        answer_of_an_earlier_boot,
        flapping_link,
        foreign_entry,
        cut_off_follower,
        hung_follower,
        forged_append,
        behind_campaigner,
        late_vote,
        eager_leader,
        crash_loop,
        torn_open,
        slow_leader,
        unheard_leader,
        late_vouch,
        spoiled_copy,
        forgetful_voter,
        spoiled_old_entry,
        torn_catch_up,
        stale_refusal,
        hasty_refusal,
        idle_producers,
        strayed_state,
        late_ack,
        marked_tail,
        two_old_rots,
        returned_page,
        torn_cut,
        full_disks,
        big_entry,
        lone_big_entry,
        late_shortage,
        slow_line,
        two_new_rots,
        late_transfer,
        late_transfer_vote,
        lost_transfer,
        returned_mark,
        replaced_entries,
        rotten_replay,
        reverted_change,
        diverging_changes,
        one_half,
        orphaned_joint,
        disjoint_voters,
        removed_campaigner,
        removed_leader,
        early_voter,
        returning_disk,
        unaware_voter,
    )
}

QUIET: dict[str, Any] = {"noise": {}}
PLAIN: dict[str, Any] = {**QUIET, "limits": {}}

SETTINGS: dict[str, dict[str, Any]] = {
    "figure_8": {**QUIET, "nodes": 5, "limits": {"append_entries": 1}},
    # Only the play may cancel the hint: few heartbeats, few appends, a short wait.
    "flapping_link": {
        **PLAIN,
        "client_gap_us": 200_000,
        "timing": {"election_ms": 400, "heartbeat_ms": 100, "hint_min_ms": 10, "hint_max_ms": 20},
    },
    # One entry a message: the leader works its way up to the foreign entry from far below it.
    "foreign_entry": {**QUIET, "limits": {"append_entries": 1}},
    "cut_off_follower": {**QUIET, "limits": {"window_messages": 2, "append_entries": 1}},
    "hung_follower": PLAIN,
    "slow_line": PLAIN,
    "forged_append": QUIET,
    "behind_campaigner": PLAIN,
    "late_vote": PLAIN,
    # Small segments, so that some are sealed while a truncation is on its way to the disk.
    "eager_leader": {**QUIET, "segment_bytes": 40 * 1024},
    "answer_of_an_earlier_boot": PLAIN,
    # Slow steps, so that a play sees them pass.
    "torn_open": {"disk_us": 2000},
    "slow_leader": PLAIN,
    # Few appends, so that the node that is cut off lacks none.
    "unheard_leader": {**PLAIN, "nodes": 5, "client_gap_us": 200_000},
    "late_transfer": PLAIN,
    "late_transfer_vote": PLAIN,
    "lost_transfer": PLAIN,
    "late_vouch": {**PLAIN, "gather_us": 0},
    "spoiled_copy": PLAIN,
    # Few appends of others, so that the entries that the victim forgets are in its newest blocks.
    "forgetful_voter": {**PLAIN, "client_gap_us": 100_000},
    # No applied entry stays in memory, segments are soon sealed, and the next is always there in
    # time.
    "spoiled_old_entry": {
        **QUIET,
        "limits": {"log_memory_bytes": 0},
        "uneven": False,
        "segment_bytes": 40 * 1024,
        "disk_us": 50,
        "delay_us": 1000,
    },
    "torn_catch_up": {**PLAIN, "disk_us": 2000},
    # Few appends of others, so that every logged entry is applied when a refusal is due.
    "stale_refusal": {**PLAIN, "client_gap_us": 200_000},
    "hasty_refusal": {**PLAIN, "client_gap_us": 100_000},
    # So few appends that producers stay silent for longer than they may.
    "idle_producers": {**QUIET, "client_gap_us": 200_000},
    "late_ack": QUIET,
    # Slow steps, so that a play sees them pass; few appends of others.
    "marked_tail": {**PLAIN, "client_gap_us": 100_000, "disk_us": 2000},
    # Segments that no round fills: an earlier mark names the newest one, too.
    "returned_mark": {**PLAIN, "segment_bytes": 8 << 20, "client_gap_us": 100_000},
    # The settings of the spoiled old entry: old entries are sealed and covered by a checkpoint.
    "two_old_rots": {
        **QUIET,
        "limits": {"log_memory_bytes": 0},
        "uneven": False,
        "segment_bytes": 40 * 1024,
        "disk_us": 50,
        "delay_us": 1000,
    },
    # No segment is sealed, so that there is no checkpoint.
    "two_new_rots": {**PLAIN, "segment_bytes": 8 << 20, "client_gap_us": 50_000},
    # Slow steps, so that the play sees a segment sealed before the checkpoint is there.
    "rotten_replay": {**PLAIN, "segment_bytes": 64 * 1024, "disk_us": 2000},
    # Several pages are reserved; no other client appends, so that the play has its events.
    "full_disks": {
        **PLAIN,
        "stays_full": True,
        "reserve_bytes": 32 * 1024,
        "segment_bytes": 128 * 1024,
        "client_gap_us": 10**9,
    },
    "big_entry": {
        **QUIET,
        "stays_full": True,
        "limits": {"batch_bytes": 20 * 1024},
        "uneven": False,
        "reserve_bytes": 15 * 1024,
        "segment_bytes": 256 * 1024,
        # No other client appends: the play measures the room.
        "client_gap_us": 10**9,
    },
    "lone_big_entry": {
        **QUIET,
        "stays_full": True,
        "limits": {"batch_bytes": 36 * 1024, "append_bytes": 1024},
        "uneven": False,
        "reserve_bytes": 11 * 1024,
        # Requests that were sent together are taken in one turn.
        "gather_us": 500,
        "segment_bytes": 256 * 1024,
        "client_gap_us": 10**9,
    },
    "late_shortage": {
        **QUIET,
        "stays_full": True,
        "limits": {"batch_bytes": 36 * 1024},
        "uneven": False,
        "reserve_bytes": 11 * 1024,
        "segment_bytes": 256 * 1024,
        "client_gap_us": 10**9,
    },
    # Nothing is reserved for the first entry of a leader.
    "replaced_entries": {
        **PLAIN,
        "stays_full": True,
        "reserve_bytes": 0,
        "uneven": False,
        "segment_bytes": 256 * 1024,
        "client_gap_us": 10**9,
    },
    # Batches that come together are one block of several entries, and each entry is sent by itself.
    "returned_page": {
        **QUIET,
        "limits": {"append_entries": 1, "entry_bytes": 1},
        "uneven": False,
        "gather_us": 500,
        "client_gap_us": 100_000,
    },
    # The settings of the page that returns; slow steps, so that the play sees the cut.
    "torn_cut": {
        **QUIET,
        "limits": {"append_entries": 1, "entry_bytes": 1},
        "uneven": False,
        "gather_us": 500,
        "client_gap_us": 100_000,
        "disk_us": 2000,
        "torn_pages": True,
    },
    "reverted_change": PLAIN,
    "diverging_changes": PLAIN,
    "one_half": PLAIN,
    "orphaned_joint": QUIET,
    "disjoint_voters": PLAIN,
    "removed_campaigner": PLAIN,
    "removed_leader": QUIET,
    "early_voter": PLAIN,
    "returning_disk": PLAIN,
    "unaware_voter": PLAIN,
    # Few others, so that the play has the events for a comparison.
    "strayed_state": {**PLAIN, "client_gap_us": 20_000},
}
