"""A state's bytes: the format does not drift, what was written comes back, nothing else is read."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from state_rig import SECOND, Scribe, Sent, instance

from quorate.errors import InvalidArgument
from quorate.state.operations import SetFence
from quorate.state.producers import Producer, Run
from quorate.state.state import State
from quorate.types import Index, Term

if TYPE_CHECKING:
    from collections.abc import Callable

# Worked out once and written down: checkpoints of this release must be readable by every later.
GOLDEN_EMPTY = bytes.fromhex(
    "51525354 0100 00 00 0000000000000000 0000000000000000 0000000000000000"
    "00000000 00000000 7863321a093b7bd3"
)
GOLDEN = bytes.fromhex(
    "51525354 0100 08 00 0600000000000000 0900000000000000 0900000000000000 02000000 00000000"
    "7772697465722d33"
    # Producer b: opened by entry 2, nothing sent.
    "0200000000000000 0000000000000000 80f0fa0200000000 0900000000000000"
    "02000000000000000000000000000000 04000000 0000 01 00"
    "6200000000000000"
    # Producer ä: opened again by entry 4; three records before that.
    "0400000000000000 0300000000000000 40420f0000000000 0900000000000000"
    "03000000000000000000000000000000 02000000 0200 02 00"
    "c3a4000000000000"
    "0100000000000000 0200000000000000 0000000000000000 0300000000000000 0500000000000000"
    "0300000000000000 0100000000000000 0500000000000000 0300000000000000 0500000000000000"
    "c630eff5f4827771"
)


def golden() -> State:
    scribe = Scribe(time=9, term=5)
    epoch = scribe.open("ä", 1, window=3, expiry_s=2).epoch
    scribe.open("b", 2, window=4, expiry_s=50)
    scribe.send(Sent(2, epoch, 1), Sent(3), Sent(1, epoch, 3))
    scribe.open("ä", 3, window=2, expiry_s=1)
    scribe.operate(SetFence("writer-3", None))
    return scribe.state


def test_a_checkpoint_is_the_written_down_bytes() -> None:
    assert State().encode().hex() == GOLDEN_EMPTY.hex()
    assert golden().encode().hex() == GOLDEN.hex()


def test_what_was_written_comes_back() -> None:
    for state in (State(), golden()):
        again = State.decode(state.encode())
        assert again == state
        assert again.digest() == state.digest()
        assert again.encode() == state.encode()


def test_every_flipped_bit_of_a_checkpoint_is_refused() -> None:
    data = golden().encode()
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(InvalidArgument):
            State.decode(bytes(flipped))


def test_a_checkpoint_cut_anywhere_is_refused() -> None:
    data = golden().encode()
    for length in range(len(data)):
        with pytest.raises(InvalidArgument):
            State.decode(data[:length])


@pytest.mark.parametrize("more", [b"\0", bytes(8), State().encode()])
def test_bytes_left_over_are_refused(more: bytes) -> None:
    with pytest.raises(InvalidArgument, match=f"ends at byte {len(GOLDEN)}, not"):
        State.decode(golden().encode() + more)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (0, b"QRSX", "not a state of version 1: b'QRSX' version 1"),
        (4, b"\2\0", "not a state of version 1: b'QRST' version 2"),
        (7, b"\1", "bytes that nobody writes"),
        (24, b"\x0a", "state is 10 µs old, which is more than its append time"),
        (36, b"\1", "cannot be read"),
        (36, b"\2", "cannot be read"),
        (40, b"\xff", "cannot be read: 'utf-8' codec can't decode"),
        # So many producers, so many runs: the bytes are not there, and nothing is made for them.
        (32, b"\xff\xff\xff\xff", "cannot be read"),
        (48 + 52, b"\xff\xff", "lacks some of the 65535 runs of producer 'b'"),
        (48 + 57, b"\1", "bytes that nobody writes"),
        (-8, b"\0", "has digest 0x[0-9a-f]+, not 0x"),
    ],
)
def test_a_spoiled_field_is_refused_by_name(place: int, value: bytes, message: str) -> None:
    data = bytearray(GOLDEN)
    place %= len(data)
    data[place : place + len(value)] = value
    with pytest.raises(InvalidArgument, match=message):
        State.decode(bytes(data))


# -- states that no log leads to, with a digest that fits ----------------------------------------

FIRST = Run(1, 2, 10, Index(4), Term(2))
SECOND_RUN = Run(3, 1, 12, Index(4), Term(2))
SOUND = Producer("p", 3, instance(1), 3, (FIRST, SECOND_RUN), 2, SECOND, 50)


def holding(*producers: Producer) -> bytes:
    """The bytes of a state with these producers, sound or not."""
    state = State()
    state.end, state.append_time, state.age = 13, 51, 50
    for producer in producers:
        state.producers.add(producer)
    return state.encode()


def with_runs(*runs: Run) -> Producer:
    return SOUND._replace(runs=runs)


def test_a_sound_producer_is_read() -> None:
    assert State.decode(holding(SOUND)).producers.get("p") == SOUND


@pytest.mark.parametrize(
    ("producer", "message"),
    [
        (SOUND._replace(name=""), "producer name has 0 bytes"),
        (SOUND._replace(epoch=0), "'p' twice or out of order"),
        (SOUND._replace(window=0), "producer window is 0"),
        (SOUND._replace(window=1025), "producer window is 1025"),
        (SOUND._replace(expiry_us=1), "producer expiry in µs is 1,"),
        (SOUND._replace(window=1), "more than the log can have led to"),
        (SOUND._replace(active_us=51), "more than the log can have led to"),
        (SOUND._replace(last_sequence=2), "runs end before 4, it is at 2"),
        (SOUND._replace(last_sequence=4), "runs end before 4, it is at 4"),
        (with_runs(), "runs end before 1, it is at 3"),
        (with_runs(FIRST), "runs end before 3, it is at 3"),
        (with_runs(FIRST, SECOND_RUN._replace(sequence=4)), "does not follow"),
        (with_runs(FIRST, SECOND_RUN._replace(sequence=2)), "does not follow"),
        (with_runs(SECOND_RUN, FIRST), "does not follow"),
        (with_runs(FIRST, SECOND_RUN._replace(count=0)), "does not follow"),
        (with_runs(FIRST, SECOND_RUN._replace(offset=11)), "does not follow"),
        (with_runs(FIRST, SECOND_RUN._replace(offset=13)), "more than the log can have led to"),
        (with_runs(FIRST, SECOND_RUN._replace(index=Index(3))), "does not follow"),
        (with_runs(FIRST._replace(index=Index(0)), SECOND_RUN), "does not follow"),
        (with_runs(FIRST, SECOND_RUN._replace(term=Term(1))), "does not follow"),
        (with_runs(FIRST._replace(term=Term(0)), SECOND_RUN), "does not follow"),
        (
            SOUND._replace(runs=(FIRST._replace(sequence=0, count=1),), last_sequence=0),
            "does not follow",
        ),
    ],
)
def test_a_producer_that_no_log_leads_to_is_refused(producer: Producer, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        State.decode(holding(producer))


def test_a_producer_stands_once_and_in_order() -> None:
    other = SOUND._replace(name="q", epoch=4)
    assert len(State.decode(holding(SOUND, other)).producers) == 2
    for pair in ((other, SOUND), (SOUND, other._replace(name="p"))):
        with pytest.raises(InvalidArgument, match="'p' twice or out of order"):
            State.decode(holding(*pair))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda state: setattr(state, "end", state.end + 1),
        lambda state: setattr(state, "append_time", state.append_time + 1),
        lambda state: setattr(state, "fence", None),
        lambda state: setattr(state, "fence", "writer-4"),
    ],
)
def test_another_state_has_another_digest(spoil: Callable[[State], None]) -> None:
    state = golden()
    spoil(state)
    (digest,) = struct.unpack("<Q", state.encode()[-8:])
    assert digest == state.digest() != golden().digest()
