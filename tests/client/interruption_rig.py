"""Raises KeyboardInterrupt before a byte code of the client, as a signal handler may, or runs what
else a signal handler does there."""

from __future__ import annotations

import linecache
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType, ModuleType

__all__ = ["Interruption", "each_interruption"]


def interrupt() -> None:
    raise KeyboardInterrupt


class Interruption:
    """One interruption: before the byte code number ``step`` of those that an action runs."""

    def __init__(
        self, step: int, modules: tuple[ModuleType, ...], handler: Callable[[], object] = interrupt
    ) -> None:
        self._handler = handler
        # The source line before which it came, once it did; empty if the action has fewer steps.
        self.where = ""
        self._left = step
        self._files = {module.__file__ for module in modules}
        self._free: Callable[[], bool] = lambda: True

    def during(self, action: Callable[[], object], lock: Any = None) -> None:
        """Run ``action`` until it ends or is interrupted. ``lock`` is the lock that it uses."""
        if lock is not None:
            self._free = lambda: not lock._is_owned()
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            action()
        except KeyboardInterrupt:
            assert self.where, "it comes from here"
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, event: str, argument: object) -> Any:
        if not self._concerns(frame.f_code):
            return None
        frame.f_trace_opcodes = True
        return self._step

    def _step(self, frame: FrameType, event: str, argument: object) -> Any:
        # The byte codes that end an exception's handler belong to no line.
        if event != "opcode" or self.where or frame.f_lineno is None:
            return self._step
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        # Between taking a lock and the first byte code under it, and between the last one and the
        # release, the interpreter looks for no signal.
        if line.startswith("with self._") and not self._free():
            return self._step
        if self._left == 0:
            self.where = f"{frame.f_code.co_name}:{frame.f_lineno} {line}"
            self._handler()
            return self._step
        self._left -= 1
        return self._step

    def _concerns(self, code: CodeType) -> bool:
        return code.co_filename in self._files


def each_interruption(
    *modules: ModuleType, handler: Callable[[], object] = interrupt
) -> Iterator[Interruption]:
    """One interruption for each byte code of ``modules`` that the caller's action runs."""
    step = 0
    while True:
        interruption = Interruption(step, modules, handler)
        yield interruption
        if not interruption.where:
            assert step, "no byte code of these modules ran"
            return
        step += 1
