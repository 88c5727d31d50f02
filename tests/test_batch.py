"""A batch's bytes: the format does not drift, records survive it, no lie about it is believed."""

from __future__ import annotations

import re
import struct
import tracemalloc
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from core_rig import FUZZ
from quorate.batch import Batch, BatchRecord, batch_count, encode_batch
from quorate.errors import EmptyBatch, InvalidArgument, TooLarge

PAGE = Path(__file__).resolve().parents[1] / "docs" / "format-batch.md"
KEYS, TIMES, HEADERS, ONE_TIME = 1, 2, 4, 8

# The example of the page: every column is there.
FULL = encode_batch(
    [b"hello", b"world!"],
    keys=[b"k1", None],
    times=[1_000_000, 1_000_500],
    headers=[[("trace", b"\x2a"), ("trace", b"\x2b")], []],
)
# Worked out once and written down: every later release must read it.
GOLDEN = bytes.fromhex(
    "515242411b60c93e01000800030000005800000000000000000000000000000040420f0000000000"
    "38000000100000004800000009000000"
    "00000000050000000500000009000000"
    "68656c6c6f6c6f677300000000000000"
)


def sealed(data: bytes) -> bytes:
    """``data`` with the CRC that makes it whole."""
    return data[:4] + crc32c(data[8:], crc32c(data[:4])).to_bytes(4, "little") + data[8:]


def built(flags: int, count: int, *parts: bytes, time: int = 0) -> bytes:
    """A batch of any parts, each in its right place: the format once more, from its page."""
    directory, body = b"", b""
    for part in parts:
        directory += struct.pack("<II", 40 + 8 * len(parts) + len(body), len(part))
        body += part + bytes(-len(part) % 8)
    length = 40 + len(directory) + len(body)
    head = struct.pack("<4sIHHII12xq", b"QRBA", 0, 1, flags, count, length, time)
    return sealed(head + directory + body)


def ints(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}i", *numbers)


