"""What the storage engine costs beside the bare system calls: ``python -m bench.storage``.

Every row is a ratio of two things measured in turn in this run, the engine and the few calls that
no engine can do without: 1.00 is as fast as the calls alone. Shown is the median of the rounds with
the lowest and the highest. Absolute figures are this machine's and promise nothing.

``--choices`` compares ways to allocate and to write a segment instead.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from crc32c import crc32c

from bench.machine import busy_share
from quorate.batch import Batch, encode_batch
from quorate.client.read.arrow import record_batch
from quorate.entry import Entry, make_entry
from quorate.storage.flusher import Flush
from quorate.storage.layout import LogId
from quorate.storage.recovery.open import open_log
from quorate.storage.vfs import RealVfs
from quorate.types import ORIGIN, EntryKind, Index, Position, Term
from verification.disk.store import complete

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from quorate.storage.flusher import Flusher
    from quorate.storage.log import SegmentLog

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SEGMENT_BYTES = 64 * MIB
IDENTITY = LogId(1, b"bench           ")
RESULTS = Path(__file__).resolve().parent / "results"
ROUNDS = 7
APPENDED = 128 * MIB
READ = 256 * MIB
OPEN_SECONDS_MAX = 5.0
MEMORY_MAX = 64 * MIB
ROW_BYTES = 32


class Row(NamedTuple):
    """Seconds of each round, ours and those of the bare calls, for the same ``size`` bytes."""

    name: str
    size: int
    ours: list[float]
    bare: list[float]
    target: float

    @property
    def ratios(self) -> list[float]:
        return [bare / ours for ours, bare in zip(self.ours, self.bare, strict=True)]

    def shown(self) -> str:
        ratios = self.ratios
        rates = [self.size / median(times) / 1e6 for times in (self.ours, self.bare)]
        verdict = "" if median(ratios) >= self.target else "  missed"
        return (
            f"{self.name:34} {rates[0]:9.0f} {rates[1]:9.0f}   {median(ratios):5.2f}"
            f"  {min(ratios):5.2f} to {max(ratios):5.2f}   {self.target:4.2f}{verdict}"
        )


# -- a log ---------------------------------------------------------------------------------------


@contextmanager
def folder_of(parent: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="quorate-bench-", dir=parent) as name:
        yield Path(name)


@contextmanager
def log_in(folder: Path) -> Iterator[tuple[SegmentLog, Flusher]]:
    vfs = RealVfs(folder)
    plan = open_log(vfs, IDENTITY, SEGMENT_BYTES, lambda: int.from_bytes(os.urandom(8), "little"))
    log, flusher = complete(plan)
    yield log, flusher
    for segment in log.segments:
        segment.file.close()
    vfs.close()


def run(plan: Iterator[str]) -> None:
    for _ in plan:
        pass


def entries(before: Position, count: int, size: int) -> list[Entry]:
    """``count`` entries whose frames have ``size`` bytes."""
    body = os.urandom(size - 64)
    made = []
    for _ in range(count):
        entry = make_entry(before, Term(1), EntryKind.DATA, body, count=1, base_offset=before.index)
        made.append(entry)
        before = entry.position
    return made


def written(folder: Path, total: int, size: int) -> None:
    """A log of ``total`` bytes, in flushes of 16 MiB, sealed but for its last segment."""
    per_flush = max(1, 16 * MIB // size)
    with log_in(folder) as (log, flusher):
        for _ in range(max(1, total // size // per_flush)):
            run(flusher.plan(Flush(0, entries=tuple(entries(log.last, per_flush, size)))))
            run(flusher.chores(log.last.index))


# -- the rows ------------------------------------------------------------------------------------


def in_turn(
    rounds: int, ours: Callable[[], float], bare: Callable[[], float]
) -> tuple[list[float], list[float]]:
    """Seconds of each, one after the other; the first round warms up and does not count."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds + 1):
        times[0].append(ours())
        times[1].append(bare())
    return times[0][1:], times[1][1:]


