"""One disk without any room: logs are made and deleted all the same, and it makes up for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from faults_rig import lag_free, until
from test_full_disks import LOG, fill, led, said, small

from quorate.storage.directory import LOGS

if TYPE_CHECKING:
    from quorate.testing.processes import Cluster

# A fixture is found where it has a name.
__all__ = ["small"]

pytestmark = pytest.mark.timeout(240)


def logs_on(nodes: Cluster, name: str) -> int:
    """How many logs have a directory on a node, the catalog included."""
    return sum(one.is_dir() for one in (nodes.data(name) / LOGS).iterdir())


def test_logs_are_made_and_deleted_while_one_disk_is_full(request: pytest.FixtureRequest) -> None:
    nodes: Cluster = request.getfixturevalue("small")
    client = nodes.client()
    full = next(name for name in nodes.nodes if "log=/catalog" not in led(nodes, name))
    ballast = fill(nodes, full)
    until(lambda: sum(bool(one["full"]) for one in client.status()["nodes"]) == 1, "it is known")
    client.create_log("more").append(b"x")
    until(lambda: said(nodes, full, "log put off") == 1, "there is no room for it")
    client.create_log("passing")
    client.delete_log("passing")
    # This one gives its room back, to the last byte of which the disk is full.
    client.delete_log(LOG)
    until(lambda: said(nodes, full, "log deleted") >= 1, "what was deleted is gone there, too")
    assert client.logs() == ["more"]
    ballast.unlink()
    until(lambda: lag_free(nodes, "more"), "it is made there when there is room")
    until(lambda: logs_on(nodes, full) == 2, "nothing else is left there")
    assert all(node.running for node in nodes.nodes.values())
