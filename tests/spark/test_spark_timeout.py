"""How long the source and the sink wait for a cluster: as long as they were told."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from pyspark.sql.datasource import InputPartition
from sink_writers_rig import BY_COLUMN, SCHEMA, rows, task

from quorate.client.blocking import Client
from quorate.commands import Part
from quorate.errors import Timeout
from quorate.spark import cluster_address
from quorate.spark.cluster_address import ClusterAddress
from quorate.spark.read.columns import COLUMNS
from quorate.spark.read.planning import TaskRange
from quorate.spark.source import QuorateDataSource
from quorate.spark.write.digest import NOTHING
from quorate.spark.write.task import BATCH_ID, QUERY_ID, RUN_ID, CommitMessage, Share

if TYPE_CHECKING:
    from collections.abc import Callable

# No node listens there.
NOWHERE = "127.0.0.1:1"
TOLD = r"\(0\.2 s\)"
PART = InputPartition(TaskRange("orders", "1" * 32, 0, 1, 0))


def source(**options: str) -> QuorateDataSource:
    return QuorateDataSource({"endpoints": NOWHERE, "timeout": "0.2", **options})


def written(app: str, batch_id: int) -> CommitMessage:
    """The commit message of a task that staged some rows."""
    return CommitMessage(app, batch_id, {"orders": Share(Part(0, b"a" * 16, 1, 1), NOTHING, True)})


def test_a_cluster_is_as_patient_as_it_was_told() -> None:
    cluster = ClusterAddress("127.0.0.1:7401", 2.5)
    assert cluster.options == {"endpoints": "127.0.0.1:7401", "timeout": "2.5"}
    assert pickle.loads(pickle.dumps(cluster)) == cluster
    with cluster.client() as client, Client("127.0.0.1:7401") as usual:
        assert client._timeout == 2.5
        assert ClusterAddress("127.0.0.1:7401").timeout == usual._timeout


@pytest.mark.parametrize(
    "read",
    [
        lambda made: made.reader(COLUMNS).partitions(),
        lambda made: list(made.reader(COLUMNS).read(PART)),
        lambda made: made.streamReader(COLUMNS).initialOffset(),
        lambda made: list(made.streamReader(COLUMNS).read(PART)),
    ],
    ids=["batch-plan", "batch-task", "stream-plan", "stream-task"],
)
def test_a_read_gives_up_when_it_was_told(read: Callable[[QuorateDataSource], object]) -> None:
    with pytest.raises(Timeout, match=TOLD):
        read(source(log="orders"))


def test_a_batch_gives_up_before_it_begins() -> None:
    with pytest.raises(Timeout, match=TOLD):
        source(log="orders").writer(SCHEMA, overwrite=False)


@pytest.mark.parametrize("transaction", [{}, {"txnAppId": "etl", "txnVersion": "1"}])
def test_the_steps_of_a_batch_give_up(transaction: dict[str, str]) -> None:
    # Its log is in a column: so no node is asked before it begins.
    job = source(**transaction).writer(BY_COLUMN, overwrite=False)
    with pytest.raises(Timeout, match=TOLD), task():
        job.write(rows("one", logs=["orders"]))
    with pytest.raises(Timeout, match=TOLD):
        job.commit([written("etl", 1)])


def test_the_steps_of_a_micro_batch_give_up() -> None:
    writer = source(log="orders").streamWriter(SCHEMA, overwrite=False)
    query = {QUERY_ID: str(uuid4()), BATCH_ID: "1", RUN_ID: str(uuid4())}
    with pytest.raises(Timeout, match=TOLD), task(**query):
        writer.write(rows("one"))
    with pytest.raises(Timeout, match=TOLD):
        writer.commit([written("query", 1)], 1)


def test_an_abort_waits_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """An abort raises no error."""
    opened: list[tuple[str, float]] = []

    def client(endpoints: str, timeout: float) -> Client:
        opened.append((endpoints, timeout))
        return Client(endpoints, timeout)

    monkeypatch.setattr(cluster_address, "Client", client)
    writer = source(log="orders").streamWriter(SCHEMA, overwrite=False)
    writer.abort([written("query", 1)], 1)
    assert opened == [(NOWHERE, 0.2)]
