"""The codes of errors that pass through Spark, which hands on the text of an error and no more."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from quorate.errors import QuorateError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["coded_errors"]


@contextmanager
def coded_errors() -> Iterator[None]:
    """Put the code of each error in front of its text, so that a reader can look the code up."""
    try:
        yield
    except QuorateError as error:
        told = f"{error.code}: "
        if str(error).startswith(told):
            raise
        raise type(error)(f"{told}{error}") from None
