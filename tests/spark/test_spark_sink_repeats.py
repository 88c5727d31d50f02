"""Repeats of a write: the same rows are there once, other rows are an error and never merged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sink_writers_rig import Logs, Query, logs_of, rows, task, values

from quorate.client.staging import abort_staged
from quorate.errors import Duplicate, ReplayMismatch, StageExpired

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from quorate.spark.write.task import CommitMessage
    from quorate.testing import Cluster


@pytest.fixture
def logs(cluster: Cluster) -> Iterator[Logs]:
    with logs_of(cluster) as made:
        yield made


def test_a_micro_batch_that_is_repeated_is_there_once(logs: Logs) -> None:
    log = logs.make()
    query = Query(logs, log.name)
    staged = query.write(0, rows("a"), rows("b"))
    query.restart()
    query.commit(0, query.write(0, rows("b"), rows("a")))
    query.restart()
    query.commit(0, query.write(0, rows("a", "b")))
    query.commit(0, staged)
    query.commit(1, query.write(1, rows("c")))
    assert values(log) == ["b", "a", "c"]
    assert logs.staged_bytes(log) == 0


def test_a_micro_batch_before_the_last_one_cannot_be_compared(logs: Logs) -> None:
    log = logs.make()
    query = Query(logs, log.name)
    for batch_id in range(2):
        query.commit(batch_id, query.write(batch_id, rows(str(batch_id))))
    query.restart()
    with pytest.raises(Duplicate, match=r"DUPLICATE: .*checkpoint was set back; to go on with"):
        query.commit(0, query.write(0, rows("0")))
    query.restart(replayMismatch="keepFirst")
    query.commit(0, query.write(0, rows("0")))
    assert values(log) == ["0", "1"]


def test_a_micro_batch_that_is_repeated_with_other_rows_is_told(logs: Logs) -> None:
    log = logs.make()
    query = Query(logs, log.name)
    query.commit(0, query.write(0, rows("a", "b")))
    for others in (["a", "c"], ["a"], ["a", "b", "b"]):
        query.restart()
        with pytest.raises(ReplayMismatch, match=r"REPLAY_MISMATCH: .*not deterministic"):
            query.commit(0, query.write(0, rows(*others)))
    query.restart(replayMismatch="keepFirst")
    query.commit(0, query.write(0, rows("a", "c")))
    query.commit(1, query.write(1, rows("d")))
    assert values(log) == ["a", "b", "d"]


def test_a_micro_batch_that_is_repeated_without_rows_is_told(logs: Logs) -> None:
    log = logs.make()
    query = Query(logs, log.name)
    query.commit(0, query.write(0, rows("a")))
    query.restart()
    with pytest.raises(ReplayMismatch, match=r"REPLAY_MISMATCH: .*this one has 0 and .*keepFirst"):
        query.commit(0, query.write(0, iter(())))
    query.commit(1, query.write(1, rows("b")))
    with pytest.raises(Duplicate, match=r"DUPLICATE: .*checkpoint was set back"):
        query.commit(0, query.write(0, iter(())))
    query.restart(replayMismatch="keepFirst")
    query.commit(0, query.write(0, iter(())))
    query.commit(1, query.write(1, iter(())))
    assert values(log) == ["a", "b"]


def test_a_micro_batch_without_rows_is_remembered(logs: Logs) -> None:
    log = logs.make()
    query = Query(logs, log.name)
    query.commit(0, query.write(0, iter(()), iter(())))
    assert log.end_offset() == 0
    query.restart()
    query.commit(0, query.write(0, iter(())))
    with pytest.raises(ReplayMismatch, match="has published batch 0 with 0 records"):
        query.commit(0, query.write(0, rows("a")))
    query.commit(1, query.write(1, rows("b")))
    assert values(log) == ["b"]


# -- several logs ----------------------------------------------------------------------------------


class Pair:
    """Two logs that a query, or a named job, writes to by the column log."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        # The first one is published first.
        self.one, self.two = logs.make("one"), logs.make("two")
        self.query = Query(logs, None)

    def rows(self, to: str) -> Iterator[pa.RecordBatch]:
        """Row n goes to the log that the n-th digit of ``to`` says; to none if that is 0."""
        names = {"1": self.one.name, "2": self.two.name}
        placed = [(f"row {n}", names[digit]) for n, digit in enumerate(to) if digit != "0"]
        yield from rows(*(value for value, _ in placed), logs=[name for _, name in placed])

    def write(self, to: str) -> list[CommitMessage]:
        return self.query.write(0, self.rows(to))

    def save(self, to: str, version: int = 1) -> None:
        self._logs.save(None, self.rows(to), txnAppId="etl", txnVersion=str(version))

    def save_half(self, to: str) -> None:
        """As if the driver died when the first log was published."""
        job = self._logs.batch(None, txnAppId="etl", txnVersion="1")
        with task():
            message = job.write(self.rows(to))
        abort_staged(self.two, "etl", 1)
        with pytest.raises(StageExpired):
            job.commit([message])

    def values(self) -> tuple[list[str], list[str]]:
        return values(self.one), values(self.two)


