"""The requests that carry records, and their answers: packed by hand, because they are many.

Every request has a number that its sender chose; the answer names it. Many requests may be under
way on one connection, and answers come in any order. Logs are named by their incarnation: a log
that was deleted and made again is another log.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from quorate.commands import ProducerStamp
from quorate.entry import RUNS_MAX
from quorate.entry_body import EntryView, view_entry
from quorate.errors import InvalidArgument, NotLeader, QuorateError, error_for
from quorate.types import NodeId
from quorate.wire.frames import Frame, FrameKind, encode_frame
from quorate.wire.shapes import check_name, decode_name, encode_name, wire_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "NO_OFFSET",
    "AppendRequest",
    "Failure",
    "Fetch",
    "Receipts",
    "Records",
    "decode_append",
    "decode_failure",
    "decode_fetch",
    "decode_receipts",
    "decode_records",
    "encode_append",
    "encode_failure",
    "encode_fetch",
    "encode_receipts",
    "encode_records",
    "pack_request",
    "request_of",
    "take_request",
]

# In place of an expected offset if there is none.
NO_OFFSET = (1 << 64) - 1

_REQUEST = struct.Struct("<I")
# request, log, expected offset, deadline in ms, bytes of the fence, of the producer's name
_APPEND = struct.Struct("<I16sQIBB")
# epoch, sequence
_STAMP = struct.Struct("<QQ")
# index, term, base offset, copies on disk, rows
_RECEIPTS = struct.Struct("<QQQII")
# first request, requests, offset above the base, records of each
_RECEIPT = struct.Struct("<IIII")
# request, log, offset, bytes at most, wait in ms, highest end that the session has seen
_FETCH = struct.Struct("<I16sQIIQ")
# request, first offset of the log, end of the committed records, rows
_RECORDS = struct.Struct("<IQQI")
# offset of the first record of a frame, its records, its bytes, their append time
_ROW = struct.Struct("<QIIQ")
# request, bytes of the code, of the message, of the leader's name
_FAILURE = struct.Struct("<IBHB")

_NUMBERED = {
    FrameKind.APPEND,
    FrameKind.FETCH,
    FrameKind.RECORDS,
    FrameKind.CALL,
    FrameKind.RESULT,
    FrameKind.FAILURE,
}


class AppendRequest(NamedTuple):
    """A request to append one batch to a log."""

    request: int
    log: int
    batch: bytes
    # The append is refused unless the log ends there.
    expect_offset: int | None = None
    fence: str | None = None
    producer: ProducerStamp | None = None
    # Milliseconds after which the client no longer waits for an answer.
    deadline_ms: int = 30_000


class Receipts(NamedTuple):
    """The offsets of the batches of one entry, for the requests of one connection.

    Requests with rising numbers and equally many records that follow each other are one row.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which is not called
    term: int
    base_offset: int
    synced: int
    # (first request, requests, offset of the first above the base, records of each)
    rows: list[tuple[int, int, int, int]]

    def answers(self) -> Iterator[tuple[int, int, int]]:
        """Yield (request, offset, records) for every request that is answered."""
        for first, many, above, count in self.rows:
            offset = self.base_offset + above
            for request in range(first, first + many):
                yield request, offset, count
                offset += count


class Fetch(NamedTuple):
    """A request for stored records from ``offset`` on."""

    request: int
    log: int
    offset: int
    bytes_max: int
    # Milliseconds to wait for the first record if there is none yet.
    wait_ms: int = 0
    # The highest end that this session was shown: a replica that has not reached it answers BEHIND.
    session_end: int = 0


class Records(NamedTuple):
    """Entries as they are stored, each with the offset of its first record."""

    request: int
    first_offset: int
    end_offset: int
    # (offset, records, entry), over the memory of the one frame that brought them
    rows: list[tuple[int, int, EntryView]]

    @property
    def extent(self) -> Extent:
        """The range and size of these records, which must have at least one row."""
        offset, records, _ = self.rows[-1]
        size = sum(len(entry.frame) for _, _, entry in self.rows)
        return Extent(self.rows[0][0], offset + records, size, self.end_offset)


class Extent(NamedTuple):
    """The range and size of RECORDS, known before their entries have come."""

    # The offset of the first record, and the one after the last record.
    offset: int
    end: int
    # Bytes of the entries.
    size: int
    # The end of the log.
    end_offset: int


class Failure(NamedTuple):
    request: int
    error: QuorateError


def request_of(frame: Frame) -> int:
    """The number of the request that a frame is or answers. RECEIPTS answer several requests."""
    if frame.kind not in _NUMBERED:
        raise InvalidArgument(f"{frame.kind.name} is no request and answers none by its number")
    return int(_unpack(_REQUEST, frame, frame.kind)[0])


