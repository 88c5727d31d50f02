"""A state's bytes: the format does not drift, what was written comes back, nothing else is read."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from state_rig import SECOND, Scribe, Sent, cut, flipped, instance

from quorate.commands import SetFence
from quorate.entry_body import Chunk
from quorate.errors import InvalidArgument
from quorate.state.attempts import attempt_of
from quorate.state.checkpoint import SECTION_BYTES
from quorate.state.producers import ProducerState
from quorate.state.runs import ROW_BYTES, Run, Runs
from quorate.state.state import State
from quorate.types import Index, Term

if TYPE_CHECKING:
    from collections.abc import Callable

# Worked out once and written down: checkpoints of this release must be readable by every later.
GOLDEN_EMPTY = [
    bytes.fromhex(
        "01 04 0000 01000000 0000000000000000 0000000000000000 0000000000000000"
        "00000000 00000000 00000000 00000000 00 00000000000000"
    ),
    bytes.fromhex("07 04 0000 01000000 7863321a093b7bd3"),
]
GOLDEN = [
    bytes.fromhex(
        "01 04 0000 01000000 0600000000000000 0900000000000000 0900000000000000"
        "02000000 00000000 00000000 00000000 08 00000000000000 7772697465722d33"
    ),
    bytes.fromhex(
        "02 04 0000 02000000"
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
    ),
    bytes.fromhex("07 04 0000 01000000 39d7009f90ec23bf"),
]


def golden() -> State:
    scribe = Scribe(time=9, term=5)
    epoch = scribe.open("ä", 1, window=3, expiry_s=2).epoch
    scribe.open("b", 2, window=4, expiry_s=50)
    scribe.send(Sent(2, epoch, 1), Sent(3), Sent(1, epoch, 3))
    scribe.open("ä", 3, window=2, expiry_s=1)
    scribe.operate(SetFence("writer-3", None))
    return scribe.state


def test_a_checkpoint_is_the_written_down_bytes() -> None:
    assert [one.hex() for one in State().sections()] == [one.hex() for one in GOLDEN_EMPTY]
    assert [one.hex() for one in golden().sections()] == [one.hex() for one in GOLDEN]


def test_what_was_written_comes_back() -> None:
    for state in (State(), golden()):
        again = State.decode(state.sections())
        assert again == state
        assert again.digest() == state.digest()
        assert [*again.sections()] == [*state.sections()]


def test_every_flipped_bit_of_a_checkpoint_is_refused() -> None:
    for spoiled in flipped([*golden().sections()]):
        with pytest.raises(InvalidArgument):
            State.decode(spoiled)


def test_a_checkpoint_cut_anywhere_is_refused() -> None:
    for spoiled in cut([*golden().sections()]):
        with pytest.raises(InvalidArgument):
            State.decode(spoiled)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ([], "state lacks its last section"),
        ([0, 1], "state lacks its last section"),
        ([1, 2], "kind 2 after one of kind 0"),
        ([0, 2], "state ends without 2 of its items"),
        ([0, 0, 1, 2], "kind 1 after one of kind 1"),
        ([0, 1, 1, 2], "kind 2 with 2 items is not expected"),
        ([0, 1, 2, 2], "kind 7 after one of kind 7"),
        ([0, 1, 2, 1], "kind 2 with 2 items is not expected"),
    ],
)
def test_sections_that_are_missing_or_out_of_order_are_refused(
    order: list[int], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        State.decode(GOLDEN[place] for place in order)


@pytest.mark.parametrize("more", [b"\0", bytes(8)])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_bytes_left_over_are_refused(place: int, more: bytes) -> None:
    longer = [*GOLDEN]
    longer[place] += more
    with pytest.raises(InvalidArgument, match=r"section has [0-9]+ bytes, [0-9]+ are known"):
        State.decode(longer)


@pytest.mark.parametrize(
    ("section", "place", "value", "message"),
    [
        (0, 0, b"\x08", "not a section of a state: kind 8 version 4"),
        (0, 1, b"\2", "not a section of a state: kind 1 version 2"),
        (0, 2, b"\1", "section has 64 bytes, 64 are known"),
        (0, 4, b"\2", "kind 1 with 2 items is not expected"),
        (0, 4, b"\0", "kind 1 with 0 items is not expected"),
        (0, 24, b"\x0a", "state is 10 µs old, which is more than its append time"),
        (0, 48, b"\xff", "section has 64 bytes"),
        (0, 49, b"\1", "state ends without 1 of its items"),
        (0, 49, b"\2", "bytes that no release writes"),
        (0, 50, b"\1", "bytes that no release writes"),
        (0, 56, b"\xff", "cannot be read: 'utf-8' codec can't decode"),
        # So many producers, so many runs: the bytes are not there, and nothing is made for them.
        (1, 4, b"\xff\xff\xff\xff", "kind 2 with 4294967295 items is not expected"),
        (1, 8 + 52, b"\xff\xff", "lacks some of the 65535 runs of producer 'b'"),
        (1, 8 + 57, b"\1", "bytes that no release writes"),
        (2, -8, b"\0", "has digest 0x[0-9a-f]+, not 0x"),
    ],
)
def test_a_spoiled_field_is_refused_by_name(
    section: int, place: int, value: bytes, message: str
) -> None:
    data = bytearray(GOLDEN[section])
    place %= len(data)
    data[place : place + len(value)] = value
    with pytest.raises(InvalidArgument, match=message):
        State.decode([*GOLDEN[:section], bytes(data), *GOLDEN[section + 1 :]])


# -- the size of a section -----------------------------------------------------------------------


def crowded(producers: int, runs: int, attempts: int) -> State:
    """A state with so many of each, made at once."""
    state = State()
    state.end = state.append_time = state.age = 10**9
    for epoch in range(1, producers + 1):
        kept = Runs.of(Run(n + 1, 1, n, Index(n + 1), Term(1)) for n in range(runs))
        producer = ProducerState(f"p{epoch}", epoch, instance(1), runs, kept, runs or 1, SECOND, 0)
        state.producers.add(producer)
    for number in range(1, attempts + 1):
        chunks = (Chunk(Index(number), 1, 100),)
        state.staging.add(attempt_of("app", (number, 0, bytes(16)), bytes(16), chunks, 0))
    return state


@pytest.mark.parametrize(("producers", "runs", "attempts"), [(3000, 0, 0), (20, 1024, 3000)])
def test_no_section_is_longer_than_a_step_may_take(
    producers: int, runs: int, attempts: int
) -> None:
    state = crowded(producers, runs, attempts)
    sections = [*state.sections()]
    item = 56 + 8 + 1024 * ROW_BYTES
    assert max(map(len, sections)) < SECTION_BYTES + item
    assert len(sections) > sum(map(len, sections)) // (SECTION_BYTES + item) + 2
    again = State.decode(sections)
    assert again == state
    assert again.digest() == state.digest()


def test_a_copy_is_encoded_as_it_was_while_the_state_goes_on() -> None:
    """As a checkpoint is: each section is made when it is asked for."""
    scribe = Scribe(time=9)
    epochs = [scribe.open(f"p{number}", 1, window=3).epoch for number in range(3)]
    for sequence in range(1, 5):
        scribe.send(*(Sent(1, epoch, sequence) for epoch in epochs))
    before = [*scribe.state.sections()]
    view = scribe.state.copy().sections()
    begun = [next(view)]
    for sequence in range(5, 99):
        scribe.send(*(Sent(1, epoch, sequence) for epoch in epochs))
    assert [*begun, *view] == before


# -- states that no log leads to, with a digest that fits ----------------------------------------

FIRST = Run(1, 2, 10, Index(4), Term(2))
SECOND_RUN = Run(3, 1, 12, Index(4), Term(2))
SOUND = ProducerState("p", 3, instance(1), 3, Runs.of([FIRST, SECOND_RUN]), 2, SECOND, 50)


def holding(*producers: ProducerState) -> list[bytes]:
    """The sections of a state with these producers, sound or not."""
    state = State()
    state.end, state.append_time, state.age = 13, 51, 50
    for producer in producers:
        state.producers.add(producer)
    return [*state.sections()]


def with_runs(*runs: Run) -> ProducerState:
    return SOUND._replace(runs=Runs.of(runs))


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
        (with_runs(FIRST, SECOND_RUN._replace(sequence=4)), "do not follow"),
        (with_runs(FIRST, SECOND_RUN._replace(sequence=2)), "do not follow"),
        (with_runs(SECOND_RUN, FIRST), "do not follow"),
        (with_runs(FIRST, SECOND_RUN._replace(count=0)), "do not follow"),
        (with_runs(FIRST, SECOND_RUN._replace(offset=11)), "do not follow"),
        (with_runs(FIRST, SECOND_RUN._replace(offset=13)), "more than the log can have led to"),
        (with_runs(FIRST, SECOND_RUN._replace(index=Index(3))), "do not follow"),
        (with_runs(FIRST._replace(index=Index(0)), SECOND_RUN), "do not follow"),
        (with_runs(FIRST, SECOND_RUN._replace(term=Term(1))), "do not follow"),
        (with_runs(FIRST._replace(term=Term(0)), SECOND_RUN), "do not follow"),
        (
            with_runs(FIRST._replace(sequence=0, count=1))._replace(last_sequence=0),
            "do not follow",
        ),
    ],
)
def test_a_producer_that_no_log_leads_to_is_refused(producer: ProducerState, message: str) -> None:
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
    *_, last = state.sections()
    (digest,) = struct.unpack("<Q", last[-8:])
    assert digest == state.digest() != golden().digest()
