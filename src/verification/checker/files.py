"""Histories on file: each client process writes its own, and may be killed at any moment.

All numbers are little-endian. A history file is a head and rows; a row is its kind, a fixed part
and, for a name or a read, a tail::

    head      magic "QRHI", u16 version, u16 0, u32 client
    NAME      u8 1, u16 length; UTF-8                     numbered from 1, in order
    BEGIN     u8 2, u16 log, u32 session, i64 start, u64 value, u32 count, u16 producer,
              i64 sequence                                numbered from 0, in order
    ACKED     u8 3, u32 begin, i64 end, i64 offset, u32 count, u8 synced
    FAILED    u8 4, u32 begin, i64 end, u16 code
    READ      u8 5, u16 log, u32 session, i64 start, i64 end, i64 first, u32 count, u8 way,
              u16 replica; u64 identities

An append is written down before it is sent, so every value in the log has a sender on file. A row
that ends beyond the file was cut by a kill during the last write: the rows before it stand.

A dump of a replica is whole or it is refused::

    head      magic "QRFI", u16 version, u16 length of the log's name, u16 of the replica's,
              i64 first, u64 count; both names; u64 identities
"""

from __future__ import annotations

import struct
import sys
import time
from array import array
from threading import Lock
from typing import TYPE_CHECKING

from verification.checker.history import BadHistory, FinalLog, History

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path
    from types import TracebackType
    from typing import Self

__all__ = ["Recorder", "load_final", "load_history", "load_run", "save_final"]

VERSION = 1
HISTORY_MAGIC, FINAL_MAGIC = b"QRHI", b"QRFI"
NAME, BEGIN, ACKED, FAILED, READ = 1, 2, 3, 4, 5

_HEAD = struct.Struct("<4sHHI")
_ROWS = {
    NAME: struct.Struct("<BH"),
    BEGIN: struct.Struct("<BHIqQIHq"),
    ACKED: struct.Struct("<BIqqIB"),
    FAILED: struct.Struct("<BIqH"),
    READ: struct.Struct("<BHIqqqIBH"),
}
_FINAL = struct.Struct("<4sHHHqQ")


