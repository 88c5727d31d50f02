"""A scribe that stages and publishes, and short names for what both need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state_rig import Scribe

from quorate.commands import ChunkLabel, Part, Publish
from quorate.config import Limits
from quorate.entry_body import (
    CHUNK_BYTES,
    Chunk,
    Publication,
    encode_publication,
    encode_stage,
    pack_chunks,
)
from quorate.fields import DIGEST_BYTES
from quorate.state.judge import judge_publish, judge_stage, rows_of
from quorate.types import EntryKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorate.commands import ChunkStaged
    from quorate.entry import Entry
    from quorate.errors import QuorateError
    from quorate.state.attempts import Attempt
    from quorate.state.runs import Run

LIMITS = Limits()
APP = "query"


def uuid(number: int) -> bytes:
    return number.to_bytes(16, "little")


def digest(number: int = 0) -> bytes:
    return number.to_bytes(DIGEST_BYTES, "little")


def label(
    batch_id: int = 0,
    partition: int = 0,
    attempt: int = 1,
    number: int = 0,
    *,
    run: int = 1,
    app: str = APP,
) -> ChunkLabel:
    return ChunkLabel(app, uuid(run), batch_id, partition, uuid(attempt), number)


def publish(
    batch_id: int,
    *parts: tuple[int, int, int, int],
    of: int = 0,
    app: str = APP,
    fence: str | None = None,
    once: bool = False,
) -> Publish:
    """``parts`` are (partition, attempt, chunks, records); ``of`` stands for the digest."""
    named = tuple(
        Part(partition, uuid(attempt), chunks, records)
        for partition, attempt, chunks, records in parts
    )
    return Publish(app, batch_id, named, digest(of), fence, once)


def chunks_of(attempt: Attempt) -> list[Chunk]:
    return [attempt.chunk(number) for number in range(attempt.chunk_count)]


class StagingScribe(Scribe):
    def staged(self, label: ChunkLabel, records: int = 1, batch: bytes = b"batch...") -> Entry:
        body, rows = encode_stage(label, batch, records)
        return self.make(EntryKind.STAGE, body, 0, 1, rows)

    def stage(self, label: ChunkLabel, records: int = 1) -> Entry:
        return self.apply(self.staged(label, records))

    def published(
        self, operation: Publish, chunks: Sequence[Chunk] | None = None, count: int | None = None
    ) -> Entry:
        rows = rows_of(self.state, operation) if chunks is None else pack_chunks(chunks)
        said = Publication(operation.app, operation.batch_id, operation.digest, operation.once)
        count = operation.records if count is None else count
        body = encode_publication(said, rows)
        return self.make(EntryKind.PUBLISH, body, count, 0, len(rows) // CHUNK_BYTES)

    def publish(self, operation: Publish) -> Entry:
        return self.apply(self.published(operation))

    def judge_stage(
        self, label: ChunkLabel, records: int = 1, size: int = 8, limits: Limits = LIMITS
    ) -> ChunkStaged | QuorateError | None:
        return judge_stage(self.state, label, records, size, limits)

    def judge_publish(
        self, operation: Publish, limits: Limits = LIMITS
    ) -> Run | QuorateError | None:
        return judge_publish(self.state, operation, limits)
