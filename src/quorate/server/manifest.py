"""The manifest's file: a start reads it, and each change replaces it as a whole."""

from __future__ import annotations

import asyncio
import errno
import logging
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

from quorate.errors import Damaged, InvalidArgument
from quorate.storage.damage import UNREADABLE_ADVICE, WHOLE_ADVICE
from quorate.storage.directory import LOGS, DataDirectory, log_name
from quorate.storage.disk_errors import NO_SPACE, PASSING, UNREADABLE
from quorate.storage.layout import (
    PAGE,
    SPARE,
    UNFINISHED,
    VOTE_COPIES,
    pages,
)
from quorate.storage.manifest import MANIFEST, Manifest, Member
from quorate.storage.used import is_used
from quorate.storage.vfs import RealVfs
from quorate.storage.vote import plan_vote
from quorate.types import Term, VoteRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from quorate.storage.vfs import Vfs
    from quorate.types import NodeId

__all__ = [
    "OBSTRUCTED",
    "ManifestFile",
    "check_log",
    "drop_spare",
    "make_log",
    "remove_log",
    "replace_manifest",
    "take_list",
]

log = logging.getLogger(__name__)

# The file of the next manifest, until it is complete.
ASIDE = MANIFEST + UNFINISHED
# Errors of a call that met a file of another kind or owner, or a file that was put there by others.
# They concern the folder in which they occur, not the disk.
OBSTRUCTED = frozenset(
    {
        errno.EACCES, errno.EBUSY, errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.ENOTDIR,
        errno.ENOTEMPTY, errno.ENXIO, errno.EPERM, errno.ESPIPE,
    }
)  # fmt: skip
# How long a save waits for the boots of more logs while a start opens them.
GATHER_S = 0.05


