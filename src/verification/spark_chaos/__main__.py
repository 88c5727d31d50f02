"""Command line: ``python -m verification.spark_chaos [--kills 100] [--seed 0] …``.

A log grows; a Spark stream copies it to a second log, Spark batches copy it to a third. Meanwhile
the driver, its workers, the leader, a follower, or all nodes at once are killed. At the end every
record that was written must be in the second log once, and every record of a batch that was written
in the third. Fails otherwise.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from quorate.errors import QuorateError
from quorate.testing.processes import cluster
from quorate.testing.processes.ports import Ports
from verification.spark_chaos.driver import Driver
from verification.spark_chaos.job import BATCH_RECORDS, Plan, batches_done

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorate.client.blocking import Log
    from quorate.testing.processes import Cluster

__all__ = ["main"]

LOGS = ("source", "streamed", "batched")
# The number of records written each time, and the pause between two writes in seconds.
FED_RECORDS = 200
FED_EVERY_S = 0.1
# Maximum number of records by which the source is ahead of the stream.
AHEAD_RECORDS = 20_000
VALUE_BYTES = 100
# Seconds between two kills, and until a killed node is started again.
REST_S = (0.2, 3.0)
DOWN_S = (0.1, 2.0)
# The exit status that a shell reports after Ctrl-C.
INTERRUPTED = 130
# The timeout of a client that must live through all nodes being down, in seconds.
PATIENCE_S = 300.0


class RecordFeeder(threading.Thread):
    """Writes numbered records, each once, for as long as the kills go on. While the jobs are far
    behind it waits for them."""

    def __init__(self, log: Log, copy: Log, seed: int) -> None:
        super().__init__(name="feeder")
        self._log = log
        self._copy = copy
        self._seed = seed
        self._ended = threading.Event()
        self.records = 0
        self.problem: QuorateError | None = None

    def run(self) -> None:
        try:
            with self._log.producer("feeder") as producer:
                while not self._ended.wait(FED_EVERY_S):
                    if self.records - self._copy.end_offset() >= AHEAD_RECORDS:
                        continue
                    numbers = range(self.records, self.records + FED_RECORDS)
                    producer.send_batch([value_of(self._seed, number) for number in numbers])
                    self.records += FED_RECORDS
        except QuorateError as error:
            self.problem = error

    def end(self) -> None:
        self._ended.set()
        self.join()


def value_of(seed: int, number: int) -> bytes:
    """The value of a record: it begins with the record's number; the rest shows whether it is
    whole."""
    rest = blake2b(f"{seed}/{number}".encode(), digest_size=32).hexdigest()
    return f"{number} {rest}".ljust(VALUE_BYTES, ".").encode()


class SparkNemesis:
    """Kills nodes and processes of Spark; the seed determines the order."""

    def __init__(self, nodes: Cluster, driver: Driver, random: Random) -> None:
        self._nodes = nodes
        self._driver = driver
        self._random = random
        self.done: Counter[str] = Counter()
        self._kills: list[tuple[Callable[[], bool], float]] = [
            (self._kill_driver, 0.2),
            (self._kill_worker, 0.25),
            (self._kill_leader, 0.25),
            (self._kill_follower, 0.15),
            (self._kill_all, 0.15),
        ]

    def torment(self, kills: int) -> None:
        while self.done.total() < kills:
            self._driver.wait_at_work()
            time.sleep(self._random.uniform(*REST_S))
            (kill,) = self._random.choices(*zip(*self._kills, strict=True))
            if kill():
                self.done[kill.__name__.removeprefix("_kill_")] += 1
                print(
                    f"spark-chaos: {self.done.total()} of {kills}: {kill.__name__[1:]}", flush=True
                )
            self._mend()

    def _mend(self) -> None:
        self._driver.begin()
        for name in self._nodes.nodes:
            self._nodes.begin(name)

    def _wait(self) -> None:
        time.sleep(self._random.uniform(*DOWN_S))

    def _kill_driver(self) -> bool:
        self._driver.kill()
        return True

    def _kill_worker(self) -> bool:
        return self._driver.kill_worker(self._random)

    def _kill_leader(self) -> bool:
        log = self._random.choice(LOGS)
        leader = self._nodes.leader(log)
        if leader is None:
            return False
        self._nodes.kill(leader)
        self._wait()
        return True

    def _kill_follower(self) -> bool:
        leader = self._nodes.leader(self._random.choice(LOGS))
        followers = [name for name in self._nodes.nodes if name != leader]
        self._nodes.kill(self._random.choice(followers))
        self._wait()
        return True

    def _kill_all(self) -> bool:
        for name in self._nodes.nodes:
            self._nodes.kill(name)
        self._wait()
        return True


class Account(NamedTuple):
    """The records that should be in a log, counted: present, missing, repeated, strange."""

    records: int
    lost: int
    duplicates: int
    # Number of values that no feeder wrote.
    strange: int


def account(log: Log, seed: int, expected: int) -> Account:
    """Compare a log with the first ``expected`` records that were written."""
    found: Counter[int] = Counter()
    strange = 0
    for record in log.read(0, log.end_offset()):
        number = int(record.value.partition(b" ")[0])
        strange += record.value != value_of(seed, number) or number >= expected
        found[number] += 1
    lost = expected - len(found)
    return Account(found.total(), max(0, lost), found.total() - len(found), strange)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m verification.spark_chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="how many")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the kills")
    parser.add_argument("--keep", type=Path, help="leave all files in this directory")
    parsed = parser.parse_args(arguments)
    print(f"spark-chaos: seed={parsed.seed}", flush=True)
    place = parsed.keep or Path(tempfile.mkdtemp(prefix="quorate-spark-chaos-"))
    place.mkdir(parents=True, exist_ok=True)
    try:
        return _run(parsed.kills, parsed.seed, place)
    except KeyboardInterrupt:
        print("spark-chaos: interrupted; the run has no result", flush=True)
        return INTERRUPTED
    finally:
        if parsed.keep is None:
            shutil.rmtree(place, ignore_errors=True)


def _run(kills: int, seed: int, place: Path) -> int:
    ports = Ports()
    [port] = ports.take(1)
    ports.close()
    with cluster(3, LOGS, directory=place, cuttable=False) as nodes:
        client = nodes.client(timeout=PATIENCE_S)
        source, streamed, batched = (client.log(name) for name in LOGS)
        plan = Plan(nodes.endpoints, *LOGS, str(place), port)
        driver = Driver(plan, place / "driver.log")
        nemesis = SparkNemesis(nodes, driver, Random(seed))
        feeder = RecordFeeder(source, streamed, seed)
        feeder.start()
        try:
            nemesis.torment(kills)
        finally:
            feeder.end()
            driver.kill()
        finished = driver.finish()
        batches = batches_done(plan)
        streams = len([*(plan.checkpoint / "commits").glob("[0-9]*")])
        accounts = [
            account(source, seed, feeder.records),
            account(streamed, seed, feeder.records),
            account(batched, seed, batches * BATCH_RECORDS),
        ]
        staged = sum(log["staged_bytes"] for log in client.status()["logs"])
    if not finished:
        print((place / "driver.log").read_text(encoding="utf-8")[-4000:])
    if feeder.problem is not None:
        print(f"spark-chaos: the records could not be written: {feeder.problem}")
    for name, one in zip(LOGS, accounts, strict=True):
        print(f"spark-chaos: {name}: {one}")
    counted = ", ".join(f"{name} {count}" for name, count in sorted(nemesis.done.items()))
    print(f"spark-chaos: {counted}; drivers {driver.starts}, gave up {driver.gave_up}")
    lost, duplicates = (sum(column) for column in list(zip(*accounts, strict=True))[1:3])
    strange = sum(one.strange for one in accounts)
    wrong = lost or duplicates or strange or staged or feeder.problem or not finished
    print(
        f"spark-chaos: kills={nemesis.done.total()} batches={batches + streams} "
        f"records={accounts[1].records + accounts[2].records} lost={lost} duplicates={duplicates}"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
