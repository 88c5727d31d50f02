"""The file of the catalog's table: a start reads it, and then only the catalog's later records.

It is one file of the data directory. The catalog's log has all of its content, too; so a missing or
damaged file costs a start only the time to read the whole log.
"""

from __future__ import annotations

import logging
import struct
from typing import TYPE_CHECKING

from crc32c import crc32c

from quorate.server.logs.catalog import INCARNATION_BYTES, Catalog, catalog_incarnation
from quorate.storage.directory import TABLE
from quorate.storage.layout import UNFINISHED
from quorate.storage.vfs import RealVfs

if TYPE_CHECKING:
    from quorate.storage.directory import DataDirectory

__all__ = ["TABLE_EVERY", "TableFile"]

log = logging.getLogger(__name__)

# The table is written after this many records of the catalog: a start reads at most as many, or a
# few more.
TABLE_EVERY = 1000
_MAGIC = b"QTABLE1\n"
# After the magic: the CRC32C of the rest, the catalog's incarnation, the table.
_CRC = struct.Struct("<I")


class TableFile:
    """Reads and writes the table's file."""

    def __init__(self, directory: DataDirectory) -> None:
        self._path = directory.path
        incarnation = catalog_incarnation(directory.identity.cluster)
        self._own = incarnation.to_bytes(INCARNATION_BYTES, "little")
        # Number of catalog records in the newest table on disk.
        self.applied = 0

    def read(self) -> Catalog:
        """The table that was written last; an empty table if the file is missing or unreadable."""
        place = self._path / TABLE
        try:
            if place.exists() and not place.is_file():
                # It is not opened: a pipe would wait for its other end.
                log.warning("the catalog's table is no file: the log is read instead")
                return Catalog()
            data = place.read_bytes()
        except FileNotFoundError:
            return Catalog()
        except OSError as error:
            log.warning("the catalog's table is not read: the log will be error=%s", str(error))
            return Catalog()
        found = self._decode(data)
        if found is None:
            log.warning(
                "the catalog's table is damaged or of another release: the log is read instead"
            )
            return Catalog()
        self.applied = found.applied
        return found

    def _decode(self, data: bytes) -> Catalog | None:
        head = len(_MAGIC) + _CRC.size
        rest = data[head:]
        proof = _MAGIC + _CRC.pack(crc32c(rest))
        if data[:head] != proof or not rest.startswith(self._own):
            return None
        return Catalog.decode(rest[len(self._own) :])

    def write(self, table: bytes) -> None:
        """Replace the file: a crash leaves the new one or the one before. Raises OSError."""
        rest = self._own + table
        vfs = RealVfs(self._path)
        try:
            aside = TABLE + UNFINISHED
            if aside in vfs.names():
                vfs.unlink(aside)
            file = vfs.create(aside)
            try:
                file.write(0, [_MAGIC, _CRC.pack(crc32c(rest)), rest])
                file.sync()
            finally:
                file.close()
            vfs.rename(aside, TABLE)
        finally:
            vfs.close()
