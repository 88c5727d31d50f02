"""Errors on their way through Spark, which passes on their text and nothing else."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from quorate.errors import QuorateError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["codes_told"]


@contextmanager
def codes_told() -> Iterator[None]:
    """An error leaves with its code in front: whoever sees the text can look it up."""
    try:
        yield
    except QuorateError as error:
        told = f"{error.code}: "
        if str(error).startswith(told):
            raise
        raise type(error)(f"{told}{error}") from None
