"""The bare pipe: what this language and this machine can do at most.

A client and three processes on loopback, with the sockets, bytes, checksums and syncs of a real
append, and nothing else: no consensus, no log format, nobody who ever fails. The client proves each
batch by a CRC; the first node checks it, sends what came in one turn on to the other two, which
check that, and answers once it and one of the others have it on disk. On each node a thread writes
whatever came while it synced, and syncs that at once. Every ratio is quoted against this.

``python -m bench.limit ROLE …`` is one of the three processes; :func:`limit` starts them all.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import subprocess
import sys
import threading
from collections import deque
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple, cast

from crc32c import crc32c

from quorate.net.loop import run
from quorate.testing.processes.ports import HOST, Ports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Buffer = bytes | memoryview

__all__ = ["HEAD", "RUN", "Limit", "Socket", "limit", "split"]

ROOT = Path(__file__).resolve().parent.parent
# Length and CRC of what follows, and as many bytes as the head of a real append has besides.
HEAD = Struct("<II42x")
# From the first node to the others: the number of the write, its length and CRC.
_WRITE = Struct("<QII")
# Back from them: the last write that is on disk.
_SYNCED = Struct("<Q")
# To the client: so many appends are done, in the order in which they were sent.
RUN = Struct("<I")

PAGE = 4096
# Of a file; as many as are needed.
FILE_BYTES = 256 << 20
# Nobody is measured any more.
IDLE_S = 0.2
# Buffers that the system takes in one call.
BUFFERS_MAX = 1024
# A thread that has been told of work gets it within this time, however busy the loop is.
SWITCH_S = 0.0001


def split(data: bytes) -> tuple[int, int]:
    """How far whole batches reach in ``data``, and how many they are. Each is proved by its CRC."""
    position = count = 0
    size = len(data)
    view = memoryview(data)
    while size - position >= HEAD.size:
        length, crc = HEAD.unpack_from(data, position)
        start = position + HEAD.size
        end = start + length
        if end > size:
            break
        if crc32c(view[start:end]) != crc:
            raise ValueError(f"the batch at byte {position} is not what its CRC says")
        position = end
        count += 1
    return position, count


# -- the nodes -----------------------------------------------------------------------------------


class Disk:
    """A thread that writes and syncs; ``done`` is told in the loop how far it came.

    Files are allocated and never written twice, as those of a log are. Full ones are removed when
    nothing is left to do.
    """

    def __init__(self, path: Path, size: int, done: Callable[[int], None]) -> None:
        self._path = path
        self._size = size
        self._done = done
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[tuple[int, list[Buffer]]] = SimpleQueue()
        # All files, the one that is written last.
        self._files: list[tuple[Path, int]] = []
        self._made = 0
        self._allocate()
        threading.Thread(target=self._run, daemon=True).start()

    def write(self, number: int, buffers: list[Buffer]) -> None:
        self._queue.put((number, buffers))

    def _allocate(self) -> None:
        path = self._path.with_suffix(f".{self._made}")
        self._made += 1
        file = os.open(path, os.O_RDWR | os.O_CREAT)
        os.posix_fallocate(file, 0, self._size)
        self._files.append((path, file))
        self._position = 0

    def _run(self) -> None:
        queue = self._queue
        while True:
            try:
                number, buffers = queue.get(timeout=IDLE_S if len(self._files) > 1 else None)
            except Empty:
                self._remove_full()
                continue
            while not queue.empty():
                number, more = queue.get()
                buffers = buffers + more
            self._flush(buffers)
            self._loop.call_soon_threadsafe(self._done, number)

    def _flush(self, buffers: list[Buffer]) -> None:
        """No page that holds synced bytes is written again: each flush begins with a new one."""
        if self._position + sum(map(len, buffers)) > self._size:
            self._allocate()
        file = self._files[-1][1]
        for first in range(0, len(buffers), BUFFERS_MAX):
            some = buffers[first : first + BUFFERS_MAX]
            self._position += os.pwritev(file, some, self._position)
        os.fdatasync(file)
        self._position += -self._position % PAGE

    def _remove_full(self) -> None:
        for path, file in self._files[:-1]:
            os.close(file)
            path.unlink()
        del self._files[:-1]


class Socket(asyncio.Protocol):
    """Bytes that are not whole yet wait for the rest."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)


class Follower(Socket):
    """Checks and writes what the leader sends, in the pieces in which it came: none is copied."""

    def __init__(self, path: Path, size: int) -> None:
        super().__init__()
        self._disk = Disk(path, size, self._synced)
        # Of the write that is coming in: its number and CRC, the bytes that are missing, its pieces
        # and their CRC.
        self._number = self._proof = self._missing = self._crc = 0
        self._pieces: list[Buffer] = []

    def data_received(self, data: bytes) -> None:
        position = 0
        while position < len(data):
            if not self._missing:
                head = self.rest + data[position : position + _WRITE.size - len(self.rest)]
                position += len(head) - len(self.rest)
                self.rest = head
                if len(head) < _WRITE.size:
                    return
                self.rest = b""
                self._number, self._missing, self._proof = _WRITE.unpack(head)
                continue
            piece = memoryview(data)[position : position + self._missing]
            position += len(piece)
            self._missing -= len(piece)
            self._crc = crc32c(piece, self._crc)
            self._pieces.append(piece)
            if not self._missing:
                self._write()

    def _write(self) -> None:
        pieces, self._pieces = self._pieces, []
        crc, self._crc = self._crc, 0
        if crc != self._proof:
            raise ValueError(f"write {self._number} is not what its CRC says")
        self._disk.write(self._number, pieces)

    def _synced(self, number: int) -> None:
        self.transport.write(_SYNCED.pack(number))


