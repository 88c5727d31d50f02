"""The manifest of a simulated node and its file, as server/manifest.py has them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from quorate.errors import Damaged
from quorate.server.manifest import replace_manifest, take_list
from quorate.storage.disk_errors import NO_SPACE
from quorate.storage.manifest import MANIFEST, Manifest, Member
from verification.fleet.disk import PowerCut

if TYPE_CHECKING:
    from collections.abc import Generator

    from verification.fleet.node import FleetNode

    # Work yields its pauses, in microseconds.
    Work = Generator[int, None, None]

__all__ = ["KeptManifest", "Work"]


class KeptManifest:
    """The manifest of one process, and the writes of it that wait."""

    def __init__(self, node: FleetNode) -> None:
        self._node = node
        # Manifests to be written, oldest first, each with its writer's outcome.
        self._saves: deque[tuple[bytes, _Outcome]] = deque()
        # Set by `open`.
        self.manifest: Manifest

    def open(self) -> None:
        """Read the manifest, or make it on the first start. Raises Damaged or OSError."""
        node = self._node
        root = node.directory.root
        if MANIFEST not in root.names():
            if node.directory.logs:
                raise Damaged(f"{node.name}: the manifest is missing and there are logs")
            self.manifest = Manifest({name: Member(name) for name in node.listed})
            self.save_now()
            return
        file = root.open(MANIFEST)
        found = Manifest.decode(file.read(0, file.size()))
        if found is None:
            raise Damaged(f"{node.name}: the manifest is damaged")
        take_list(found, {name: name for name in node.listed})
        self.manifest = found

    def save_now(self) -> None:
        """Write the waiting manifests first: one thread writes them in order."""
        while self._saves:
            self._write_next()
        self._replace(self.manifest.encode())

    def save(self) -> Work:
        """Write the present manifest, durable when this work ends. Raises OSError."""
        outcome = _Outcome()
        self._saves.append((self.manifest.encode(), outcome))
        yield self._node.disk_us()
        while not outcome.done:
            self._write_next()
        if outcome.error is not None:
            raise outcome.error

    def note_boot(self, incarnation: int, boot: int) -> Work:
        """Note the boot of a log."""
        logs = self.manifest.logs
        logs[incarnation] = logs[incarnation]._replace(boot=boot)
        try:
            yield from self.save()
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise

    def _write_next(self) -> None:
        data, outcome = self._saves.popleft()
        try:
            self._replace(data)
        except OSError as error:
            outcome.error = error
        outcome.done = True

    def _replace(self, data: bytes) -> None:
        node = self._node
        armed = node.trouble.calls_left is not None
        try:
            replace_manifest(node.directory.root, data)
        except PowerCut:
            node.world.sometimes["power cut within a manifest replacement"] += armed
            raise
        node.allocated_ahead = not node.trouble.refusal
        node.world.history.saved(node)


class _Outcome:
    """The outcome of one manifest that was to be written."""

    def __init__(self) -> None:
        self.done = False
        self.error: OSError | None = None
