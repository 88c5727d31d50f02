"""A cluster of real nodes, and what a test does to it."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import signal
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from quorate.client.blocking import Client
from quorate.errors import QuorateError, Timeout
from quorate.testing.processes.node import NodeProcess
from quorate.testing.processes.ports import HOST, Ports
from quorate.testing.processes.proxy import Links

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

    from quorate.client.results import LogSummary

__all__ = ["Cluster", "cluster"]

LOOK_S = 0.05
READY_S = 40.0


class Cluster:
    """Nodes n1, n2, … as processes, each in a directory of its own. Used from one thread."""

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
        """``settings`` are sections of NODE.toml for all nodes, ``environment`` gives the variables
        of each. Without ``cuttable`` nodes reach each other without a proxy in between.
        ``open_files`` is how many each of them may have."""
        self.directory = directory
        self.id = f"test-{secrets.token_hex(4)}"
        self._settings = settings or {}
        self._open_files = open_files
        self._clients: list[Client] = []
        names = [f"n{number}" for number in range(1, nodes + 1)]
        pairs = nodes * (nodes - 1) if cuttable else 0
        with ExitStack() as stack:
            reserved = Ports()
            stack.callback(reserved.close)
            ports = reserved.take(2 * nodes + pairs)
            self._ports = dict(zip(names, ports, strict=False))
            self._http = dict(zip(names, ports[nodes:], strict=False))
            self._links = Links(self._ports if cuttable else {}, ports[2 * nodes :])
            # The proxies live in a loop of their own.
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="quorate-links")
            self._thread.start()
            stack.callback(self._end_links)
            self.nodes = {
                name: self._make(name, environment(name) if environment else {}) for name in names
            }
            stack.callback(self._end_nodes)
            self._open = stack.pop_all()

    def _make(self, name: str, environment: Mapping[str, str]) -> NodeProcess:
        path = self.directory / f"{name}.toml"
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
        }
        for section, values in self._settings.items():
            sections.setdefault(section, {}).update(values)
        path.write_text("".join(map(_toml, sections, sections.values())), encoding="utf-8")
        return NodeProcess(name, path, environment, self._open_files)

    # -- what a test asks ----------------------------------------------------------------------

    @property
    def endpoints(self) -> str:
        """As ``quorate.Client`` and QUORATE_ENDPOINTS take them."""
        return ",".join(map(self.address, self._ports))

    def address(self, name: str) -> str:
        """Where clients reach a node."""
        return f"{HOST}:{self._ports[name]}"

    def http(self, name: str) -> str:
        """Where the pages of a node are."""
        return f"{HOST}:{self._http[name]}"

    def data(self, name: str) -> Path:
        """The data directory of a node."""
        return self.directory / name

    def others(self, name: str) -> list[str]:
        return [other for other in self.nodes if other != name]

    def client(self, **options: Any) -> Client:
        """A client of this cluster; closed with it."""
        client = Client(self.endpoints, **options)
        self._clients.append(client)
        return client

    def look(self, log: str) -> LogSummary | None:
        """What the nodes that answer know of ``log``; None if none of them does."""
        try:
            with Client(self.endpoints, timeout=5.0) as client:
                found = [one for one in client.status()["logs"] if one["name"] == log]
        except QuorateError:
            return None
        return found[0] if found else None

    def leader(self, log: str) -> str | None:
        """The node that leads ``log``, as far as the nodes know; None if none does."""
        found = self.look(log)
        return found["leader"] if found is not None else None

    def wait_leader(self, log: str, timeout: float = 10.0) -> str:
        """The node that leads ``log``, once there is one that runs."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            name = self.leader(log)
            if name is not None and self.nodes[name].running:
                return name
            time.sleep(LOOK_S)
        raise Timeout(f"nobody leads {log} after {timeout} s")

    # -- what a test does ----------------------------------------------------------------------

    def start(self, logs: Sequence[str] = ()) -> None:
        """Start all nodes and wait until they serve ``logs``, which are made if need be."""
        for name in self.nodes:
            self.begin(name)
        try:
            with Client(self.endpoints, timeout=READY_S) as client:
                for log in logs:
                    client.log(log, create=True)
                client.logs()
        except QuorateError as error:
            silent = [f"{name}: {node.last_words}" for name, node in self.nodes.items()]
            raise Timeout(f"the cluster does not serve: {error}; {'; '.join(silent)}") from error

    def begin(self, name: str) -> None:
        """Start a node unless it runs."""
        self._in_loop(self._links.up(name))
        self.nodes[name].start()

    def kill(self, name: str) -> None:
        self.nodes[name].kill()
        self._loop.call_soon_threadsafe(self._links.down, name)

    def pause(self, name: str) -> None:
        self.nodes[name].signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        self.nodes[name].signal(signal.SIGCONT)

    def restart(self, name: str) -> None:
        """Start a node again, in order if it runs."""
        if self.nodes[name].running:
            self.stop(name)
        self.begin(name)

    def stop(self, name: str) -> int:
        """Stop a node in order; its status."""
        try:
            return self.nodes[name].stop()
        finally:
            self._loop.call_soon_threadsafe(self._links.down, name)

    def cut(self, source: str, target: str) -> None:
        """Nothing that ``source`` sends to ``target`` arrives."""
        self._loop.call_soon_threadsafe(self._links.cut, source, target)

    def partition(self, *sides: Sequence[str]) -> None:
        """Nodes of different sides do not hear each other. Clients reach them all."""
        for side in sides:
            for other in sides:
                if side is not other:
                    for source in side:
                        for target in other:
                            self.cut(source, target)

    def heal(self) -> None:
        """All links pass everything again."""
        self._loop.call_soon_threadsafe(self._links.heal)

    def close(self) -> None:
        """Nothing is left running."""
        self._open.close()

    def _in_loop(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _end_nodes(self) -> None:
        for node in self.nodes.values():
            node.kill()
        for client in self._clients:
            client.close()

    def _end_links(self) -> None:
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

    The rest is as :class:`Cluster` takes it.
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