class Recorder:
    """Writes the history of one client process. Any thread may call it.

    Every row is handed to the system at once: a process that is killed has recorded all that it
    knew.
    """

    def __init__(
        self, path: Path, client: int, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self.client = client
        self.clock = clock
        # A file that exists belongs to another process, whose identities must not be used again.
        self._file = path.open("xb", buffering=0)
        self._file.write(_HEAD.pack(HISTORY_MAGIC, VERSION, 0, client))
        self._lock = Lock()
        self._names = {"": 0}
        self._begun = 0
        self._values = 0

    def numbers(self, count: int) -> int:
        """Take numbers for ``count`` new values of this client; return the first."""
        with self._lock:
            self._values += count
            return self._values - count

    def begin(
        self,
        log: str,
        value: int,
        count: int = 1,
        *,
        session: int = 0,
        producer: str = "",
        sequence: int = 0,
    ) -> int:
        """Call before the append is sent; the number that comes back names the append.

        ``value`` is the identity of its first value. Without a later call the outcome counts as
        unknown.
        """
        with self._lock:
            names = self._name(log), self._name(producer)
            start = self.clock()
            self._write(BEGIN, names[0], session, start, value, count, names[1], sequence)
            self._begun += 1
            return self._begun - 1

    def acked(self, begun: int, offset: int, count: int, synced: int) -> None:
        """Call with the receipt; offset -1 if the answer was DUPLICATE."""
        end = self.clock()
        with self._lock:
            self._write(ACKED, begun, end, offset, count, synced)

    def failed(self, begun: int, code: str) -> None:
        """Call for an error which means that the append did not and will not happen."""
        end = self.clock()
        with self._lock:
            self._write(FAILED, begun, end, self._name(code))

    def read(
        self,
        log: str,
        start: int,
        first: int,
        seen: Iterable[int],
        way: int,
        *,
        session: int = 0,
        replica: str = "",
    ) -> None:
        """Call when the answer is there; ``start`` is the time of the clock before the read was
        sent."""
        end = self.clock()
        tail = _little(array("Q", seen))
        with self._lock:
            names = self._name(log), self._name(replica)
            count = len(tail) // 8
            self._write(READ, names[0], session, start, end, first, count, way, names[1], tail=tail)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _name(self, name: str) -> int:
        number = self._names.get(name)
        if number is None:
            text = name.encode()
            self._write(NAME, len(text), tail=text)
            number = self._names[name] = len(self._names)
        return number

    def _write(self, kind: int, *fields: int, tail: bytes = b"") -> None:
        row = _ROWS[kind].pack(kind, *fields) + tail
        if self._file.write(row) != len(row):
            raise OSError(f"{self._file.name}: no room for the history")


def load_run(folder: Path) -> tuple[dict[str, History], dict[str, list[FinalLog]]]:
    """The histories and the final logs of a run, by log."""
    histories: dict[str, History] = {}
    paths = sorted(folder.glob("*.history"))
    if not paths:
        raise BadHistory(f"{folder}: no history")
    for path in paths:
        load_history(path, histories)
    finals: dict[str, list[FinalLog]] = {}
    for path in sorted(folder.glob("final-*.log")):
        log, final = load_final(path)
        finals.setdefault(log, []).append(final)
    return histories, finals


def load_history(path: Path, into: dict[str, History]) -> None:
    """Add the operations of a file to the histories of their logs."""
    data = path.read_bytes()
    if len(data) < _HEAD.size:
        return  # the process was killed before it wrote the head
    magic, version, _, client = _HEAD.unpack_from(data)
    if magic != HISTORY_MAGIC or version != VERSION:
        raise BadHistory(f"{path.name}: not a history of version {VERSION}")
    names = [""]
    begun: list[tuple[History, int]] = []
    at = _HEAD.size
    while at < len(data):
        kind = data[at]
        if kind not in _ROWS:
            raise BadHistory(f"{path.name}: no row begins at byte {at}")
        form = _ROWS[kind]
        tail = at + form.size
        if tail > len(data):
            break
        fields = form.unpack_from(data, at)
        at = tail + (fields[1] if kind == NAME else 8 * fields[6] if kind == READ else 0)
        if at > len(data):
            break
        if kind == NAME:
            names.append(data[tail:at].decode())
        elif kind == BEGIN:
            _, log, session, start, value, count, producer, sequence = fields
            history = _history(into, names[log])
            row = history.begin(
                client, start, value, count,
                session=session, producer=names[producer], sequence=sequence,
            )  # fmt: skip
            begun.append((history, row))
        elif kind == READ:
            _, log, session, start, end, first, count, way, replica = fields
            history = _history(into, names[log])
            history.read(
                client, start, end, first, _identities(data[tail:at]), way,
                session=session, replica=names[replica],
            )  # fmt: skip
        elif kind == ACKED:
            history, row = begun[fields[1]]
            history.acked(row, *fields[2:])
        else:
            history, row = begun[fields[1]]
            history.failed(row, fields[2], names[fields[3]])


def _history(histories: dict[str, History], log: str) -> History:
    history = histories.get(log)
    if history is None:
        history = histories[log] = History()
    return history


def save_final(path: Path, log: str, final: FinalLog) -> None:
    """Write the dump of one replica's log."""
    names = [log.encode(), final.replica.encode()]
    head = _FINAL.pack(
        FINAL_MAGIC, VERSION, *map(len, names), final.first, len(final.values)
    )  # fmt: skip
    path.write_bytes(b"".join([head, *names, _little(final.values)]))


def load_final(path: Path) -> tuple[str, FinalLog]:
    """The log's name, and the records that a replica holds of it."""
    data = path.read_bytes()
    if len(data) < _FINAL.size or data[:4] != FINAL_MAGIC:
        raise BadHistory(f"{path.name}: not a dump of a replica")
    _, version, log_bytes, replica_bytes, first, count = _FINAL.unpack_from(data)
    log_end = _FINAL.size + log_bytes
    names_end = log_end + replica_bytes
    if version != VERSION or len(data) != names_end + 8 * count:
        raise BadHistory(f"{path.name}: not a whole dump of version {VERSION}")
    log, replica = data[_FINAL.size : log_end].decode(), data[log_end:names_end].decode()
    return log, FinalLog(replica, first, _identities(data[names_end:]))


def _identities(data: bytes) -> array[int]:
    values = array("Q", data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def _little(values: array[int]) -> bytes:
    data = values.tobytes()
    return data if sys.byteorder == "little" else _identities(data).tobytes()
