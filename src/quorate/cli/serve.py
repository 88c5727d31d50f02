"""``quorate serve``: one node of a cluster, in the foreground."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import resource
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from quorate import __version__
from quorate.errors import DiskFailed, InvalidArgument, ReplicaHalted
from quorate.net.loop import run
from quorate.server.loglines import log_to_stderr
from quorate.server.settings import KEYS, load_settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from quorate.server.settings import Settings

__all__ = ["serve"]

# Seconds until the process is ended: a disk that hangs holds up a thread, and a thread holds up the
# end of the process.
STOP_S = 9.0
HALT_S = 2.0
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
STDIN = 0
PR_SET_PDEATHSIG = 1
SWITCH_INTERVAL_S = 0.0002


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give ``command`` an option for every key of NODE.toml."""
    for key in reversed(KEYS):
        command = click.option(
            key.flag, key.flag.strip("-").replace("-", "_"), metavar="VALUE", help=key.meaning
        )(command)
    return command


@click.command()
@click.argument("file", metavar="NODE.toml", type=click.Path(dir_okay=False, path_type=Path))
@_options
@click.option("--parent", type=int, hidden=True, help="End when this process ends.")
def serve(file: Path, parent: int | None, **given: str | None) -> None:
    """Run one node, as NODE.toml says.

    Every key of the file is also an option and a variable: [node] listen is --node-listen and
    QUORATE_NODE_LISTEN. An option wins over the variable, which wins over the file.

    SIGTERM and Ctrl-C stop the node in good order. Its log lines go to the standard error.
    """
    if parent is not None:
        _end_with(parent)
    texts = {key: given[key.flag.strip("-").replace("-", "_")] for key in KEYS}
    flags = {key: text for key, text in texts.items() if text is not None}
    try:
        settings = load_settings(file, flags, os.environ)
    except InvalidArgument as error:
        raise click.UsageError(str(error)) from None
    log_to_stderr(settings.node)
    _open_many_files()
    # A thread must get the interpreter soon after its disk is done, and the loop while threads read
    # logs that are being opened.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    run(_serve(settings, parent))


async def _serve(settings: Settings, parent: int | None) -> None:
    # Only this command needs a whole node: the others start sooner without it.
    from quorate.server.node import Node

    node = Node(settings, __version__)
    loop = asyncio.get_running_loop()

    def failed(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, ReplicaHalted):
            node.halt(error)
        else:
            loop.default_exception_handler(context)

    def stop() -> None:
        loop.remove_reader(STDIN)
        node.stop()

    def stop_with_parent() -> None:
        _end_within(STOP_S)
        stop()

    loop.set_exception_handler(failed)
    _stop_on_signal(loop, stop)
    if parent is not None:
        # Where the kernel does not report the end of the parent, the pipe that it holds does: it
        # closes.
        loop.add_reader(STDIN, stop_with_parent)
    try:
        await node.run(_settle_process)
    except ReplicaHalted as halt:
        _end_within(HALT_S)
        if isinstance(halt, DiskFailed):
            node.disk_failures.remember()
        raise


def _stop_on_signal(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    """Call ``stop`` in the loop on SIGTERM or Ctrl-C. A thread waits for these: the loop stands
    still while it waits for a manifest that must be durable first, and a disk may hang.

    It is called before other threads are started: they inherit that the signals are blocked."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)

    def wait() -> None:
        signal.sigwait(STOP_SIGNALS)
        _end_within(STOP_S)
        with suppress(RuntimeError):  # the loop is closed: the process ends anyway
            loop.call_soon_threadsafe(stop)

    threading.Thread(target=wait, name="quorate-signals", daemon=True).start()


def _settle_process() -> None:
    """Spare the garbage collector the objects of a node whose logs are open: they stay."""
    gc.collect()
    gc.freeze()


def _open_many_files() -> None:
    """Allow as many open files as the system does: the limit of a shell is for smaller programs."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # some systems have a limit that they do not tell
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _end_within(seconds: float) -> None:
    """End the process in ``seconds``, however long a disk hangs."""
    timer = threading.Timer(seconds, os._exit, [1])
    timer.daemon = True
    timer.start()


def _end_with(parent: int) -> None:
    """Let the kernel end this process with its parent: no other process would."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent ended before the kernel was asked
            sys.exit(1)
