"""Entries that no sound leader writes: each is applied whole or not at all."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from state_rig import SECOND, Scribe, Sent, instance

from core_rig import FUZZ
from quorate.commands import OpenProducer, SetFence
from quorate.entry import make_entry
from quorate.entry_body import Stamp, pack_batches
from quorate.errors import InvariantBroken
from quorate.state.operations import ExpireProducers, encode_operation
from quorate.state.state import State
from quorate.types import EntryKind, Term

kinds = st.sampled_from([EntryKind.DATA] * 8 + [EntryKind.PRODUCER] * 4 + [*EntryKind])
bodies = st.one_of(
    st.builds(
        OpenProducer,
        st.sampled_from("abc"),
        st.integers(1, 2).map(instance),
        st.integers(1, 3),
        st.just(SECOND),
    ),
    st.builds(
        lambda epochs: ExpireProducers(tuple(sorted(epochs))),
        st.sets(st.integers(1, 4), min_size=1, max_size=3),
    ),
    st.builds(SetFence, st.sampled_from([None, "f"]), st.sampled_from([None, None, "f"])),
).map(lambda operation: encode_operation(operation)[1]) | st.binary(max_size=40)
batches = st.lists(
    st.tuples(
        st.sampled_from([1, 2, 2, 3, 0]),
        st.none() | st.tuples(st.sampled_from([1, 1, 1, 2, 2, 3]), st.sampled_from([3, 3, 1, 5])),
    ),
    min_size=1,
    max_size=3,
)


@settings(FUZZ, max_examples=400)
@given(
    kind=kinds,
    body=bodies,
    sent=batches,
    offset=st.sampled_from([0] * 9 + [-1, 1]),
    seconds=st.sampled_from([0, 0, 1, 1, 2, 2, -1]),
    lie=st.sampled_from([0] * 9 + [1]),
)
def test_an_entry_is_applied_whole_or_not_at_all(
    kind: EntryKind,
    body: bytes,
    sent: list[tuple[int, tuple[int, int] | None]],
    offset: int,
    seconds: int,
    lie: int,
) -> None:
    scribe = Scribe()
    one = scribe.open("a", 1, window=2, expiry_s=1).epoch
    scribe.open("b", 1, window=2, expiry_s=2)
    scribe.time = SECOND
    scribe.send(Sent(2, one, 1), Sent(1))
    state = scribe.state
    count = runs = stamps = 0
    if kind is EntryKind.DATA:
        rows = [Stamp(run, *stamp) for run, (_, stamp) in enumerate(sent) if stamp is not None]
        body = pack_batches([(b"", records) for records, _ in sent], rows)
        count, runs, stamps = sum(records for records, _ in sent), len(sent), len(rows)
    entry = make_entry(
        scribe.entries[-1].position, Term(1), kind, body, base_offset=state.end + offset,
        count=count, append_time=scribe.time + seconds * SECOND, runs=runs + lie, stamps=stamps,
    )  # fmt: skip
    before, bytes_before = state.copy(), [*state.sections()]
    try:
        state.apply(entry)
    except InvariantBroken:
        assert state == before
        assert [*state.sections()] == bytes_before
    else:
        before.apply(entry)
        assert state == before
        assert State.decode(state.sections()) == state
        assert state.end == 3 + count