def flip(data: bytes, bit: int) -> bytes:
    flipped = bytearray(data)
    flipped[bit // 8] ^= 1 << bit % 8
    return bytes(flipped)


# -- the bytes ---------------------------------------------------------------------------------


def test_a_batch_is_the_written_down_bytes() -> None:
    assert encode_batch([b"hello", b"", b"logs"], times=1_000_000).hex() == GOLDEN.hex()
    assert [record.value for record in Batch.parse(GOLDEN)] == [b"hello", b"", b"logs"]


def test_the_page_shows_every_byte_of_its_example() -> None:
    text = PAGE.read_text(encoding="utf-8")
    position = 0
    for offset, shown in re.findall(r"^\| (\d+) \| `([0-9a-f ]+)` \|", text, re.MULTILINE):
        part = bytes.fromhex(shown)
        assert (int(offset), part) == (position, FULL[position : position + len(part)])
        position += len(part)
    assert position == len(FULL)


@pytest.mark.parametrize("count", [2, 3, 7, 8, 9, 64])
def test_every_part_and_every_batch_is_aligned(count: int) -> None:
    batch = encode_batch(
        [b"v" * place for place in range(count)],
        keys=[b"k" * place for place in range(count)],
        times=range(count),
        headers=[[("n" * place, b"c" * place)] * place for place in range(count)],
    )
    assert len(batch) % 8 == 0
    rows = 11
    offsets = struct.unpack_from(f"<{2 * rows}I", batch, 40)[::2]
    assert all(offset % 8 == 0 for offset in offsets)
    assert offsets[0] == 40 + 8 * rows


@pytest.mark.parametrize(
    ("columns", "flags", "rows"),
    [
        ({}, 0, 2),
        ({"keys": [None, None], "headers": [[], ()]}, 0, 2),
        ({"keys": [None, b""]}, KEYS, 5),
        ({"times": 7}, ONE_TIME, 2),
        ({"times": [7, 7]}, ONE_TIME, 2),
        ({"times": [7, 8]}, TIMES, 3),
        ({"headers": [[], [("", b"")]]}, HEADERS, 7),
        ({"keys": [b"", b""], "times": [0, -1], "headers": [[("a", b"")], []]}, 7, 11),
    ],
)
def test_a_column_that_says_nothing_is_left_out(
    columns: dict[str, list[object]], flags: int, rows: int
) -> None:
    batch = encode_batch([b"a", b"b"], **columns)  # type: ignore[arg-type]  # drawn from a table
    assert struct.unpack_from("<H", batch, 10) == (flags,)
    assert struct.unpack_from("<I", batch, 40) == (40 + 8 * rows,)


def test_a_batch_of_small_values_costs_56_bytes_and_4_a_record() -> None:
    values = [b"12345678"] * 99
    assert len(encode_batch(values, times=5)) == 56 + 4 * (99 + 1) + 8 * 99


# -- records -----------------------------------------------------------------------------------

times = st.integers(-(2**63), 2**63 - 1)
pairs = st.tuples(st.text(st.characters(codec="utf-8"), max_size=5), st.binary(max_size=9))
records = st.builds(
    BatchRecord,
    times,
    st.none() | st.binary(max_size=9),
    st.binary(max_size=20),
    st.lists(pairs, max_size=3).map(tuple),
)


@FUZZ
@given(st.lists(records, min_size=1, max_size=30))
def test_records_come_out_as_they_went_in(given: list[BatchRecord]) -> None:
    data = encode_batch(
        [record.value for record in given],
        keys=[record.key for record in given],
        times=[record.timestamp or 0 for record in given],
        headers=[record.headers for record in given],
    )
    batch = Batch.parse(data)
    assert list(batch) == given
    assert [batch.record(place) for place in range(batch.count)] == given
    assert batch_count(data) == len(given)


def test_no_key_is_not_the_empty_key() -> None:
    keys = [None, b"", b"k", None, b"", None, None, b"", b"", None]
    batch = Batch.parse(encode_batch([b""] * 10, keys=keys))
    assert [record.key for record in batch] == keys
    assert [batch.record(place).key for place in range(10)] == keys
    assert batch.keys is not None
    assert batch.keys.validity.tobytes() == bytes([0b10010110, 0b01])


def test_headers_keep_their_order_and_may_come_again() -> None:
    headers = [(("b", b"1"), ("a", b"2"), ("b", b"1")), (), (("ключ", b""),)]
    batch = Batch.parse(encode_batch([b"x", b"y", b"z"], headers=headers))
    assert [record.headers for record in batch] == headers
    assert [batch.record(place).headers for place in range(3)] == headers


def test_what_was_not_given_is_not_made_up() -> None:
    assert list(Batch.parse(encode_batch([b"x"]))) == [BatchRecord(None, None, b"x", ())]


def test_one_time_is_the_time_of_every_record() -> None:
    batch = Batch.parse(encode_batch([b"x", b"y"], times=-5))
    assert [record.timestamp for record in batch] == [-5, -5]
    assert batch.record(1).timestamp == -5


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_batch_is_read_from_any_bytes(kind: type[bytes | bytearray | memoryview]) -> None:
    assert list(Batch.parse(kind(FULL))) == list(Batch.parse(FULL))
    assert batch_count(kind(FULL)) == 2


@pytest.mark.parametrize("place", [-1, 2, 1 << 40])
def test_a_record_that_is_not_there_is_refused(place: int) -> None:
    with pytest.raises(InvalidArgument, match=f"record {place} of a batch that has 2"):
        Batch.parse(FULL).record(place)


# -- what cannot be encoded --------------------------------------------------------------------


def test_a_batch_without_records_is_refused() -> None:
    with pytest.raises(EmptyBatch, match="at least one record"):
        encode_batch([])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"values": 7}, r"values is not a sequence: 7"),
        ({"values": iter([b"x"])}, r"values is not a sequence: <list_it"),
        ({"values": [b"x", "y"]}, r"values\[1\] is not bytes: 'y'"),
        ({"values": [b"x", 7]}, r"values\[1\] is not bytes: 7"),
        ({"values": [b"x", None]}, r"values\[1\] is not bytes: None"),
        ({"values": [b"x", memoryview(bytes(8)).cast("i")]}, r"values\[1\] is not bytes: <memory"),
        ({"keys": [b"k"]}, r"keys has 1 items for 2 records"),
        ({"keys": iter([b"k"])}, r"keys is not a sequence"),
        ({"keys": [None, "k"]}, r"keys\[1\] is not bytes: 'k'"),
        ({"keys": [None, 0]}, r"keys\[1\] is not bytes: 0"),
        ({"times": [1, 2, 3]}, r"times has 3 items for 2 records"),
        ({"times": [1, 2.5]}, r"times\[1\] is not int64: 2.5"),
        ({"times": [1, None]}, r"times\[1\] is not int64: None"),
        ({"times": [1, 1 << 63]}, r"times\[1\] is not int64: 9223372036854775808"),
        ({"times": -(1 << 63) - 1}, r"times\[0\] is not int64: -9223372036854775809"),
        ({"times": 1.5}, r"times is not a sequence: 1.5"),
        ({"headers": []}, r"headers has 0 items for 2 records"),
        ({"headers": [[], None]}, r"headers\[1\] is not \(str, bytes\) pairs: None"),
        ({"headers": [[], iter(())]}, r"headers\[1\] is not \(str, bytes\) pairs: <tuple_it"),
        ({"headers": [[("a", b"")], {"b": b""}]}, r"headers\[1\] is not .*: \{'b': b''\}"),
        ({"headers": [[("a", b"")], [("b", b"", b"")]]}, r"headers\[1\] is not .*'b', b'', b''"),
        ({"headers": [[("a", b"")], [("b", "c")]]}, r"headers\[1\] is not .*'b', 'c'"),
        ({"headers": [[("a", b"")], [(b"b", b"")]]}, r"headers\[1\] is not .*b'b', b''"),
        ({"headers": [[("a", b"")], [("\ud800", b"")]]}, r"headers\[1\] is not .*\\ud800"),
    ],
)
def test_what_cannot_be_encoded_is_named(columns: dict[str, object], message: str) -> None:
    values = columns.pop("values", [b"x", b"y"])
    with pytest.raises(InvalidArgument, match=message):
        encode_batch(values, **columns)  # type: ignore[arg-type]  # wrong on purpose


