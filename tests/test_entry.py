"""An entry's bytes: the format does not drift, no flipped bit goes unseen, the chain ties all."""

from __future__ import annotations

from dataclasses import replace

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from core_rig import FUZZ, chain, end
from quorate.commands import ChunkLabel
from quorate.entry import (
    CHAINED_BYTES,
    COUNT_MAX,
    HEADER_BYTES,
    RUNS_MAX,
    Entry,
    chain_holds,
    decode_entry,
    make_entry,
    parse_header,
)
from quorate.entry_body import (
    Chunk,
    Stamp,
    decode_label,
    encode_stage,
    pack_batches,
    pack_chunks,
    unpack_batches,
    unpack_chunks,
    unpack_counts,
    unpack_stamps,
)
from quorate.errors import InvalidArgument
from quorate.types import ORIGIN, EntryKind, Index, Position, Term

BEFORE = Position(Index(41), Term(6), 0xDEADBEEF)
BATCHES = [(b"alpha", 2), (b"", 1)]
# Worked out once and written down: disks and peers of every later release must read it.
GOLDEN_HEADER = bytes.fromhex(
    "5152454e010102002a0000000000000007000000000000001500000003000000"
    "e80300000000000000401e18240a06008add258100000000ad40e45ae0199a18"
)
GOLDEN_BODY = bytes.fromhex("05000000020000000000000001000000616c706861")
# The same entry with both batches stamped: the directory, two stamps, the batches.
GOLDEN_STAMPED = bytes.fromhex(
    "5152454e010102002a0000000000000007000000000000004500000003000000"
    "e80300000000000000401e18240a0600410de2b2020000003d688882e0199a18"
    "05000000020000000000000001000000"
    "000000000000000009000000000000000100000000000000"
    "01000000000000000c000000000000004d01000000000000"
    "616c706861"
)
STAMPS = [Stamp(0, 9, 1), Stamp(1, 12, 333)]
GOLDEN_NOOP = bytes.fromhex(
    "5152454e01020000010000000000000001000000000000000000000000000000"
    "000000000000000000000000000000000000000000000000d68078d6c74b6748"
)


def golden(*stamps: Stamp) -> Entry:
    return make_entry(
        BEFORE,
        Term(7),
        EntryKind.DATA,
        pack_batches(BATCHES, stamps),
        base_offset=1000,
        count=3,
        append_time=1_700_000_000_000_000,
        runs=2,
        stamps=len(stamps),
    )


# -- the header --------------------------------------------------------------------------------


def test_header_and_body_are_the_written_down_bytes() -> None:
    entry = golden()
    assert entry.header.hex() == GOLDEN_HEADER.hex()
    assert entry.body.hex() == GOLDEN_BODY.hex()
    assert make_entry(ORIGIN, Term(1), EntryKind.NOOP).header.hex() == GOLDEN_NOOP.hex()


def test_a_header_decodes_to_the_entry_that_made_it() -> None:
    entry = golden()
    assert decode_entry(entry.header + entry.body) == entry
    assert entry.position == Position(entry.index, entry.term, entry.position.chain)
    assert entry.size == len(entry.header) + len(entry.body)
    assert len(entry.header) == HEADER_BYTES


@FUZZ
@given(
    term=st.integers(1, 2**64 - 1),
    index=st.integers(0, 2**64 - 2),
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(EntryKind),
    body=st.binary(max_size=64),
    offset=st.integers(0, 2**64 - 1),
    count=st.integers(0, 2**32 - 1),
    time=st.integers(0, 2**64 - 1),
    runs=st.integers(0, RUNS_MAX),
    stamps=st.integers(0, 2**32 - 1),
)
def test_every_entry_survives_its_encoding(
    term: int,
    index: int,
    seed: int,
    kind: EntryKind,
    body: bytes,
    offset: int,
    count: int,
    time: int,
    runs: int,
    stamps: int,
) -> None:
    entry = make_entry(
        Position(Index(index), Term(term), seed),
        Term(term),
        kind,
        body,
        base_offset=offset,
        count=count,
        append_time=time,
        runs=runs,
        stamps=stamps,
    )
    assert decode_entry(entry.header + entry.body) == entry
    header = parse_header(entry.header)
    assert header is not None
    assert (header.runs, header.stamps, entry.stamps) == (runs, stamps, stamps)


def test_every_flipped_bit_of_the_header_is_caught() -> None:
    entry = golden()
    for bit in range(8 * HEADER_BYTES):
        with pytest.raises(InvalidArgument, match="header CRC does not match"):
            decode_entry(flip(entry.header, bit) + entry.body)


def test_every_flipped_bit_of_the_body_is_caught() -> None:
    entry = golden()
    for bit in range(8 * len(entry.body)):
        with pytest.raises(InvalidArgument, match="body at index 42 does not match"):
            decode_entry(entry.header + flip(entry.body, bit))


