"""Mutated bytes for every decoder: refused or read, but never a crash, a hang or a memory bomb.

``python -m verification.fuzz --frames 10000000 --seed 0``

Half of the inputs are spoiled blindly. The others get CRCs that fit again, so that the checks
behind a CRC are tried, too. A decoder returns None or raises a documented error, in bounded time
and memory.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import sys
import time
import traceback
import tracemalloc
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache, partial
from itertools import repeat
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from crc32c import crc32c

from quorate.batch import Batch, batch_count, encode_batch
from quorate.entry import CHAINED_BYTES, HEADER_BYTES, decode_entry
from quorate.errors import QuorateError, ReplicaHalted
from quorate.storage.index import decode_index
from quorate.storage.layout import (
    BLOCK_BYTES,
    CLEAN,
    PAGE,
    VOTE_COPIES,
    Block,
    CleanMark,
    Footer,
    SegmentHeader,
    block_seed,
    decode_vote,
    encode_vote,
    index_name,
    segment_name,
)
from quorate.storage.recovery.result import Recovered
from quorate.storage.segment_scan import Proof, scan
from verification.exhaustive import IDENTITY, Original, opened, original
from verification.fuzz_wire import wire_attempts
from verification.spoiling import crc, proof_at, seal, seal_entry, spoil

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorate.storage.log import SegmentLog
    from quorate.storage.segment import Segment

__all__ = ["main", "run"]

Kind = TypeVar("Kind")

DOCUMENTED = (QuorateError, ReplicaHalted)
# Inputs of one task. Of each target the first few inputs are watched for the memory that they take.
CHUNK = 50_000
WATCHED = 4
# The alarm is set again every so many inputs: a call for each would cost more than most of them.
ALARM_EVERY = 64
# Maximum time of one input, in seconds.
SECONDS_MAX = 5.0
BYTES_MAX = 4 << 20
ADDRESS_SPACE_MAX = 1 << 30
FINDINGS_SHOWN_MAX = 20


# -- targets -------------------------------------------------------------------------------------


class FuzzTarget(NamedTuple):
    name: str
    # Its share of a thousand inputs.
    share: int
    # Makes one input and decodes it; returns None if the decoder refuses it.
    attempt: Callable[[Random], object]


@cache
def targets() -> tuple[FuzzTarget, ...]:
    """Every decoder, with valid bytes from a small store or for a socket."""
    whole = original("stopped")
    log, _ = opened(whole.disk.copy())
    newest = log.segments[-1]
    sealed = next(one for one in log.segments if one.footer is not None)
    nonce, end = sealed.header.nonce, sealed.end
    head, foot = block_seed(newest.header.nonce, PAGE), block_seed(nonce, end)
    wire = wire_attempts()
    return (
        FuzzTarget("frame", 200, _frame(whole)),
        FuzzTarget("block", 100, _proved(
            newest.file.read(PAGE, BLOCK_BYTES), lambda data: Block.decode(data, head),
            lambda block: block.encode(head), head,
        )),
        FuzzTarget("header", 90, _proved(
            newest.file.read(0, 2 * BLOCK_BYTES), SegmentHeader.decode, SegmentHeader.encode
        )),
        FuzzTarget("footer", 90, _proved(
            sealed.file.read(end, 2 * BLOCK_BYTES), lambda data: Footer.decode(data, nonce, end),
            lambda footer: footer.encode(sealed.number, nonce), foot,
        )),
        FuzzTarget("vote", 80, _proved(
            whole.file(VOTE_COPIES[0])[: 3 * BLOCK_BYTES],
            lambda data: decode_vote(data, IDENTITY),
            lambda record: encode_vote(record, IDENTITY), IDENTITY.seed,
        )),
        FuzzTarget("mark", 50, _proved(
            whole.file(CLEAN), lambda data: CleanMark.decode(data, IDENTITY),
            lambda mark: mark.encode(IDENTITY), IDENTITY.seed,
        )),
        FuzzTarget("index", 60, _index(whole.file(index_name(sealed.number)), sealed)),
        FuzzTarget("batch", 80, _batch),
        FuzzTarget("hello", 40, wire["hello"]),
        FuzzTarget("request", 70, wire["request"]),
        FuzzTarget("call", 50, wire["call"]),
        FuzzTarget("peer", 70, wire["peer"]),
        FuzzTarget("segment", 14, _segment(whole, log)),
        FuzzTarget("store", 6, _store(whole, log)),
    )  # fmt: skip


def _proved(
    good: bytes,
    decode: Callable[[bytes], Kind | None],
    encode: Callable[[Kind], bytes],
    seed: int = 0,
) -> Callable[[Random], object]:
    """A structure with one CRC. A decoder that accepts an input must encode it again."""
    place = proof_at(good, seed)

    def attempt(random: Random) -> object:
        data = spoil(good, random)
        if random.random() < 0.5:
            seal(data, place, seed)
        found = decode(bytes(data))
        return None if found is None else encode(found)

    return attempt


def _frame(whole: Original) -> Callable[[Random], object]:
    frames = tuple(whole.frames.values())

    def attempt(random: Random) -> object:
        data = spoil(frames[int(random.random() * len(frames))], random)
        seal_entry(data, random)
        return decode_entry(bytes(data))

    return attempt


def _index(good: bytes, segment: Segment) -> Callable[[Random], object]:
    head = proof_at(good)
    nonce = crc32c(segment.header.nonce.to_bytes(8, "little"))

    def attempt(random: Random) -> object:
        data = spoil(good, random)
        chance = random.random()
        if chance < 0.4:
            data[head - 4 : head] = crc(data[head + 4 :], nonce)
        if chance < 0.6:
            seal(data, head)
        return decode_index(bytes(data), segment)

    return attempt


_BATCHES = (
    encode_batch([b"hello", b"", b"world", b"x" * 40]),
    encode_batch([b"a", b"b", b"", b"d"], keys=[b"k", None, b"", b"l"], times=[1, 2, 3, 4]),
    encode_batch([b"a", b"b"], times=7, headers=[[("trace", b"1"), ("é", b"")], []]),
)


def _batch(random: Random) -> object:
    data = spoil(_BATCHES[int(random.random() * len(_BATCHES))], random)
    if random.random() < 0.7:
        data[4:8] = crc(data[8:], crc32c(bytes(data[:4])))
    count = batch_count(data)
    assert len(list(Batch.parse(data))) == count, "a batch is read to its last record"
    return count


def _segment(whole: Original, log: SegmentLog) -> Callable[[Random], object]:
    def attempt(random: Random) -> object:
        segment = log.segments[int(random.random() * len(log.segments))]
        data = memoryview(_spoil_segment(whole, segment, random))
        proof = Proof(segment.end, segment.last) if random.random() < 0.5 else None
        nonce = segment.header.nonce if random.random() < 0.9 else None
        return scan(data, nonce, segment.header.before, proof)

    return attempt


def _spoil_segment(whole: Original, segment: Segment, random: Random) -> bytes:
    """Spoil any bytes of a segment, or the head of a block or a frame with CRCs that fit."""
    good = whole.file(segment_name(segment.number))
    kind = int(random.random() * 3)
    if kind == 0:
        return bytes(spoil(good, random))
    if kind == 1:
        heads = [page for page in range(PAGE, segment.end, PAGE) if good[page : page + 1] == b"Q"]
        place = heads[int(random.random() * len(heads))]
        head = spoil(good[place : place + BLOCK_BYTES], random)
        seal(head, BLOCK_BYTES - 4, block_seed(segment.header.nonce, place))
    else:
        row = int(random.random() * len(segment.rows.starts))
        place = segment.rows.starts[row]
        head = spoil(good[place : place + HEADER_BYTES], random)
        before = whole.positions[segment.first + row - 1]
        head[CHAINED_BYTES : CHAINED_BYTES + 4] = crc(head[:CHAINED_BYTES], before.chain)
        seal(head, HEADER_BYTES - 4)
    return good[:place] + head + good[place + len(head) :]


def _store(whole: Original, log: SegmentLog) -> Callable[[Random], object]:
    """Open a store of which one file is spoiled, and read the entries that the open finds."""
    names = sorted(whole.files)
    seeds = {name: IDENTITY.seed if name in (CLEAN, *VOTE_COPIES) else 0 for name in names}
    proofs = {name: proof_at(whole.file(name), seeds[name]) for name in names}

    def attempt(random: Random) -> object:
        name = names[int(random.random() * len(names))]
        segment = next((one for one in log.segments if segment_name(one.number) == name), None)
        if segment is not None and random.random() < 0.7:
            disk = whole.broken(name, bytearray(_spoil_segment(whole, segment, random)))
        else:  # the head of a file, with a CRC that fits
            good, place = whole.file(name), proofs[name]
            head = spoil(good[:place], random).ljust(place, b"\0")[:place]
            disk = whole.broken(name, head + crc(head, seeds[name]) + good[place + 4 :])
            for copy in VOTE_COPIES if name in VOTE_COPIES else ():
                disk.files[copy].content = disk.files[name].content.copy()
        found, _ = opened(disk)
        return Recovered.of(found)

    return attempt


# -- running the inputs --------------------------------------------------------------------------


class Result(NamedTuple):
    """The result of one task, or of all tasks."""

    inputs: Counter[str]
    accepted: Counter[str]
    # The violations found, each with its task, so that it can be repeated.
    findings: Counter[tuple[str, int]]


class Hang(BaseException):
    """A decoder took too long. Not an Exception, so that no decoder catches it."""


def _on_alarm(*_: object) -> None:
    raise Hang


def limit() -> None:
    """Limit a process of the pool: a maximum of memory, and an alarm for an input that hangs."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_MAX, ADDRESS_SPACE_MAX))
    signal.signal(signal.SIGALRM, _on_alarm)


