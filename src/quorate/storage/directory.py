"""A node's data directory: its identity, its lock, and the directories of its logs.

::

    DIR/lock                locked as long as a process works here; its content has no meaning
    DIR/identity            cluster, node and storage id, as text
    DIR/catalog             the catalog's table, made again from its log if it is missing or bad
    DIR/logs/0123…cdef/     one directory for each log, named by its incarnation

The storage id is drawn once, when the directory is made. A node with the same name and another
storage id is a different node: the votes and acknowledgements of the first are not on its disk.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crc32c import crc32c

from quorate.errors import InvalidArgument, WrongDirectory
from quorate.storage.layout import LOST_FOUND, UNFINISHED, VOTE_NAME_MAX, LogId
from quorate.storage.vfs import MODE_DIRECTORY, MODE_FILE, RealVfs
from quorate.types import NodeId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = [
    "IDENTITY",
    "LOCK",
    "LOGS",
    "TABLE",
    "DataDirectory",
    "Identity",
    "hold_still",
    "log_incarnation",
    "log_name",
    "process_at_work",
    "proof_line",
]

LOCK = "lock"
IDENTITY = "identity"
LOGS = "logs"
TABLE = "catalog"

FORMAT = 1
STORAGE_BYTES = 16
IDENTITY_BYTES_MAX = 4096
# "crc32c 01234567" and the end of the line.
PROOF_BYTES = 16
INCARNATION_BITS = 128

# Names that fit into a vote record and that need no quotes in a file name or a shell.
_NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{VOTE_NAME_MAX}}}")
_LOG_NAME = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Identity:
    """The owner of a data directory: a node, its cluster and its storage id. Every text format
    begins with its format number and ends with a CRC32C."""

    cluster: str
    node: NodeId
    storage: bytes

    def encode(self) -> bytes:
        text = (
            f"format {FORMAT}\ncluster {self.cluster}\nnode {self.node}\n"
            f"storage {self.storage.hex()}\n"
        ).encode()
        return text + proof_line(text)

    @staticmethod
    def decode(data: bytes) -> Identity | None:
        """The identity in ``data``; None if a bit of it is not as it was written.

        Raises WrongDirectory if a newer release wrote it.
        """
        text, proof = data[:-PROOF_BYTES], data[-PROOF_BYTES:]
        if proof != proof_line(text):
            return None
        fields = dict(line.partition(" ")[::2] for line in text.decode().splitlines())
        number = fields.get("format", "")
        if number.isdecimal() and int(number) > FORMAT:
            raise WrongDirectory(
                f"the directory has format {number}, this release knows format {FORMAT}; "
                f"run the release that wrote it, or a newer one"
            )
        try:
            storage = bytes.fromhex(fields["storage"])
            identity = Identity(fields["cluster"], NodeId(fields["node"]), storage)
        except (KeyError, ValueError):
            return None
        return identity if identity.encode() == data else None

    def __str__(self) -> str:
        return f"node {self.node} of cluster {self.cluster}"


def proof_line(text: bytes) -> bytes:
    """The last line of a text file: the CRC32C of all lines before it."""
    return f"crc32c {crc32c(text):08x}\n".encode()


def log_name(incarnation: int) -> str:
    """The name of a log's directory, below ``logs``."""
    if not 0 <= incarnation < 1 << INCARNATION_BITS:
        raise InvalidArgument(f"incarnation {incarnation} is not a number of 128 bits")
    return f"{incarnation:032x}"


def log_incarnation(name: str) -> int | None:
    """The incarnation that a directory is named by; None for any other name."""
    return int(name, 16) if _LOG_NAME.fullmatch(name) else None


