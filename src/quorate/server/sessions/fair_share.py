"""The share of work: how many frames of clients one pass of the event loop handles.

In each pass, clients get a share of the work, and peers the rest. A connection whose frame comes
after the share is used up waits for the next pass, and is not read meanwhile; connections that wait
take turns, one frame each.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from quorate.config import Server

__all__ = ["FairShare", "FrameQueue"]


class FrameQueue(Protocol):
    """The frames of one connection that wait, oldest first."""

    def next_size(self) -> int:
        """Bytes of the oldest frame."""

    def serve_one(self) -> None:
        """Handle the oldest frame, and wait again if there are more."""


class FairShare:
    """The work for clients in the present pass of the loop, and the connections that wait."""

    def __init__(self, limits: Server) -> None:
        self._loop = asyncio.get_running_loop()
        self._limits = limits
        # The rest of this pass's share. No frames are left when the bytes are used up.
        self.frames_left = limits.pass_frames
        self._bytes_left = limits.pass_bytes
        # Whether the end of the pass is scheduled.
        self._pass_ends = False
        # Connections with frames that wait, in the order of their turns.
        self._waiting: dict[FrameQueue, None] = {}

    def grants(self, size: int) -> bool:
        """Take a frame of ``size`` bytes from this pass's share; False if the share is used up."""
        if self.frames_left <= 0:
            return False
        self.spend(1, size)
        return True

    def spend(self, frames: int, size: int) -> None:
        """Subtract ``frames`` frames of ``size`` bytes in all from this pass's share."""
        self._bytes_left -= size
        self.frames_left = self.frames_left - frames if self._bytes_left > 0 else 0
        if not self._pass_ends:
            self._end_pass()

    def wait(self, queue: FrameQueue) -> None:
        """Let ``queue``, whose frames were not granted, take its turn in the next pass."""
        self._waiting[queue] = None
        if not self._pass_ends:
            self._end_pass()

    def wait_no_more(self, queue: FrameQueue) -> None:
        self._waiting.pop(queue, None)

    def _end_pass(self) -> None:
        self._pass_ends = True
        self._loop.call_soon(self._next_pass)

    def _next_pass(self) -> None:
        self._pass_ends = False
        self.frames_left = self._limits.pass_frames
        self._bytes_left = self._limits.pass_bytes
        waiting = self._waiting
        while waiting:
            queue = next(iter(waiting))
            if not self.grants(queue.next_size()):
                return
            del waiting[queue]
            queue.serve_one()
