"""One attempt to change the catalog, and the error that it ends with when its time is over."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from quorate.errors import OutcomeUnknown, Timeout

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["ChangeAttempt"]


class ChangeAttempt:
    """One attempt to change the catalog."""

    def __init__(self) -> None:
        # True if the change may have been appended.
        self.logged = False

    @asynccontextmanager
    async def within(self, timeout_s: float) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(timeout_s):
                yield
        except TimeoutError:
            if self.logged:
                raise OutcomeUnknown(
                    f"the change of the catalog was not confirmed in {timeout_s:g} s; a repeat "
                    f"finds out"
                ) from None
            raise Timeout(f"the catalog was not changed in {timeout_s:g} s") from None