def test_a_column_that_would_overflow_is_refused_before_it_is_joined() -> None:
    chunk = bytes(1 << 20)
    with pytest.raises(TooLarge, match="a column of 2147483648 bytes"):
        encode_batch([chunk] * 2048)


def test_a_batch_that_would_overflow_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quorate.batch.BATCH_BYTES_MAX", 167)
    with pytest.raises(TooLarge, match="a batch of 168 bytes; it has at most 167"):
        encode_batch([bytes(100)])


# -- what is refused ---------------------------------------------------------------------------


def test_every_flipped_bit_is_caught() -> None:
    for bit in range(8 * len(FULL)):
        with pytest.raises(InvalidArgument, match=r"batch head: (magic|CRC|version|length) is"):
            batch_count(flip(FULL, bit))


def test_every_cut_and_every_extension_is_caught() -> None:
    for length in range(len(FULL)):
        with pytest.raises(InvalidArgument, match=r"batch head: (length is|\d+ bytes)"):
            batch_count(FULL[:length])
    with pytest.raises(InvalidArgument, match="batch head: length is 280, not 288"):
        batch_count(FULL + bytes(8))


LIES = [
    (0, b"QREN", "head: magic is b'QREN', not b'QRBA'"),
    (8, b"\2\0", "head: version is 2, not 1"),
    (10, b"\x17\0", "head: flags 0x17 are not known"),
    (10, b"\x0f\0", "head: flags 0xf are not known"),
    (10, b"\3\0", "value offsets: offset is 128, not 88"),
    (12, ints(0), "head: count is 0"),
    (12, ints(1), "value offsets: length is 12, not 8"),
    (12, ints(3), "value offsets: length is 12, not 16"),
    (12, ints(-1), "value offsets: length is 12, not 17179869184"),
    (16, ints(272), "head: length is 272, not 280"),
    (31, b"\1", "head: reserved is b'.*', not b'.*'"),
    (32, b"\1", "head: time is 1, not 0"),
    (40, ints(40), "value offsets: offset is 40, not 128"),
    (44, ints(-1), "value bytes: offset is 144, not 4294967424"),
    (48, ints(128), "value bytes: offset is 128, not 144"),
    (48, ints(145), "value bytes: offset is 145, not 144"),
    (48, ints(152), "value bytes: offset is 152, not 144"),
    (52, ints(10), "value bytes: padding is not 0"),
    (52, ints(12), "value bytes: length is 12, not 11"),
    (60, ints(2), "key validity: length is 2, not 1"),
    (120, ints(-8), "content bytes: offset is 4294967288, not 272"),
    (124, ints(-1), "directory: end of the last part is 4294967568, not 280"),
    (124, ints(9), "directory: end of the last part is 288, not 280"),
    (128, ints(1), "value offsets: first is 1, not 0"),
    (128, ints(-1), "value offsets: first is -1, not 0"),
    (132, ints(12), "value offsets: one is below the one before it"),
    (132, ints(-1), "value offsets: one is below the one before it"),
    (136, ints(-1), "value offsets: one is below the one before it"),
    (136, ints(10), "value bytes: length is 11, not 10"),
    (143, b"\1", "value offsets: padding is not 0"),
    (160, b"\4", "key validity: rest is 1, not 0"),
    (172, ints(3), "key offsets: one is below the one before it"),
    (212, ints(3), "header offsets: one is below the one before it"),
    (216, ints(3), "name offsets: length is 12, not 16"),
    (216, ints(1 << 30), "name offsets: length is 12, not 4294967300"),
    (228, ints(11), "name offsets: one is below the one before it"),
    (240, b"\xff", "name bytes: not UTF-8"),
    (244, "é".encode(), "name offsets: one is inside of a character"),
    (260, ints(3), "content offsets: one is below the one before it"),
    (279, b"\1", "content bytes: padding is not 0"),
]


