"""Attempts with their staged chunks, and apps with their last publishes, as rows of a table."""

from __future__ import annotations

import struct
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

from quorate.entry_body import CHUNK_BYTES, Chunk, chunk_at, pack_chunks
from quorate.state.producers import hash_item

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorate.types import Index, Term

__all__ = ["BLOCK", "App", "Attempt", "Key", "attempt_of", "hash_app"]

# The first byte of a hashed item is its kind; the state and producers have the kinds 0 and 1.
_ATTEMPT_ITEM, _CHUNK_ITEM, _APP_ITEM = 3, 4, 5
_ATTEMPT = struct.Struct("<BQQIQ16s16sQ")
_CHUNK = struct.Struct("<BQQII")
_APP = struct.Struct("<BQQQQQQ32sB")

# An attempt keeps its chunks in blocks of this many: one more chunk copies one block, not all.
BLOCK = 256

# The name of an attempt among the attempts of its app: batch id, partition, attempt id.
Key = tuple[int, int, bytes]


class Attempt(NamedTuple):
    """One try to write a partition, with its chunks. Immutable: a change makes a new one."""

    app: str
    run: bytes
    batch_id: int
    partition: int
    # Random, drawn by the writer for each try.
    id: bytes
    # The index of its first chunk, which names the attempt in entries that drop it.
    first: int
    # How many chunks it has, at least one; also the number of the next chunk.
    chunk_count: int
    # Its chunks in the order of their numbers, which is the order of the log, packed as in a
    # publish entry. All blocks but the last have BLOCK chunks.
    blocks: tuple[bytes, ...]
    # The age of the log at its newest chunk.
    active_us: int
    # The records, and the bytes of the frames, of all its chunks.
    records: int
    size: int
    # A hash chain over all its chunks: each chunk is hashed with the chain before it.
    chain: int
    # Its share of the digest, kept so that dropping many attempts hashes none of them.
    hash: int

    @property
    def rows(self) -> bytes:
        """All chunks of the attempt, packed."""
        blocks = self.blocks
        return blocks[0] if len(blocks) == 1 else b"".join(blocks)

    def chunk(self, number: int) -> Chunk:
        return chunk_at(memoryview(self.blocks[number // BLOCK]), number % BLOCK)

    @property
    def key(self) -> Key:
        """The name of the attempt among all attempts of its app, outside of the log."""
        return self.batch_id, self.partition, self.id

    def extended(self, chunk: Chunk, active_us: int) -> Attempt:
        """This attempt with one more chunk."""
        *whole, last = self.blocks
        row = pack_chunks((chunk,))
        added = (last + row,) if len(last) < BLOCK * CHUNK_BYTES else (last, row)
        return _hashed(
            self._replace(
                chunk_count=self.chunk_count + 1,
                blocks=(*whole, *added),
                active_us=active_us,
                records=self.records + chunk.records,
                size=self.size + chunk.size,
                chain=_chained(self.chain, chunk),
            )
        )


class App(NamedTuple):
    """The last publish of an app, as its receipt said."""

    name: str
    batch_id: int
    digest: bytes
    offset: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not called
    # The index of the publish entry.
    index: Index  # type: ignore[assignment]  # hides tuple.index, which is not called
    term: Term
    # The age of the log at that entry.
    active_us: int
    # No chunk will ever be staged for the app again, so it is remembered only for as long as that
    # publish may be repeated.
    once: bool = False


def attempt_of(app: str, key: Key, run: bytes, chunks: Sequence[Chunk], active_us: int) -> Attempt:
    """An attempt that has these chunks, at least one."""
    rows = pack_chunks(chunks)
    step = BLOCK * CHUNK_BYTES
    attempt = Attempt(
        app,
        run,
        *key,
        first=chunks[0].index,
        chunk_count=len(chunks),
        blocks=tuple(rows[start : start + step] for start in range(0, len(rows), step)),
        active_us=active_us,
        records=sum(chunk.records for chunk in chunks),
        size=sum(chunk.size for chunk in chunks),
        chain=reduce(_chained, chunks, 0),
        hash=0,
    )
    return _hashed(attempt)


def _chained(before: int, chunk: Chunk) -> int:
    return hash_item(_CHUNK.pack(_CHUNK_ITEM, before, *chunk))


def _hashed(attempt: Attempt) -> Attempt:
    """The attempt with its hash, which covers the chunks by their chain."""
    fields = _ATTEMPT.pack(
        _ATTEMPT_ITEM, attempt.first, attempt.batch_id, attempt.partition, attempt.active_us,
        attempt.run, attempt.id, attempt.chain,
    )  # fmt: skip
    return attempt._replace(hash=hash_item(fields + attempt.app.encode()))


def hash_app(app: App) -> int:
    name, batch_id, digest, offset, count, index, term, active_us, once = app
    fields = _APP.pack(_APP_ITEM, batch_id, offset, count, index, term, active_us, digest, once)
    return hash_item(fields + name.encode())
