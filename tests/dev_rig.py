"""A real cluster: the processes of ``quorate dev``."""

from __future__ import annotations

import os
import random
import select
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from quorate.client.blocking import Client

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["DevCluster", "dev_cluster", "plain_environment", "wait_until"]

NODES = 3
# Generous: nothing is asserted about how long it takes.
PATIENCE_S = 40.0
TRIES = 3


def plain_environment() -> dict[str, str]:
    """As a user's shell has it: output is buffered, no cluster is set."""
    dropped = ("PYTHONUNBUFFERED", "QUORATE_ENDPOINTS")
    return {name: value for name, value in os.environ.items() if name not in dropped}


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Look again and again; fail with ``what`` if it never comes."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"it never came that {what}"
        time.sleep(0.02)


class DevCluster:
    """Three nodes on loopback."""

    def __init__(self, directory: Path, endpoints: str) -> None:
        self.directory = directory
        self.endpoints = endpoints

    def client(self, timeout: float = 30.0) -> Client:
        return Client(self.endpoints, timeout=timeout)

    def process(self, node: str) -> int:
        return int((self.directory / f"{node}.pid").read_text())

    def signal(self, node: str, number: signal.Signals) -> None:
        os.kill(self.process(node), number)

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


@contextmanager
def dev_cluster(directory: Path, *options: str) -> Iterator[DevCluster]:
    """Runs for as long as it is needed; nothing of it is left."""
    with ExitStack() as stack:
        endpoints = ""
        for attempt in range(TRIES):
            # Somebody else may take a port between the look and the start.
            place = directory / str(attempt)
            process = stack.enter_context(_start(place, _free_ports(), options))
            endpoints = _endpoints(process)
            if endpoints:
                break
        assert endpoints, "the cluster did not start"
        stack.callback(_stop, process)
        yield DevCluster(place, endpoints)


def _start(directory: Path, port: int, options: tuple[str, ...]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "quorate", "dev", "--dir", str(directory)]
    command += ["--nodes", str(NODES), "--port", str(port), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=plain_environment())


def _endpoints(process: subprocess.Popen[str]) -> str:
    """What stands after "ready"; nothing if the process ended instead."""
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], PATIENCE_S)
    assert readable, "the cluster says nothing"
    return process.stdout.readline().strip().removeprefix("ready ")


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    assert process.wait(PATIENCE_S) == 0


def _free_ports() -> int:
    """A port whose neighbours, as ``dev`` uses them, are free. Those from 32768 up are not ours."""
    while True:
        port = random.randrange(20_000, 32_000)
        with ExitStack() as stack:
            try:
                for above in (*range(1, NODES + 1), *range(101, 101 + NODES)):
                    probe = stack.enter_context(socket.socket())
                    probe.bind(("127.0.0.1", port + above))
            except OSError:
                continue
            return port
