"""The options of one seed: cluster size, limits, fault classes and their rates.

Swarm testing: each seed leaves most fault classes out. A run with every fault at once spends its
time recovering; a run with two of them goes deep.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any

from quorate.config import KIB, Config, Limits, Storage, Timing

__all__ = [
    "BATCH_BYTES_MAX",
    "FAULTS",
    "MEMBER_FAULTS",
    "NOISES",
    "SWITCHES",
    "UNEVEN_BATCHES",
    "Options",
    "swarm",
]

# Changes of the members, and a disk that is lost as a whole.
MEMBER_FAULTS = ("join", "remove", "replace", "wipe")

# The faults that hit nodes and links from time to time.
FAULTS = (
    "kill", "power", "power_all", "pause", "isolate", "split", "one_way", "bridge", "flap",
    "slow_disk", "disk_error", "clock_rate", "clock_jump", "rot",
    "full_disk", "stop", "rot_old", "rot_tail", "transfer", *MEMBER_FAULTS,
)  # fmt: skip

# Options that are on in some seeds.
SWITCHES = ("uneven_sizes", "torn_pages")

# The mishaps of single messages: the chance of each, if it is on.
NOISES = ("loss", "duplicate", "reorder", "late", "stray")

BATCH_BYTES_MAX = 100
# Larger than the reserve.
LARGE_BYTES = 3000
RESERVE_BYTES = 1024
# An entry leaves room in its segment for another one: no append is refused while the next spare is
# made.
LEAST_BYTES = 40 * KIB

# Limits that only a leader applies, or only the node itself: the state that is applied must not
# depend on them.
UNEVEN = (
    {"producers": 2, "staged_chunks": 6},
    {"producers": 1, "log_memory_bytes": 0, "apps": 1},
    {"log_memory_bytes": 2000, "staged_bytes": 2000},
)

# Sizes that differ between nodes, as while the settings of a cluster are changed: an entry that one
# node has logged, every other node must be able to take.
UNEVEN_SIZES = (
    {"batch_bytes": 3000, "entry_bytes": 3000, "append_bytes": 3000},
    {"batch_bytes": 100, "entry_bytes": 1, "append_bytes": 1},
    {"batch_bytes": 500, "entry_bytes": 600, "append_bytes": 200},
)
UNEVEN_SEGMENTS = (256 * KIB, 64 * KIB, 128 * KIB)
# Bytes of batches in such a run: the first node alone takes the largest.
UNEVEN_BATCHES = (10, 400, 3000)


@dataclass(frozen=True, slots=True)
class Options:
    """The description of a run, without its choices."""

    seed: int
    nodes: int
    incarnation: int
    events: int
    faults: tuple[str, ...]
    # Mean time between two faults, in microseconds.
    fault_gap_us: int
    noise: dict[str, float]
    # The usual delay of a message, in microseconds; each message takes up to twice as long.
    delay_us: int
    # The usual time of one disk step, in microseconds.
    disk_us: int
    # The time for which a node gathers inputs before a turn, in microseconds; 0: a turn for each
    # input.
    gather_us: int
    # Mean time between two client operations, in microseconds, and the share of reads among them.
    client_gap_us: int
    reads: float
    batch_bytes: int
    # The size of a segment, small, so that logs roll and seal.
    segment_bytes: int
    timing: dict[str, int] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    adversary: str | None = None
    # Every message becomes bytes and a message again, as between real nodes.
    wire: bool = False
    # Chores stop for a flush that waits, as those of the real writer do.
    parks: bool = False
    # Nodes differ in limits that no other node may notice.
    uneven: bool = False
    # Nodes differ in the sizes that they take from clients, log at once and send.
    uneven_sizes: bool = False
    # Any number of disks may rot. Then no group can promise to go on, only to lose no entry
    # unnoticed.
    over_budget: bool = False
    # Bytes of a full disk that are reserved for messages without which a group cannot go on.
    reserve_bytes: int = RESERVE_BYTES
    # The disks that are full stay so, even in the end.
    stays_full: bool = False
    # A write that a power cut tears within a page may leave random bytes in all of the page.
    torn_pages: bool = False

    @property
    def least_bytes(self) -> int:
        """The size of the smallest segment: so small that a log has segments of several sizes."""
        least = max(LEAST_BYTES + self.reserve_bytes - RESERVE_BYTES, self.segment_bytes // 4)
        return min(least, self.segment_bytes)

    def config(self) -> Config:
        """The config that all nodes have in common."""
        storage = Storage(segment_bytes=self.segment_bytes, reserve_bytes=self.reserve_bytes)
        largest = max(BATCH_BYTES_MAX, self.batch_bytes)
        limits = Limits(**{"batch_bytes": largest, **self.limits})
        return Config(Timing(**self.timing), limits, storage)

    def config_of(self, number: int) -> Config:
        """The config of the node with this number."""
        config = self.config()
        own: dict[str, int] = {}
        if self.uneven:
            own |= UNEVEN[number % len(UNEVEN)]
        if self.uneven_sizes:
            place = number % len(UNEVEN_SIZES)
            own |= UNEVEN_SIZES[place]
            storage = replace(config.storage, segment_bytes=UNEVEN_SEGMENTS[place])
            for name in ("pending_bytes", "uncommitted_bytes"):
                own[name] = max(getattr(config.limits, name), own["batch_bytes"])
            config = replace(config, storage=storage)
        return replace(config, limits=replace(config.limits, **own))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(values: dict[str, Any]) -> Options:
        return Options(**{**values, "faults": tuple(values["faults"])})


def swarm(seed: int, events: int, turned_on: frozenset[str] = frozenset()) -> Options:
    """Draw the options of ``seed``: random faults only, and those of ``turned_on`` among them."""
    random = Random(f"options/{seed}")
    election = random.choice((100, 200, 400))
    later = ("transfer", *MEMBER_FAULTS)
    drawn = {fault for fault in FAULTS if fault not in later and random.random() < 0.3}
    # Drawn apart, so that the other options of a seed stay as they were.
    if Random(f"transfer/{seed}").random() < 0.3:
        drawn.add("transfer")
    drawn |= _member_faults(seed)
    faults = tuple(fault for fault in FAULTS if fault in drawn | turned_on)
    torn_pages = random.random() < 0.3 or "torn_pages" in turned_on
    uneven_sizes = random.random() < 0.1 or "uneven_sizes" in turned_on
    batch_bytes = random.choice((10, 10, 10, BATCH_BYTES_MAX, BATCH_BYTES_MAX, LARGE_BYTES))
    if uneven_sizes:
        batch_bytes = min(batch_bytes, BATCH_BYTES_MAX)  # the size that every node takes
    noise = {
        "loss": random.choice((0.01, 0.05, 0.2)),
        "duplicate": random.choice((0.01, 0.1)),
        "reorder": random.choice((0.05, 0.3)),
        "late": random.choice((0.002, 0.01)),
        "stray": 0.01,
    }
    return Options(
        seed=seed,
        nodes=random.choice((1, 2, 3, 3, 3, 3, 3, 4, 5, 5, 5, 6, 7)),
        incarnation=random.randrange(100),
        events=events,
        faults=faults,
        fault_gap_us=random.choice((1, 2, 5)) * election * 1000,
        noise={name: chance for name, chance in noise.items() if random.random() < 0.4},
        # The longest round trips outlast a resend: answers must count all the same.
        delay_us=random.choice((100, 500, 2000, election * 1000 // 16)),
        disk_us=random.choice((50, 200, 2000)),
        gather_us=random.choice((0, 0, 200)),
        client_gap_us=random.choice((500, 2000, 10_000)),
        reads=random.choice((0.1, 0.4)),
        batch_bytes=batch_bytes,
        segment_bytes=random.choice((64, 128, 256)) * 1024,
        timing={**_timing(random, election), **_expiries(seed)},
        limits={**_limits(random, batch_bytes), **_caps(seed), **_slices(seed)},
        wire=random.random() < 0.1 or uneven_sizes,
        parks=random.random() < 0.5,
        uneven=random.random() < 0.3,
        uneven_sizes=uneven_sizes,
        torn_pages=torn_pages,
    )


def _member_faults(seed: int) -> set[str]:
    """Changes of the members: in three seeds of ten, and then most of them. A lost disk is soon
    replaced."""
    random = Random(f"members/{seed}")
    if random.random() >= 0.3:
        return set()
    drawn = {fault for fault in MEMBER_FAULTS if random.random() < 0.6}
    return drawn | {"replace"} if "wipe" in drawn else drawn


def _timing(random: Random, election: int) -> dict[str, int]:
    return {
        "election_ms": election,
        "heartbeat_ms": election // random.choice((4, 10)),
        "resend_ms": random.choice((30, 100, 300)),
        "read_ms": 2 * election,
        "hint_min_ms": 10,
        "hint_max_ms": random.choice((20, 150)),
        "watchdog_ms": 2000,
    }


def _limits(random: Random, batch_bytes: int) -> dict[str, int]:
    """Small limits reach the corners; most seeds leave each of them alone. None is so small that
    every batch is refused."""
    tiny = {
        "entry_bytes": random.choice((1, 200)),
        "pending_appends": random.choice((1, 4, 20)),
        "pending_bytes": random.choice((100, 1000)),
        "uncommitted_bytes": random.choice((500, 2000)),
        "append_entries": random.choice((1, 3)),
        "append_bytes": random.choice((1, 300)),
        "window_messages": random.choice((1, 2, 5)),
        "window_bytes": random.choice((1, 500)),
        "catchup_lag_entries": random.choice((1, 5)),
        "catchup_bytes_per_s": random.choice((5_000, 50_000)),
        "held_messages": 16,
        "pending_reads": random.choice((1, 10)),
        "log_memory_bytes": random.choice((0, 500, 3000)),
    }
    drawn = {name: value for name, value in tiny.items() if random.random() < 0.3}
    largest = max(BATCH_BYTES_MAX, batch_bytes)
    for name in ("pending_bytes", "uncommitted_bytes"):
        if name in drawn:
            drawn[name] = max(drawn[name], largest)
    return {"batch_bytes": largest, **drawn}


def _expiries(seed: int) -> dict[str, int]:
    """The times after which idle state is forgotten: in most seeds as short as allowed, because few
    runs last for long."""
    random = Random(f"expiries/{seed}")
    return {
        "staged_expiry_ms": random.choice((1000, 1000, 60_000)),
        "app_expiry_ms": random.choice((3000, 60_000)),
        "once_expiry_ms": random.choice((1000, 3000)),
        "staged_idle_ms": random.choice((1000, 3000)),
    }


def _caps(seed: int) -> dict[str, int]:
    """The limits of staged chunks; most seeds leave each of them alone."""
    random = Random(f"caps/{seed}")
    tiny = {
        "staged_bytes": random.choice((700, 3000)),
        "staged_chunks": random.choice((3, 10)),
        "apps": 1,
    }
    return {name: value for name, value in tiny.items() if random.random() < 0.2}


def _slices(seed: int) -> dict[str, int]:
    """The number of entries that a turn applies; most seeds leave that alone."""
    random = Random(f"slices/{seed}")
    return {"apply_entries": random.choice((1, 2, 5))} if random.random() < 0.4 else {}
