"""What an archive is: a directory of Parquet files, with a note of what they hold.

The note lies in the directory itself, in a folder that readers pass over, beside the checkpoint of
the query. So whoever goes on, or verifies, needs to say no more than which log and where; and what
belongs together is moved and removed together.
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
    "Archive",
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
# Whoever writes to the archive holds it.
LOCK = f"{FOLDER}/lock"
# The day on which the leader took a record: rising, so a portion has few of them.
APPEND_DATE = "append_date"
NO_FOLDERS = "none"
# Names that begin so are passed over by readers of Parquet.
HIDDEN = (".", "_")


@dataclass(frozen=True, slots=True)
class Archive:
    """The note."""

    log: str
    incarnation: str
    # "raw", or "json" with the columns that a value has, in Spark's DDL.
    decode: str
    schema: str | None
    # The column whose values are folders, or APPEND_DATE, or NO_FOLDERS.
    partition_by: str
    # The first offset, and the one where it ends for good; None: it has no end.
    start: int
    to: int | None
    # All records before this offset are there, or set aside; the last portion of them begins at the
    # other one, and may be repeated.
    stop: int
    repeated_from: int
    # Where those are that do not decode; None: there may be none.
    bad: str | None
    # What a record takes in the files, about; 0.0: not known yet.
    record_bytes: float = 0.0

    @property
    def complete(self) -> bool:
        return self.to is not None and self.stop >= self.to


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a command says an archive is. None: it does not say."""

    decode: str | None = None
    schema: str | None = None
    partition_by: str | None = None
    start: int | None = None
    to: int | None = None


def bad_prefix(log: str, query: str) -> str:
    """What the files of ``Archive.bad`` begin with: others may have the same place for theirs."""
    return f"{stem_of(log)}-{query.partition('-')[0]}-"


def stem_of(log: str) -> str:
    """What names of its files begin with: of a log, too, a name may begin as hidden ones do."""
    return f"log{log}" if is_hidden(log) else log


def is_hidden(name: str) -> bool:
    """Whether readers pass over a file that is called so, from the directory on."""
    return any(step.startswith(HIDDEN) for step in name.split("/"))


def load(files: Files) -> Archive | None:
    """The note of a directory; None if there is nothing in it. Raises InvalidArgument if it holds
    something else."""
    text = files.read(NOTE)
    if text is None:
        strange = [name for name in files.matching("*") if not is_hidden(name)]
        if strange:
            raise InvalidArgument(
                f"{files.root} holds {strange[0]} and no archive: choose a directory that is empty "
                f"or not there yet"
            )
        return None
    try:
        found = json.loads(text)
        return Archive(**{field.name: found[field.name] for field in fields(Archive)})
    except (KeyError, TypeError, ValueError):
        raise Corrupt(f"{files.root}/{NOTE} is no note of an archive") from None


def save(files: Files, archive: Archive) -> None:
    files.write(NOTE, json.dumps(asdict(archive), indent=2) + "\n")


def check_same(archive: Archive, log: str, incarnation: str, wanted: Wanted, where: str) -> None:
    """Raise unless the archive in ``where`` is one of this log, and what was ``wanted``."""
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
