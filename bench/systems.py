"""Whatever can be loaded: quorate, the bare pipe and the peers, started and stopped together."""

from __future__ import annotations

import os
import secrets
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from bench import limit_load
from bench.gathered import load_gathered
from bench.limit import limit
from bench.outcome import outcome_of
from bench.peers import etcd as etcd_peer
from bench.peers import pysyncobj as pysyncobj_peer
from quorate.cli.loading import load
from quorate.client.blocking import Client
from quorate.net.loop import run
from quorate.testing.processes import cluster
from verification.preload import FaultyDisks

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from bench.limit import Limit
    from bench.outcome import Outcome
    from quorate.cli.workloads import Tally, Workload

    Environment = Callable[[str], Mapping[str, str]]

__all__ = ["NOTES", "Pipe", "Quorate", "System", "ours_and_pipe", "peers", "rest", "slowed_disks"]

NODES = ("n1", "n2", "n3")

# How each was run, for whoever reads the results.
NOTES = {
    "quorate": "three nodes with default settings, fsync on a majority before every answer",
    "pipe": "three processes, the same bytes, CRC and fdatasync, no consensus and no log format",
    "pysyncobj": pysyncobj_peer.NOTE,
    "etcd": etcd_peer.NOTE,
}


class System(Protocol):
    """Can be loaded again and again."""

    name: str

    def measure(self, workload: Workload, seconds: float, warm_up: float) -> Outcome: ...


class Quorate:
    """A cluster of ours. Every round has a log of its own, which is gone afterwards."""

    name = "quorate"

    def __init__(self, endpoints: str, *, awaited: bool = False, gathered: bool = False) -> None:
        self._endpoints = endpoints
        self._awaited = awaited
        self._gathered = gathered

    def measure(self, workload: Workload, seconds: float, warm_up: float) -> Outcome:
        name = f"bench-{secrets.token_hex(4)}"
        with Client(self._endpoints) as client:
            client.create_log(name)
            tally = run(self._load(name, workload, seconds, warm_up))
            client.delete_log(name)
        return outcome_of(tally, workload)

    def _load(
        self, name: str, workload: Workload, seconds: float, warm_up: float
    ) -> Coroutine[Any, Any, Tally]:
        if self._gathered:
            return load_gathered(self._endpoints, name, workload, seconds, warm_up)
        return load(
            self._endpoints, name, workload, seconds, warm_up=warm_up, awaited=self._awaited
        )


class Pipe:
    """The limit."""

    name = "pipe"

    def __init__(self, pipe: Limit, *, awaited: bool = False) -> None:
        self._pipe = pipe
        self._awaited = awaited

    def measure(self, workload: Workload, seconds: float, warm_up: float) -> Outcome:
        work = limit_load.measure(self._pipe, workload, seconds, warm_up, awaited=self._awaited)
        return outcome_of(run(work), workload)


@contextmanager
def ours_and_pipe(
    folder: Path, environment: Environment | None = None
) -> Iterator[tuple[str, Limit]]:
    """The endpoints of a cluster of ours, and the bare pipe beside it."""
    with ExitStack() as stack:
        nodes = stack.enter_context(
            cluster(directory=_made(folder / "quorate"), cuttable=False, environment=environment)
        )
        yield nodes.endpoints, stack.enter_context(limit(_made(folder / "pipe"), environment))


@contextmanager
def peers(folder: Path, skipped: dict[str, str]) -> Iterator[list[System]]:
    """Those that can be had; of the others ``skipped`` says why not."""
    with ExitStack() as stack:
        found: list[System] = []
        for name, start in PEERS.items():
            try:
                found.append(stack.enter_context(start(_made(folder / name))))
            except (ImportError, OSError) as error:
                skipped[name] = str(error)
        yield found


PEERS: dict[str, Callable[[Path], AbstractContextManager[System]]] = {
    "pysyncobj": pysyncobj_peer.pysyncobj,
    "etcd": etcd_peer.etcd,
}


@contextmanager
def slowed_disks(folder: Path, delay_s: float) -> Iterator[Environment]:
    """What nodes are started with so that each of their syncs takes so much longer."""
    disks = FaultyDisks(folder)
    for node in NODES:
        disks.slow_down(node, delay_s)
    yield disks.environment


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def rest() -> None:
    """What one system left for the disk to do is no burden of the next one."""
    os.sync()
