"""What is staged and published, as rows of a table: attempts with their chunks, and apps."""

from __future__ import annotations

import struct
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

from quorate.entry import CHUNK_BYTES, Chunk, chunk_at, pack_chunks
from quorate.state.producers import hash_item

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorate.types import Index, Term

__all__ = ["BLOCK", "App", "Attempt", "Key", "attempt_of", "hash_app"]

# What is hashed begins with its sort; the state and producers are 0 and 1.
_ATTEMPT_ITEM, _CHUNK_ITEM, _APP_ITEM = 3, 4, 5
_ATTEMPT = struct.Struct("<BQQIQ16s16sQ")
_CHUNK = struct.Struct("<BQQII")
_APP = struct.Struct("<BQQQQQQ32sB")

# Chunks of an attempt are kept in blocks of so many: one more copies a block, not all of them.
BLOCK = 256

# What names an attempt among those of its app: batch id, partition, attempt.
Key = tuple[int, int, bytes]


class Attempt(NamedTuple):
    """What one try to write a partition has staged. Never changed: replaced by what it becomes."""

    app: str
    run: bytes
    batch_id: int
    partition: int
    # Drawn by whoever tries.
    id: bytes
    # The index of its first chunk: its name in entries that drop it.
    first: int
    # How many chunks it has, at least one: the number of the next.
    number: int
    # Its chunks in the order of their numbers, which is that of the log, packed as in a publish
    # entry. All blocks but the last have BLOCK of them.
    blocks: tuple[bytes, ...]
    # How old the log was with the newest chunk.
    active_us: int
    # Of all its chunks together.
    records: int
    size: int
    # A hash of all its chunks, each with the one of those before it.
    chain: int
    # What it adds to the digest, so that dropping many hashes nothing.
    hash: int

    @property
    def rows(self) -> bytes:
        """All its chunks, packed."""
        blocks = self.blocks
        return blocks[0] if len(blocks) == 1 else b"".join(blocks)

    def chunk(self, number: int) -> Chunk:
        return chunk_at(memoryview(self.blocks[number // BLOCK]), number % BLOCK)

    @property
    def key(self) -> Key:
        """What names it among all attempts of its app, outside of the log."""
        return self.batch_id, self.partition, self.id

    def extended(self, chunk: Chunk, active_us: int) -> Attempt:
        """With one chunk more."""
        *whole, last = self.blocks
        row = pack_chunks((chunk,))
        added = (last + row,) if len(last) < BLOCK * CHUNK_BYTES else (last, row)
        return _hashed(
            self._replace(
                number=self.number + 1,
                blocks=(*whole, *added),
                active_us=active_us,
                records=self.records + chunk.records,
                size=self.size + chunk.size,
                chain=_chained(self.chain, chunk),
            )
        )


class App(NamedTuple):
    """What an app published last, as its receipt said."""

    name: str
    batch_id: int
    digest: bytes
    offset: int
    count: int  # type: ignore[assignment]  # nobody calls tuple's own
    # Of the publish entry.
    index: Index  # type: ignore[assignment]  # nobody calls tuple's own
    term: Term
    # How old the log was with that entry.
    active_us: int
    # Nobody will ever stage for it again, so it is remembered only for as long as that publish may
    # be repeated.
    once: bool = False


def attempt_of(app: str, key: Key, run: bytes, chunks: Sequence[Chunk], active_us: int) -> Attempt:
    """With these chunks, at least one."""
    rows = pack_chunks(chunks)
    step = BLOCK * CHUNK_BYTES
    attempt = Attempt(
        app,
        run,
        *key,
        first=chunks[0].index,
        number=len(chunks),
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
    """Its chunks are in the hash with their chain."""
    fields = _ATTEMPT.pack(
        _ATTEMPT_ITEM, attempt.first, attempt.batch_id, attempt.partition, attempt.active_us,
        attempt.run, attempt.id, attempt.chain,
    )  # fmt: skip
    return attempt._replace(hash=hash_item(fields + attempt.app.encode()))


def hash_app(app: App) -> int:
    name, batch_id, digest, offset, count, index, term, active_us, once = app
    fields = _APP.pack(_APP_ITEM, batch_id, offset, count, index, term, active_us, digest, once)
    return hash_item(fields + name.encode())
