"""Reading back: what was stored, raw, as Arrow and as records, beside ``sendfile`` and ``recv``.

Beside us a process sends a file of as many bytes through the same loopback, and nobody looks at
them. All of it comes from the page cache. ``python -m bench.reading FILE PORT`` is that process.
"""

from __future__ import annotations

import argparse
import os
import secrets
import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from bench.children import end_with_parent
from bench.filling import fill
from bench.rounds import Turn, in_turn
from quorate.cli.workloads import WORKLOADS
from quorate.client.administration import find_log
from quorate.client.asynchronous import AsyncClient
from quorate.client.read.prefetch import Prefetch
from quorate.client.read.reading import Reader
from quorate.client.routing import Routing, parse_endpoints
from quorate.client.session import Session
from quorate.net.loop import run
from quorate.testing.processes.ports import HOST, Ports

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from bench.outcome import Outcome
    from bench.rounds import Row, Runner, Settings

__all__ = ["reads"]

ROOT = Path(__file__).resolve().parent.parent
SHAPE = WORKLOADS["W5"]
CHUNK = 1 << 20
TIMEOUT_S = 60.0


def reads(endpoints: str, folder: Path, settings: Settings, report: Runner) -> list[Row]:
    """The rows of W6."""
    name = f"bench-{secrets.token_hex(4)}"
    report.say(f"W6: filling a log with {settings.read_bytes >> 20} MiB")
    records = run(fill(endpoints, name, SHAPE, settings.read_bytes))
    path = folder / "values"
    _write(path, records * SHAPE.value_bytes)
    with ExitStack() as stack:
        port = stack.enter_context(_sender(path))
        ways: list[tuple[str, Callable[[str, str], Awaitable[int]]]] = [
            ("raw", _read_raw),
            ("records", _read_records),
        ]
        if _has_arrow(report):
            ways.insert(1, ("arrow", _read_arrow))
        turns = [
            Turn("quorate", variant, partial(_timed, read, endpoints, name, records))
            for variant, read in ways
        ]
        turns.append(Turn("sendfile", "", partial(_received, port, records)))
        rows = in_turn("W6", turns, settings.rounds, report)
    path.unlink()
    return rows


def _has_arrow(report: Runner) -> bool:
    try:
        import pyarrow as _  # noqa: F401  # not everybody has it
    except ImportError as error:
        report.skipped["quorate arrow in W6"] = str(error)
        return False
    return True


def _timed(
    read: Callable[[str, str], Awaitable[int]], endpoints: str, name: str, records: int
) -> Outcome:
    async def work() -> float:
        began = perf_counter()
        found = await read(endpoints, name)
        if found != records:
            raise RuntimeError(f"{found} of {records} records were read")
        return perf_counter() - began

    return _outcome(records, run(work()))


def _outcome(records: int, seconds: float) -> Outcome:
    return {
        "workload": "W6",
        "records_per_s": round(records / seconds, 1),
        "mb_per_s": round(records * SHAPE.value_bytes / seconds / 1e6, 3),
        "done": records,
        "errors": 0,
    }


# -- ours ----------------------------------------------------------------------------------------


async def _read_raw(endpoints: str, name: str) -> int:
    """Whole entries as they are stored; their checksums are proved, nothing is taken apart."""
    session = Session(Routing(parse_endpoints(endpoints)), TIMEOUT_S)
    try:
        prefetch = Prefetch(Reader(await find_log(session, name, create=False)))
        found = 0
        while (pieces := await prefetch.next(session)) is not None:
            found += sum(piece.end - piece.offset for piece in pieces)
        return found
    finally:
        await session.close()


async def _read_arrow(endpoints: str, name: str) -> int:
    async with AsyncClient(endpoints) as client:
        log = await client.log(name)
        found = 0
        async for batch in log.read_arrow():
            found += batch.num_rows
        return found


async def _read_records(endpoints: str, name: str) -> int:
    async with AsyncClient(endpoints) as client:
        log = await client.log(name)
        found = 0
        async for _ in log.read():
            found += 1
        return found


# -- sendfile and recv ---------------------------------------------------------------------------


def _write(path: Path, size: int) -> None:
    block = os.urandom(CHUNK)
    with path.open("wb") as file:
        while size > 0:
            size -= file.write(block[:size])


def _received(port: int, records: int) -> Outcome:
    buffer = bytearray(CHUNK)
    size = left = records * SHAPE.value_bytes
    began = perf_counter()
    with socket.create_connection((HOST, port)) as connection:
        while taken := connection.recv_into(buffer):
            left -= taken
    seconds = perf_counter() - began
    if left:
        raise RuntimeError(f"{size - left} of {size} bytes came")
    return _outcome(records, seconds)


@contextmanager
def _sender(path: Path) -> Iterator[int]:
    """A process that sends ``path`` to whoever connects; its port."""
    with ExitStack() as stack:
        reserved = Ports()
        stack.callback(reserved.close)
        [port] = reserved.take(1)
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.reading", str(path), str(port)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        stack.enter_context(process)
        stack.callback(process.kill)
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise ChildProcessError("the sender of W6 did not start")
        yield port


def _send_for_ever(path: Path, port: int) -> None:
    with socket.create_server((HOST, port)) as server, path.open("rb") as file:
        print("ready", flush=True)
        while True:
            connection, _ = server.accept()
            with connection:
                connection.sendfile(file)
                file.seek(0)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.reading")
    parser.add_argument("path", type=Path)
    parser.add_argument("port", type=int)
    parsed = parser.parse_args()
    end_with_parent()
    _send_for_ever(parsed.path, parsed.port)


if __name__ == "__main__":
    main()
