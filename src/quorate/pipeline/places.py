"""The places that a pipeline reads and writes, as users write them: ``log:orders``,
``parquet:/data/paid``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from quorate.errors import InvalidArgument
from quorate.wire.shapes import check_log_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["Kind", "Place", "parse_place"]

Kind = Literal["log", "parquet"]

_MEANT: dict[Kind, str] = {"log": "log:NAME", "parquet": "parquet:DIR"}


@dataclass(frozen=True, slots=True)
class Place:
    """A log of the cluster, or a directory of Parquet files."""

    kind: Kind
    # The log's name, or the directory: a path, or an address of a file system that Spark knows.
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    def beside(self, directory: Path) -> Place:
        """The same place with an absolute path: a relative path begins in ``directory``."""
        if self.kind == "log" or "://" in self.name:
            return self
        return Place(self.kind, str((directory / self.name).absolute()))


def parse_place(what: str, text: object, kinds: Sequence[Kind] = ("log", "parquet")) -> Place:
    """The place that ``text`` names. Raises InvalidArgument, which calls it ``what``, unless it is
    one of ``kinds``."""
    meant = " or ".join(_MEANT[kind] for kind in kinds)
    if not isinstance(text, str):
        raise InvalidArgument(f"{what} = {text!r} is not text; write {meant}")
    for kind in kinds:
        name = text.removeprefix(f"{kind}:")
        if name == text:
            continue
        if not name.strip():
            raise InvalidArgument(f"{what} = {text!r} has no name; write {meant}")
        if kind == "log":
            try:
                check_log_name(name)
            except InvalidArgument as error:
                raise InvalidArgument(f"{what} = {text!r}: {error}") from None
        return Place(kind, name)
    raise InvalidArgument(f"{what} = {text!r} is not {meant}")