def flip(data: bytes, bit: int) -> bytes:
    flipped = bytearray(data)
    flipped[bit // 8] ^= 1 << bit % 8
    return bytes(flipped)


@pytest.mark.parametrize("length", [0, 1, HEADER_BYTES - 1])
def test_a_frame_that_is_too_short_is_refused(length: int) -> None:
    with pytest.raises(InvalidArgument, match=f"of {length} bytes is too short"):
        decode_entry(bytes(length))


@pytest.mark.parametrize("body", [b"", b"\0" * 20, b"\0" * 22])
def test_a_body_of_another_length_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidArgument, match="does not match its header"):
        decode_entry(golden().header + body)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (slice(0, 4), b"QREX", "not an entry of version 1"),
        (slice(4, 5), b"\2", "not an entry of version 1"),
        (slice(5, 6), b"\0", "entry kind 0 is not known"),
        (slice(5, 6), b"\x63", "entry kind 99 is not known"),
    ],
    ids=["magic", "version", "kind 0", "kind 99"],
)
def test_a_whole_header_of_another_kind_is_refused_by_name(
    field: slice, value: bytes, message: str
) -> None:
    """A header whose CRC holds and that this release cannot read: it says what it is."""
    forged = bytearray(golden().header)
    forged[field] = value
    with pytest.raises(InvalidArgument, match=message):
        decode_entry(sealed(forged) + golden().body)


def sealed(header: bytearray) -> bytes:
    """``header`` with the CRC that makes it whole."""
    header[-4:] = crc32c(bytes(header[:-4])).to_bytes(4, "little")
    return bytes(header)


# -- the chain ---------------------------------------------------------------------------------


def test_a_chain_holds_link_by_link() -> None:
    entries = chain(1, 1, 2, 5)
    assert chain_holds(ORIGIN, entries)
    assert chain_holds(end(entries[:2]), entries[2:])
    assert chain_holds(ORIGIN, ())


def test_a_chain_is_broken_by_a_gap_an_order_or_a_swap() -> None:
    entries = chain(1, 1, 2, 5)
    assert not chain_holds(ORIGIN, entries[1:])
    assert not chain_holds(ORIGIN, (entries[0], entries[2]))
    assert not chain_holds(ORIGIN, (entries[1], entries[0]))
    assert not chain_holds(end(entries), entries)


def test_terms_of_a_chain_never_fall() -> None:
    (later,) = chain(3)
    (earlier,) = chain(2, after=later.position)
    assert not chain_holds(ORIGIN, (later, earlier))
    assert not chain_holds(Position(Index(0), Term(9), 0), (later,))


def test_a_chain_starts_from_what_came_before() -> None:
    """The same entry after another history is another position."""
    one, other = chain(1, 2), chain(1, 2, stamp=7)
    assert one[1].position != other[1].position
    follower = chain(2, after=end(one))
    assert chain_holds(end(one), follower)
    assert not chain_holds(end(other), follower)


def test_every_bit_before_the_chain_enters_the_chain() -> None:
    (entry,) = chain(1)
    for bit in range(8 * CHAINED_BYTES):
        assert not chain_holds(ORIGIN, (replace(entry, header=flip(entry.header, bit)),))


def test_the_body_enters_the_chain_by_its_crc() -> None:
    one = make_entry(ORIGIN, Term(1), EntryKind.DATA, b"one")
    two = make_entry(ORIGIN, Term(1), EntryKind.DATA, b"two")
    assert one.position.chain != two.position.chain


# -- batches -----------------------------------------------------------------------------------


@FUZZ
@given(st.lists(st.tuples(st.binary(max_size=40), st.integers(1, 2**32 - 1)), max_size=20))
def test_batches_come_out_as_they_went_in(batches: list[tuple[bytes, int]]) -> None:
    body = pack_batches(batches)
    entry = make_entry(ORIGIN, Term(1), EntryKind.DATA, body, runs=len(batches))
    assert unpack_batches(entry) == batches
    assert len(body) == sum(8 + len(batch) for batch, _ in batches)


def test_a_noop_has_no_batches() -> None:
    assert unpack_batches(make_entry(ORIGIN, Term(1), EntryKind.NOOP)) == []


# -- stamps ------------------------------------------------------------------------------------


def test_a_stamped_entry_is_the_written_down_bytes() -> None:
    entry = golden(*STAMPS)
    assert (entry.header + entry.body).hex() == GOLDEN_STAMPED.hex()


def test_stamps_and_batches_come_out_as_they_went_in() -> None:
    entry = golden(*STAMPS)
    assert unpack_stamps(entry) == STAMPS
    assert unpack_batches(entry) == BATCHES
    assert unpack_counts(entry) == (2, 1)


@FUZZ
@given(
    st.lists(
        st.tuples(
            st.binary(max_size=9),
            st.integers(0, 2**32 - 1),
            st.none() | st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)),
        ),
        max_size=20,
    )
)
def test_any_batches_may_be_stamped(rows: list[tuple[bytes, int, tuple[int, int] | None]]) -> None:
    batches = [(batch, count) for batch, count, _ in rows]
    stamps = [Stamp(run, *stamp) for run, (*_, stamp) in enumerate(rows) if stamp is not None]
    entry = data(pack_batches(batches, stamps), len(rows), len(stamps))
    assert unpack_batches(entry) == batches
    assert unpack_stamps(entry) == stamps
    assert unpack_counts(entry) == tuple(count for _, count in batches)


