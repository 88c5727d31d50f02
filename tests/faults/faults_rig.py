"""What tests of faults share: a socket without manners, a writer that keeps count, patience."""

from __future__ import annotations

import secrets
import socket
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from quorate.batch import encode_batch
from quorate.commands import Receipt
from quorate.errors import OutcomeUnknown, QuorateError
from quorate.net.dialling import parse_address
from quorate.wire.calls import FindLog, decode_result, encode_call
from quorate.wire.frames import FrameKind, FrameLimits, Framer
from quorate.wire.handshake import Hello, encode_hello, open_welcome
from quorate.wire.requests import AppendRequest, decode_failure, decode_receipts, encode_append

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from quorate.client.blocking import Client, Log
    from quorate.testing.processes import Cluster
    from quorate.wire.calls import Call, ResultT
    from quorate.wire.frames import Frame
    from quorate.wire.handshake import Welcome

__all__ = [
    "MIB",
    "PATIENCE_S",
    "SMALL",
    "Raw",
    "Writer",
    "batch_of",
    "grow",
    "lag_free",
    "page",
    "until",
]

MIB = 1 << 20
# Files that cost a test little.
SMALL: dict[str, dict[str, int]] = {
    "limits": {"batch_bytes": 1 * MIB},
    "storage": {"segment_bytes": 4 * MIB},
}
# Generous: nothing is asserted about how long anything takes.
PATIENCE_S = 50.0
LOOK_S = 0.02


def until(condition: Callable[[], object], what: str) -> None:
    """Look again and again; fail with ``what`` if it never comes to be."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"it never came to be: {what}"
        time.sleep(LOOK_S)


def page(cluster: Cluster, node: str, path: str) -> tuple[int, str]:
    """What a page of a node says; status 0 if nobody is there."""
    try:
        with urllib.request.urlopen(f"http://{cluster.http(node)}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""


def lag_free(cluster: Cluster, log: str) -> bool:
    """Whether all nodes take part in ``log`` and have everything."""
    found = cluster.look(log)
    return (
        found is not None
        and len(found["replicas"]) == len(cluster.nodes)
        and all(one["lag"] == 0 and one["state"] != "down" for one in found["replicas"])
    )


def grow(log: Log, size: int) -> None:
    """Append records of ``size`` bytes in all, or a little less if a leader is lost meanwhile."""
    batch = [bytes(64 << 10)] * 8
    for _ in range(size // (len(batch) * len(batch[0]))):
        with suppress(OutcomeUnknown):
            log.append_batch(batch)


class Raw:
    """A connection that sends whatever bytes a test wants."""

    def __init__(self, address: str) -> None:
        self.socket = socket.create_connection(parse_address(address), timeout=PATIENCE_S)
        self._framer = Framer(FrameLimits(64 << 20, 64 << 20))
        self._frames: deque[Frame] = deque()
        self._request = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.socket.close()

    def send(self, *parts: bytes) -> None:
        self.socket.sendall(b"".join(parts))

    def receive(self) -> Frame | None:
        """The next frame; None if the other side has closed."""
        while not self._frames:
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionError:
                data = b""
            if not data:
                return None
            self._frames.extend(self._framer.feed(data))
        return self._frames.popleft()

    @property
    def closed(self) -> bool:
        """Whether the other side closes without another word."""
        return self.receive() is None

    def say_hello(self, hello: Hello | None = None) -> Welcome:
        """Raises what it is refused with."""
        self.send(encode_hello(hello or Hello("client")))
        frame = self.receive()
        assert frame is not None, "no answer to HELLO"
        return open_welcome(frame)

    def answer(self) -> Frame:
        """The answer to a request. Raises the error that it is."""
        frame = self.receive()
        assert frame is not None, "no answer to a request"
        if frame.kind is FrameKind.FAILURE:
            raise decode_failure(frame).error
        return frame

    def call(self, call: Call[ResultT]) -> ResultT:
        self._request += 1
        self.send(encode_call(self._request, call))
        return decode_result(self.answer(), call)

    def append(self, log: int, batch: bytes) -> Receipt:
        self._request += 1
        self.send(encode_append(AppendRequest(self._request, log, batch)), batch)
        receipts = decode_receipts(self.answer())
        ((request, offset, count),) = receipts.answers()
        assert request == self._request
        return Receipt(offset, count, receipts.index, receipts.term, receipts.synced)

    def find(self, name: str) -> int:
        """The incarnation of a log."""
        return int.from_bytes(self.call(FindLog(name)).incarnation, "little")


class Writer:
    """Threads that append different values without end, and what each of them was told."""

    def __init__(self, client: Client, log: str, threads: int = 2) -> None:
        self._log = client.log(log)
        # Of its values: the log may have other writers, and have had some.
        self._mark = secrets.token_hex(4).encode()
        # Where each value is that was acknowledged; those whose fate stayed open; the refused ones.
        self.acked: dict[bytes, Receipt] = {}
        self.unknown: set[bytes] = set()
        self.refused: dict[bytes, str] = {}
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._write, args=(number,)) for number in range(threads)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _write(self, thread: int) -> None:
        number = 0
        while not self._ended.is_set():
            number += 1
            value = b"%b/%d/%d" % (self._mark, thread, number)
            try:
                self.acked[value] = self._log.append(value)
            except OutcomeUnknown:
                self.unknown.add(value)
            except QuorateError as error:
                self.refused[value] = error.code

    def goes_on(self, count: int = 20) -> None:
        """Wait until so many more appends are acknowledged."""
        enough = len(self.acked) + count
        try:
            until(lambda: len(self.acked) >= enough, f"{count} more appends are acknowledged")
        except AssertionError as error:
            others = f"unknown: {self.unknown}, refused: {self.refused}"
            raise AssertionError(f"{error}, {len(self.acked)} are; {others}") from None

    def check(self) -> None:
        """The log holds what was acknowledged, at its place, once; and nothing that was refused."""
        found: dict[bytes, list[int]] = {}
        for record in self._log.read(0, linearizable=True):
            if record.value.startswith(self._mark):
                found.setdefault(record.value, []).append(record.offset)
        lost = [value for value, at in self.acked.items() if found.get(value) != [at.offset]]
        assert not lost, f"acknowledged and not where they were: {lost[:5]}"
        assert not found.keys() & self.refused.keys()
        assert found.keys() <= self.acked.keys() | self.unknown
        assert all(len(found.get(value, ())) <= 1 for value in self.unknown)


def batch_of(*values: bytes) -> bytes:
    return encode_batch(list(values))
