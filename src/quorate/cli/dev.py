"""``quorate dev``: a whole cluster of real processes on this machine, until the command ends."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import click

from quorate.cli.options import WholeNumber, log_name
from quorate.cli.output import print_line, tell
from quorate.client.asynchronous import AsyncClient
from quorate.errors import InvalidArgument, NoQuorum, WrongDirectory
from quorate.membership import VOTERS_MAX
from quorate.net.loop import run
from quorate.storage.directory import process_at_work

__all__ = ["dev"]

HOST = "127.0.0.1"
NODES = 3
NODES_MAX = VOTERS_MAX
# Added to the port of a node: the port of its pages.
HTTP_ABOVE = 100
PORT_MAX = 65_535 - HTTP_ABOVE - NODES_MAX
RESTART_S = 1.0
# Seconds that a node has to stop by itself before it is killed.
STOP_S = 8.0
LOOK_S = 0.05
# Seconds until the nodes that are not ready are named; they are named again when that changes.
TELL_S = 3.0
# Seconds after which a majority of ready nodes is enough.
PATIENCE_S = 10.0
# Segments are small in a cluster that is only tried out: the files of all nodes are on one disk.
SEGMENT_BYTES = 32 << 20

_SETTINGS = re.compile(r"n([1-9])\.toml")


def _log_names(
    context: click.Context, option: click.Parameter, given: tuple[str, ...]
) -> tuple[str, ...]:
    for name in given:
        log_name(context, option, name)
    return given


@click.command()
@click.option(
    "--nodes", type=WholeNumber(1, NODES_MAX), help="Number of nodes. Default: 3, or that of DIR."
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of the nodes' data; a later run goes on with it. Default: a temporary one.",
)
@click.option(
    "--port",
    type=WholeNumber(1, PORT_MAX),
    default=7400,
    show_default=True,
    help="Node i listens at PORT + i.",
)
@click.option(
    "--log", "logs", multiple=True, metavar="NAME", callback=_log_names,
    help="A log to make; may be repeated.",
)  # fmt: skip
@click.option("--no-restart", is_flag=True, help="Do not restart a node that ended.")
def dev(
    nodes: int | None, directory: Path | None, port: int, logs: tuple[str, ...], no_restart: bool
) -> None:
    """Run a cluster on this machine until Ctrl-C or SIGTERM.

    Nodes n1 to nN are real processes on loopback: node i listens at PORT + i and has its pages at
    PORT + 100 + i. DIR has the data of each in n<i>/, its process id in n<i>.pid and its log lines
    in n<i>.log. A node that ends is started again after a second.

    One line is printed when a leader serves: "ready" and the addresses for clients.
    """
    place = directory or Path(tempfile.mkdtemp(prefix="quorate-dev-"))
    try:
        place.mkdir(parents=True, exist_ok=True)
        cluster = _Cluster(_lay_out(place.absolute(), nodes, port), logs, restart=not no_restart)
        run(cluster.run())
    finally:
        if directory is None:
            shutil.rmtree(place, ignore_errors=True)


# -- what is on disk ---------------------------------------------------------------------------


class _Node(NamedTuple):
    """One node of the cluster, and its files in DIR."""

    name: str
    port: int
    settings: Path
    data: Path
    pid: Path
    log: Path

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"


def _lay_out(place: Path, count: int | None, port: int) -> list[_Node]:
    """Write the settings of all nodes; raises if the directory or a port is taken."""
    cluster, known = _resume(place)
    if known and count not in (None, known):
        raise InvalidArgument(f"{place} was made with {known} nodes, not with {count}")
    nodes = [
        _Node(
            f"n{number}", port + number, place / f"n{number}.toml", place / f"n{number}",
            place / f"n{number}.pid", place / f"n{number}.log",
        )
        for number in range(1, (known or count or NODES) + 1)
    ]  # fmt: skip
    for node in nodes:
        _refuse_taken(node)
    for node in nodes:
        node.settings.write_text(_settings(node, nodes, cluster), encoding="utf-8")
    return nodes


def _resume(place: Path) -> tuple[str, int]:
    """The id of the cluster that a directory was made for, and its nodes: 0 if it is new."""
    found = [path for path in place.iterdir() if _SETTINGS.fullmatch(path.name)]
    if not found:
        return f"dev-{secrets.token_hex(4)}", 0
    try:
        cluster = tomllib.loads(found[0].read_text(encoding="utf-8"))["cluster"]
        return cluster["id"], len(cluster["nodes"])
    except (ValueError, LookupError, TypeError):
        raise WrongDirectory(f"{found[0]} was not made by this command; name another DIR") from None


def _refuse_taken(node: _Node) -> None:
    process = process_at_work(node.data) if node.data.is_dir() else None
    if process is not None:
        raise WrongDirectory(f"{node.data} is in use by process {process}; stop it first")
    for port in (node.port, node.port + HTTP_ABOVE):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError as error:
                raise InvalidArgument(
                    f"{node.name} cannot listen at port {port} of {HOST}: {error.strerror}; choose "
                    f"others with --port"
                ) from None


def _settings(node: _Node, nodes: list[_Node], cluster: str) -> str:
    addresses = "".join(f'{one.name} = "{one.address}"\n' for one in nodes)
    return (
        f"# Written by `quorate dev` at every start.\n"
        f'[node]\nid = "{node.name}"\ndata_dir = "{node.name}"\nlisten = "{node.address}"\n'
        f'http = "{HOST}:{node.port + HTTP_ABOVE}"\n\n'
        f'[cluster]\nid = "{cluster}"\n\n[cluster.nodes]\n{addresses}\n'
        f"[storage]\nsegment_bytes = {SEGMENT_BYTES}\n"
    )


# -- what runs ---------------------------------------------------------------------------------


class _Cluster:
    """The processes of the nodes, and the tasks that keep them up."""

    def __init__(self, nodes: list[_Node], logs: tuple[str, ...], *, restart: bool) -> None:
        self._nodes = nodes
        self._logs = logs
        self._restart = restart
        self._stopping = asyncio.Event()
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._ready = False

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` does
                loop.add_signal_handler(number, self._stopping.set)
        stopped = loop.create_task(self._stopping.wait())
        keepers = [loop.create_task(self._keep_up(node)) for node in self._nodes]
        announce = loop.create_task(self._announce())
        work = {*keepers, announce}
        try:
            while not stopped.done():
                done, _ = await asyncio.wait({stopped, *work}, return_when=asyncio.FIRST_COMPLETED)
                work -= done
                for task in done:
                    await task  # raises the reason why the cluster cannot run
                if not stopped.done() and work.isdisjoint(keepers):
                    raise self._all_ended()
        finally:
            announce.cancel()
            stopped.cancel()
            self._stopping.set()
            await self._stop()
            await asyncio.gather(*keepers, announce, stopped, return_exceptions=True)

    async def _keep_up(self, node: _Node) -> None:
        while True:
            status = await self._run_once(node)
            if self._stopping.is_set():
                return
            if status > 0 and not self._ready:
                raise InvalidArgument(f"{node.name} did not start: {_last_words(node)}")
            tell(f"{node.name} ended with {_said(status)}; what it logged is in {node.log}")
            if not self._restart:
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), RESTART_S)
                return

    def _all_ended(self) -> NoQuorum:
        """The error when all nodes have ended, which is final only with --no-restart."""
        many, place = len(self._nodes), self._nodes[0].log.parent
        return NoQuorum(
            f"{'the node has' if many == 1 else f'all {many} nodes have'} ended, and --no-restart "
            f"leaves them down; to go on, start again with --dir {place}"
        )

    async def _run_once(self, node: _Node) -> int:
        """Start the node, wait for its end and return its status."""
        with node.log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "quorate", "serve", str(node.settings),
                "--parent", str(os.getpid()),
                # The node ends when no process holds the other end of the pipe any more.
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                # Ctrl-C reaches this process only, which stops the nodes.
                start_new_session=True,
            )  # fmt: skip
        self._running[node.name] = process
        node.pid.write_text(f"{process.pid}\n", encoding="ascii")
        try:
            if self._stopping.is_set():
                process.terminate()
            return await process.wait()
        finally:
            del self._running[node.name]
            node.pid.unlink(missing_ok=True)

    async def _stop(self) -> None:
        """Stop all nodes: no process is left when this returns."""
        for process in list(self._running.values()):
            with suppress(ProcessLookupError):
                process.terminate()
                # A process that is paused would not receive SIGTERM.
                process.send_signal(signal.SIGCONT)
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await asyncio.gather(*(one.wait() for one in self._running.values()))
        for process in list(self._running.values()):
            with suppress(ProcessLookupError):
                process.kill()

    # -- readiness -----------------------------------------------------------------------------

    async def _announce(self) -> None:
        await self._wait_ready()
        addresses = ",".join(node.address for node in self._nodes)
        if self._logs:
            async with AsyncClient(addresses) as client:
                for name in self._logs:
                    await client.log(name, create=True)
        self._ready = True
        print_line(f"ready {addresses}")

    async def _wait_ready(self) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        majority = len(self._nodes) // 2 + 1
        told: dict[str, str] = {}
        while True:
            reasons = await asyncio.gather(*map(_why_unready, self._nodes))
            unready = {
                node.name: why for node, why in zip(self._nodes, reasons, strict=True) if why
            }
            waited_s = loop.time() - begun
            if unready and waited_s >= TELL_S and unready != told:
                told = unready
                for name, why in unready.items():
                    tell(f"{name} is not ready: {why}")
            ready = len(self._nodes) - len(unready)
            if ready >= (len(self._nodes) if waited_s < PATIENCE_S else majority):
                return
            await asyncio.sleep(LOOK_S)


async def _why_unready(node: _Node) -> str:
    """The reason on the node's page /readyz; empty if the node is ready."""
    try:
        reader, writer = await asyncio.open_connection(HOST, node.port + HTTP_ABOVE)
    except OSError:
        return f"it does not answer; what it logged is in {node.log}"
    try:
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with asyncio.timeout(RESTART_S):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        if head.split()[1:2] == [b"200"]:
            return ""
        return body.decode(errors="replace").strip() or "it is starting"
    except OSError:
        return f"it does not answer; what it logged is in {node.log}"
    finally:
        writer.close()


def _last_words(node: _Node) -> str:
    """The last error that a node logged before it gave up."""
    text = node.log.read_text(encoding="utf-8", errors="replace")
    errors = [line for line in text.splitlines() if line.startswith("error: ")]
    return errors[-1].removeprefix("error: ") if errors else f"see {node.log}"


def _said(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"status {status}"
