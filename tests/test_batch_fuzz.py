"""Batches from anybody: refused with InvalidArgument, or good to the last record.

Every batch here has a CRC that fits, so that the checks behind it are what is tried.
"""

from __future__ import annotations

import struct
from random import Random

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from core_rig import FUZZ
from quorate.batch import Batch, batch_count, encode_batch
from quorate.client.read.arrow import offset_column, record_batch
from quorate.errors import InvalidArgument

FRAMES = 1500

HEADERS = [[("trace", b"\x2a"), ("ключ", b"")], [], [("é", b"\x2b")], [], [], [("", b"abc")]]
VALUES = [b"hello", b"", b"world!", b"x", b"y" * 40, b""]
COLUMNS: list[dict[str, object]] = [
    {},
    {"times": 5},
    {"keys": [b"k1", None, b"", None, b"k2", b"k3"]},
    {"times": [1, 2, 3, 4, 5, 6]},
    {"headers": HEADERS},
    {"keys": [b"k"] * 6, "times": [0, 0, 0, 0, 0, 1], "headers": HEADERS},
]
BATCHES = [encode_batch(VALUES, **columns) for columns in COLUMNS]  # type: ignore[arg-type]
# Numbers at which a check may be off by one, or overflow.
NUMBERS = [
    0,
    1,
    2,
    3,
    7,
    8,
    9,
    255,
    2**15,
    2**16,
    2**31 - 8,
    2**31 - 1,
    2**31,
    2**32 - 8,
    2**32 - 1,
]


def sealed(data: bytes | bytearray) -> bytes:
    """``data`` with the CRC that makes it whole."""
    whole = bytearray(data)
    whole[4:8] = crc32c(bytes(whole[8:]), crc32c(bytes(whole[:4]))).to_bytes(4, "little")
    return bytes(whole)


def accepted(data: bytes) -> bool:
    """Whether ``data`` passes; if so, Python and Arrow read it to its end."""
    try:
        count = batch_count(data)
    except InvalidArgument:
        return False
    batch = Batch.parse(data)
    records = list(batch)
    assert len(records) == count
    assert [batch.record(place) for place in range(count)] == records
    arrow = record_batch(batch, offset_column(0, count), 0)
    arrow.validate(full=True)
    assert arrow.column("value").to_pylist() == [record.value for record in records]
    assert arrow.column("key").to_pylist() == [record.key for record in records]
    return True


def damaged(random: Random) -> bytes:
    """A good batch with one to three places that are not what they were."""
    data = bytearray(random.choice(BATCHES))
    for _ in range(random.randint(1, 3)):
        place = random.randrange(8, len(data))
        match random.randrange(5):
            case 0:
                data[place] ^= 1 << random.randrange(8)
            case 1:
                data[place] = random.randrange(256)
            case 2:
                struct.pack_into("<I", data, place & ~3, random.choice(NUMBERS))
            case 3:
                (number,) = struct.unpack_from("<I", data, place & ~3)
                near = number + random.choice([-8, -1, 1, 8])
                struct.pack_into("<I", data, place & ~3, near % 2**32)
            case _:
                size = random.choice([1, 4, 8])
                data[place : place + size] = data[place - size : place]
    return sealed(data)


def test_the_batches_to_be_damaged_are_good() -> None:
    assert all(accepted(batch) for batch in BATCHES)


@pytest.mark.parametrize("seed", range(4))
def test_what_is_accepted_can_be_read_to_its_end(seed: int) -> None:
    """Most damage is refused. What is not changed a value, a key, a time or a letter."""
    random = Random(seed)
    passed = sum(accepted(damaged(random)) for _ in range(FRAMES))
    assert 50 < passed < FRAMES - 50


@pytest.mark.parametrize("batch", BATCHES)
def test_any_byte_may_be_any_of_these(batch: bytes) -> None:
    for place in range(8, len(batch)):
        for value in (0, 1, 0x7F, 0x80, 0xFF):
            accepted(sealed(batch[:place] + bytes([value]) + batch[place + 1 :]))


@pytest.mark.parametrize("batch", BATCHES)
def test_a_batch_cut_anywhere_is_refused(batch: bytes) -> None:
    for length in range(len(batch)):
        cut = bytearray(batch[:length])
        if length >= 20:
            struct.pack_into("<I", cut, 16, length)
        assert not accepted(sealed(cut))


offsets = st.lists(st.integers(-1, 12), max_size=6).map(lambda n: struct.pack(f"<{len(n)}i", *n))
parts = st.binary(max_size=16) | offsets | offsets.map(bytes)


@settings(FUZZ, max_examples=400)
@given(st.integers(0, 16), st.integers(0, 6), st.lists(parts, max_size=11), st.integers(-1, 1))
def test_any_parts_in_their_right_places_are_refused_or_good(
    flags: int, count: int, parts: list[bytes], time: int
) -> None:
    directory, body = b"", b""
    for part in parts:
        directory += struct.pack("<II", 40 + 8 * len(parts) + len(body), len(part))
        body += part + bytes(-len(part) % 8)
    length = 40 + len(directory) + len(body)
    head = struct.pack("<4sIHHII12xq", b"QRBA", 0, 1, flags, count, length, time)
    accepted(sealed(head + directory + body))


@FUZZ
@given(st.binary(max_size=200))
def test_bytes_of_chance_are_refused(data: bytes) -> None:
    assert not accepted(data)
    assert not accepted(sealed(b"QRBA" + bytes(4) + data))