@pytest.fixture
def pair(logs: Logs) -> Pair:
    return Pair(logs)


def test_some_logs_of_a_micro_batch_may_be_published_before_the_others(pair: Pair) -> None:
    messages = pair.write("12")
    abort_staged(pair.two, messages[0].app, 0)
    with pytest.raises(StageExpired):
        pair.query.commit(0, messages)
    assert pair.values() == (["row 0"], [])
    pair.query.restart()
    with pytest.raises(ReplayMismatch, match=f"log {pair.one.name}: app .*keepFirst"):
        pair.query.commit(0, pair.write("122"))
    assert pair.values() == (["row 0"], [])
    pair.query.commit(0, pair.write("12"))
    assert pair.values() == (["row 0"], ["row 1"])


@pytest.mark.parametrize(
    ("first", "then", "named"),
    [
        # A log with other rows; one that comes to it or is left out; and a row that moves.
        pytest.param("12", "122", "one", id="more"),
        pytest.param("12", "10", "one", id="a log is left out"),
        pytest.param("10", "12", "one", id="a log comes to it"),
        pytest.param("02", "12", "two", id="a log comes before it"),
        pytest.param("22", "12", "two", id="a row moves"),
        pytest.param("12", "21", "one", id="rows change places"),
    ],
)
def test_a_repeat_that_differs_in_any_log_changes_none(
    logs: Logs, pair: Pair, first: str, then: str, named: str
) -> None:
    pair.query.commit(0, pair.write(first))
    before = pair.values()
    pair.query.restart()
    with pytest.raises(ReplayMismatch, match=f"log {logs.prefix}-{named}: app .*keepFirst"):
        pair.query.commit(0, pair.write(then))
    assert pair.values() == before
    pair.query.commit(0, pair.write(first))
    assert pair.values() == before


def test_with_keep_first_each_log_decides_for_itself(pair: Pair) -> None:
    pair.query.commit(0, pair.write("1"))
    pair.query.restart(replayMismatch="keepFirst")
    pair.query.commit(0, pair.write("112"))
    pair.query.commit(0, pair.write("122"))
    assert pair.values() == (["row 0"], ["row 2"])


def test_a_repeat_before_the_last_micro_batch_changes_no_log(pair: Pair) -> None:
    for batch_id, to in enumerate(("2", "2")):
        pair.query.commit(batch_id, pair.query.write(batch_id, pair.rows(to)))
    with pytest.raises(Duplicate, match=f"log {pair.two.name}: app .*keepFirst"):
        pair.query.commit(0, pair.write("12"))
    assert pair.values() == ([], ["row 0", "row 0"])


# -- transactions ----------------------------------------------------------------------------------


def passed_over(version: int, last: int) -> str:
    return f"version {version} of txnAppId 'etl' is not written: version {last} is published"