def pack_request(request: int) -> bytes:
    """The number with which the control part of a CALL and of its answer begins."""
    try:
        return _REQUEST.pack(request)
    except struct.error:
        raise _out_of_range({"request": request}) from None


def take_request(frame: Frame, kind: FrameKind) -> tuple[int, bytes]:
    """The number at the start of a frame of this kind, and the bytes that follow it."""
    (request,) = _unpack(_REQUEST, frame, kind)
    return request, frame.control[_REQUEST.size :]


# -- appending ---------------------------------------------------------------------------------


def encode_append(append: AppendRequest) -> bytes:
    """The frame of an APPEND without its batch, which follows as the bulk part."""
    request, log, batch, offset, fence, stamp, deadline = append
    fence_bytes = _name("fence", fence) if fence is not None else b""
    producer = _name("producer", stamp.name) if stamp is not None else b""
    try:
        control = _APPEND.pack(
            request, log.to_bytes(16, "little"), NO_OFFSET if offset is None else offset, deadline,
            len(fence_bytes), len(producer),
        )  # fmt: skip
        if stamp is not None:
            control += _STAMP.pack(stamp.epoch, stamp.sequence)
    except (struct.error, OverflowError):
        fields = append._replace(expect_offset=0 if offset is None else offset)._asdict()
        raise _out_of_range(fields | (stamp._asdict() if stamp is not None else {})) from None
    if offset == NO_OFFSET:
        raise _out_of_range({"expect_offset": offset})
    return encode_frame(FrameKind.APPEND, control + fence_bytes + producer, len(batch))


def decode_append(frame: Frame) -> AppendRequest:
    control = frame.control
    request, log, offset, deadline, fence, producer = _unpack(_APPEND, frame, FrameKind.APPEND)
    position = _APPEND.size + (_STAMP.size if producer else 0)
    if len(control) != position + fence + producer:
        raise InvalidArgument(
            f"APPEND: names of {fence} and {producer} bytes do not fill the control part"
        )
    stamp = None
    if producer:
        name = decode_name("producer", control[position + fence :])
        epoch, sequence = _STAMP.unpack_from(control, _APPEND.size)
        stamp = ProducerStamp(name, epoch, sequence)
    return AppendRequest(
        request,
        int.from_bytes(log, "little"),
        frame.bulk,
        offset if offset != NO_OFFSET else None,
        decode_name("fence", control[position : position + fence]) if fence else None,
        stamp,
        deadline,
    )


def encode_receipts(receipts: Receipts) -> bytes:
    index, term, base, synced, rows = receipts
    control = _RECEIPTS.pack(index, term, base, synced, len(rows))
    return encode_frame(
        FrameKind.RECEIPTS, control + b"".join([_RECEIPT.pack(*row) for row in rows])
    )


def decode_receipts(frame: Frame) -> Receipts:
    index, term, base, synced, count = _unpack(_RECEIPTS, frame, FrameKind.RECEIPTS)
    rows = list(_RECEIPT.iter_unpack(_rows(frame, _RECEIPTS.size, _RECEIPT, count)))
    # The batches are in one entry, so there cannot be more: no client has to count to four billion.
    if sum(row[1] for row in rows) > RUNS_MAX:
        raise InvalidArgument(f"RECEIPTS: more than {RUNS_MAX} requests are answered")
    return Receipts(index, term, base, synced, rows)


# -- reading -----------------------------------------------------------------------------------


def encode_fetch(fetch: Fetch) -> bytes:
    request, log, *rest = fetch
    try:
        control = _FETCH.pack(request, log.to_bytes(16, "little"), *rest)
    except (struct.error, OverflowError):
        raise _out_of_range(fetch._asdict()) from None
    return encode_frame(FrameKind.FETCH, control)


def decode_fetch(frame: Frame) -> Fetch:
    request, log, *rest = _unpack(_FETCH, frame, FrameKind.FETCH)
    if len(frame.control) != _FETCH.size:
        raise InvalidArgument(f"FETCH: a control part of {len(frame.control)} bytes is too long")
    return Fetch(request, int.from_bytes(log, "little"), *rest)


def encode_records(
    request: int, first_offset: int, end_offset: int, rows: Sequence[tuple[int, int, int, int]]
) -> bytes:
    """The frame of RECORDS without the frames of the entries, which follow as the bulk part.

    ``rows`` are (offset, records, bytes of the frame, append time).
    """
    control = _RECORDS.pack(request, first_offset, end_offset, len(rows))
    size = sum(row[2] for row in rows)
    return encode_frame(
        FrameKind.RECORDS, control + b"".join([_ROW.pack(*row) for row in rows]), size
    )


