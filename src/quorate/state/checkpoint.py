"""The bytes of a state, as a checkpoint keeps them.

Numbers are little-endian and unsigned::

    head, 40 bytes        magic "QRST", version u16, length of fence u8, 0 u8, end u64,
                          append time u64, age u64, producers u32, 1 if there is staging else 0 u32
    fence
    each producer:
      56 bytes            epoch u64, last sequence u64, expiry u64, active u64, instance 16 bytes,
                          window u32, runs u16, length of name u8, 0 u8
      name
      each run, 40 bytes  sequence, count, offset, index, term: u64 each
    staging, if any, 8 bytes    apps u32, attempts u32
    each app:
      88 bytes            batch id, offset, count, index, term, active: u64 each, digest 32 bytes,
                          length of name u8, 1 if it published once and for all else 0 u8, 0 6 bytes
      name
    each attempt:
      64 bytes            batch id u64, active u64, partition u32, chunks u32, run 16 bytes,
                          attempt 16 bytes, length of name u8, 0 7 bytes
      name of its app
      each chunk          as in a publish entry
    digest u64

The fence and the names are padded with zeros to a multiple of 8 bytes. Producers stand in rising
order of epoch, runs in rising order of sequence, apps in rising order of index, attempts in that of
their first chunks. What no log can lead to is refused.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from quorate.entry import Chunk, pack_chunks
from quorate.errors import InvalidArgument
from quorate.state.labels import Label
from quorate.state.operations import OpenProducer
from quorate.state.producers import Producer, Producers, Run
from quorate.state.staging import App, Staging, attempt_of
from quorate.types import Index, Term

if TYPE_CHECKING:
    from quorate.state.staging import Attempt

__all__ = ["Contents", "decode_contents", "encode_contents"]

MAGIC = b"QRST"
VERSION = 1

_HEAD = struct.Struct("<4sHBBQQQII")
_PRODUCER = struct.Struct("<QQQQ16sIHBB")
_RUN = struct.Struct("<QQQQQ")
_STAGING = struct.Struct("<II")
_APP = struct.Struct("<QQQQQQ32sBB6x")
_ATTEMPT = struct.Struct("<QQII16s16sB7x")
_CHUNK = struct.Struct("<QII")
_DIGEST = struct.Struct("<Q")


class Contents(NamedTuple):
    """All that a state is made of."""

    end: int
    append_time: int
    age: int
    fence: str | None
    producers: Producers
    staging: Staging


def encode_contents(contents: Contents, digest: int) -> bytes:
    end, append_time, age, fence, producers, staging = contents
    label = (fence or "").encode()
    staged = staging != Staging()
    parts = [
        _HEAD.pack(MAGIC, VERSION, len(label), 0, end, append_time, age, len(producers), staged),
        _padded(label),
        *map(_encode_producer, producers),
        *(_encode_staging(staging) if staged else ()),
        _DIGEST.pack(digest),
    ]
    return b"".join(parts)


def _encode_staging(staging: Staging) -> list[bytes]:
    apps, attempts = staging.apps(), [*staging.attempts()]
    head = _STAGING.pack(len(apps), len(attempts))
    return [head, *map(_encode_app, apps), *map(_encode_attempt, attempts)]


def _encode_producer(producer: Producer) -> bytes:
    name, epoch, instance, last_sequence, runs, window, expiry_us, active_us = producer
    label = name.encode()
    head = _PRODUCER.pack(
        epoch, last_sequence, expiry_us, active_us, instance, window, len(runs), len(label), 0
    )
    return head + _padded(label) + b"".join(_RUN.pack(*run) for run in runs)


def _encode_app(app: App) -> bytes:
    name, batch_id, digest, offset, count, index, term, active_us, once = app
    label = name.encode()
    head = _APP.pack(batch_id, offset, count, index, term, active_us, digest, len(label), once)
    return head + _padded(label)


def _encode_attempt(attempt: Attempt) -> bytes:
    app, run, batch_id, partition, attempt_id, _, active_us, *_ = attempt
    label, chunks = app.encode(), attempt.chunks
    head = _ATTEMPT.pack(batch_id, active_us, partition, len(chunks), run, attempt_id, len(label))
    return head + _padded(label) + pack_chunks(chunks)


def _padded(label: bytes) -> bytes:
    return label + bytes(-len(label) % 8)


def decode_contents(data: bytes) -> tuple[Contents, int]:
    """What ``data`` holds, and the digest at its end, which the caller compares. Raises
    InvalidArgument for what no log leads to."""
    try:
        return _read_contents(data)
    except (struct.error, UnicodeDecodeError) as odd:
        raise InvalidArgument(f"state of {len(data)} bytes cannot be read: {odd}") from odd


def _read_contents(data: bytes) -> tuple[Contents, int]:
    magic, version, length, _, end, append_time, age, count, staged = _HEAD.unpack_from(data)
    if (magic, version) != (MAGIC, VERSION):
        raise InvalidArgument(f"not a state of version {VERSION}: {magic!r} version {version}")
    label, position = _read_label(data, _HEAD.size, length)
    if age > append_time:
        raise InvalidArgument(f"state is {age} µs old, which is more than its append time")
    contents = Contents(end, append_time, age, label or None, Producers(), Staging())
    epoch = 0
    for _ in range(count):
        producer, position = _read_producer(data, position)
        if producer.epoch <= epoch or contents.producers.get(producer.name) is not None:
            raise InvalidArgument(f"state has producer {producer.name!r} twice or out of order")
        _check_producer(producer, contents)
        contents.producers.add(producer)
        epoch = producer.epoch
    if staged:
        position = _read_staging(data, position, contents)
    (digest,) = _DIGEST.unpack_from(data, position)
    if position + _DIGEST.size != len(data):
        raise InvalidArgument(f"state ends at byte {position + _DIGEST.size}, not {len(data)}")
    return contents, digest


def _read_label(data: bytes, position: int, length: int) -> tuple[str, int]:
    """The text at ``position``, and where its padding ends."""
    end = position + length
    return data[position:end].decode(), end + -length % 8


def _read_producer(data: bytes, position: int) -> tuple[Producer, int]:
    (
        epoch, last_sequence, expiry_us, active_us, instance, window, count, length, _,
    ) = _PRODUCER.unpack_from(data, position)  # fmt: skip
    name, start = _read_label(data, position + _PRODUCER.size, length)
    end = start + count * _RUN.size
    if end > len(data):
        raise InvalidArgument(f"state lacks some of the {count} runs of producer {name!r}")
    rows = _RUN.iter_unpack(memoryview(data)[start:end])
    runs = tuple(
        Run(sequence, records, offset, Index(index), Term(term))
        for sequence, records, offset, index, term in rows
    )
    return (
        Producer(name, epoch, instance, last_sequence, runs, window, expiry_us, active_us),
        end,
    )


def _check_producer(producer: Producer, contents: Contents) -> None:
    """Refuse what no entries lead to."""
    name, _, instance, last_sequence, runs, window, expiry_us, active_us = producer
    OpenProducer(name, instance, window, expiry_us)  # refuses what nobody could ask for
    sequence = max(1, runs[0].sequence) if runs else 1
    offset, index, term = 0, 1, 1
    for run in runs:
        follows = run.sequence == sequence and run.offset >= offset
        if not follows or run.index < index or run.term < term or not run.count:
            raise InvalidArgument(f"state of producer {name!r}: {run} does not follow")
        sequence, offset, index, term = sequence + run.count, run.offset + run.count, *run[3:]
    if sequence != last_sequence + 1:
        raise InvalidArgument(
            f"state of producer {name!r}: runs end before {sequence}, it is at {last_sequence}"
        )
    if len(runs) > window or offset > contents.end or active_us > contents.age:
        raise InvalidArgument(f"state of producer {name!r}: more than the log can have led to")


def _read_staging(data: bytes, position: int, contents: Contents) -> int:
    """Add what stands at ``position``; where it ends."""
    apps, attempts = _STAGING.unpack_from(data, position)
    position += _STAGING.size
    last = 0
    for _ in range(apps):
        last, position = _read_app(data, position, contents, last)
    last = 0
    for _ in range(attempts):
        last, position = _read_attempt(data, position, contents, last)
    return position


def _read_app(data: bytes, position: int, contents: Contents, last: int) -> tuple[int, int]:
    """Add the app at ``position``, whose publish comes after ``last``: its publish and its end."""
    batch_id, offset, count, index, term, active_us, digest, length, once = _APP.unpack_from(
        data, position
    )
    name, end = _read_label(data, position + _APP.size, length)
    app = App(name, batch_id, digest, offset, count, Index(index), Term(term), active_us, once == 1)
    if contents.staging.app(name) is not None or index <= last:
        raise InvalidArgument(f"state has app {name!r} twice or out of order")
    if not name or offset + count > contents.end or active_us > contents.age:
        raise InvalidArgument(f"state of app {name!r}: more than the log can have led to")
    contents.staging.put_app(app)
    return index, end


def _read_attempt(data: bytes, position: int, contents: Contents, last: int) -> tuple[int, int]:
    """Add the attempt at ``position``, which began after ``last``: where it began and its end."""
    batch_id, active_us, partition, count, run, attempt_id, length = _ATTEMPT.unpack_from(
        data, position
    )
    name, start = _read_label(data, position + _ATTEMPT.size, length)
    end = start + count * _CHUNK.size
    if end > len(data):
        raise InvalidArgument(f"state lacks some of the {count} chunks of app {name!r}")
    chunks = tuple(map(Chunk._make, _CHUNK.iter_unpack(memoryview(data)[start:end])))
    Label(name, run, batch_id, partition, attempt_id, 0)  # refuses what nobody could ask for
    if not chunks:
        raise InvalidArgument(f"state of app {name!r}: an attempt without chunks")
    attempt = attempt_of((name, batch_id, partition, attempt_id), run, chunks, active_us)
    _check_attempt(attempt, contents, last)
    contents.staging.add(attempt)
    return attempt.first, end


def _check_attempt(attempt: Attempt, contents: Contents, last: int) -> None:
    """Refuse what no entries lead to."""
    staging, app = contents.staging, attempt.app
    indexes = [chunk.index for chunk in attempt.chunks]
    if indexes != sorted(set(indexes)) or not all(c.records for c in attempt.chunks):
        raise InvalidArgument(f"state of app {app!r}: chunks that do not follow each other")
    if indexes[0] <= last or staging.attempt(*attempt.key) is not None:
        raise InvalidArgument(f"state has an attempt of {app!r} twice or out of order")
    published = staging.app(app)
    if published is not None and published.batch_id >= attempt.batch_id:
        raise InvalidArgument(f"state of app {app!r}: staged for a batch that is published")
    if attempt.active_us > contents.age:
        raise InvalidArgument(f"state of app {app!r}: more than the log can have led to")
