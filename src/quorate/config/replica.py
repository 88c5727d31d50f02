"""The limits and timeouts of a replica, with the parents' defaults beside ours.

The consensus core counts ticks: :meth:`Timing.ticks` turns milliseconds into them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from quorate.config.section import KIB, MIB, Section, bounded
from quorate.errors import InvalidArgument

__all__ = ["Config", "Limits", "Storage", "Timing"]

_TEN_YEARS_MS = 10 * 365 * 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class Timing(Section):
    """Intervals and timeouts, in milliseconds."""

    section: ClassVar[str] = "timing"

    # The unit of the core's clock. DLedger: 10 ms state-maintainer loop. JRaft: wheel timers.
    tick_ms: int = bounded(10, 1, 1000)
    # DLedger: 2000. JRaft: election timeout / 10 = 100.
    heartbeat_ms: int = bounded(100, 1, 60_000)
    # A follower campaigns after one to two of these. DLedger: 3 x 2000 + 300..1000 between votes.
    # JRaft: 1000 + random(1000).
    election_ms: int = bounded(1000, 10, 600_000)
    # If the oldest unacked append is older than this, compare again and resend the entries that the
    # peer lacks. DLedger: 1000. JRaft: RPC time-out 5000, then one heartbeat interval of blocking.
    resend_ms: int = bounded(300, 1, 60_000)
    # The leader's link closed and a reconnect was refused: stickiness ends after a random time
    # between these two. Neither parent has it: both wait for the election timeout.
    hint_min_ms: int = bounded(30, 1, 60_000)
    hint_max_ms: int = bounded(150, 1, 60_000)
    # A peer answers heartbeats and lacks entries, yet its match stands still: report and start
    # over. Neither parent has it (JRaft #1271: 25 minutes of silent standstill).
    watchdog_ms: int = bounded(5000, 10, 600_000)
    # A linearizable read that no leader confirmed in this time is refused. JRaft: 2000.
    read_ms: int = bounded(2000, 10, 600_000)
    # A node that stops tries for this long to give its leaderships to other nodes; 0: not at all.
    handover_ms: int = bounded(2000, 0, 600_000)
    # A leader gives way to a voter with a higher priority that has kept up for this long, and whose
    # node has been up for six times as long. DLedger: a preferred leader takes over at once.
    settle_ms: int = bounded(10_000, 10, 600_000)
    # Staged data is dropped after this time without additions: a day.
    staged_expiry_ms: int = bounded(24 * 3_600_000, 1000, _TEN_YEARS_MS)
    # At the cap, staged data without additions for this time makes room for other data: an hour.
    staged_idle_ms: int = bounded(3_600_000, 1000, _TEN_YEARS_MS)
    # An app without a publish for this time is forgotten, and could publish its last batch a second
    # time: 90 days.
    app_expiry_ms: int = bounded(90 * 24 * 3_600_000, 1000, _TEN_YEARS_MS)
    # The same for an app that published once and for all, and only repeats that publish: an hour.
    once_expiry_ms: int = bounded(3_600_000, 1000, _TEN_YEARS_MS)

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        if self.heartbeat_ms * 2 > self.election_ms:
            raise InvalidArgument(
                f"timing.heartbeat_ms = {self.heartbeat_ms} must be at most half of "
                f"timing.election_ms = {self.election_ms}"
            )
        if self.hint_min_ms > self.hint_max_ms:
            raise InvalidArgument(
                f"timing.hint_min_ms = {self.hint_min_ms} must be at most "
                f"timing.hint_max_ms = {self.hint_max_ms}"
            )

    def ticks(self, milliseconds: int) -> int:
        """The number of ticks that make up ``milliseconds``: at least one."""
        return max(1, -(-milliseconds // self.tick_ms))


@dataclass(frozen=True, slots=True)
class Limits(Section):
    """Bounds of requests, queues and memory, and the answer at each bound."""

    section: ClassVar[str] = "limits"

    # Bytes of one proposed batch; more is TOO_LARGE. Few enough that an answer with it leaves room
    # for others on a connection. DLedger: 4 MiB encode buffer, unchecked.
    batch_bytes: int = bounded(8 * MIB, 1, 64 * MIB)
    # A turn's batches share one entry up to this size. DLedger: one body an entry. JRaft: the same.
    entry_bytes: int = bounded(1 * MIB, 1, 64 * MIB)
    # Appends without an answer; more is BUSY. DLedger: 10,000. JRaft: ring of 16,384.
    pending_appends: int = bounded(16_384, 1, 10_000_000)
    # Bytes of appends without an answer; more is BUSY. Neither parent bounds them by default.
    pending_bytes: int = bounded(64 * MIB, 1, 64 * 1024 * MIB)
    # Bytes in the leader's log above committed; more is BUSY, so that a leader cut off from its
    # majority stops growing. JRaft: maxLogsInMemoryBytes, off. DLedger: none.
    uncommitted_bytes: int = bounded(256 * MIB, 1, 64 * 1024 * MIB)
    # Entries and bytes of one append message. JRaft: 1024 entries, 512 KiB. DLedger: 4 KiB.
    append_entries: int = bounded(1024, 1, 1_000_000)
    append_bytes: int = bounded(1 * MIB, 1, 64 * MIB)
    # Unacked append messages and bytes per peer. DLedger: 1000 requests. JRaft: 256 messages.
    window_messages: int = bounded(256, 1, 100_000)
    window_bytes: int = bounded(16 * MIB, 1, 1024 * MIB)
    # A peer this many entries behind is catching up and gets at most this many bytes a second.
    # DLedger: 1000 entries, 20 MiB/s. JRaft: a throttle for snapshots only.
    catchup_lag_entries: int = bounded(10_000, 1, 1_000_000_000)
    catchup_bytes_per_s: int = bounded(64 * MIB, 1, 64 * 1024 * MIB)
    # Messages that wait for a flush; the oldest beyond this is dropped as a network would.
    held_messages: int = bounded(4096, 16, 1_000_000)
    # Bytes of newest entries that stay in memory, for peers that are a little behind; older entries
    # are read from disk. JRaft: a ring of entries, flushed and applied ones dropped.
    log_memory_bytes: int = bounded(32 * MIB, 0, 64 * 1024 * MIB)
    # Producers that a log remembers at once; more is TOO_MANY_PRODUCERS. Neither parent has any.
    producers: int = bounded(10_000, 1, 1_000_000)
    # Frames of chunks that are staged and not published, their bytes and their number; more is
    # STAGE_FULL. One entry can publish or drop all of them. Neither parent stages chunks.
    staged_bytes: int = bounded(4096 * MIB, 1, 1024 * 1024 * MIB)
    staged_chunks: int = bounded(65_536, 1, 65_536)
    # Apps whose last publish a log remembers, those that only stage included; one more is
    # STAGE_FULL.
    apps: int = bounded(10_000, 1, 1_000_000)
    # Entries that a turn applies, with the producers and attempts that they change; the others wait
    # for the next turn. JRaft: batches of 32 tasks, in a thread of its own.
    apply_entries: int = bounded(4096, 1, 10_000_000)
    # Linearizable reads without an answer; more is BUSY. JRaft: ring of 16,384.
    pending_reads: int = bounded(16_384, 1, 10_000_000)

    def __post_init__(self) -> None:
        Section.__post_init__(self)
        for name in ("pending_bytes", "uncommitted_bytes"):
            if getattr(self, name) < self.batch_bytes:
                raise InvalidArgument(
                    f"limits.{name} = {getattr(self, name)} must be at least limits.batch_bytes "
                    f"= {self.batch_bytes}: a batch of that size would be BUSY for ever"
                )


@dataclass(frozen=True, slots=True)
class Storage(Section):
    """The disk space that a log may take."""

    section: ClassVar[str] = "storage"

    # Bytes of one segment. DLedger: 1 GiB. JRaft: RocksDB decides.
    segment_bytes: int = bounded(64 * MIB, 32 * KIB, 4096 * MIB)
    # Percent of the file system that may be in use before no more is allocated: appends are then
    # DISK_FULL and reads go on. DLedger: 85, then it deletes. JRaft: none.
    disk_usage_max: int = bounded(95, 1, 100)
    # Allocated bytes that no append gets: they are for entries that keep a group going, such as the
    # first entry of a new leader. Neither parent has it.
    reserve_bytes: int = bounded(64 * KIB, 0, 1024 * MIB)


@dataclass(frozen=True, slots=True)
class Config:
    """All settings of a replica."""

    timing: Timing = Timing()
    limits: Limits = Limits()
    storage: Storage = Storage()

    def __post_init__(self) -> None:
        largest = self.limits.batch_bytes + self.storage.reserve_bytes
        if 2 * largest > self.storage.segment_bytes:
            raise InvalidArgument(
                f"storage.segment_bytes = {self.storage.segment_bytes} must be at least twice "
                f"limits.batch_bytes + storage.reserve_bytes = {largest}: a batch of that size "
                f"would find no room"
            )

    @property
    def least_segment_bytes(self) -> int:
        """The size of the first segments of a log. Any entry within the limits finds room in one,
        with its overhead: the reserve, names, rows of dropped chunks, pages that stay unused."""
        largest = max(self.limits.batch_bytes, MIB) + self.storage.reserve_bytes + MIB
        return min(largest, self.storage.segment_bytes)