class ManifestFile:
    """The manifest and its file. One thread writes the file, so the newest manifest is written
    last."""

    def __init__(self, directory: DataDirectory) -> None:
        self._directory = directory
        self._vfs = RealVfs(directory.path)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="quorate-manifest")
        # Number of log boots that were noted, and of those that are saved.
        self._noted = self._notes_saved = 0
        self._saving = asyncio.Lock()
        self._gather_s = 0.0
        # The manifest as it is to be saved; :meth:`open` reads or makes it.
        self.manifest: Manifest

    def open(self, nodes: Mapping[NodeId, str]) -> None:
        """Read the manifest, or make it on a node's first start. Raises Damaged.

        ``nodes`` are the members once the first start is complete, and their set never changes
        then. Their addresses may change later. ``nodes`` is empty if the settings do not name them.
        """
        found = self._read()
        if found is None:
            if not nodes:
                raise InvalidArgument(
                    "[cluster.nodes] is missing: on its first start a node has to know the others"
                )
            self.manifest = Manifest({node: Member(nodes[node]) for node in nodes})
            self.save_now()
            return
        self.manifest = found
        for incarnation in self._directory.incarnations():
            if incarnation not in found.logs:
                _check_unknown_log(self._directory, incarnation)
        if nodes:
            take_list(found, nodes)

    def _read(self) -> Manifest | None:
        place = self._directory.path / MANIFEST
        if MANIFEST not in self._vfs.names():
            if self._directory.incarnations():
                raise Damaged(
                    f"{place} is missing and there are logs; put the newest copy of the whole "
                    f"data directory back, or leave this node stopped"
                )
            return None
        file = self._vfs.open(MANIFEST)
        try:
            manifest = Manifest.decode(file.read(0, file.size()))
        finally:
            file.close()
        if manifest is None:
            raise Damaged(
                f"{place} is damaged; put the newest copy of the whole data directory back, or "
                f"leave this node stopped"
            )
        return manifest

    async def save(self) -> None:
        """Write the manifest; it is durable when this returns. Raises OSError, and then the file is
        unchanged."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(
            self._thread, replace_manifest, self._vfs, self.manifest.encode()
        )

    async def note_boot(self, incarnation: int, boot: int) -> None:
        """Note that a log was opened with this boot. The note is durable when this returns, unless
        the disk has no space: then the next save includes it. Raises OSError, also while too many
        files are open: the log is opened again later.

        Notes that come while the manifest is saved share the next save; within :meth:`gathering` a
        save also waits a moment for more notes.
        """
        logs = self.manifest.logs
        logs[incarnation] = logs[incarnation]._replace(boot=boot)
        self._noted += 1
        noted = self._noted
        async with self._saving:
            if self._notes_saved >= noted:
                return
            await asyncio.sleep(self._gather_s)
            noted = self._noted
            try:
                await self.save()
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
            self._notes_saved = noted

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """A context in which many logs are opened: a save for each log would cost more than opening
        it."""
        self._gather_s = GATHER_S
        try:
            yield
        finally:
            self._gather_s = 0.0

    def save_now(self) -> None:
        """Write the manifest and block until it is durable, for callers that cannot await. Calls
        are rare, because the whole loop waits, with the heartbeats of all logs: a disk that hangs
        here makes the node silent, and the others go on without it."""
        self._thread.submit(replace_manifest, self._vfs, self.manifest.encode()).result()

    def close(self) -> None:
        self._thread.shutdown()
        self._vfs.close()


def take_list(manifest: Manifest, nodes: Mapping[NodeId, str]) -> None:
    """Make ``nodes`` the members, with their addresses. Raises InvalidArgument if the set of
    members changes and another node may rely on the earlier set.

    Before the first start is complete, the list may be corrected. A node that was met stays in it:
    it was told that this node knows it for ever. A changed list voids the confirmations of peers,
    because they confirmed to a node with the earlier list: the first start needs to hear them
    again. If all peers have confirmed, this node's first start needs no more, and that of the peers
    may be complete.
    """
    named, before = {*nodes}, {*manifest.nodes}
    unconfirmed = [node for node in before if not manifest.nodes[node].confirmed]
    complete = manifest.formed or len(unconfirmed) == 1 < len(before)  # that one is this node
    if complete and named != before:
        raise InvalidArgument(
            f"[cluster.nodes] has {_listed(named)}; this node was made for a cluster of "
            f"{_listed(before)}: put that list back, members cannot be changed yet"
        )
    met = {node for node in before - named if manifest.nodes[node].storage is not None}
    if met:
        raise InvalidArgument(
            f"[cluster.nodes] has {_listed(named)}; this node has met {_listed(met)}, which the "
            f"list lacks: put it back, or, if no node of this cluster was ever ready, stop all of "
            f"them, remove the data directory of each and start them again"
        )
    old = dict(manifest.nodes)
    manifest.nodes.clear()
    for node, address in nodes.items():
        member = old.get(node, Member(address))._replace(address=address)
        manifest.nodes[node] = member if named == before else member._replace(confirmed=0)


def _listed(nodes: Iterable[NodeId]) -> str:
    return ", ".join(sorted(nodes))


def replace_manifest(vfs: Vfs, data: bytes) -> None:
    """Replace the manifest's file: a crash leaves the new file or the one before.

    The file for the next manifest is allocated ahead: on a full disk, a node must still be able to
    count its start and to record the start of a peer.
    """
    file = vfs.open(ASIDE) if ASIDE in vfs.names() else vfs.create(ASIDE)
    try:
        file.write(0, [data])
        file.truncate(len(data))
        file.sync()
    finally:
        file.close()
    vfs.rename(ASIDE, MANIFEST)
    vfs.sync_directory()
    _allocate_next(vfs, len(data))


def _allocate_next(vfs: Vfs, size: int) -> None:
    """Allocate the next file, a page longer than the manifest, unless the system refuses for
    now."""
    try:
        file = vfs.create(ASIDE)
        try:
            file.allocate(pages(size) + PAGE)
        finally:
            file.close()
    except OSError as error:
        if error.errno not in PASSING:
            raise


def _check_unknown_log(directory: DataDirectory, incarnation: int) -> None:
    """Raise Damaged if a directory that the manifest does not name holds more than a log that was
    about to be made. With an older manifest put back, the node would delete all such logs."""
    path = directory.path / LOGS / log_name(incarnation)
    try:
        used = is_used(path, directory.log_id(incarnation))
    except OSError as error:
        if error.errno in PASSING:
            raise
        raise Damaged(
            f"{path} is not known to the manifest and cannot be read: {error}; if it is no log of "
            f"this node move it away, else check the disk, put the newest copy of the whole data "
            f"directory back, or leave this node stopped"
        ) from error
    if used:
        raise Damaged(
            f"{path} holds a log that the manifest does not know: the manifest is older than the "
            f"logs beside it; put the newest copy of the whole data directory back, or leave this "
            f"node stopped"
        )


def check_log(directory: DataDirectory, incarnation: int, name: str) -> None:
    """Raise Damaged if a log that was made here has no directory or no vote record any more, or if
    its directory cannot be read."""
    place = directory.path / LOGS / log_name(incarnation)
    try:
        _check_votes(place, name)
        vfs = RealVfs(place)
        try:
            vfs.names()
        finally:
            vfs.close()
    except OSError as error:
        if error.errno not in UNREADABLE | OBSTRUCTED:
            raise
        # Damaged stops this log alone: the folders of other logs may be readable.
        raise Damaged(f"{place} cannot be read: {error}; {UNREADABLE_ADVICE}") from error


def _check_votes(place: Path, name: str) -> None:
    votes = [place / copy for copy in VOTE_COPIES]
    if not any(vote.exists() for vote in votes):
        missing = votes[0] if place.is_dir() else place
        raise Damaged(f"log {name} was made here and {missing} is missing; {WHOLE_ADVICE}")


def make_log(directory: DataDirectory, incarnation: int) -> None:
    """Make the directory of a log that never voted; it is durable when this returns.

    The vote record is made with it: a directory that lacks one later has lost it.
    """
    vfs = directory.log_vfs(incarnation)
    try:
        if not set(VOTE_COPIES) <= set(vfs.names()):
            identity = directory.log_id(incarnation)
            for _ in plan_vote(vfs, identity, VoteRecord(0, Term(0), None, 0)):
                pass
    finally:
        vfs.close()


def drop_spare(directory: DataDirectory, incarnation: int) -> None:
    """Free the space that a closed log allocated ahead; the log does not need it any more. What
    hinders that is left to :func:`remove_log`."""
    path = directory.path / LOGS / log_name(incarnation)
    try:
        if path.is_dir():
            (path / SPARE).unlink(missing_ok=True)
    except OSError as error:
        if error.errno not in OBSTRUCTED:
            raise


def remove_log(directory: DataDirectory, incarnation: int) -> None:
    """Remove the directory of a log with all that is in it, also what others put there; the removal
    is durable when this returns. No symbolic link is followed."""
    path = directory.path / LOGS / log_name(incarnation)
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)
    parent = RealVfs(directory.path / LOGS)
    try:
        parent.sync_directory()
    finally:
        parent.close()
