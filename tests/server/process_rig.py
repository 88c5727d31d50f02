"""``quorate dev`` and ``quorate serve`` as real processes, watched from outside."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from quorate import Client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DEADLINE_S = 50
# Output of a process must come without help.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


def until(condition: Callable[[], object]) -> None:
    """Look until ``condition`` holds; fail at the deadline."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, "it did not come to be"
        time.sleep(0.02)


def free_ports(nodes: int = 3) -> int:
    """A port such that those of a cluster above it are free. From 32768 up they are not ours."""
    while True:
        port = 20 * random.randrange(1000, 1600)
        if all(
            map(_is_free, [port + above + i for above in (0, 100) for i in range(1, nodes + 1)])
        ):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return probe.connect_ex(("127.0.0.1", port)) != 0


def quorate(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "quorate", *map(str, arguments)]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # Who is dead and not yet waited for does nothing any more.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


class Dev:
    """A running ``quorate dev``."""

    def __init__(self, process: subprocess.Popen[str], directory: Path, port: int) -> None:
        self.process = process
        self.directory = directory
        self.port = port

    @property
    def endpoints(self) -> str:
        return ",".join(f"127.0.0.1:{self.port + number}" for number in (1, 2, 3))

    def client(self) -> Client:
        return Client(self.endpoints)

    def pid(self, node: str) -> int:
        """Of the node, as soon as it is known."""
        file = self.directory / f"{node}.pid"
        until(lambda: file.exists() and file.read_text())
        return int(file.read_text())

    @property
    def pids(self) -> list[int]:
        return [self.pid(node) for node in ("n1", "n2", "n3")]

    def page(self, node: str, path: str) -> tuple[int, str]:
        """What a page of a node says; status 0 if nobody is there."""
        address = f"http://127.0.0.1:{self.port + 100 + int(node[1:])}{path}"
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
        return self.process.wait(DEADLINE_S)


@contextmanager
def dev(directory: Path, *arguments: str, port: int | None = None) -> Iterator[Dev]:
    """A cluster that is ready; gone when the context ends, whatever the test did to it."""
    port = port or free_ports()
    command = quorate("dev", "--dir", directory, "--port", str(port), *arguments)
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    cluster = Dev(process, directory, port)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == f"ready {cluster.endpoints}\n"
        yield cluster
    finally:
        if process.poll() is None:
            cluster.stop()
        process.communicate()
