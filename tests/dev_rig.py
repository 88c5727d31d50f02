"""Commands as real processes, watched from outside; above all a cluster of ``quorate dev``."""

from __future__ import annotations

import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from quorate.client.blocking import Client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "PATIENCE_S",
    "DevCluster",
    "alive",
    "command",
    "delete_logs",
    "dev_cluster",
    "free_ports",
    "plain_environment",
    "wait_until",
]

NODES = 3
# Generous: nothing is asserted about how long it takes.
PATIENCE_S = 50.0
TRIES = 3
# Of a node's pages, above its port.
HTTP_ABOVE = 100


def plain_environment() -> dict[str, str]:
    """As a user's shell has it: output is buffered, no cluster is set."""
    dropped = ("PYTHONUNBUFFERED", "QUORATE_ENDPOINTS")
    return {name: value for name, value in os.environ.items() if name not in dropped}


def command(*arguments: str | Path) -> list[str]:
    """A ``quorate`` command."""
    return [sys.executable, "-m", "quorate", *map(str, arguments)]


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Look again and again; fail with ``what`` if it never comes."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"it never came that {what}"
        time.sleep(0.02)


def delete_logs(client: Client, prefix: str) -> None:
    """Every log costs its nodes some time, so that those of a test go with it."""
    for name in client.logs():
        if name.startswith(f"{prefix}-"):
            client.delete_log(name)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # Who is dead and not yet waited for does nothing any more.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def free_ports(nodes: int = NODES) -> int:
    """A port such that those of a cluster above it are free. From 32768 up they are not ours."""
    while True:
        port = random.randrange(20_000, 32_000)
        with ExitStack() as stack:
            try:
                for above in (0, HTTP_ABOVE):
                    for number in range(1, nodes + 1):
                        probe = stack.enter_context(socket.socket())
                        probe.bind(("127.0.0.1", port + above + number))
            except OSError:
                continue
            return port


class DevCluster:
    """A running ``quorate dev`` with three nodes."""

    def __init__(self, process: subprocess.Popen[str], directory: Path, port: int) -> None:
        self.process = process
        self.directory = directory
        self.port = port

    @property
    def endpoints(self) -> str:
        return ",".join(f"127.0.0.1:{self.port + number}" for number in range(1, NODES + 1))

    def client(self, timeout: float = 30.0) -> Client:
        return Client(self.endpoints, timeout=timeout)

    def pid(self, node: str) -> int:
        """Of the node, as soon as it is known."""
        file = self.directory / f"{node}.pid"
        wait_until(lambda: file.exists() and file.read_text(), f"{node} is started")
        return int(file.read_text())

    @property
    def pids(self) -> list[int]:
        return [self.pid(f"n{number}") for number in range(1, NODES + 1)]

    def signal(self, node: str, number: signal.Signals) -> None:
        os.kill(self.pid(node), number)

    def leader(self, log: str) -> str:
        """Wait until ``log`` has one."""
        found: list[str] = []

        def look() -> bool:
            with self.client() as client:
                found.extend(
                    one["leader"]
                    for one in client.status()["logs"]
                    if one["name"] == log and one["leader"] is not None
                )
            return bool(found)

        wait_until(look, f"{log} has a leader")
        return found[-1]

    def page(self, node: str, path: str) -> tuple[int, str]:
        """What a page of a node says; status 0 if nobody is there."""
        address = f"http://127.0.0.1:{self.port + HTTP_ABOVE + int(node[1:])}{path}"
        try:
            with urllib.request.urlopen(address, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)


@contextmanager
def dev_cluster(directory: Path, *options: str, port: int | None = None) -> Iterator[DevCluster]:
    """Runs for as long as it is needed; nothing of it is left, whatever a test did to it."""
    with ExitStack() as stack:
        for _ in range(TRIES):
            # Somebody else may take a port between the look and the start.
            at = port or free_ports()
            process = stack.enter_context(_start(directory, at, options))
            cluster = DevCluster(process, directory, at)
            stack.callback(_end, cluster)
            said = _first_line(process)
            if said:
                break
        assert said == f"ready {cluster.endpoints}\n"
        yield cluster


def _start(directory: Path, port: int, options: tuple[str, ...]) -> subprocess.Popen[str]:
    place = ("--dir", directory, "--nodes", str(NODES), "--port", str(port))
    return subprocess.Popen(
        command("dev", *place, *options),
        stdout=subprocess.PIPE,
        text=True,
        env=plain_environment(),
    )


def _first_line(process: subprocess.Popen[str]) -> str:
    """Nothing if the process ended instead."""
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], PATIENCE_S)
    assert readable, "the cluster says nothing"
    return process.stdout.readline()


def _end(cluster: DevCluster) -> None:
    if cluster.process.poll() is None:
        assert cluster.stop() == 0
