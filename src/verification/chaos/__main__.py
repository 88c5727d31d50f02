"""Command line: ``python -m verification.chaos [--seconds 60] [--seed 0] …``.

Client processes append to real nodes, read from them and write down every answer, while faults
happen all the time. At the end all nodes are started again, their logs are compared, and the
checker judges the histories. The command fails if a promise was broken.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from array import array
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random
from secrets import randbits
from typing import TYPE_CHECKING

from quorate.batch import Batch
from quorate.entry_body import unpack_batches
from quorate.storage.directory import DataDirectory
from quorate.storage.offline.verify import verify
from quorate.storage.recovery.open import open_log
from quorate.storage.stored_entries import StoredEntries
from quorate.testing.processes import Cluster
from quorate.types import EntryKind, Index
from verification.chaos.churn import check_catalog
from verification.chaos.nemesis import Nemesis
from verification.chaos.sizes import SEGMENT_BYTES_MAX, Sizes
from verification.checker import FinalLog, check, identity, load_run, save_final
from verification.disk.store import complete
from verification.preload import FaultyDisks, why_not

if TYPE_CHECKING:
    from quorate.client.results import LogSummary

__all__ = ["main"]

SETTLE_S = 60.0
# A run of this length meets every fault; one that did not proves less than its report says.
ALL_FAULTS_S = 60.0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m verification.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of faults")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of faults and load")
    parser.add_argument("--nodes", type=int, default=3, help="how many")
    parser.add_argument("--logs", type=int, default=3, help="how many")
    parser.add_argument("--clients", type=int, default=2, help="processes")
    parser.add_argument("--tasks", type=int, default=120, help="of each client process")
    parser.add_argument("--keep", type=Path, help="leave all files in this directory")
    parsed = parser.parse_args(arguments)
    print(f"chaos: seed={parsed.seed}", flush=True)
    place = parsed.keep or Path(tempfile.mkdtemp(prefix="quorate-chaos-"))
    place.mkdir(parents=True, exist_ok=True)
    try:
        return _run(parsed, place)
    finally:
        if parsed.keep is None:
            shutil.rmtree(place, ignore_errors=True)


def _run(parsed: argparse.Namespace, place: Path) -> int:
    logs = [f"log-{number}" for number in range(1, parsed.logs + 1)]
    disks = FaultyDisks(place) if why_not() is None else None
    environment = disks.environment if disks is not None else None
    random = Random(parsed.seed)
    with closing(Cluster(place, parsed.nodes, environment=environment)) as nodes:
        sizes = Sizes(nodes, random)
        nodes.start(logs)
        clients = [_start_client(parsed, nodes, logs, number) for number in range(parsed.clients)]
        nemesis = Nemesis(nodes, logs, random, sizes, disks)
        nemesis.torment(parsed.seconds)
        nemesis.mend()
        for client in clients:
            client.wait()
        incarnations = _settle(nodes, logs)
        lives, problems = check_catalog(nodes, place)
        for name in nodes.nodes:
            nemesis.stops.stop(name)
    failed = [client.returncode for client in clients if client.returncode]
    whole = verify([nodes.data(name) for name in nodes.nodes]).whole
    outsized = _dump(place, nodes, incarnations, min(sizes.batch_bytes))
    verdict = check(*load_run(place), parsed.nodes)
    never = nemesis.never_done
    if not (sizes.changes and outsized):
        never.append("a change of settings" if outsized else "a batch above the limit of a node")
    complaints = {
        "catalog": problems,
        "gave up": nemesis.gave_up,
        "stop": nemesis.stops.problems,
        "never met": never if parsed.seconds >= ALL_FAULTS_S else [],
    }
    for violation in verdict.violations:
        print(violation)
    print("faults:", ", ".join(f"{name} {count}" for name, count in sorted(nemesis.done.items())))
    for about, said in complaints.items():
        for words in said:
            print(f"{about}: {words}")
    stops = nemesis.stops
    print(
        f"chaos: {verdict} logs={lives} catalog_problems={len(problems)} "
        f"faults={nemesis.done.total()} gave_up={len(nemesis.gave_up)} "
        f"stops={stops.done} stop_problems={len(stops.problems)} stop_max_s={stops.longest_s:.1f} "
        f"resized={sizes.changes} outsized={outsized} "
        f"disks={'whole' if whole else 'damaged'} clients_failed={len(failed)}"
    )
    return 1 if verdict.counts or failed or any(complaints.values()) or not whole else 0


def _start_client(
    parsed: argparse.Namespace, nodes: Cluster, logs: list[str], number: int
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "verification.chaos.load"),
            *("--endpoints", nodes.endpoints, "--logs", ",".join(logs)),
            *("--folder", str(nodes.directory), "--client", str(number)),
            *("--tasks", str(parsed.tasks), "--seconds", str(parsed.seconds)),
            *("--seed", str(parsed.seed)),
        ],
        stdout=subprocess.DEVNULL,
    )


def _settle(nodes: Cluster, logs: list[str]) -> dict[str, str]:
    """Wait until every replica has all records; return the incarnations of the logs."""
    client = nodes.client(timeout=SETTLE_S)
    deadline = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline:
        found = {one["name"]: one for one in client.status()["logs"]}
        if all(name in found and _equal(found[name], len(nodes.nodes)) for name in logs):
            return {name: found[name]["incarnation"] for name in logs}
        time.sleep(0.2)
    raise SystemExit(f"chaos: replicas did not become equal in {SETTLE_S} s: {client.status()}")


def _equal(log: LogSummary, nodes: int) -> bool:
    replicas = log["replicas"]
    return len(replicas) == nodes and all(one["lag"] == 0 for one in replicas)


def _dump(place: Path, nodes: Cluster, incarnations: dict[str, str], size: int) -> int:
    """Write a dump of every replica; return the number of its batches larger than ``size``."""
    outsized = 0
    for node in nodes.nodes:
        with DataDirectory.open(nodes.data(node), nodes.id, node) as directory:
            for name, incarnation in incarnations.items():
                values, large = _values(directory, int(incarnation, 16), size)
                outsized += large
                save_final(place / f"final-{name}-{node}.log", name, FinalLog(node, 0, values))
    return outsized


def _values(directory: DataDirectory, incarnation: int, size: int) -> tuple[array[int], int]:
    """The identities of all records in a log, by offset, and the number of batches larger than
    ``size``."""
    vfs = directory.log_vfs(incarnation)
    try:
        identities = directory.log_id(incarnation)
        log, _ = complete(open_log(vfs, identities, SEGMENT_BYTES_MAX, partial(randbits, 64)))
        stored = StoredEntries(log)
        values: array[int] = array("Q")
        large = 0
        index = Index(1)
        while index <= log.last.index:
            for entry in stored.entries(index, Index(log.last.index + 1)):
                index = Index(entry.index + 1)
                if entry.kind is EntryKind.DATA:
                    for batch, _ in unpack_batches(entry):
                        large += len(batch) > size
                        values.extend(identity(record.value) for record in Batch.parse(batch))
        log.close()
        return values, large
    finally:
        vfs.close()


if __name__ == "__main__":
    sys.exit(main())