@pytest.mark.parametrize(("place", "lie", "message"), LIES)
def test_a_lie_with_a_fitting_crc_is_refused_by_its_name(
    place: int, lie: bytes, message: str
) -> None:
    with pytest.raises(InvalidArgument, match=f"^batch {message}"):
        batch_count(sealed(FULL[:place] + lie + FULL[place + len(lie) :]))


@pytest.mark.parametrize(
    ("flags", "parts", "message"),
    [
        (0, [ints(0, 1), b"a"], "value offsets: length is 8, not 12"),
        (0, [b"", b""], "value offsets: length is 0, not 12"),
        (0, [ints(0, 1, 2) + b"\0", b"ab"], "value offsets: length is 13, not 12"),
        (0, [ints(0, 1, 2), b"a"], "value bytes: length is 1, not 2"),
        (KEYS, [ints(0, 0, 0), b"", b"", ints(0, 0, 0), b""], "key validity: length is 0, not 1"),
        (KEYS, [ints(0, 0, 0), b"", b"\1", ints(0, 0), b""], "key offsets: length is 8, not 12"),
        (TIMES, [ints(0, 0, 0), b"", bytes(8)], "times: length is 8, not 16"),
        (TIMES, [ints(0, 0, 0), b"", bytes(24)], "times: length is 24, not 16"),
        (
            HEADERS,
            [ints(0, 0, 0), b"", ints(0, 0, 1), ints(0, 0), b"", ints(0), b""],
            "content offsets: length is 4, not 8",
        ),
    ],
)
def test_a_part_of_another_length_is_refused(flags: int, parts: list[bytes], message: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^batch {message}"):
        batch_count(built(flags, 2, *parts))


def test_a_directory_that_is_cut_short_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="batch directory: ends at 128 of 40 bytes"):
        batch_count(built(7, 2))


