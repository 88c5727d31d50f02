"""The bare pipe does what it claims: the bytes of a real append, proved, counted and on disk."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from crc32c import crc32c

from bench import limit_load
from bench.limit import HEAD, RUN, limit, split
from quorate.batch import encode_batch
from quorate.cli.workloads import WORKLOADS
from quorate.net.loop import run
from quorate.testing.processes.ports import HOST
from quorate.wire.requests import AppendRequest, encode_append

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bench.limit import Limit
    from quorate.cli.workloads import Workload

FILE_BYTES = 16 << 20
PAYLOADS = [b"one", b"", b"three" * 1000]


def framed(payload: bytes) -> bytes:
    return HEAD.pack(len(payload), crc32c(payload)) + payload


@pytest.fixture(scope="module")
def pipe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Limit]:
    """Its files are so short that a load fills several."""
    with limit(tmp_path_factory.mktemp("pipe"), file_bytes=FILE_BYTES) as running:
        yield running


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
def test_an_append_has_as_many_bytes_as_one_of_ours(workload: Workload) -> None:
    batch = encode_batch(workload.values(), times=0)
    assert len(framed(batch)) == len(encode_append(AppendRequest(0, 1, batch))) + len(batch)


def test_batches_are_split_wherever_the_bytes_end() -> None:
    data = b"".join(map(framed, PAYLOADS))
    ends = [0]
    for payload in PAYLOADS:
        ends.append(ends[-1] + len(framed(payload)))
    for size in range(len(data) + 1):
        whole = [end for end in ends if end <= size]
        assert split(data[:size]) == (whole[-1], len(whole) - 1)


@pytest.mark.parametrize("place", [4, HEAD.size, HEAD.size + 2])
def test_a_batch_that_is_not_what_its_crc_says_is_refused(place: int) -> None:
    data = bytearray(framed(b"one"))
    data[place] ^= 1
    with pytest.raises(ValueError, match="not what its CRC says"):
        split(bytes(data))


@pytest.mark.parametrize("awaited", [False, True], ids=["pipelined", "awaited"])
@pytest.mark.parametrize("name", WORKLOADS)
def test_every_append_is_answered(pipe: Limit, name: str, awaited: bool) -> None:
    workload = WORKLOADS[name]
    tally = run(limit_load.measure(pipe, workload, 0.3, 0.0, awaited=awaited))
    assert tally.done >= workload.in_flight * workload.records
    assert tally.done % workload.records == 0
    assert len(tally.latencies) * workload.records == tally.records <= tally.done


def test_what_is_answered_is_on_disk_on_two_nodes_at_least(tmp_path: Path) -> None:
    batches = [framed(b"batch %d of this test" % number) for number in range(10)]

    async def append(port: int) -> None:
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(b"".join(batches))
        answered = 0
        while answered < len(batches):
            answered += RUN.unpack(await reader.readexactly(RUN.size))[0]
        assert answered == len(batches)
        writer.close()
        await writer.wait_closed()

    with limit(tmp_path, file_bytes=FILE_BYTES) as running:
        asyncio.run(append(running.port))
        files = [(tmp_path / f"n{number}.0").read_bytes() for number in (1, 2, 3)]
    for batch in batches:
        assert sum(batch in file for file in files) >= 2
