"""Every disk that a crash can leave of a plan, after the way of ALICE.

A plan is run step by step. At every boundary the process may be killed, the next call may fail, or
the power may fail: then each change that was not synced is kept, lost or torn, and a write of
several pages is torn page by page. The same disk is not shown twice.
"""

from __future__ import annotations

import errno
from hashlib import blake2b
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from quorate.storage.layout import PAGE
from verification.disk.inode import KEPT, LOST, TORN, FileWrite

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from verification.disk.inode import Fate, Resize
    from verification.disk.simulated import SimulatedDisk

__all__ = ["FAILED", "KILLED", "MASKS", "POWER_CUT", "Crash", "crash_states", "power_cut"]

Result = TypeVar("Result")

# The grains of a torn page that arrived: every other one, the others, the front, all but the first.
MASKS: tuple[Fate, ...] = (TORN, TORN << 1, 0x00FF, 0xFFFE)

# Up to so many combinations of fates all of them are tried.
PRODUCT_MAX = 1_500

KILLED = "killed"
FAILED = "failed"
POWER_CUT = "power cut"


class Crash(NamedTuple, Generic[Result]):
    """The state after one crash."""

    disk: SimulatedDisk
    # KILLED, FAILED or POWER_CUT.
    how: str
    # The last step that was carried out; empty before the first.
    step: str
    # The fate of each change in a power cut, in the disk's order.
    fates: tuple[Fate, ...] = ()
    # Whether the plan had come to its end: the node may have answered then.
    ended: bool = False
    # The result of the plan, if it had ended.
    result: Result | None = None

    def __str__(self) -> str:
        when = f"after {self.step!r}" if self.step else "before the first step"
        met = ", ".join("kept" if fate == KEPT else f"{fate:04x}" for fate in self.fates)
        return f"{self.how} {when}{' and the end' * self.ended}{f' [{met}]' * bool(met)}"


def power_cut(disk: SimulatedDisk, fates: Iterable[Fate] = ()) -> None:
    """Cut the power: ``fates`` for the changes in the disk's order; all after them are lost.

    A write of several pages is as many changes.
    """
    _split(disk)
    drawn = iter(fates)
    disk.power_cut(lambda: next(drawn, LOST))


def crash_states(
    disk: SimulatedDisk,
    make_plan: Callable[[SimulatedDisk], Generator[str, None, Result]],
    masks: tuple[Fate, ...] = MASKS,
) -> Iterator[Crash[Result]]:
    """Yield every crash of the plan over ``disk``, which stays as it is."""
    seen: set[tuple[bool, bytes]] = set()
    for crash in _all_crashes(disk, make_plan, masks):
        known = (crash.ended, _digest(crash.disk))
        if known not in seen:
            seen.add(known)
            yield crash


def _all_crashes(
    disk: SimulatedDisk,
    make_plan: Callable[[SimulatedDisk], Generator[str, None, Result]],
    masks: tuple[Fate, ...],
) -> Iterator[Crash[Result]]:
    live = disk.copy()
    plan = make_plan(live)
    step, steps, ended = "", 0, False
    result: Result | None = None
    while True:
        yield Crash(live.copy(), KILLED, step, (), ended, result)
        for fates, broken in _power_cuts(live, masks):
            yield Crash(broken, POWER_CUT, step, fates, ended, result)
        if ended:
            return
        failed = _failed(disk.copy(), make_plan, steps)
        if failed is not None:
            yield Crash(failed, FAILED, step)
        try:
            step = next(plan)
            steps += 1
        except StopIteration as end:
            ended, result = True, end.value


def _failed(
    disk: SimulatedDisk,
    make_plan: Callable[[SimulatedDisk], Generator[str, None, Result]],
    steps: int,
) -> SimulatedDisk | None:
    """``disk`` with the call after ``steps`` failed: the process stops, its pages look clean."""
    plan = make_plan(disk)
    for _ in range(steps):
        next(plan)
    disk.error = errno.EIO
    try:
        next(plan, None)
    except OSError:
        return disk
    return None  # there was no call


# -- power cuts --------------------------------------------------------------------------------


def _power_cuts(
    disk: SimulatedDisk, masks: tuple[Fate, ...]
) -> Iterator[tuple[tuple[Fate, ...], SimulatedDisk]]:
    """All combinations of fates if there are few; else those in which the fate of one change
    differs from the fate of all others."""
    split = disk.copy()
    _split(split)
    in_files = sum(len(inode.pending) for inode in split.files.values())
    in_directory = split.unsynced - in_files
    fates = (KEPT, LOST, *masks)
    if 2**in_directory * len(fates) ** in_files <= PRODUCT_MAX:
        yield from _product(split, fates, in_directory)
        return
    chosen = [[KEPT] * split.unsynced, [LOST] * split.unsynced]
    for place in range(split.unsynced):
        # An operation of the directory has no grains: it is kept or lost.
        alone = (KEPT, LOST) if place < in_directory else fates
        for others in (KEPT, LOST):
            for fate in alone:
                chosen.append([others] * split.unsynced)
                chosen[-1][place] = fate
    for drawn in chosen:
        broken = split.copy()
        power_cut(broken, drawn)
        yield tuple(drawn), broken


def _product(
    disk: SimulatedDisk, fates: tuple[Fate, ...], in_directory: int
) -> Iterator[tuple[tuple[Fate, ...], SimulatedDisk]]:
    """Count through the fates like an odometer.

    The number of fates that the disk asks for depends on the earlier ones: a file without a name
    needs none.
    """
    wheels: list[int] = []
    sizes: list[int] = []
    while True:
        asked = 0

        def fate() -> Fate:
            nonlocal asked
            if asked == len(wheels):
                wheels.append(0)
                sizes.append(2 if asked < in_directory else len(fates))
            asked += 1
            return fates[wheels[asked - 1]]

        broken = disk.copy()
        broken.power_cut(fate)
        yield tuple(fates[wheel] for wheel in wheels), broken
        while wheels and wheels[-1] == sizes[-1] - 1:
            wheels.pop()
            sizes.pop()
        if not wheels:
            return
        wheels[-1] += 1


def _split(disk: SimulatedDisk) -> None:
    """Split each write into its pages, so that every page meets a fate of its own."""
    for inode in disk.files.values():
        inode.pending = [piece for change in inode.pending for piece in _pages(change)]


def _pages(change: FileWrite | Resize) -> Iterator[FileWrite | Resize]:
    if not isinstance(change, FileWrite):
        yield change
        return
    position, data = change
    start = 0
    while start < len(data):
        stop = start + PAGE - (position + start) % PAGE
        yield FileWrite(position + start, data[start:stop])
        start = stop


def _digest(disk: SimulatedDisk) -> bytes:
    """Equal for disks with the same readable content, the same durable content and equally many
    changes in between."""
    proof = blake2b(f"{disk.unsynced} {disk.unsynced_in(disk.names())}".encode(), digest_size=16)
    durable = disk.durable
    for name in sorted({*disk.files, *durable}):
        content = disk.files[name].content if name in disk.files else None
        proof.update(name.encode())
        _add(proof, content)
        if durable.get(name) != content:
            _add(proof, durable.get(name))
    return proof.digest()


def _add(proof: blake2b, data: bytearray | None) -> None:
    proof.update(b"|none|" if data is None else b"|%d|" % len(data))
    if data is not None:
        proof.update(data.rstrip(b"\0"))  # most of a segment is zeros