class Leader:
    """Gathers what all connections brought in one turn of the loop."""

    def __init__(self, path: Path, size: int, followers: int) -> None:
        self._disk = Disk(path, size, self._synced)
        self._peers: list[_Peer] = [_Peer(self) for _ in range(followers)]
        self._number = 0
        self._own = 0
        # Of this turn.
        self._buffers: list[Buffer] = []
        self._owed: list[tuple[_Client, int]] = []
        # Writes that are not answered yet, oldest first.
        self._waiting: deque[tuple[int, list[tuple[_Client, int]]]] = deque()

    async def join(self, ports: Sequence[int]) -> None:
        loop = asyncio.get_running_loop()
        for peer, port in zip(self._peers, ports, strict=True):
            await loop.create_connection(partial(_same, peer), HOST, port)

    def received(self, client: _Client, data: Buffer, count: int) -> None:
        if not self._buffers:
            asyncio.get_running_loop().call_soon(self._turn)
        self._buffers.append(data)
        self._owed.append((client, count))

    def _turn(self) -> None:
        self._number += 1
        buffers, self._buffers = self._buffers, []
        owed, self._owed = self._owed, []
        self._waiting.append((self._number, owed))
        self._disk.write(self._number, buffers)
        crc = 0
        for data in buffers:
            crc = crc32c(data, crc)
        head = _WRITE.pack(self._number, sum(map(len, buffers)), crc)
        for peer in self._peers:
            peer.transport.writelines([head, *buffers])

    def _synced(self, number: int) -> None:
        self._own = number
        self.answer()

    def answer(self) -> None:
        """Whatever is on disk here and on one other node."""
        safe = min(self._own, max(peer.synced for peer in self._peers))
        answered: dict[_Client, int] = {}
        while self._waiting and self._waiting[0][0] <= safe:
            for client, count in self._waiting.popleft()[1]:
                answered[client] = answered.get(client, 0) + count
        for client, count in answered.items():
            client.transport.write(RUN.pack(count))


def _same(socket: Socket) -> Socket:
    """For whoever wants to be given a way to make one."""
    return socket


class _Peer(Socket):
    """The leader's side of a follower."""

    def __init__(self, leader: Leader) -> None:
        super().__init__()
        self._leader = leader
        self.synced = 0

    def data_received(self, data: bytes) -> None:
        data = self.rest + data
        end = len(data) - len(data) % _SYNCED.size
        self.rest = data[end:]
        if end:
            (self.synced,) = _SYNCED.unpack_from(data, end - _SYNCED.size)
            self._leader.answer()


class _Client(Socket):
    """The leader's side of a client."""

    def __init__(self, leader: Leader) -> None:
        super().__init__()
        self._leader = leader

    def data_received(self, data: bytes) -> None:
        data = self.rest + data if self.rest else data
        end, count = split(data)
        self.rest = data[end:]
        if count:
            self._leader.received(self, memoryview(data)[:end], count)


async def _serve(role: str, path: Path, size: int, port: int, others: Sequence[int]) -> None:
    loop = asyncio.get_running_loop()
    sys.setswitchinterval(SWITCH_S)
    if role == "leader":
        leader = Leader(path, size, len(others))
        await leader.join(others)
        server = await loop.create_server(lambda: _Client(leader), HOST, port)
    else:
        follower = Follower(path, size)  # its file is allocated before anybody waits for it
        server = await loop.create_server(lambda: follower, HOST, port)
    gc.freeze()
    print("ready", flush=True)
    # Whoever started it holds the other end: it ends with that process, however that ends.
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


# -- the three of them ---------------------------------------------------------------------------


class Limit(NamedTuple):
    """Three running processes."""

    # Where clients connect.
    port: int


@contextmanager
def limit(
    folder: Path,
    environment: Callable[[str], Mapping[str, str]] | None = None,
    file_bytes: int = FILE_BYTES,
) -> Iterator[Limit]:
    """Runs for as long as it is needed; ``folder`` holds its files, ``environment`` is by node."""
    with ExitStack() as stack:
        reserved = Ports()
        stack.callback(reserved.close)
        first, second, third = reserved.take(3)
        nodes: tuple[tuple[str, str, int, list[int]], ...] = (
            ("n2", "follower", second, []),
            ("n3", "follower", third, []),
            ("n1", "leader", first, [second, third]),
        )
        for name, role, port, others in nodes:
            arguments = [role, folder / f"{name}.bare", file_bytes, port, *others]
            variables = environment(name) if environment else {}
            stack.enter_context(_started(arguments, variables))
        yield Limit(first)


@contextmanager
def _started(arguments: Sequence[object], environment: Mapping[str, str]) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.limit", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise ChildProcessError("the bare pipe did not start")
            yield
        finally:
            process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.limit")
    parser.add_argument("role", choices=["leader", "follower"])
    parser.add_argument("path", type=Path)
    parser.add_argument("size", type=int)
    parser.add_argument("port", type=int)
    parser.add_argument("others", type=int, nargs="*")
    parsed = parser.parse_args()
    run(_serve(parsed.role, parsed.path, parsed.size, parsed.port, parsed.others))


if __name__ == "__main__":
    main()
