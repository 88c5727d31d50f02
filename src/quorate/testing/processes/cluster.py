"""A cluster of real nodes, with the kills, pauses and cuts that a test needs."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import signal
import tempfile
import threading
import time
from concurrent.futures import wait
from contextlib import ExitStack, contextmanager
from itertools import permutations, product
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from quorate.client.administration import cluster_status, find_log, list_logs
from quorate.client.blocking import Client
from quorate.client.retries import RetryLimits
from quorate.client.routing import Routing, parse_endpoints
from quorate.client.session import Session
from quorate.errors import InvalidArgument, QuorateError, Timeout
from quorate.testing.processes.node import NodeProcess
from quorate.testing.processes.ports import HOST, Ports
from quorate.testing.processes.proxy import Links

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
    from typing import Any

    from quorate.client.results import LogSummary

__all__ = ["Cluster", "cluster"]

LOOK_S = 0.05
READY_S = 40.0
# Patience of the start: a test waits for it, so it looks often.
STARTING = RetryLimits(pause_max_s=0.05)
# Patience of a look at the cluster with a node that does not answer: the node may be paused.
LOOKING = RetryLimits(dial_s=1.0, status_s=1.0)
# Segments are small: the files of all nodes are on one disk.
SEGMENT_BYTES = 32 << 20

Result = TypeVar("Result")


class Cluster:
    """Nodes n1, n2, … as processes, each in a directory of its own.

    INVALID_ARGUMENT is raised for a name that no node has, and for an action that the state of a
    node excludes.
    """

    def __init__(
        self,
        directory: Path,
        nodes: int = 3,
        *,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        environment: Callable[[str], Mapping[str, str]] | None = None,
        cuttable: bool = True,
        open_files: int | None = None,
    ) -> None:
        """Reserve the ports of the nodes and write their settings; no node is started.

        ``settings`` are sections of NODE.toml for all nodes, ``environment`` gives the variables of
        each. Without ``cuttable`` nodes reach each other without a proxy in between. ``open_files``
        limits the open files of each node.
        """
        if nodes < 1:
            raise InvalidArgument(f"nodes = {nodes!r}: a cluster has at least one")
        self.directory = directory
        self.id = f"test-{secrets.token_hex(4)}"
        self._settings = settings or {}
        self._open_files = open_files
        self._cuttable = cuttable
        self._clients: list[Client] = []
        self._paused: set[str] = set()
        # Pairs of (source, target) between which no byte passes.
        self._cuts: set[tuple[str, str]] = set()
        names = [f"n{number}" for number in range(1, nodes + 1)]
        pairs = nodes * (nodes - 1) if cuttable else 0
        with ExitStack() as stack:
            reserved = Ports()
            stack.callback(reserved.close)
            ports = reserved.take(2 * nodes + pairs)
            self._ports = dict(zip(names, ports, strict=False))
            self._http = dict(zip(names, ports[nodes:], strict=False))
            self._links = Links(self._ports if cuttable else {}, ports[2 * nodes :])
            # The proxies live in a loop of their own. Its thread starts the nodes, too: the kernel
            # ends a node with the thread that started it, and the loop's thread stays.
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=self._loop.run_forever, name="quorate-cluster", daemon=True
            )
            self._thread.start()
            self._looks = Session(Routing(parse_endpoints(self.endpoints)), 5.0, LOOKING)
            stack.callback(self._end_loop)
            self.nodes = {
                name: self._make(name, environment(name) if environment else {}) for name in names
            }
            stack.callback(self._end_nodes)
            self._open = stack.pop_all()

    def _make(self, name: str, environment: Mapping[str, str]) -> NodeProcess:
        return NodeProcess(name, self.configure(name, {}), environment, self._open_files)

    def configure(self, name: str, settings: Mapping[str, Mapping[str, Any]]) -> Path:
        """Write NODE.toml of a node anew, with ``settings`` over those of all nodes: they take
        effect at its next start."""
        path = self.directory / f"{self._known(name)}.toml"
        sections: dict[str, dict[str, Any]] = {
            "node": {
                "id": name,
                "data_dir": name,
                "listen": self.address(name),
                "http": self.http(name),
            },
            "cluster": {"id": self.id},
            "cluster.nodes": {one: self.address(one) for one in self._ports},
            "dial": {one: f"{HOST}:{port}" for one, port in self._links.dial(name).items()},
            "storage": {"segment_bytes": SEGMENT_BYTES},
        }
        for section, values in (*self._settings.items(), *settings.items()):
            sections.setdefault(section, {}).update(values)
        path.write_text("".join(map(_toml, sections, sections.values())), encoding="utf-8")
        return path

    # -- questions of a test -------------------------------------------------------------------

    @property
    def endpoints(self) -> str:
        """The addresses of all nodes, as ``quorate.Client`` and QUORATE_ENDPOINTS take them."""
        return ",".join(map(self.address, self._ports))

    def address(self, name: str) -> str:
        """The address at which clients reach a node."""
        return f"{HOST}:{self._ports[self._known(name)]}"

    def http(self, name: str) -> str:
        """The address of the pages of a node."""
        return f"{HOST}:{self._http[self._known(name)]}"

    def data(self, name: str) -> Path:
        """The data directory of a node."""
        return self.directory / self._known(name)

    def others(self, name: str) -> list[str]:
        """All nodes but that one."""
        self._known(name)
        return [other for other in self.nodes if other != name]

    def client(self, timeout: float = 30.0) -> Client:
        """A client of this cluster; closed with it."""
        client = Client(self.endpoints, timeout=timeout)
        self._clients.append(client)
        return client

    def look(self, log: str) -> LogSummary | None:
        """The status of ``log`` from the nodes that answer; None if none of them knows it."""
        try:
            status = self._in_loop(cluster_status(self._looks))
        except QuorateError:
            return None
        return next((one for one in status["logs"] if one["name"] == log), None)

    def leader(self, log: str) -> str | None:
        """The node that leads ``log``, as far as the nodes know; None if none does.

        They may not know yet that the leader was killed, paused or cut off: see
        :meth:`wait_leader`.
        """
        found = self.look(log)
        return found["leader"] if found is not None else None

    def wait_leader(self, log: str, timeout: float = 10.0) -> str:
        """The node that leads ``log``, once there is one that runs and reaches a majority."""
        deadline = time.monotonic() + timeout
        while True:
            name = self.leader(log)
            if name is not None and self._reaches_majority(name):
                return name
            if time.monotonic() >= deadline:
                raise Timeout(f"no node leads {log} after {timeout:g} s; {self._described()}")
            time.sleep(LOOK_S)

    def _reaches_majority(self, name: str) -> bool:
        """True if a node runs and reaches a majority, by the kills, pauses and cuts of this
        cluster."""
        at_work = [one for one in self.nodes if self.nodes[one].running and one not in self._paused]
        heard = [one for one in at_work if not {(one, name), (name, one)} & self._cuts]
        return name in at_work and len(heard) > len(self.nodes) // 2

    def _described(self) -> str:
        states = {
            name: "paused" if name in self._paused else "up" if node.running else "down"
            for name, node in self.nodes.items()
        }
        cuts = ", ".join(f"{source} to {target}" for source, target in sorted(self._cuts))
        listed = ", ".join(f"{name} is {state}" for name, state in states.items())
        return f"{listed}; cut: {cuts or 'nothing'}"

    # -- actions of a test ---------------------------------------------------------------------

    def start(self, logs: Sequence[str] = ()) -> None:
        """Start all nodes, make ``logs`` if need be, and wait until every node serves."""
        for name in self.nodes:
            self.begin(name)
        serving = asyncio.run_coroutine_threadsafe(self._serve(logs), self._loop)
        while not serving.done():
            ended = [name for name, node in self.nodes.items() if node.gave_up]
            if ended:
                serving.cancel()
                raise InvalidArgument(f"{ended[0]} ended: {self.nodes[ended[0]].last_words}")
            wait([serving], LOOK_S)
        try:
            serving.result()
        except QuorateError as error:
            words = [f"{name}: {node.last_words}" for name, node in self.nodes.items()]
            raise Timeout(f"the cluster does not serve: {error}; {'; '.join(words)}") from error

    async def _serve(self, logs: Sequence[str]) -> None:
        session = Session(Routing(parse_endpoints(self.endpoints)), READY_S, STARTING)
        try:
            for log in logs:
                await find_log(session, log, create=True)
            await list_logs(session)
            # A test may kill a node at once: the others must be up to go on.
            async with asyncio.timeout(READY_S):
                while True:
                    status = await cluster_status(session)
                    if all(node["up"] for node in status["nodes"]):
                        return
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise Timeout(f"not every node answered in {READY_S:g} s") from None
        finally:
            await session.close()

    def begin(self, name: str) -> None:
        """Start a node unless it is running."""
        node = self.nodes[self._known(name)]

        async def begin() -> None:
            await self._links.up(name)
            node.start()

        self._in_loop(begin())

    def kill(self, name: str) -> None:
        """End a node at once, as a power cut does."""
        self._running(name).kill()
        self._is_down(name)

    def pause(self, name: str) -> None:
        """Pause a node; its connections stay open."""
        self._running(name).signal(signal.SIGSTOP)
        self._paused.add(name)

    def resume(self, name: str) -> None:
        """Resume a node if it is paused."""
        self.nodes[self._known(name)].signal(signal.SIGCONT)
        self._paused.discard(name)

    def restart(self, name: str) -> None:
        """Start a node again; a running node is stopped in good order before."""
        if self.nodes[self._known(name)].running:
            self.stop(name)
        self.begin(name)

    def stop(self, name: str) -> int:
        """Stop a node in good order, and return its exit status."""
        try:
            return self._running(name).stop()
        finally:
            self._is_down(name)

    def transfer(self, log: str, node: str | None = None) -> str:
        """Give the leadership of ``log`` to ``node``. Returns the node that leads now."""
        with self.client() as client:
            return client.transfer(log, None if node is None else self._known(node))

    def cut(self, source: str, target: str) -> None:
        """Cut the link from ``source`` to ``target``: no byte arrives."""
        if source == target or not self._cuttable:
            why = "it is one node" if source == target else "the cluster was made without cuttable"
            raise InvalidArgument(f"{source} to {target} cannot be cut: {why}")
        self._cuts.add((self._known(source), self._known(target)))
        self._loop.call_soon_threadsafe(self._links.cut, source, target)

    def partition(self, *sides: Sequence[str]) -> None:
        """Cut all links between nodes of different sides. Clients reach all nodes."""
        if any(isinstance(side, str) for side in sides):
            raise InvalidArgument(f'a side is a list of nodes, such as ["n1"]: {sides!r}')
        names = [self._known(name) for side in sides for name in side]
        if len(sides) < 2 or len(names) != len(set(names)):
            raise InvalidArgument(f"name two or more sides, and no node on two of them: {sides!r}")
        for side, other in permutations(sides, 2):
            for source, target in product(side, other):
                self.cut(source, target)

    def heal(self) -> None:
        """Heal all links."""
        self._cuts.clear()
        self._loop.call_soon_threadsafe(self._links.heal)

    def close(self) -> None:
        """End all nodes, proxies and clients: no process is left running."""
        self._open.close()

    # -- inside --------------------------------------------------------------------------------

    def _known(self, name: str) -> str:
        if name not in self._ports:
            raise InvalidArgument(f"no node is called {name!r}; there are {', '.join(self._ports)}")
        return name

    def _running(self, name: str) -> NodeProcess:
        """The process of a node, which must be running.

        A node that ended by itself is accepted: the test cannot have known.
        """
        node = self.nodes[self._known(name)]
        if not node.running and not node.gave_up:
            raise InvalidArgument(f"{name} is down; start it with restart({name!r})")
        return node

    def _is_down(self, name: str) -> None:
        self._paused.discard(name)
        self._loop.call_soon_threadsafe(self._links.down, name)

    def _in_loop(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _end_nodes(self) -> None:
        for node in self.nodes.values():
            node.kill()
        for client in self._clients:
            client.close()

    def _end_loop(self) -> None:
        self._in_loop(self._looks.close())
        self._in_loop(self._links.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _toml(section: str, values: Mapping[str, Any]) -> str:
    lines = [f"{key} = {_toml_value(value)}\n" for key, value in values.items()]
    return f"[{section}]\n" + "".join(lines) + "\n"


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


@contextmanager
def cluster(
    nodes: int = 3,
    logs: Sequence[str] = (),
    *,
    directory: Path | None = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    environment: Callable[[str], Mapping[str, str]] | None = None,
    cuttable: bool = True,
    open_files: int | None = None,
) -> Iterator[Cluster]:
    """A running cluster with ``logs``, in ``directory`` or one that is removed at the end.

    The other arguments are those of :class:`Cluster`.
    """
    place = directory or Path(tempfile.mkdtemp(prefix="quorate-test-"))
    try:
        made = Cluster(
            place,
            nodes,
            settings=settings,
            environment=environment,
            cuttable=cuttable,
            open_files=open_files,
        )
        try:
            made.start(logs)
            yield made
        finally:
            made.close()
    finally:
        if directory is None:
            shutil.rmtree(place, ignore_errors=True)