class DataDirectory:
    """The directory of the node that runs in this process."""

    def __init__(self, path: Path, identity: Identity, lock: int) -> None:
        self.path = path
        self.identity = identity
        self._lock = lock

    @classmethod
    def open(
        cls,
        path: Path,
        cluster: str,
        node: str,
        *,
        draw_storage: Callable[[], bytes] = lambda: secrets.token_bytes(STORAGE_BYTES),
    ) -> DataDirectory:
        """Lock the directory, after making it on first use, and check that it is this node's.

        Raises WrongDirectory if it is not. A crash at any moment of the first use leaves a
        directory that the next open takes for a first use, or for this node's directory.
        """
        for what, name in (("cluster", cluster), ("node", node)):
            if not _NAME.fullmatch(name):
                raise InvalidArgument(
                    f"{what} {name!r} must be 1 to {VOTE_NAME_MAX} letters, digits, dots, "
                    f"underscores or hyphens"
                )
        path = path.absolute()
        _make(path)
        _refuse_strange(path)
        lock = _take_lock(path)
        try:
            identity = _identify(path, Identity(cluster, NodeId(node), draw_storage()))
            (path / LOGS).mkdir(MODE_DIRECTORY, exist_ok=True)
            _sync(path)
        except BaseException:
            os.close(lock)
            raise
        return cls(path, identity, lock)

    def incarnations(self) -> list[int]:
        """The logs that have a directory here."""
        names = sorted(path.name for path in (self.path / LOGS).iterdir())
        return [found for name in names if (found := log_incarnation(name)) is not None]

    def log_id(self, incarnation: int) -> LogId:
        """The id that every segment of the log carries: incarnation and storage id."""
        return LogId(incarnation, self.identity.storage)

    def log_vfs(self, incarnation: int) -> RealVfs:
        """The directory of a log, made if it is not there. The caller closes it."""
        path = self.path / LOGS / log_name(incarnation)
        path.mkdir(MODE_DIRECTORY, exist_ok=True)
        # Also if it was there: the process that made it may have been killed before its sync.
        _sync(self.path / LOGS)
        return RealVfs(path)

    def close(self) -> None:
        """Let another process work here."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> DataDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# -- making and refusing -----------------------------------------------------------------------


def _make(path: Path) -> None:
    try:
        path.mkdir(MODE_DIRECTORY)
    except FileExistsError:
        pass
    except OSError as error:
        # Its parents are not made: a disk that is not mounted would look like a new node.
        raise WrongDirectory(
            f"{path} cannot be made: {error.strerror}; see that {path.parent} is there and can be "
            f"written"
        ) from error
    if path.is_symlink() or not path.is_dir():
        raise WrongDirectory(f"{path} is not a directory of its own; name the directory itself")
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        raise WrongDirectory(
            f"{path} is open to other users (mode {mode:o}); run: chmod 700 {path}"
        )
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise WrongDirectory(f"{path} is closed to this user; run as the user that owns it")


def _refuse_strange(path: Path) -> None:
    """Refuse a directory that is no data directory before a file, even the lock, is made in it."""
    names = {place.name for place in path.iterdir()}
    if IDENTITY not in names:
        _refuse_used(path, names)
    _refuse_links(path)


def _refuse_links(path: Path) -> None:
    """Refuse symbolic links: their target may belong to another node, or may be removed later."""
    for place in path.iterdir():
        if place.is_symlink():
            raise WrongDirectory(f"{place} is a symbolic link; put what it points to in its place")
        if place.is_dir() and place.name != LOST_FOUND:
            _refuse_links(place)


def _identify(path: Path, wanted: Identity) -> Identity:
    """The identity of the directory, which must be ``wanted`` in cluster and node."""
    vfs = RealVfs(path)
    try:
        names = set(vfs.names())
        if IDENTITY not in names:
            _refuse_used(path, names)
            _write_identity(path, vfs, wanted)
            return wanted
        file = vfs.open(IDENTITY)
        data = file.read(0, IDENTITY_BYTES_MAX)
        file.close()
    finally:
        vfs.close()
    try:
        found = Identity.decode(data)
    except WrongDirectory as newer:
        raise WrongDirectory(f"{path}: {newer}") from None
    if found is None:
        raise WrongDirectory(
            f"{path / IDENTITY} is damaged; restore it, or go on with the other nodes, this "
            f"release cannot replace this one yet"
        )
    if (found.cluster, found.node) != (wanted.cluster, wanted.node):
        raise WrongDirectory(
            f"{path} belongs to {found}, not to {wanted}; start that node here, or give this one "
            f"its own directory"
        )
    return found


def _refuse_used(path: Path, names: set[str]) -> None:
    """Refuse a directory without an identity unless it is new: it may hold only the files that an
    interrupted first use leaves."""
    if LOGS in names:
        raise WrongDirectory(
            f"{path} holds logs and its identity is missing; restore {path / IDENTITY}, or go on "
            f"with the other nodes, this release cannot replace this one yet"
        )
    strange = sorted(names - {LOCK, IDENTITY + UNFINISHED, LOST_FOUND})
    if strange:
        raise WrongDirectory(
            f"{path} is not a data directory and not empty: it holds {strange[0]}; name an empty "
            f"or a new directory"
        )


def _write_identity(path: Path, vfs: RealVfs, identity: Identity) -> None:
    """Write the identity as a whole file or not at all. The entry of the directory in its parent is
    durable first."""
    # A parent that may not be opened belongs to another user, who made this directory earlier.
    with suppress(PermissionError):
        _sync(path.parent)
    aside = IDENTITY + UNFINISHED
    if aside in vfs.names():
        vfs.unlink(aside)
    file = vfs.create(aside)
    file.write(0, [identity.encode()])
    file.sync()
    file.close()
    vfs.rename(aside, IDENTITY)
    vfs.sync_directory()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- the lock ----------------------------------------------------------------------------------


def _take_lock(path: Path) -> int:
    """Lock the directory for this process. The kernel ties the lock to the descriptor, so it cannot
    outlive its process."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path / LOCK, flags, MODE_FILE)
    return _lock(path, descriptor, fcntl.LOCK_EX)


def _lock(path: Path, descriptor: int, kind: int) -> int:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        process = process_at_work(path)
        who = f"process {process}" if process is not None else "another process"
        raise WrongDirectory(f"{path} is in use by {who}; stop it first") from None
    return descriptor


@contextmanager
def hold_still(path: Path) -> Iterator[None]:
    """Keep nodes out of ``path``, so that its files do not change while they are read.

    Raises WrongDirectory if a node works there. No file is written, so a copy of a data directory
    without a lock file can be read, too.
    """
    descriptor = None
    with suppress(FileNotFoundError):
        descriptor = os.open(path / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    if descriptor is not None:
        _lock(path, descriptor, fcntl.LOCK_SH)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def process_at_work(path: Path) -> int | None:
    """The process that holds the lock of ``path``, as far as the kernel tells."""
    try:
        found = (path / LOCK).stat(follow_symlinks=False)
        with open("/proc/locks", encoding="ascii") as lines:  # noqa: PTH123  # not a file of ours
            locks = [line.split() for line in lines]
    except OSError:
        return None
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    for fields in locks:
        # "1: FLOCK ADVISORY WRITE 4711 fd:00:42 0 EOF"; a process that waits has an arrow first.
        if len(fields) > 5 and fields[1] == "FLOCK" and fields[5] == place and int(fields[4]) > 0:
            return int(fields[4])
    return None
