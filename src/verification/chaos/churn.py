"""Logs that come and go during a chaos run, and the answers that their client got about each of
them."""

from __future__ import annotations

import asyncio
import json
import re
import time
import urllib.request
from contextlib import suppress
from typing import TYPE_CHECKING

from quorate.errors import LogExists, LogNotFound, OutcomeUnknown, QuorateError

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

    from quorate.client.asynchronous import AsyncClient
    from quorate.testing.processes import Cluster

__all__ = ["Churn", "check_catalog"]

PATTERN = "churn-*.json"
# Maximum number of logs that are kept: a cluster has room for so many logs.
KEPT_MAX = 10
PAUSE_S = 0.05
SETTLE_S = 60.0
LOOK_S = 0.1

_HOSTED = re.compile(r'^quorate_log_end_offset\{log="([^"]+)"\}', re.MULTILINE)


class Churn:
    """Makes logs, appends to them and deletes most of them again."""

    def __init__(self, client: AsyncClient, random: Random, number: int) -> None:
        self._client = client
        self._random = random
        self._number = number
        # Minimum number of records of each log that exists; and the names of the logs that do not
        # exist.
        self._made: dict[str, int] = {}
        self._gone: list[str] = []
        # Answers that a client cannot get if it uses each name once.
        self._odd: list[str] = []

    async def work(self, until: float) -> None:
        loop = asyncio.get_running_loop()
        made = 0
        while loop.time() < until:
            made += 1
            with suppress(OutcomeUnknown):
                await self._one(f"churn-{self._number}-{made}")
            await asyncio.sleep(PAUSE_S)

    async def _one(self, name: str) -> None:
        """Create, fill and delete one log. The task ends if the outcome of a call is unknown."""
        try:
            log = await self._client.create_log(name)
        except OutcomeUnknown:
            raise
        except LogExists as error:
            self._odd.append(f"create {name}: {error}")
            return
        except QuorateError:
            self._gone.append(name)
            return
        self._made[name] = 0
        with suppress(QuorateError):
            self._made[name] = (await log.append(b"there")).count
        if len(self._made) > KEPT_MAX or self._random.random() < 0.7:
            await self._delete(name)

    async def _delete(self, name: str) -> None:
        records = self._made.pop(name)
        try:
            await self._client.delete_log(name)
            self._gone.append(name)
        except OutcomeUnknown:
            raise
        except LogNotFound as error:
            self._odd.append(f"delete {name}: {error}")
        except QuorateError:
            self._made[name] = records

    def save(self, folder: Path) -> None:
        known = {"made": self._made, "gone": self._gone, "odd": self._odd}
        path = folder / PATTERN.replace("*", str(self._number))
        path.write_text(json.dumps(known), encoding="utf-8")


def check_catalog(nodes: Cluster, folder: Path) -> tuple[int, list[str]]:
    """The number of logs made and deleted, and each difference from the answers that clients
    got."""
    client = nodes.client(timeout=SETTLE_S)
    names = set(client.logs())
    problems: list[str] = []
    lives = 0
    for path in folder.glob(PATTERN):
        known = json.loads(path.read_text(encoding="utf-8"))
        lives += len(known["made"]) + len(known["gone"])
        problems += known["odd"]
        problems += [f"{name} was deleted, or never made, and is there" for name in known["gone"]
                     if name in names]  # fmt: skip
        for name, records in known["made"].items():
            if name not in names:
                problems.append(f"{name} was made and is not there")
            elif client.log(name).end_offset() < records:
                problems.append(f"{name} lost a record")
    deadline = time.monotonic() + SETTLE_S
    for node in nodes.nodes:
        while (hosted := _hosted(nodes, node)) != names and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        if hosted != names:
            problems.append(f"{node} has other logs than the catalog: {sorted(hosted ^ names)}")
    return lives, problems


def _hosted(nodes: Cluster, node: str) -> set[str]:
    """The logs of which a node has a replica."""
    try:
        with urllib.request.urlopen(f"http://{nodes.http(node)}/metrics", timeout=5) as answer:
            return set(_HOSTED.findall(answer.read().decode()))
    except OSError:
        return set()
