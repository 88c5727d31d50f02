"""The digest of the rows of a batch: a log recognises by it a replay with other rows.

The digest is a sum over the rows, so that neither their order nor their split into tasks matters.
A row's share is a hash of all that its record holds. The digest finds accidents: it is no defence
against an attacker who looks for two frames with one digest.

No step works row by row. Short cells are read eight bytes at a time, those of all rows at once: the
steps are as many as the longest short cell has words. Longer cells are cut into blocks; many blocks
are hashed at once, and the hashes of the blocks of a cell are added up.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from quorate.spark.write.chunks import Cells, FrameRows, Pairs

    Hashes = npt.NDArray[np.uint64]
    Numbers = npt.NDArray[np.int64]

__all__ = ["NOTHING", "Digest", "digest_of", "digest_of_logs"]

_WORD = 8
# A cell with more bytes than this is cut into blocks of this many bytes. The last block ends where
# the cell does: it may begin within the block before.
BLOCK = 128
# So many blocks stay in the cache of a core while they are worked on, and in memory that is used
# again: more than 128 KiB would be given back to the system each time.
BLOCKS_AT_ONCE = 512
_BITS = (1 << 64) - 1
_DIGEST = struct.Struct("<4Q")

# Odd numbers without a pattern: from the mixing steps of MurmurHash3 and SplitMix64.
_FIRST = np.uint64(0xFF51AFD7ED558CCD)
_SECOND = np.uint64(0xC4CEB9FE1A85EC53)
_STEP = np.uint64(0x9E3779B97F4A7C15)
_OTHER = np.uint64(0xBF58476D1CE4E5B9)
# The hash in place of a key or a time that a row does not have.
_ABSENT = np.uint64(0x94D049BB133111EB)
_HALF = np.uint64(32)
_FOLD = np.uint64(33)
# The mask of a word, by how many of its bytes belong to the cell.
_MASKS = np.array([(1 << 8 * kept) - 1 for kept in range(_WORD + 1)], np.uint64)


class Digest(NamedTuple):
    """The digest of any number of rows."""

    records: int
    # The bytes of values, keys and headers.
    size: int
    # Two sums of hashes, modulo 2^64.
    low: int
    high: int

    def plus(self, other: Digest) -> Digest:
        low, high = (self.low + other.low) & _BITS, (self.high + other.high) & _BITS
        return Digest(self.records + other.records, self.size + other.size, low, high)

    def encode(self) -> bytes:
        """The 32 bytes that a publish takes."""
        return _DIGEST.pack(*self)


NOTHING = Digest(0, 0, 0, 0)


def digest_of_logs(digests: Mapping[str, Digest]) -> bytes:
    """The digest of a write to these logs: the 32 bytes that each of its publishes takes.

    The digest of several logs stands for the rows of all: a log that gets its own rows again still
    sees that a row of another log was added or left out, or goes to another log than before.
    """
    if len(digests) == 1:
        [digest] = digests.values()
        return digest.encode()
    whole = blake2b(digest_size=_DIGEST.size)
    for name, digest in sorted(digests.items()):
        encoded = name.encode()
        whole.update(struct.pack("<I", len(encoded)) + encoded + digest.encode())
    return whole.digest()


def digest_of(rows: FrameRows) -> Digest:
    hashes = _cell_hashes(rows.values)
    size = len(rows.values.data)
    if rows.keys is None:
        hashes = _with(hashes, _ABSENT)
    else:
        keys, lengths = _cell_hashes(rows.keys), rows.keys.lengths
        if rows.keyed is not None:
            keys, lengths = np.where(rows.keyed, keys, _ABSENT), lengths[rows.keyed]
        hashes = _with(hashes, keys)
        size += int(lengths.sum(dtype=np.int64))
    if rows.times is None:
        hashes = _with(hashes, _ABSENT)
    else:
        times = _mixed(rows.times.astype(np.uint64) + _STEP)
        hashes = _with(
            hashes, times if rows.timed is None else np.where(rows.timed, times, _ABSENT)
        )
    hashes = _with(hashes, _pair_hashes(rows.headers, rows.count))
    if rows.headers is not None:
        size += len(rows.headers.names.data) + len(rows.headers.contents.data)
    return Digest(rows.count, size, _sum(hashes), _sum(_mixed(hashes ^ _OTHER)))


def _sum(hashes: Hashes) -> int:
    return int(hashes.sum(dtype=np.uint64))


def _mixed(hashes: Hashes) -> Hashes:
    """The hashes mixed so that every bit of a result depends on every bit of its input."""
    hashes = (hashes ^ (hashes >> _FOLD)) * _FIRST
    hashes = (hashes ^ (hashes >> _FOLD)) * _SECOND
    return hashes ^ (hashes >> _FOLD)


def _stir(words: Hashes) -> None:
    """Mix ``words`` in place: most of the effect of :func:`_mixed`, for a good deal less time.

    Without it, bits that change in a pattern, as all signs of a vector do, would cancel each other
    out.
    """
    words *= _STEP
    words ^= words >> _HALF
    words *= _OTHER
    words ^= words >> _HALF


# An odd number without a pattern for each word of a block.
_FACTORS = _mixed(np.arange(1, BLOCK // _WORD + 1, dtype=np.uint64) * _STEP) | np.uint64(1)


def _with(hashes: Hashes, others: Hashes | np.uint64) -> Hashes:
    return _mixed((hashes * _STEP) ^ others)


def _cell_hashes(cells: Cells) -> Hashes:
    lengths = cells.lengths.astype(np.int64)
    starts = cells.offsets[:-1].astype(np.int64)
    long = np.flatnonzero(lengths > BLOCK)
    words = _words(cells.data) if long.size < lengths.size else np.zeros(0, np.uint64)
    folded = _folded(words, starts, lengths, np.where(lengths > BLOCK, 0, lengths), _WORD)
    if long.size:
        folded[long] ^= _block_sums(cells.data, starts[long], lengths[long])
    return folded


def _block_sums(data: memoryview, starts: Numbers, lengths: Numbers) -> Hashes:
    """The sum of the hashes of the blocks of each cell; a hash includes the block's place in it."""
    counts = -(-lengths // BLOCK)
    firsts = np.cumsum(counts) - counts
    places = np.arange(counts.sum()) - np.repeat(firsts, counts)
    last = np.repeat(starts + lengths - BLOCK, counts)
    at = np.minimum(np.repeat(starts, counts) + BLOCK * places, last)
    every = np.ndarray((len(data) - BLOCK + 1,), np.dtype((np.void, BLOCK)), data, strides=(1,))
    hashes = places.astype(np.uint64) * _STEP
    for first in range(0, len(at), BLOCKS_AT_ONCE):
        some = slice(first, first + BLOCKS_AT_ONCE)
        words = every[at[some]].view("<u8").reshape(-1, BLOCK // _WORD)
        _stir(words)
        hashes[some] += words @ _FACTORS
    hashes = _mixed(hashes)
    return np.add.reduceat(hashes, firsts)


def _words(data: memoryview) -> Hashes:
    """The word that begins at each byte. A word at the end of the last cell reaches beyond it."""
    size = len(data)
    padded = np.zeros(size + _WORD, np.uint8)
    padded[:size] = np.frombuffer(data, np.uint8)
    return np.ndarray((size + 1,), np.dtype("<u8"), padded, strides=(1,))


def _pair_hashes(pairs: Pairs | None, count: int) -> Hashes:
    if pairs is None:
        nothing = np.zeros(count, np.int64)
        return _folded(np.zeros(0, np.uint64), nothing, nothing, nothing, 1)
    words = _with(_cell_hashes(pairs.names), _cell_hashes(pairs.contents))
    lengths = np.diff(pairs.offsets).astype(np.int64)
    return _folded(words, pairs.offsets[:-1].astype(np.int64), lengths, lengths, 1)


def _folded(words: Hashes, starts: Numbers, lengths: Numbers, taken: Numbers, width: int) -> Hashes:
    """The hash of each row: of its length, and of the first ``taken`` items from its start on, with
    ``width`` items in a word."""
    hashes = _mixed(lengths.astype(np.uint64) + _STEP)
    # The rows with items left: their places, the number of items left, and their hashes so far.
    rows = np.flatnonzero(taken)
    at, left, now = starts[rows], taken[rows], hashes[rows]
    while rows.size:
        word = words[at]
        least = int(left.min())
        if least < width:
            word &= _MASKS[np.minimum(left, width)]
        now ^= word
        _stir(now)
        at += width
        left -= width
        if least <= width:
            done = left <= 0
            hashes[rows[done]] = now[done]
            more = ~done
            rows, at, left, now = rows[more], at[more], left[more], now[more]
    return _mixed(hashes)
