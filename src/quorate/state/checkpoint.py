"""The bytes of a state, as a checkpoint keeps them.

Numbers are little-endian and unsigned::

    head, 32 bytes        magic "QRST", version u16, length of fence u8, 0 u8, end u64,
                          append time u64, producers u32, 0 u32
    fence
    each producer:
      56 bytes            epoch u64, last sequence u64, expiry u64, active u64, instance 16 bytes,
                          window u32, runs u16, length of name u8, 0 u8
      name
      each run, 40 bytes  sequence, count, offset, index, term: u64 each
    digest u64

The fence and the names are padded with zeros to a multiple of 8 bytes. Producers stand in rising
order of epoch, runs in rising order of sequence. What no log can lead to is refused.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from quorate.errors import InvalidArgument
from quorate.state.operations import OpenProducer
from quorate.state.producers import Producer, Producers, Run
from quorate.types import Index, Term

__all__ = ["Contents", "decode_contents", "encode_contents"]

MAGIC = b"QRST"
VERSION = 1

_HEAD = struct.Struct("<4sHBBQQII")
_PRODUCER = struct.Struct("<QQQQ16sIHBB")
_RUN = struct.Struct("<QQQQQ")
_DIGEST = struct.Struct("<Q")


class Contents(NamedTuple):
    """All that a state is made of."""

    end: int
    append_time: int
    fence: str | None
    producers: Producers


def encode_contents(contents: Contents, digest: int) -> bytes:
    end, append_time, fence, producers = contents
    label = (fence or "").encode()
    parts = [
        _HEAD.pack(MAGIC, VERSION, len(label), 0, end, append_time, len(producers), 0),
        _padded(label),
        *map(_encode_producer, producers),
        _DIGEST.pack(digest),
    ]
    return b"".join(parts)


def _encode_producer(producer: Producer) -> bytes:
    name, epoch, instance, last_sequence, runs, window, expiry_us, active_us = producer
    label = name.encode()
    head = _PRODUCER.pack(
        epoch, last_sequence, expiry_us, active_us, instance, window, len(runs), len(label), 0
    )
    return head + _padded(label) + b"".join(_RUN.pack(*run) for run in runs)


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
    magic, version, length, _, end, append_time, count, _ = _HEAD.unpack_from(data)
    if (magic, version) != (MAGIC, VERSION):
        raise InvalidArgument(f"not a state of version {VERSION}: {magic!r} version {version}")
    label, position = _read_label(data, _HEAD.size, length)
    contents = Contents(end, append_time, label or None, Producers())
    epoch = 0
    for _ in range(count):
        producer, position = _read_producer(data, position)
        if producer.epoch <= epoch or contents.producers.get(producer.name) is not None:
            raise InvalidArgument(f"state has producer {producer.name!r} twice or out of order")
        _check_producer(producer, contents)
        contents.producers.add(producer)
        epoch = producer.epoch
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
    if len(runs) > window or offset > contents.end or active_us > contents.append_time:
        raise InvalidArgument(f"state of producer {name!r}: more than the log can have led to")
