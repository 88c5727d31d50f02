"""The replicated state: dense offsets, and a halt rather than a difference."""

from __future__ import annotations

import pytest

from core_rig import chain
from quorate.entry import Entry, make_entry
from quorate.errors import InvariantBroken
from quorate.state.offsets import Offsets
from quorate.types import ORIGIN, EntryKind, Term


def data(before: Entry | None, base_offset: int, count: int) -> Entry:
    position = before.position if before is not None else ORIGIN
    return make_entry(position, Term(1), EntryKind.DATA, b"x", base_offset=base_offset, count=count)


def test_records_take_offsets_and_noops_take_none() -> None:
    state = Offsets()
    first = data(None, 0, 3)
    state.apply(first)
    assert state.end == 3
    state.apply(make_entry(first.position, Term(2), EntryKind.NOOP, base_offset=3))
    assert state.end == 3
    state.apply(data(first, 3, 1))
    assert state.end == 4


def test_the_hash_stands_for_everything_applied() -> None:
    one, two, other = Offsets(), Offsets(), Offsets()
    for entry in chain(1, 1, 2):
        one.apply(entry)
        two.apply(entry)
    for entry in chain(1, 1, 2, stamp=5):
        other.apply(entry)
    assert one.hash == two.hash != other.hash != 0


@pytest.mark.parametrize(
    "kind", [kind for kind in EntryKind if kind not in (EntryKind.DATA, EntryKind.NOOP)]
)
def test_a_kind_that_this_release_does_not_know_halts(kind: EntryKind) -> None:
    state = Offsets()
    with pytest.raises(InvariantBroken, match=f"kind {kind.name}, which this release cannot"):
        state.apply(make_entry(ORIGIN, Term(1), kind))
    assert (state.end, state.hash) == (0, 0)


@pytest.mark.parametrize("base_offset", [0, 2, 4, 1 << 60])
def test_a_wrong_base_offset_halts(base_offset: int) -> None:
    state = Offsets()
    first = data(None, 0, 3)
    state.apply(first)
    before = (state.end, state.hash)
    with pytest.raises(InvariantBroken, match=f"begins at offset {base_offset}, the log ends at 3"):
        state.apply(data(first, base_offset, 1))
    assert (state.end, state.hash) == before
