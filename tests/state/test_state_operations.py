"""Bodies of control entries: one for each operation, and nothing else is read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_rig import FUZZ
from quorate.commands import (
    EXPIRY_US_MAX,
    EXPIRY_US_MIN,
    NAME_BYTES_MAX,
    WINDOW_MAX,
    OpenProducer,
    SetFence,
)
from quorate.errors import InvalidArgument
from quorate.fields import ID_BYTES
from quorate.state.operations import (
    EPOCHS_MAX,
    DropReason,
    DropStaged,
    ExpireProducers,
    ForgetApps,
    Operation,
    decode_operation,
    encode_operation,
)
from quorate.types import EntryKind

INSTANCE = bytes(range(ID_BYTES))
# Worked out once and written down: every later release must read them.
GOLDEN: list[tuple[Operation, EntryKind, str]] = [
    (
        OpenProducer("lädt", INSTANCE, 5, 604_800_000_000),
        EntryKind.PRODUCER,
        "01010500 05000000 00a0e3d08c000000 000102030405060708090a0b0c0d0e0f 6cc3a46474 000000",
    ),
    (
        ExpireProducers((7, 2**64 - 1)),
        EntryKind.PRODUCER,
        "01020000 02000000 0700000000000000 ffffffffffffffff",
    ),
    (SetFence("w3", "w2"), EntryKind.FENCE, "01010202 7733 7732"),
    (SetFence(None, "w2"), EntryKind.FENCE, "01010002 7732 0000"),
    (SetFence("w3", None), EntryKind.FENCE, "01010200 7733 0000"),
    (SetFence(None, None), EntryKind.FENCE, "01010000 00000000"),
    (
        DropStaged(DropReason.EXPIRED, (4, 9)),
        EntryKind.STAGE,
        "01010300 02000000 0400000000000000 0900000000000000",
    ),
    (ForgetApps((5,)), EntryKind.STAGE, "01020000 01000000 0500000000000000"),
]

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)
operations: st.SearchStrategy[Operation] = st.one_of(
    st.builds(
        OpenProducer,
        names,
        st.binary(min_size=ID_BYTES, max_size=ID_BYTES),
        st.integers(1, WINDOW_MAX),
        st.integers(EXPIRY_US_MIN, EXPIRY_US_MAX),
    ),
    st.builds(
        lambda epochs: ExpireProducers(tuple(sorted(epochs))),
        st.sets(st.integers(1, 2**64 - 1), min_size=1, max_size=9),
    ),
    st.builds(SetFence, st.none() | names, st.none() | names),
    st.builds(
        lambda reason, firsts: DropStaged(reason, tuple(sorted(firsts))),
        st.sampled_from(DropReason),
        st.sets(st.integers(1, 2**64 - 1), min_size=1, max_size=9),
    ),
    st.builds(
        lambda indexes: ForgetApps(tuple(sorted(indexes))),
        st.sets(st.integers(1, 2**64 - 1), min_size=1, max_size=9),
    ),
)


@pytest.mark.parametrize(("operation", "kind", "body"), GOLDEN)
def test_bodies_are_the_written_down_bytes(
    operation: Operation, kind: EntryKind, body: str
) -> None:
    assert encode_operation(operation) == (kind, bytes.fromhex(body))
    assert decode_operation(kind, bytes.fromhex(body)) == operation


@FUZZ
@given(operations)
def test_operations_survive_their_encoding(operation: Operation) -> None:
    kind, body = encode_operation(operation)
    assert decode_operation(kind, body) == operation
    assert len(body) % 8 == 0


def test_the_limits_themselves_are_accepted() -> None:
    longest = "é" * (NAME_BYTES_MAX // 2) + "e"
    for operation in (
        OpenProducer("p", INSTANCE, 1, EXPIRY_US_MIN),
        OpenProducer(longest, INSTANCE, WINDOW_MAX, EXPIRY_US_MAX),
        ExpireProducers(tuple(range(1, EPOCHS_MAX + 1))),
        SetFence(longest, longest),
    ):
        assert decode_operation(*encode_operation(operation)) == operation


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": ""}, "producer name has 0 bytes, not 1 to 255"),
        ({"name": "é" * 128}, "producer name has 256 bytes, not 1 to 255"),
        ({"name": "\ud800"}, "producer name cannot be written as UTF-8"),
        ({"instance": bytes(15)}, "producer instance has 15 bytes, not 16"),
        ({"instance": bytes(17)}, "producer instance has 17 bytes, not 16"),
        ({"window": 0}, "producer window is 0, not 1 to 1024"),
        ({"window": 1025}, "producer window is 1025, not 1 to 1024"),
        ({"expiry_us": 999_999}, "producer expiry in µs is 999999, not 1000000 to"),
        ({"expiry_us": EXPIRY_US_MAX + 1}, "producer expiry in µs is 315360000000001"),
    ],
)
def test_an_opening_outside_its_limits_is_refused(
    fields: dict[str, str | bytes | int], message: str
) -> None:
    sound: dict[str, str | bytes | int] = {
        "name": "p", "instance": INSTANCE, "window": 1, "expiry_us": EXPIRY_US_MIN,
    }  # fmt: skip
    with pytest.raises(InvalidArgument, match=message):
        OpenProducer(**{**sound, **fields})  # type: ignore[arg-type]  # that is what is tried


@pytest.mark.parametrize(
    ("epochs", "message"),
    [
        ((), "number of epochs is 0, not 1 to 256"),
        (tuple(range(1, EPOCHS_MAX + 2)), "number of epochs is 257"),
        ((0, 1), "epoch is 0"),
        ((1, 2**64), "epoch is 18446744073709551616"),
        ((2, 1), "not in rising order"),
        ((1, 1), "not in rising order"),
        ((1, 2**64, 2), "not in rising order"),
    ],
)
def test_an_expiry_outside_its_limits_is_refused(epochs: tuple[int, ...], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        ExpireProducers(epochs)


@pytest.mark.parametrize(
    ("fence", "expect", "message"),
    [
        ("", None, "fence has 0 bytes"),
        (None, "", "expected fence has 0 bytes"),
        ("x" * 256, None, "fence has 256 bytes"),
        ("\udfff", None, "fence cannot be written as UTF-8"),
    ],
)
def test_a_fence_outside_its_limits_is_refused(
    fence: str | None, expect: str | None, message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        SetFence(fence, expect)


@pytest.mark.parametrize(
    ("kind", "body", "message"),
    [
        (EntryKind.PRODUCER, "", "PRODUCER operation without bytes is not known"),
        (EntryKind.PRODUCER, "01", "operation 01 is not known"),
        (EntryKind.PRODUCER, "0201" + "00" * 38, "operation 0201 is not known"),
        (EntryKind.PRODUCER, "0103" + "00" * 38, "operation 0103 is not known"),
        (EntryKind.FENCE, "0102000000000000", "FENCE operation 0102 is not known"),
        (EntryKind.DATA, "0101000000000000", "DATA operation 0101 is not known"),
        (EntryKind.PRODUCER, "0101", "cannot be read"),
        (EntryKind.PRODUCER, "01020000", "cannot be read"),
        (EntryKind.PRODUCER, "01020000 02000000 0100000000000000", "cannot be read"),
        # It says four billion epochs: nothing is made for them.
        (EntryKind.PRODUCER, "01020000 ffffffff", "number of epochs is 4294967295"),
        (EntryKind.FENCE, "01010300 ff000000", "cannot be read"),
        (EntryKind.FENCE, "01010300 6c6c", "bytes that no release writes"),
        (EntryKind.FENCE, "01010100 6c000001", "bytes that no release writes"),
        (EntryKind.FENCE, "01010100 6c000000 0000000000000000", "bytes that no release writes"),
        (EntryKind.FENCE, "01010100 6c0000", "bytes that no release writes"),
        (EntryKind.PRODUCER, "01020100 01000000 0100000000000000", "bytes that no release writes"),
        (EntryKind.STAGE, "01010000 01000000 0100000000000000", "reason is 0"),
        (EntryKind.STAGE, "01010500 01000000 0100000000000000", "reason is 5"),
        (EntryKind.STAGE, "01010100 00000000", "number of attempts is 0"),
        (EntryKind.STAGE, "01010100 ffffffff", "number of attempts is 4294967295"),
        (EntryKind.STAGE, "01020000 ffffffff", "number of apps is 4294967295"),
        (EntryKind.STAGE, "01020100 01000000 0100000000000000", "bytes that no release writes"),
        (EntryKind.PUBLISH, "01010100 01000000 0100000000000000", "is not known"),
    ],
)
def test_a_body_that_no_release_writes_is_refused(kind: EntryKind, body: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        decode_operation(kind, bytes.fromhex(body))


@FUZZ
@given(
    kind=st.sampled_from([EntryKind.PRODUCER, EntryKind.FENCE, EntryKind.STAGE]),
    start=st.sampled_from([b"", b"\1\1", b"\1\2\0\0\1\0\0\0", b"\1\1\1\0", b"\1\1\2\2"]),
    rest=st.binary(max_size=64),
)
def test_any_bytes_are_read_in_one_way_or_refused(
    kind: EntryKind, start: bytes, rest: bytes
) -> None:
    try:
        operation = decode_operation(kind, start + rest)
    except InvalidArgument:
        return
    assert encode_operation(operation) == (kind, start + rest)


@FUZZ
@given(operations, st.data())
def test_a_spoiled_body_is_never_read_as_the_same_operation(
    operation: Operation, draw: st.DataObject
) -> None:
    kind, body = encode_operation(operation)
    bit = draw.draw(st.integers(0, 8 * len(body) - 1))
    spoiled = bytearray(body)
    spoiled[bit // 8] ^= 1 << bit % 8
    try:
        assert decode_operation(kind, bytes(spoiled)) != operation
    except InvalidArgument:
        return
