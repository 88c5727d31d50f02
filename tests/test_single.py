"""The smallest batch is read in a few steps, and means what it means to whoever parses it."""

from __future__ import annotations

import pytest

from quorate.batch import TIME_LIMIT, Batch, encode_batch, encode_single, is_single, open_single
from quorate.errors import InvalidArgument

VALUES = [b"", b"a", b"1234567", b"12345678", b"x" * 100]


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("time", [5, 0, -1, None])
def test_its_time_and_value(value: bytes, time: int | None) -> None:
    batch = encode_batch([value], times=time)
    assert open_single(batch) == (time, value)
    assert is_single(batch)


@pytest.mark.parametrize(
    ("value", "time"),
    [
        (bytearray(b"v"), 5),
        (memoryview(b"v"), 5),
        ("v", 5),
        (b"v", TIME_LIMIT),
        (b"v", -TIME_LIMIT - 1),
    ],
)
def test_a_value_or_time_that_it_cannot_have_is_left_to_the_general_encoder(
    value: object, time: int
) -> None:
    assert encode_single(b"v", 5) == encode_batch([b"v"], times=5)
    assert encode_single(value, time) is None


@pytest.mark.parametrize(
    "batch",
    [
        b"",
        b"no batch",
        encode_batch([b"a", b"b"], times=5),
        encode_batch([b"a"], times=5, keys=[b"k"]),
        encode_batch([b"a"], times=5, headers=[[("h", b"1")]]),
    ],
)
def test_other_batches_are_left_to_others(batch: bytes) -> None:
    assert open_single(batch) is None
    assert not is_single(batch)


@pytest.mark.parametrize("value", [b"", b"12345"])
def test_a_changed_byte_is_refused_or_read_as_a_parser_reads_it(value: bytes) -> None:
    batch = encode_batch([value], times=5)
    for place in range(len(batch)):
        for bit in range(8):
            changed = bytearray(batch)
            changed[place] ^= 1 << bit
            found = open_single(bytes(changed))
            assert not is_single(bytes(changed))
            try:
                [record] = Batch.parse(changed, proved=True)
            except InvalidArgument:
                assert found is None
            else:
                assert found == (record.timestamp, record.value)
    for end in range(len(batch)):
        assert open_single(batch[:end]) is None
    assert open_single(batch + bytes(8)) is None
