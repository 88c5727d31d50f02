"""Histories for the checker's own tests, and a judge that searches instead of thinking."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from verification.checker.history import AT_END, END_ONLY, LINEARIZABLE, NEVER, FinalLog, History
from verification.checker.judge import check
from verification.checker.model import MemoryRecorder, Model

if TYPE_CHECKING:
    from random import Random

    from verification.checker.verdict import Verdict

LOG = "orders"
VOTERS = 3

# Damage that leaves values and offsets alone: only the order in time can tell.
TIMES = ["start", "end", "shift"]


@dataclass(slots=True)
class Run:
    """The history of one log and what its replicas hold."""

    history: History = field(default_factory=History)
    finals: list[FinalLog] = field(default_factory=list)

    @property
    def log(self) -> list[int]:
        return list(self.finals[0].values)

    def judge(self) -> Verdict:
        return check({LOG: self.history}, {LOG: self.finals}, VOTERS)

    def add_everywhere(self, identity: int) -> None:
        for final in self.finals:
            final.values.append(identity)

    def swap_everywhere(self, one: int, other: int) -> None:
        for final in self.finals:
            values = final.values
            values[one], values[other] = values[other], values[one]


def valid_run(seed: int | str, operations: int = 300, trimmed: int = 0) -> Run:
    """A run without a violation."""
    histories: dict[str, History] = {}
    model = Model(seed, operations, lambda *args: MemoryRecorder(histories, *args))
    model.run()
    return Run(histories[LOG], model.finals(trimmed)[LOG])


# -- the search ----------------------------------------------------------------------------------


class SmallAppend(NamedTuple):
    start: int
    end: int  # NEVER: unknown
    values: tuple[int, ...]
    offset: int  # -1: not told
    failed: bool = False


class SmallRead(NamedTuple):
    start: int
    end: int
    first: int
    seen: tuple[int, ...]
    way: int


class Small(NamedTuple):
    """A history that is small enough to try every order. A value that is sent twice is a retry."""

    appends: list[SmallAppend]
    reads: list[SmallRead]
    final: tuple[int, ...]


def small_run(small: Small) -> Run:
    """The same for the checker. Each operation has a session of its own."""
    run = Run(finals=[FinalLog("n1", 0, array("Q", small.final))])
    sent = [append.values for append in small.appends]
    for session, append in enumerate(small.appends):
        producer = f"p{append.values[0]}" if sent.count(append.values) > 1 else ""
        row = run.history.begin(
            0, append.start, append.values[0], len(append.values),
            session=session, producer=producer,
        )  # fmt: skip
        if append.failed:
            run.history.failed(row, append.end, "BUSY")
        elif append.end != NEVER:
            run.history.acked(row, append.end, append.offset, len(append.values), VOTERS)
    for session, read in enumerate(small.reads, len(sent)):
        run.history.read(0, *read, session=session)
    return run


def explained(small: Small) -> bool:
    """Whether some order of the operations explains what was seen: by trying them all."""
    reads = [
        read
        if read.way & LINEARIZABLE
        else read._replace(start=-NEVER)  # any earlier state will do
        for read in small.reads
    ]
    appends = [append for append in small.appends if not append.failed]
    return _search((), [*appends, *reads], small.final)


def _search(
    log: tuple[int, ...], left: list[SmallAppend | SmallRead], final: tuple[int, ...]
) -> bool:
    if log == final and all(operation.end == NEVER for operation in left):
        return True
    first_end = min(operation.end for operation in left) if left else 0
    for place, operation in enumerate(left):
        if operation.start <= first_end and (after := _happen(operation, log)) is not None:
            rest = left[:place] + left[place + 1 :]
            if after == final[: len(after)] and _search(after, rest, final):
                return True
    return False


def _happen(operation: SmallAppend | SmallRead, log: tuple[int, ...]) -> tuple[int, ...] | None:
    """The log after the operation; None if it cannot have happened to ``log``."""
    if isinstance(operation, SmallRead):
        return log if _shows(operation, log) else None
    known = operation.values[0] in log
    offset = log.index(operation.values[0]) if known else len(log)
    if operation.offset not in (-1, offset):
        return None
    return log if known else log + operation.values


def _shows(read: SmallRead, log: tuple[int, ...]) -> bool:
    if read.way & END_ONLY:
        return len(log) == read.first
    stop = None if read.way & AT_END else read.first + len(read.seen)
    return log[read.first : stop] == read.seen


def draw_small(random: Random) -> Small:
    """A history that some order explains, damaged in two of three cases."""
    appends, points = [], {}
    for number in range(random.randint(1, 4)):
        point = 10 * random.randint(1, 6) + number
        values = tuple(range(10 * number, 10 * number + random.choice((1, 1, 2, 3))))
        start, end = point - random.randrange(25), point + random.randrange(25)
        points[point] = values
        appends.append(SmallAppend(start, end, values, -1))
    order = sorted(points)
    final = tuple(value for point in order for value in points[point])
    lengths = {point: final.index(points[point][-1]) + 1 for point in order}
    appends = [_told(random, append, final) for append in appends]
    if random.random() < 0.3:
        appends.append(_retry(random, random.choice(appends), final))
    reads = [_draw_read(random, final, lengths) for _ in range(random.randint(0, 4))]
    small = Small(appends, reads, final)
    for _ in range(random.choice((0, 1, 2))):
        small = _damage(random, small)
    return small


def _told(random: Random, append: SmallAppend, final: tuple[int, ...]) -> SmallAppend:
    if random.random() < 0.2:
        return append._replace(end=NEVER)
    return append._replace(offset=final.index(append.values[0]))


def _retry(random: Random, append: SmallAppend, final: tuple[int, ...]) -> SmallAppend:
    """A second send of the same: after the first, or at the same time, or in vain."""
    start = append.start + random.randrange(40)
    retry = SmallAppend(start, start + random.randrange(40), append.values, -1)
    if random.random() < 0.2:
        return retry._replace(failed=True)
    return _told(random, retry, final) if random.random() < 0.7 else retry


def _draw_read(random: Random, final: tuple[int, ...], lengths: dict[int, int]) -> SmallRead:
    point = random.randrange(80)
    length = max((length for at, length in lengths.items() if at <= point), default=0)
    start, end = point - random.randrange(15), point + random.randrange(15)
    way = random.choice((LINEARIZABLE, LINEARIZABLE, 0))
    if random.random() < 0.3:
        return SmallRead(start, end, length, (), way | AT_END | END_ONLY)
    first = random.randint(0, length + (random.random() < 0.2))
    stop = random.randint(min(first, length), length)
    if stop == length or first >= length:
        way |= random.choice((AT_END, AT_END, 0))
    return SmallRead(start, end, first, final[first:stop], way)


def _damage(random: Random, small: Small) -> Small:
    appends, reads, final = list(small.appends), list(small.reads), list(small.final)
    row = random.randrange(len(appends))
    append = appends[row]
    what = random.choice(random.choice((TIMES, ["fate", "swap", "drop", "look"])))
    if what == "start":
        appends[row] = append._replace(start=min(append.end, append.start + random.randrange(30)))
    elif what == "end" and append.end != NEVER:
        appends[row] = append._replace(end=max(append.start, append.end - random.randrange(30)))
    elif what == "fate":
        appends[row] = append._replace(end=append.start + 5, failed=random.random() < 0.5)
    elif what == "swap" and final:
        one, other = random.randrange(len(final)), random.randrange(len(final))
        final[one], final[other] = final[other], final[one]
    elif what == "drop" and final:
        final.pop(random.choice((0, -1)))
    elif what == "shift" and reads:
        read, shift = random.choice(reads), random.randint(-40, 40)
        reads[reads.index(read)] = read._replace(start=read.start + shift, end=read.end + shift)
    elif what == "look" and reads:
        read = random.choice(reads)
        reads[reads.index(read)] = read._replace(first=max(0, read.first + random.choice((-1, 1))))
    return Small(appends, reads, tuple(final))
