"""The file of the catalog's table on a simulated disk, as server/logs/table.py has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.server.logs.catalog import Catalog
from quorate.storage.directory import TABLE
from quorate.storage.layout import UNFINISHED

if TYPE_CHECKING:
    from verification.fleet.node import FleetNode

__all__ = ["KeptTable"]


class KeptTable:
    """The file of the table. It is never torn: server/logs/table.py has a checksum."""

    def __init__(self, node: FleetNode) -> None:
        self._node = node
        # The number of records of the catalog in the newest table on disk.
        self.applied = 0

    def read(self) -> Catalog:
        """The catalog of the table that was written last."""
        root = self._node.directory.root
        if TABLE not in root.names():
            return Catalog()
        file = root.open(TABLE)
        found = Catalog.decode(file.read(0, file.size()))
        if found is None:
            return Catalog()
        self.applied = found.applied
        self._node.world.sometimes["started from a table"] += 1
        return found

    def write(self, data: bytes) -> None:
        """Write a table. Raises OSError."""
        root = self._node.directory.root
        aside = TABLE + UNFINISHED
        if aside in root.names():
            root.unlink(aside)
        file = root.create(aside)
        file.write(0, [data])
        file.sync()
        root.rename(aside, TABLE)
