"""Arrow record batches of records that were read. Imported by the first read that needs Arrow."""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import pyarrow as pa

    from quorate.arrow import SCHEMA, offset_column, record_batch
except ImportError as error:
    raise ImportError(
        f"read_arrow needs pyarrow; install it with: pip install 'quorate[arrow]' ({error})"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorate.client.reading import Piece

__all__ = ["reader_of", "record_batches_of"]


def record_batches_of(pieces: list[Piece]) -> Iterator[pa.RecordBatch]:
    """A record batch over each stored batch, without a copy. The first and the last may be a part.

    Batches are not joined: that would copy every value.
    """
    start = pieces[0].offset
    # One column for all batches: most are small.
    offsets = offset_column(start, pieces[-1].end)
    for piece in pieces:
        for part in piece.parts():
            batch, offset, append_time, first, end = part
            records = record_batch(batch, offsets.slice(offset - start, batch.count), append_time)
            yield records if end - first == batch.count else records.slice(first, end - first)


def reader_of(batches: Iterator[pa.RecordBatch]) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(SCHEMA, batches)