def test_a_transaction_is_written_once(logs: Logs) -> None:
    log = logs.make()
    logs.save(log.name, rows("a"), txnAppId="etl", txnVersion="3")
    logs.save(log.name, rows("a"), txnAppId="etl", txnVersion="3")
    with pytest.warns(UserWarning, match=f"{passed_over(3, 3)}, with other rows"):
        logs.save(log.name, rows("other", "rows"), txnAppId="etl", txnVersion="3")
    with pytest.warns(UserWarning, match=f"{passed_over(2, 3)}, which is a later one"):
        logs.save(log.name, rows("older"), txnAppId="etl", txnVersion="2")
    assert values(log) == ["a"]
    logs.save(log.name, rows("b"), txnAppId="etl", txnVersion="4")
    logs.save(log.name, rows("c"), txnAppId="another", txnVersion="1")
    assert values(log) == ["a", "b", "c"]


def test_a_version_without_rows_is_remembered(logs: Logs) -> None:
    log = logs.make()
    logs.save(log.name, iter(()), txnAppId="etl", txnVersion="7")
    logs.save(log.name, iter(()), txnAppId="etl", txnVersion="7")
    for version, text in ((7, "with other rows"), (5, "which is a later one")):
        with pytest.warns(UserWarning, match=f"{passed_over(version, 7)}, {text}"):
            logs.save(log.name, rows("late"), txnAppId="etl", txnVersion=str(version))
    logs.save(log.name, rows("a"), txnAppId="etl", txnVersion="8")
    with pytest.warns(UserWarning, match=passed_over(7, 8)):
        logs.save(log.name, iter(()), txnAppId="etl", txnVersion="7")
    assert values(log) == ["a"]


def test_a_version_that_was_overtaken_while_it_was_written_is_told(logs: Logs) -> None:
    log = logs.make()
    five, six = (logs.batch(log.name, txnAppId="etl", txnVersion=version) for version in "56")
    with task():
        older, newer = five.write(rows("five")), six.write(rows("six"))
    six.commit([newer])
    with pytest.raises(Duplicate, match="version 6 was published after this write had begun"):
        five.commit([older])
    assert values(log) == ["six"]


def test_a_transaction_that_ended_between_two_logs_is_completed(pair: Pair) -> None:
    pair.save_half("12")
    assert pair.values() == (["row 0"], [])
    with pytest.raises(ReplayMismatch, match=f"log {pair.one.name}: .*log {pair.two.name} has not"):
        pair.save("112")
    assert pair.values() == (["row 0"], [])
    pair.save("12")
    pair.save("12")
    assert pair.values() == (["row 0"], ["row 1"])


def test_a_version_that_all_logs_have_is_passed_over(pair: Pair) -> None:
    pair.save("12", version=1)
    with pytest.warns(UserWarning, match=passed_over(1, 1)) as told:
        pair.save("21", version=1)
    assert len(told) == 2
    pair.save("1", version=2)
    with pytest.warns(UserWarning, match=passed_over(1, 2)):
        pair.save("12", version=1)
    assert pair.values() == (["row 0", "row 0"], ["row 1"])


def test_an_older_version_that_only_some_logs_can_have_is_told(pair: Pair) -> None:
    pair.save("1", version=2)
    with pytest.raises(Duplicate, match=f"log {pair.two.name} has not published it"):
        pair.save("12", version=1)
    assert pair.values() == (["row 0"], [])


def test_one_run_of_a_transaction_drops_nothing_of_another(logs: Logs) -> None:
    log = logs.make()
    one, two = (logs.batch(log.name, txnAppId="etl", txnVersion="1") for _ in range(2))
    with task():
        ours, theirs = one.write(rows("a")), two.write(rows("a"))
    one.abort([ours, None])
    with pytest.raises(StageExpired):
        one.commit([ours])
    two.commit([theirs])
    assert values(log) == ["a"]
    assert logs.staged_bytes(log) == 0
