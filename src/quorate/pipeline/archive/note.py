"""An archive: a directory of Parquet files, with a note that describes them.

The note lies in the directory itself, in a folder that readers pass over, beside the checkpoint of
the query. So a command that goes on, or verifies, needs only the log and the directory; and files
that belong together are moved and removed together.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

from quorate.errors import Corrupt, InvalidArgument, LogRecreated

if TYPE_CHECKING:
    from quorate.pipeline.files import Files

__all__ = [
    "APPEND_DATE",
    "CHECKPOINT",
    "HIDDEN",
    "LOCK",
    "NO_FOLDERS",
    "ArchiveNote",
    "Wanted",
    "bad_prefix",
    "check_same",
    "is_hidden",
    "load",
    "save",
    "stem_of",
]

FOLDER = ".quorate"
NOTE = f"{FOLDER}/archive.json"
CHECKPOINT = f"{FOLDER}/checkpoint"
# The lock that a run holds while it writes to the archive.
LOCK = f"{FOLDER}/lock"
# The day on which the leader took a record: it only rises, so a micro-batch has few different days.
APPEND_DATE = "append_date"
NO_FOLDERS = "none"
# The first characters of names that readers of Parquet pass over.
HIDDEN = (".", "_")


@dataclass(frozen=True, slots=True)
class ArchiveNote:
    """The note of an archive: what the archive has, and how far it goes."""

    log: str
    incarnation: str
    # "raw", or "json" with the columns that a value has, in Spark's DDL.
    decode: str
    schema: str | None
    # The column whose values are folders, or APPEND_DATE, or NO_FOLDERS.
    partition_by: str
    # The first offset, and the offset where the archive ends for good; None: it has no end.
    start: int
    to: int | None
    # All records before ``stop`` are in the archive, or set aside; the last micro-batch of them
    # begins at ``repeated_from``, and may be repeated.
    stop: int
    repeated_from: int
    # The directory of records that do not decode; None: all records must decode.
    bad: str | None
    # The mean bytes of a record in the files; 0.0: not known yet.
    record_bytes: float = 0.0

    @property
    def complete(self) -> bool:
        return self.to is not None and self.stop >= self.to


@dataclass(frozen=True, slots=True)
class Wanted:
    """The properties of an archive that a command asks for. None: the command leaves it open."""

    decode: str | None = None
    schema: str | None = None
    partition_by: str | None = None
    start: int | None = None
    to: int | None = None


def bad_prefix(log: str, query: str) -> str:
    """The first part of the names of the files in ``Archive.bad``, a directory that other archives
    may use as well."""
    return f"{stem_of(log)}-{query.partition('-')[0]}-"


def stem_of(log: str) -> str:
    """The first part of the names of a log's files. The name of a log may begin like a hidden file:
    then a prefix makes its files visible."""
    return f"log{log}" if is_hidden(log) else log


def is_hidden(name: str) -> bool:
    """True if readers pass over the file ``name``, a path that begins in the directory."""
    return any(step.startswith(HIDDEN) for step in name.split("/"))


def load(files: Files) -> ArchiveNote | None:
    """The note of a directory; None if the directory is missing or has no visible files. Raises
    InvalidArgument if it has visible files and no note."""
    text = files.read(NOTE)
    if text is None:
        strange = [name for name in files.matching("*") if not is_hidden(name)]
        if strange:
            raise InvalidArgument(
                f"{files.root} holds {strange[0]} and no archive: choose a directory that is empty "
                f"or does not exist yet"
            )
        return None
    try:
        found = json.loads(text)
        return ArchiveNote(**{field.name: found[field.name] for field in fields(ArchiveNote)})
    except (KeyError, TypeError, ValueError):
        raise Corrupt(f"{files.root}/{NOTE} is not the note of an archive") from None


def save(files: Files, archive: ArchiveNote) -> None:
    files.write(NOTE, json.dumps(asdict(archive), indent=2) + "\n")


def check_same(
    archive: ArchiveNote, log: str, incarnation: str, wanted: Wanted, where: str
) -> None:
    """Raise an error unless the archive in ``where`` is of this log, and fits ``wanted``."""
    if archive.log != log:
        raise InvalidArgument(f"{where} is an archive of {archive.log}, not of {log}")
    if archive.incarnation != incarnation:
        raise LogRecreated(
            f"{where} is an archive of {log} before it was deleted and made again "
            f"({archive.incarnation} is {incarnation} now): archive the new one elsewhere"
        )
    for field in fields(Wanted):
        asked, has = getattr(wanted, field.name), getattr(archive, field.name)
        if asked is not None and asked != has:
            option = {"start": "from"}.get(field.name, field.name).replace("_", "-")
            raise InvalidArgument(
                f"{where} was begun with --{option} {has if has is not None else '(none)'}, not "
                f"{asked}: leave the option out, or archive into another directory"
            )