def carry_out(seed: int, chunk: int, frames: int) -> Result:
    """Run one task: its share of every kind of input."""
    random = Random(f"fuzz/{seed}/{chunk}")
    result = Result(Counter(), Counter(), Counter())
    for target in targets():
        result.inputs[target.name] = count = max(1, frames * target.share // 1000)
        for number in range(count):
            if number % ALARM_EVERY == 0:
                signal.setitimer(signal.ITIMER_REAL, SECONDS_MAX)
            attempt = target.attempt if number >= WATCHED else partial(_watched, target.attempt)
            try:
                result.accepted[target.name] += attempt(random) is not None
            except DOCUMENTED:
                pass
            except (Exception, Hang) as error:  # noqa: BLE001  # an undocumented error is a finding
                signal.setitimer(signal.ITIMER_REAL, SECONDS_MAX)
                result.findings[_described(target, error), chunk] += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    return result


def _watched(attempt: Callable[[Random], object], random: Random) -> object:
    """Run ``attempt``, and fail if it takes more memory than allowed."""
    tracemalloc.start()
    try:
        return attempt(random)
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        if peak > BYTES_MAX:
            raise MemoryError("more than it may take")


def _described(target: FuzzTarget, error: BaseException) -> str:
    """Describe an error by its place and text, so that repetitions are counted and not listed."""
    stack = traceback.extract_tb(error.__traceback__)
    # The alarm's handler adds a frame of its own.
    frame = stack[-2 if isinstance(error, Hang) else -1]
    return f"{target.name}: {error!r:.100} in {Path(frame.filename).name}::{frame.name}"


def run(frames: int, seed: int, start: int = 0, jobs: int = 1) -> Result:
    """Try about ``frames`` inputs, from task ``start`` on."""
    tasks = range(start, start - (-frames // CHUNK))
    result = Result(Counter(), Counter(), Counter())
    with ProcessPoolExecutor(max_workers=jobs, initializer=limit) as pool:
        try:
            parts = pool.map(carry_out, repeat(seed), tasks, repeat(min(frames, CHUNK)))
            for inputs, accepted, findings in parts:
                result.inputs.update(inputs)
                result.accepted.update(accepted)
                result.findings.update(findings)
        except BrokenProcessPool as error:
            result.findings[str(error), start] += 1
    return result


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m verification.fuzz")
    parser.add_argument("--frames", type=int, default=1_000_000, help="how many inputs")
    parser.add_argument("--seed", type=int, default=0, help="seed of the inputs")
    parser.add_argument("--start", type=int, default=0, help="the first task, to see one again")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parsed = parser.parse_args(arguments)
    began = time.monotonic()
    result = run(parsed.frames, parsed.seed, parsed.start, max(1, parsed.jobs))
    seconds = time.monotonic() - began
    print(f"{'input':8} {'tried':>12} {'accepted':>12}")
    for name, tried in result.inputs.items():
        print(f"{name:8} {tried:12} {result.accepted[name]:12}")
    for (what, task), times in [*result.findings.items()][:FINDINGS_SHOWN_MAX]:
        print(f"task {task}: {times} times {what}")
    total, findings = result.inputs.total(), result.findings.total()
    print(f"fuzz: frames={total} frames_per_s={int(total / seconds)} findings={findings}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
