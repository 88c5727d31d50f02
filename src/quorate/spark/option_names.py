"""The names of options: one that the format does not have is reported.

Spark hands a source all options of the program, with names in lower case, and never reports an
unknown name. So this module reports it, with the name that was probably meant.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from quorate.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["check_names"]


def check_names(given: Iterable[str], names: Iterable[str]) -> None:
    """Raise InvalidArgument unless each of ``given``, in lower case, is one of ``names``."""
    known = {name.lower(): name for name in names}
    for name in given:
        if name.lower() not in known:
            close = get_close_matches(name.lower(), known, n=1, cutoff=0.6)
            listed = ", ".join(sorted(known.values()))
            meant = f"did you mean {known[close[0]]}?" if close else f"there are {listed}"
            raise InvalidArgument(f"the format quorate has no option {name}; {meant}")
