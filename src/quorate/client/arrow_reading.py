"""What was read, as Arrow record batches. Imported by the first call of ``read_arrow``."""

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
    """A record batch for each stored batch, in place. The first and the last may be a part of it.

    They are not put together: that would copy every value.
    """
    start = pieces[0].offset
    # For all of them at once: most batches are small.
    offsets = offset_column(start, pieces[-1].end)
    for piece in pieces:
        for part in piece.parts():
            batch, offset, append_time, first, end = part
            records = record_batch(batch, offsets.slice(offset - start, batch.count), append_time)
            yield records if end - first == batch.count else records.slice(first, end - first)


def reader_of(batches: Iterator[pa.RecordBatch]) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(SCHEMA, batches)