def decode_records(frame: Frame) -> Records:
    """The RECORDS in a frame. Raises InvalidArgument unless both CRCs of every entry hold."""
    request, first, end, count = _unpack(_RECORDS, frame, FrameKind.RECORDS)
    rows = _rows(frame, _RECORDS.size, _ROW, count)
    return Records(request, first, end, list(_entries(memoryview(frame.bulk), rows)))


def extent_of(frame: Frame) -> Extent:
    """The extent of RECORDS that have at least one row; their bulk part need not have come."""
    _, _, end_offset, count = _unpack(_RECORDS, frame, FrameKind.RECORDS)
    rows = list(_ROW.iter_unpack(_rows(frame, _RECORDS.size, _ROW, count)))
    offset, records, _, _ = rows[-1] if rows else (0, 0, 0, 0)
    if not rows or offset + records <= rows[0][0]:
        raise InvalidArgument("RECORDS: a bulk part without records, or out of order")
    return Extent(rows[0][0], offset + records, sum(row[2] for row in rows), end_offset)


def _entries(bulk: memoryview, rows: bytes) -> Iterator[tuple[int, int, EntryView]]:
    start = 0
    for offset, records, size, append_time in _ROW.iter_unpack(rows):
        yield offset, records, view_entry(bulk[start : start + size], append_time)
        start += size
    if start != len(bulk):
        raise InvalidArgument(f"RECORDS: rows of {start} bytes, a bulk part of {len(bulk)}")


# -- failing -----------------------------------------------------------------------------------


def encode_failure(request: int, error: QuorateError) -> bytes:
    code, message = error.code.encode(), wire_text(error).encode()
    known = error.leader if isinstance(error, NotLeader) else None
    leader = encode_name("leader", known) if known is not None else b""
    head = _FAILURE.pack(request, len(code), len(message), len(leader))
    return encode_frame(FrameKind.FAILURE, head + code + message + leader)


def decode_failure(frame: Frame) -> Failure:
    request, code, message, leader = _unpack(_FAILURE, frame, FrameKind.FAILURE)
    text = frame.control[_FAILURE.size :]
    end = code + message
    if len(text) != end + leader:
        raise InvalidArgument(
            f"FAILURE: texts of {code}, {message} and {leader} bytes do not fill the control part"
        )
    try:
        said = text[code:end].decode()
    except UnicodeDecodeError as odd:
        raise InvalidArgument(f"FAILURE: the message is not UTF-8: {odd.reason}") from None
    known = NodeId(decode_name("leader", text[end:])) if leader else None
    error = error_for(decode_name("code", text[:code]), said, known)
    if leader and not isinstance(error, NotLeader):
        raise InvalidArgument(f"FAILURE: {error.code} names a leader, only NOT_LEADER does")
    return Failure(request, error)


# -- parts -------------------------------------------------------------------------------------


def _name(what: str, name: object) -> bytes:
    """The bytes of a name that a caller gave, so it may be of any type."""
    check_name(what, name)
    assert isinstance(name, str)  # for the type checker: check_name has checked it
    return name.encode()


def _unpack(layout: struct.Struct, frame: Frame, kind: FrameKind) -> tuple[Any, ...]:
    if frame.kind is not kind:
        raise InvalidArgument(f"{kind.name} is expected here, not {frame.kind.name}")
    if len(frame.control) < layout.size:
        raise InvalidArgument(
            f"{kind.name}: a control part of {len(frame.control)} bytes is too short"
        )
    return layout.unpack_from(frame.control)


def _rows(frame: Frame, start: int, layout: struct.Struct, count: int) -> bytes:
    rows = frame.control[start:]
    if len(rows) != count * layout.size:
        raise InvalidArgument(f"{frame.kind.name}: {len(rows)} bytes do not hold {count} rows")
    return rows


_NUMBERS_MAX = {
    "request": (1 << 32) - 1,
    "log": (1 << 128) - 1,
    "expect_offset": NO_OFFSET - 1,
    "deadline_ms": (1 << 32) - 1,
    "epoch": (1 << 64) - 1,
    "sequence": (1 << 64) - 1,
    "offset": (1 << 64) - 1,
    "bytes_max": (1 << 32) - 1,
    "wait_ms": (1 << 32) - 1,
    "session_end": (1 << 64) - 1,
}


def _out_of_range(fields: dict[str, Any]) -> InvalidArgument:
    """The error that names the field out of range; it is searched only after packing has failed."""
    name, most = next(
        (name, most)
        for name, most in _NUMBERS_MAX.items()
        if name in fields and not (isinstance(fields[name], int) and 0 <= fields[name] <= most)
    )
    return InvalidArgument(f"{name} is {fields[name]!r}, not a whole number of 0 to {most}")