def test_columns_that_say_nothing_are_read_all_the_same() -> None:
    """Another encoder may not leave them out, and may not clear the cell of a missing key."""
    none = ints(0, 0, 0)
    parts = [none, b"", b"\0", ints(0, 1, 2), b"ab", bytes(16), none, ints(0), b"", ints(0), b""]
    assert list(Batch.parse(built(7, 2, *parts))) == [BatchRecord(0, None, b"", ())] * 2


@FUZZ
@given(st.lists(st.integers(0, 20) | st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=8))
def test_offsets_are_accepted_exactly_if_they_rise(inner: list[int]) -> None:
    offsets = [0, *inner, 20]
    batch = built(0, len(offsets) - 1, ints(*offsets), bytes(20))
    if offsets == sorted(offsets):
        assert batch_count(batch) == len(offsets) - 1
    else:
        with pytest.raises(InvalidArgument, match="value offsets: one is below"):
            batch_count(batch)


@pytest.mark.parametrize("place", [1, 2, 4095, 4096, 4097, 8191, 8192, 8193, 9999])
def test_a_fall_is_found_anywhere_among_many(place: int) -> None:
    """Offsets are compared in groups of 4096: also those on both sides of a border."""
    offsets = [*range(10_001)]
    assert batch_count(built(0, 10_000, ints(*offsets), bytes(10_000))) == 10_000
    offsets[place] += 2
    with pytest.raises(InvalidArgument, match="value offsets: one is below"):
        batch_count(built(0, 10_000, ints(*offsets), bytes(10_000)))


HUGE = [(place, ints(-1)) for place in (12, *range(40, 128, 4))]


@pytest.mark.parametrize(("place", "claim"), [*HUGE, (216, ints((1 << 31) - 1))])
def test_a_huge_claim_allocates_nothing(place: int, claim: bytes) -> None:
    lie = sealed(FULL[:place] + claim + FULL[place + 4 :])
    tracemalloc.start()
    try:
        with pytest.raises(InvalidArgument):
            batch_count(lie)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * 1024


# -- one record with nothing but a value -------------------------------------------------------


@pytest.mark.parametrize("size", [*range(18), 100, 4096])
def test_a_single_value_is_encoded_as_any_other_batch(size: int) -> None:
    value = bytes(range(256))[:size].ljust(size, b"x")
    data = encode_batch([value], times=5)
    # A memory view is good for a value, too, and takes the way of all batches.
    assert data == encode_batch([memoryview(value)], times=5)  # type: ignore[list-item]
    assert batch_count(data) == 1
    assert list(Batch.parse(data)) == [(5, None, value, ())]


@pytest.mark.parametrize("time", [-(1 << 63), -1, 0, (1 << 63) - 1])
def test_a_single_value_has_any_time(time: int) -> None:
    assert next(iter(Batch.parse(encode_batch([b"v"], times=time)))).timestamp == time


def test_a_single_value_of_another_type_or_time_is_refused_as_ever() -> None:
    with pytest.raises(InvalidArgument, match=r"values\[0\] is not bytes: 'text'"):
        encode_batch(["text"], times=5)  # type: ignore[list-item]
    with pytest.raises(InvalidArgument, match="times"):
        encode_batch([b"v"], times=1 << 63)


def test_every_flipped_bit_of_a_single_value_is_found() -> None:
    data = encode_batch([b"some value"], times=5)
    for bit in range(8 * len(data)):
        spoiled = bytearray(data)
        spoiled[bit // 8] ^= 1 << bit % 8
        with pytest.raises(InvalidArgument):
            batch_count(bytes(spoiled))


def test_a_single_value_is_refused_as_any_batch_even_if_its_crc_holds() -> None:
    data = encode_batch([b"some value"], times=5)
    for place in range(8, len(data)):
        changed = bytearray(data)
        changed[place] ^= 1
        changed[4:8] = crc32c(bytes(changed[8:]), crc32c(b"QRBA")).to_bytes(4, "little")
        try:
            expected = Batch.parse(bytes(changed)).count
        except InvalidArgument:
            with pytest.raises(InvalidArgument):
                batch_count(bytes(changed))
        else:
            assert batch_count(bytes(changed)) == expected
