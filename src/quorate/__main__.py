"""``python -m quorate`` is the command ``quorate``."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["start"]


def start() -> int:
    """Run the command line as the process, and return the exit status."""
    try:
        # A process in the background of a shell ignores SIGINT.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _interrupt_once)
        # Imported here: Ctrl-C during the import also ends the process with one line.
        from quorate.cli.main import main

        return main()
    except KeyboardInterrupt:
        sys.stderr.write("error: INTERRUPTED: stopped before the end\n")
        return 1
    finally:
        # The exit status has been decided.
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _interrupt_once(_: int, __: FrameType | None) -> None:
    """Handle the first Ctrl-C: another one must not disturb the end that the first one began."""
    signal.signal(signal.SIGINT, _ignore)
    raise KeyboardInterrupt


def _ignore(_: int, __: FrameType | None) -> None:
    """Ignore a signal. A function and not SIG_IGN, because the interpreter complains of a signal
    that it just missed."""


if __name__ == "__main__":
    sys.exit(start())
