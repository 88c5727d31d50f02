"""The connections of one client: at most one to each address, made when it is first needed."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING, NamedTuple

from quorate.client.node_connection import NodeConnection
from quorate.client.retries import Unreachable
from quorate.errors import InvalidArgument, QuorateError
from quorate.net.dialling import dial
from quorate.wire.frames import FrameLimits
from quorate.wire.handshake import Hello

if TYPE_CHECKING:
    from collections.abc import Sequence

    from quorate.client.retries import RetryLimits
    from quorate.client.routing import Routing

__all__ = ["Pool", "reason"]

# The longest answers: a table of many logs, and one entry of the largest batch that can be set.
ANSWERS = FrameLimits(control=64 << 20, bulk=1 << 30)


class _StalledAddress(NamedTuple):
    """An address tried last, because its node does not answer."""

    until: float
    # Bytes received from there: if there are more, the node answers again.
    received: int


class Pool:
    """Keeps connections, and finds a node that can be asked."""

    def __init__(self, routing: Routing, retry_limits: RetryLimits) -> None:
        self._routing = routing
        self._retry_limits = retry_limits
        self._open: dict[str, NodeConnection] = {}
        # All callers that need an address wait for the same dial.
        self._dials: dict[str, asyncio.Task[NodeConnection]] = {}
        # Addresses that were dialled or asked, and did not answer.
        self._stalled: dict[str, _StalledAddress] = {}
        self._closed = False

    async def reach(self, addresses: Sequence[str]) -> NodeConnection:
        """The connection to the first of ``addresses`` that answers.

        Raises Unreachable if none does; a refusal that no retry changes is raised as it is if every
        node gave one.
        """
        failures: list[tuple[str, Exception]] = []
        for address in self._stalled_last(addresses):
            try:
                return await self.connect(address)
            except (OSError, QuorateError) as error:
                failures.append((address, error))
        refusals = [error for _, error in failures if _is_final(error)]
        if refusals and len(refusals) == len(failures):
            raise refusals[0]
        told = "; ".join(f"{address}: {reason(error)}" for address, error in failures)
        raise Unreachable(f"no node could be reached: {told}")

    def connected(self, address: str) -> NodeConnection | None:
        """The connection to ``address``, if it takes appends at this moment."""
        at = self._open.get(address)
        if at is None or not at.direct:
            return None
        return None if self._stalled and self._is_stalled(address) else at

    async def connect(self, address: str) -> NodeConnection:
        if self._closed:
            raise InvalidArgument("the client is closed")
        at = self._open.get(address)
        if at is not None and at.open:
            return at
        task = self._dials.get(address)
        if task is None:
            task = asyncio.create_task(self._dial(address))
            # The callers may be gone when the dial fails.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._dials[address] = task
        try:
            # One caller's deadline does not end a dial that others need.
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise InvalidArgument("the client is closed") from None
            raise

    async def _dial(self, address: str) -> NodeConnection:
        try:
            hello = Hello("client", cluster=self._routing.cluster)
            connection, welcome = await dial(
                address, hello, timeout=self._retry_limits.dial_s, limits=ANSWERS
            )
        except TimeoutError:
            self._note_stall(address)
            raise
        finally:
            del self._dials[address]
        self._stalled.pop(address, None)
        at = self._open[address] = NodeConnection(connection, welcome)
        self._routing.welcomed(address, welcome)
        return at

    def stalled(self, at: NodeConnection, heard: int) -> None:
        """Put a node last that is connected and does not answer: it may be paused, or cut off. Not
        if more than ``heard`` bytes came: then it answers other requests."""
        if at.received == heard:
            self._note_stall(at.address)

    def _note_stall(self, address: str) -> None:
        until = asyncio.get_running_loop().time() + self._retry_limits.stalled_s
        self._stalled[address] = _StalledAddress(until, self._received(address))

    def _is_stalled(self, address: str) -> bool:
        stalled = self._stalled.get(address)
        if stalled is None:
            return False
        now = asyncio.get_running_loop().time()
        if now < stalled.until and self._received(address) == stalled.received:
            return True
        del self._stalled[address]
        return False

    def _received(self, address: str) -> int:
        at = self._open.get(address)
        return 0 if at is None else at.received

    def _stalled_last(self, addresses: Sequence[str]) -> Sequence[str]:
        return sorted(addresses, key=self._is_stalled) if self._stalled else addresses

    async def close(self) -> None:
        """Close all connections and dials."""
        self._closed = True
        dials = list(self._dials.values())
        for task in dials:
            task.cancel()
        await asyncio.gather(*dials, return_exceptions=True)
        timeout_s = self._retry_limits.close_s
        await asyncio.gather(*(at.close(timeout_s) for at in self._open.values()))
        self._open.clear()


def _is_final(error: Exception) -> bool:
    return isinstance(error, QuorateError) and not error.retriable


def reason(error: Exception) -> str:
    """The reason of an error for an operator: the system's message, not the call that failed."""
    if isinstance(error, QuorateError):
        return f"{error.code}: {error}"
    if isinstance(error, socket.gaierror):  # its error numbers are not the system's
        return str(error.strerror)
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__