def append_row(parent: Path, rounds: int, size: int, target: float) -> Row:
    made = entries(ORIGIN, APPENDED // size, size)

    def ours() -> float:
        with folder_of(parent) as folder, log_in(folder) as (_, flusher):
            began = time.perf_counter()
            for entry in made:
                run(flusher.plan(Flush(0, entries=(entry,), committed=entry.index)))
                run(flusher.chores(entry.index))
            return time.perf_counter() - began

    def bare() -> float:
        with folder_of(parent) as folder:
            file = os.open(folder / "bare", os.O_RDWR | os.O_CREAT)
            os.posix_fallocate(file, 0, APPENDED)
            began = time.perf_counter()
            for entry in made:
                os.writev(file, (entry.header, entry.body))
                os.fdatasync(file)
            os.close(file)
            return time.perf_counter() - began

    name = f"append and sync {_size(size)}"
    return Row(name, len(made) * size, *in_turn(rounds, ours, bare), target)


def read_row(parent: Path, rounds: int, size: int, target: float, *, proved: bool) -> Row:
    """From the page cache, 1 MiB at a time.

    Every frame of ours is proved by its CRC; with ``proved`` the bare calls compute one as well.
    """
    with folder_of(parent) as folder:
        written(folder, READ, size)
        with log_in(folder) as (log, _):
            files = [os.open(path, os.O_RDONLY) for path in sorted(folder.glob("*.segment"))]
            following = Index(log.last.index + 1)

            def ours() -> float:
                began = time.perf_counter()
                start = log.first
                while start < following:
                    start = Index(start + len(log.frames(start, following, MIB)))
                return time.perf_counter() - began

            def bare() -> float:
                began = time.perf_counter()
                for file in files:
                    position = 0
                    while data := os.pread(file, MIB, position):
                        position += len(data)
                        if proved:
                            crc32c(data)
                return time.perf_counter() - began

            times = in_turn(rounds, ours, bare)
            for file in files:
                os.close(file)
    name = f"read frames of {_size(size)}{', bare with CRC' * proved}"
    return Row(name, log.last.index * size, *times, target)


def arrow_row(_parent: Path, rounds: int, value: int) -> Row:
    """A stored batch as an Arrow record batch; beside it, one pass of CRC32C over its bytes."""
    count = MIB // value
    data = encode_batch([os.urandom(value)] * count, times=list(range(count)))

    def hundred(work: Callable[[], object]) -> float:
        began = time.perf_counter()
        for _ in range(100):
            work()
        return time.perf_counter() - began

    offsets = pa.array(range(count), pa.int64())
    ours = partial(hundred, lambda: record_batch(Batch.parse(data), offsets, 0))
    bare = partial(hundred, lambda: crc32c(data))
    name = f"batch of {_size(value)} values to Arrow"
    return Row(name, 100 * len(data), *in_turn(rounds, ours, bare), 0.0)


def _size(size: int) -> str:
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


# -- opening -------------------------------------------------------------------------------------


def open_here(folder: Path) -> dict[str, float]:
    """In a process of its own: how long until the log can be read, and the memory that it takes."""
    for path in folder.glob("*"):
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before = _resident("VmRSS")
    began = time.perf_counter()
    with log_in(folder) as (log, _):
        log.frames(log.last.index, Index(log.last.index + 1), 1)
        return {
            "seconds": time.perf_counter() - began,
            "resident": _resident("VmRSS") - before,
            "peak": _resident("VmHWM") - before,
            "segments": len(log.segments),
            "active_entries": len(log.segments[-1].rows.starts),
        }


def _resident(field: str) -> int:
    words = Path("/proc/self/status").read_text().split()
    return int(words[words.index(f"{field}:") + 1]) * KIB


def open_rows(parent: Path, rounds: int, gib: float) -> dict[str, Any]:
    if shutil.disk_usage(parent).free < (2 * gib + 2) * GIB:
        print(f"open: skipped: less than {2 * gib + 2:g} GiB are free")
        return {}
    results: dict[str, Any] = {}
    for name, total, size in (("open", int(gib * GIB), MIB), ("memory", SEGMENT_BYTES // 2, 128)):
        with folder_of(parent) as folder:
            written(folder, total, size)
            results[name] = [elsewhere("--open", folder) for _ in range(rounds)]
    seconds = sorted(one["seconds"] for one in results["open"])
    spread = f"{median(seconds):.3f} s  {seconds[0]:.3f} to {seconds[-1]:.3f}"
    count = results["open"][0]["segments"]
    print(f"open {gib:g} GiB, {count} segments, cold: {spread}, at most {OPEN_SECONDS_MAX:.0f} s")
    for one in (results["open"][0], results["memory"][0]):
        resident, peak = one["resident"] / MIB, one["peak"] / MIB
        most = (MEMORY_MAX + ROW_BYTES * one["active_entries"]) / MIB
        print(
            f"memory with {one['active_entries']} entries in the newest segment: "
            f"{resident:.1f} MiB, {peak:.1f} while opening, at most {most:.1f}"
        )
    return results


def elsewhere(*arguments: object) -> Any:
    """What this command prints with ``arguments``: what one row leaves behind slows no other."""
    command = [sys.executable, "-m", "bench.storage", *map(str, arguments)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


# -- choices -------------------------------------------------------------------------------------

ALLOCATIONS = ("extend", "fallocate", "zeroed")
PATHS = ("fdatasync joined", "fdatasync vectored", "dsync joined", "dsync vectored")


def choices(parent: Path, rounds: int) -> dict[str, Any]:
    """Every way to allocate with every way to write, in turn; microseconds of one flush."""
    results: dict[str, Any] = {}
    for size, count in ((4 * KIB, 200), (64 * KIB, 200), (MIB, 60)):
        pieces = [os.urandom(64), *[os.urandom(size // 16)] * 15]  # a head, frames, padding
        pieces.append(bytes(size - sum(map(len, pieces))))
        times: dict[str, list[float]] = {}
        for _ in range(rounds):
            for allocation in ALLOCATIONS:
                for path in PATHS:
                    taken = _flushes(parent, allocation, path, pieces, count)
                    times.setdefault(f"{allocation}, {path}", []).extend(taken)
        print(f"{'flush of ' + _size(size):32} {'p50 us':>8} {'p99 us':>8}")
        for name, taken in times.items():
            taken.sort()
            p50, p99 = taken[len(taken) // 2] * 1e6, taken[len(taken) * 99 // 100] * 1e6
            print(f"{name:32} {p50:8.0f} {p99:8.0f}")
            results[f"{_size(size)}, {name}"] = {"p50_us": p50, "p99_us": p99}
    return results


def _flushes(
    parent: Path, allocation: str, path: str, pieces: Sequence[bytes], count: int
) -> list[float]:
    size = sum(map(len, pieces))
    flags = os.RWF_DSYNC if path.startswith("dsync") else 0
    taken = []
    with folder_of(parent) as folder:
        file = os.open(folder / "choice", os.O_RDWR | os.O_CREAT)
        if allocation != "extend":
            os.posix_fallocate(file, 0, size * count)
        if allocation == "zeroed":
            for position in range(0, size * count, size):
                os.pwrite(file, bytes(size), position)
        os.fsync(file)
        for position in range(0, size * count, size):
            began = time.perf_counter()
            buffers = [b"".join(pieces)] if path.endswith("joined") else pieces
            os.pwritev(file, buffers, position, flags)
            if not flags:
                os.fdatasync(file)
            taken.append(time.perf_counter() - began)
        os.close(file)
    return taken


def sync_p50(parent: Path) -> float:
    """Microseconds of one 4 KiB write into allocated space with its fdatasync."""
    return 1e6 * median(_flushes(parent, "fallocate", PATHS[0], [os.urandom(4 * KIB)], 200))


# -- the command ---------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.storage")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each row, at least 5")
    parser.add_argument("--gib", type=float, default=10, help="size of the log that is opened")
    parser.add_argument("--folder", type=Path, help="on the disk that is measured")
    parser.add_argument("--choices", action="store_true", help="compare ways to write a segment")
    parser.add_argument("--open", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--row", type=int, help=argparse.SUPPRESS)
    parsed = parser.parse_args()
    parent = parsed.folder or Path(tempfile.gettempdir())
    if parsed.row is not None:
        print(json.dumps(ROWS[parsed.row](parent, parsed.rounds)))
    elif parsed.open is not None:
        print(json.dumps(open_here(parsed.open)))
    else:
        _measure(parent, parsed)


def _measure(parent: Path, parsed: argparse.Namespace) -> None:
    results: dict[str, Any] = {"busy": [busy_share()], "sync_p50_us": [sync_p50(parent)]}
    if parsed.choices:
        results["choices"] = choices(parent, parsed.rounds)
    else:
        results |= _rows(parent, parsed.rounds, parsed.gib)
    results["sync_p50_us"].append(sync_p50(parent))
    sync = "fdatasync of 4 KiB: p50 {:.0f} us before, {:.0f} us after"
    print(sync.format(*results["sync_p50_us"]))
    results["busy"].append(busy_share())
    print("cores in use: {:.0%} before, {:.0%} after".format(*results["busy"]))
    path = RESULTS / f"storage{'-choices' * parsed.choices}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")
    rows = results.get("rows", [])
    missed = sum(median(row["ratios"]) < row["target"] for row in rows)
    print(f"storage: rows={len(rows)} missed={missed} json={path}")


def _rows(parent: Path, rounds: int, gib: float) -> dict[str, Any]:
    print(f"{'':34} {'ours MB/s':>9} {'bare MB/s':>9}   ratio  low to high   target")
    rows = []
    for number in range(len(ROWS)):
        row = Row(*elsewhere("--row", number, "--rounds", rounds, "--folder", parent))
        print(row.shown(), flush=True)
        rows.append({**row._asdict(), "ratios": row.ratios})
    return {"rows": rows, **open_rows(parent, rounds, gib)}


ROWS = (
    partial(append_row, size=MIB, target=0.8),
    partial(append_row, size=64 * KIB, target=0.7),
    *(partial(read_row, size=MIB, target=0.8, proved=proved) for proved in (False, True)),
    *(partial(read_row, size=64 * KIB, target=0.8, proved=proved) for proved in (False, True)),
    partial(arrow_row, value=KIB),
    partial(arrow_row, value=100),
)


if __name__ == "__main__":
    main()