def data(body: bytes, runs: int, stamps: int) -> Entry:
    return make_entry(ORIGIN, Term(1), EntryKind.DATA, body, runs=runs, stamps=stamps)


@pytest.mark.parametrize(
    ("runs", "stamps"), [(RUNS_MAX, 2), (2, 2**32 - 1), (0, 3), (9, 0), (6, 1)]
)
def test_rows_that_do_not_fit_are_refused(runs: int, stamps: int) -> None:
    """A whole header may lie: nothing is read or made before its numbers fit into the body."""
    entry = data(golden(*STAMPS).body, runs, stamps)
    assert decode_entry(entry.header + entry.body) == entry
    for unpack in (unpack_batches, unpack_counts, unpack_stamps):
        with pytest.raises(InvalidArgument, match=f"{runs} runs and {stamps} stamps do not fit"):
            unpack(entry)


@pytest.mark.parametrize("body", [b"abcd", b"abcdef", b""])
def test_batches_fill_the_body(body: bytes) -> None:
    """Neither a byte too few nor one too many."""
    directory = pack_batches([(b"abcde", 1)])[:8]
    assert unpack_batches(data(directory + b"abcde", 1, 0)) == [(b"abcde", 1)]
    with pytest.raises(InvalidArgument, match=f"take 13 bytes, the body has {8 + len(body)}"):
        unpack_batches(data(directory + body, 1, 0))


@pytest.mark.parametrize(
    ("stamps", "message"),
    [
        ([Stamp(1, 9, 1), Stamp(0, 9, 2)], "rising order of run"),
        ([Stamp(1, 9, 1), Stamp(1, 9, 2)], "rising order of run"),
        ([Stamp(0, 9, 1), Stamp(2, 9, 2)], "names run 2 of 2"),
        # The reserved half: one bit of it makes a run that no entry has.
        ([Stamp(1 << 32, 9, 1)], "names run 4294967296 of 2"),
        ([Stamp(1 << 63, 9, 1)], "names run 9223372036854775808 of 2"),
    ],
)
def test_stamps_out_of_order_or_range_are_refused(stamps: list[Stamp], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        unpack_stamps(golden(*stamps))


def test_an_entry_without_stamps_has_none() -> None:
    assert unpack_stamps(golden()) == []
    noop = make_entry(ORIGIN, Term(1), EntryKind.NOOP)
    assert unpack_stamps(noop) == []
    assert unpack_counts(noop) == ()


# -- staged batches ------------------------------------------------------------------------------


LABEL = ChunkLabel("query", bytes(range(16)), 2**40, 7, bytes(range(16, 32)), 3)


def test_a_staged_batch_lies_where_a_data_entry_has_it() -> None:
    body, rows = encode_stage(LABEL, b"the batch", 3)
    entry = make_entry(ORIGIN, Term(1), EntryKind.STAGE, body, runs=1, stamps=rows)
    assert rows == 3
    assert body[8:].startswith(bytes.fromhex("0105000007000000"))
    assert body[64:80] == b"query".ljust(16, b"\0")
    assert unpack_batches(entry) == [(b"the batch", 3)]
    assert unpack_counts(entry) == (3,)
    assert decode_label(entry) == LABEL


@FUZZ
@given(
    st.binary(max_size=40),
    st.integers(0, COUNT_MAX),
    st.text(min_size=1, max_size=60),
    st.integers(0, 2**32 - 1),
)
def test_every_staged_batch_comes_out_as_it_went_in(
    batch: bytes, records: int, app: str, number: int
) -> None:
    label = ChunkLabel(app, LABEL.run, 0, 0, LABEL.attempt, number)
    body, rows = encode_stage(label, batch, records)
    entry = make_entry(ORIGIN, Term(1), EntryKind.STAGE, body, runs=1, stamps=rows)
    assert unpack_batches(entry) == [(batch, records)]
    assert decode_label(entry) == label


def test_a_label_that_does_not_fit_is_refused() -> None:
    entry = make_entry(ORIGIN, Term(1), EntryKind.STAGE, bytes(31), runs=1, stamps=1)
    with pytest.raises(InvalidArgument, match="1 runs and 1 stamps do not fit into 31 bytes"):
        decode_label(entry)


def test_chunks_come_out_as_they_went_in() -> None:
    chunks = [Chunk(Index(7), 3, 200), Chunk(Index(2**64 - 1), COUNT_MAX, 2**32 - 1)]
    body = pack_chunks(chunks) + b"the rest"
    assert body[:16].hex() == "070000000000000003000000c8000000"
    entry = make_entry(ORIGIN, Term(1), EntryKind.PUBLISH, body, stamps=2)
    assert unpack_chunks(entry) == (chunks, b"the rest")


def test_chunks_that_do_not_fit_are_refused() -> None:
    entry = make_entry(ORIGIN, Term(1), EntryKind.PUBLISH, bytes(31), stamps=2)
    with pytest.raises(InvalidArgument, match="2 chunks do not fit into 31 bytes"):
        unpack_chunks(entry)
