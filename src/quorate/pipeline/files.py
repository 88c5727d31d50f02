"""Files where Spark has them: on this machine's disk, or on any file system that Hadoop knows.

A path goes through the session's own Java, so that the same path is the same place for the driver,
for tasks and for this module. Local files get no checksum files beside them: other programs read
the directory, take checksum files for rubbish, and may change a file without its checksum.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from quorate.errors import InvalidArgument
from quorate.pipeline.job_session import is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "Files",
    "Found",
    "address",
    "check_apart",
    "check_directory",
    "literal",
    "local_path",
]

# Suffixes to the name of a small file: while it is written, and when it is whole and still has to
# take the place of the old file.
HALF, NEW = ".tmp", ".new"

_WILD = re.compile(r"([\\*?\[\]{}])")


class Found(NamedTuple):
    """A file of a directory."""

    # The path from the directory on.
    name: str
    size: int


class Files:
    """A directory, which may not exist, and the files in it: names are paths from there on."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        # Not every session has a JVM, and PySpark's types do not say which: they give Any.
        java: Any = spark._jvm
        self._path = java.org.apache.hadoop.fs.Path
        self._io = java.org.apache.hadoop.io.IOUtils
        self._buffer = java.java.io.ByteArrayOutputStream
        configuration: Any = spark._jsc.hadoopConfiguration()
        path = self._path(root)
        system = path.getFileSystem(configuration)
        if system.getUri().getScheme() == "file":
            system = system.getRawFileSystem()
        self._system = system
        self._root = system.makeQualified(path)

    @property
    def root(self) -> str:
        """The whole address, with its scheme."""
        return str(self._root.toString())

    @property
    def local(self) -> Path | None:
        """The directory as this machine has it; None if it is on another file system."""
        if self._system.getUri().getScheme() != "file":
            return None
        return Path(str(self._root.toUri().getPath()))

    def overlaps(self, other: Files) -> bool:
        """True if the two directories are the same, or one of them lies in the other."""
        mine, others = self._steps(), other._steps()
        common = min(len(mine), len(others))
        return mine[:common] == others[:common]

    def _steps(self) -> list[str]:
        """The steps of the path, without links and ``..``."""
        where = self.root if self.local is None else f"file:{self.local.resolve()}"
        return where.rstrip("/").split("/")

    def exists(self, name: str = "") -> bool:
        return bool(self._system.exists(self._at(name)))

    def is_directory(self, name: str = "") -> bool:
        path = self._at(name)
        return bool(self._system.exists(path)) and bool(
            self._system.getFileStatus(path).isDirectory()
        )

    def below(self, name: str = "") -> list[Found]:
        """All files below ``name``, however deep, sorted; none if there is no such directory."""
        if not self.exists(name):
            return []
        prefix = len(self.root.rstrip("/")) + 1
        listed = self._system.listFiles(self._at(name), True)
        found = []
        while listed.hasNext():
            status = listed.next()
            path = str(status.getPath().toString())
            found.append(Found(path[prefix:], status.getLen()))
        return sorted(found)

    def matching(self, pattern: str) -> list[str]:
        """The names that fit ``pattern``, sorted; ``*`` is any part of one name."""
        root = self.root.rstrip("/")
        found = self._system.globStatus(self._path(f"{literal(root)}/{pattern}"))
        prefix = len(root) + 1
        return sorted(str(status.getPath().toString())[prefix:] for status in found or ())

    def size(self, name: str) -> int:
        return int(self._system.getFileStatus(self._at(name)).getLen())

    def remove(self, name: str) -> None:
        """Remove a file, or a directory with its contents, if it is there."""
        self._system.delete(self._at(name), True)

    def move(self, name: str, to: str) -> None:
        """Move a file to ``to``, where no file may be yet; missing directories are made."""
        target = self._at(to)
        self._system.mkdirs(target.getParent())
        if not self._system.rename(self._at(name), target):
            raise OSError(0, "cannot be moved there", f"{self.root}/{to}")

    def read(self, name: str) -> str | None:
        """The text of a small file; None if there is no such file. A read changes no file: the
        writer of the file may be at work."""
        # The new file may get its name while this looks for it under the other name.
        for one in (name, name + NEW, name):
            if self.exists(one):
                buffer = self._buffer()
                self._io.copyBytes(self._system.open(self._at(one)), buffer, 4096, True)
                return bytes(buffer.toByteArray()).decode()
        return None

    def write(self, name: str, text: str) -> None:
        """Write a small file as a whole: a crash leaves the old or the new one to :meth:`read`.

        Not every file system can move a file onto another one: so the old file is removed, and
        meanwhile the new one has a name that says that it is whole.
        """
        if not self.exists(name) and self.exists(name + NEW):
            self.move(name + NEW, name)
        stream = self._system.create(self._at(name + HALF), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        self.remove(name + NEW)
        self.move(name + HALF, name + NEW)
        self.remove(name)
        self.move(name + NEW, name)

    def _at(self, name: str) -> Any:
        return self._path(self._root, name) if name else self._root


def literal(path: str) -> str:
    """The pattern that stands for ``path`` itself, where Spark expects a pattern."""
    return _WILD.sub(r"\\\1", path)


def address(what: str, path: str, master: str | None) -> str:
    """The address of ``path``, for the driver and for tasks. Raises InvalidArgument if ``path``
    would mean places on different machines for them."""
    if "://" in path or path.startswith("file:/"):
        return path
    local = Path(path).absolute()
    if master is None or is_local(master):
        return str(local)
    raise InvalidArgument(
        f"{what} = {path} is a directory of this machine, and tasks of {master} run on others; "
        f"give one that all of them have: hdfs://…, s3a://…, or {local.as_uri()} if it is mounted"
    )


def local_path(path: str) -> Path | None:
    """The place of ``path`` on this machine; None if it is on another file system."""
    if path.startswith("file:/"):
        return Path("/" + path.removeprefix("file:").lstrip("/"))
    return None if "://" in path else Path(path)


def check_directory(what: str, path: str | None) -> None:
    """Raise InvalidArgument if ``path`` is on this machine and cannot be a directory: this check
    needs no Spark."""
    local = None if path is None else local_path(path)
    if local is None:
        return
    for one in (local, *local.parents):
        if one.exists():
            if not one.is_dir():
                which = "" if one == local else f": {one}"
                raise InvalidArgument(f"{what} {path}{which} is a file, not a directory")
            return


def check_apart(spark: SparkSession, bad: str | None, what: str, path: str) -> None:
    """Raise InvalidArgument if the rows set aside in ``bad`` would lie among the files of ``path``,
    or these among those: the next run would take one for the other."""
    if bad is not None and Files(spark, bad).overlaps(Files(spark, path)):
        raise InvalidArgument(
            f"--bad = {bad} and {what} = {path} are the same, or one of them lies in the other: "
            f"give --bad a directory of its own"
        )
