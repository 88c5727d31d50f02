"""Records become batches: by size, by time, within the limits of a node and of memory."""

from __future__ import annotations

from typing import Any

import pytest

from quorate.batch import Batch
from quorate.client.produce.accumulator import Accumulator, BatchLimits
from quorate.client.produce.settings import ProducerSettings
from quorate.client.produce.tickets import WHOLE, Ticket
from quorate.commands import Receipt
from quorate.errors import EmptyBatch, Fenced, InvalidArgument, TooLarge

LIMITS = BatchLimits("n1", record_bytes=5_000, batch_bytes=10_000)
DONE = Receipt(0, 1, 2, 1, 2)


class Rig:
    """An accumulator, with a clock that is moved by hand."""

    def __init__(
        self, linger_ms: float = 5, batch_bytes: int = 1000, memory_bytes: int = 1 << 20
    ) -> None:
        self.now = 100.0
        self.wakes = 0
        settings = ProducerSettings(linger_ms, batch_bytes, memory_bytes)
        self.records = Accumulator(settings, LIMITS, lambda: self.now, self.wake)

    def wake(self) -> None:
        self.wakes += 1

    def add(self, value: Any, **options: Any) -> tuple[Ticket, int] | None:
        named = {"key": None, "headers": None, "timestamp": None} | options
        return self.records.add(value, named["key"], named["headers"], named["timestamp"])

    def take(self) -> list[list[bytes]]:
        """The values of every batch that can be taken."""
        taken = iter(lambda: self.records.take(self.now), None)
        return [[record.value for record in Batch.parse(one.data)] for one in taken]


def test_records_wait_for_others() -> None:
    rig = Rig()
    places = [rig.add(b"%d" % number) for number in range(3)]
    assert len({id(place[0]) for place in places if place}) == 1, "one ticket for the batch"
    assert [place[1] for place in places if place] == [0, 1, 2]
    assert rig.take() == []
    assert rig.records.due == pytest.approx(100.005)
    rig.now += 0.005
    assert rig.take() == [[b"0", b"1", b"2"]]
    assert rig.records.due is None


def test_a_full_batch_waits_for_nobody() -> None:
    rig = Rig(batch_bytes=1000)
    for number in range(20):
        rig.add(b"%d" % number * 50)
    batches = rig.take()
    assert len(batches) >= 1
    assert all(len(b"".join(values)) >= 600 for values in batches)
    rig.now += 1
    batches += rig.take()
    assert [value for values in batches for value in values] == [
        b"%d" % number * 50 for number in range(20)
    ]


def test_whoever_takes_is_woken_once_for_a_batch_begun_and_once_for_a_full_one() -> None:
    rig = Rig(batch_bytes=1 << 20)
    for _ in range(100):
        rig.add(b"v")
    assert rig.wakes == 1
    rig = Rig(batch_bytes=1)
    rig.add(b"v")
    rig.add(b"v")
    assert rig.wakes == 2


def test_a_batch_of_its_own_keeps_its_place() -> None:
    rig = Rig()
    rig.add(b"before")
    added = rig.records.add_batch([b"a", b"b"], [b"k", None], [[("h", b"1")], []], 7)
    assert added is not None
    assert added[1] == WHOLE
    rig.add(b"after")
    rig.records.end_linger()
    assert rig.take() == [[b"before"], [b"a", b"b"], [b"after"]]


def test_the_end_of_lingering_ends_the_wait() -> None:
    rig = Rig(linger_ms=60_000)
    rig.add(b"v")
    rig.records.end_linger()
    assert rig.take() == [[b"v"]]


def test_every_column_arrives() -> None:
    rig = Rig()
    rig.add(b"plain", timestamp=5)
    rig.add(bytearray(b"v"), key=memoryview(b"k"), headers=[("h", b"1"), ("h", b"2")], timestamp=6)
    rig.records.end_linger()
    ticket = rig.records.take(rig.now)
    assert ticket is not None
    first, second = Batch.parse(ticket.data)
    assert first == (5, None, b"plain", ())
    assert second == (6, b"k", b"v", (("h", b"1"), ("h", b"2")))
    assert ticket.count == 2


def test_what_is_changed_after_it_was_sent_is_sent_as_it_was() -> None:
    rig = Rig()
    value = bytearray(b"before")
    rig.add(value)
    value[:] = b"after!"
    rig.records.end_linger()
    assert rig.take() == [[b"before"]]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"value": "text"}, "value is not bytes"),
        ({"value": None}, "value is not bytes"),
        ({"key": "text"}, "key is not bytes"),
        ({"headers": [("h", "text")]}, "header h is not bytes"),
        ({"headers": [("h",)]}, "headers are pairs"),
        ({"headers": [(b"h", b"1")]}, "headers are pairs"),
        ({"headers": [("\ud800", b"1")]}, "is not text"),
        ({"timestamp": 1 << 63}, "timestamp is not int64"),
        ({"timestamp": "now"}, "timestamp is not int64"),
    ],
)
def test_bad_input_is_refused_and_spoils_no_other_record(
    options: dict[str, Any], named: str
) -> None:
    rig = Rig()
    rig.add(b"before")
    with pytest.raises(InvalidArgument, match=named):
        rig.add(**({"value": b"v"} | options))
    rig.add(b"after")
    rig.records.end_linger()
    assert rig.take() == [[b"before", b"after"]]


def test_what_no_node_takes_is_refused_before_it_is_sent() -> None:
    rig = Rig()
    rig.add(b"before")
    with pytest.raises(TooLarge, match=r"limits\.record_bytes of n1 is 5000"):
        rig.add(bytes(5_001))
    with pytest.raises(TooLarge, match=r"limits\.record_bytes of n1 is 5000"):
        rig.records.add_batch([b"v", bytes(5_001)], None, None, None)
    with pytest.raises(TooLarge, match=r"limits\.batch_bytes of n1 is 10000"):
        rig.records.add_batch([bytes(4_000)] * 3, None, None, None)
    with pytest.raises(EmptyBatch):
        rig.records.add_batch([], None, None, None)
    rig.add(bytes(5_000))
    rig.records.end_linger()
    assert rig.take() == [[b"before", bytes(5_000)]]


def test_no_batch_is_larger_than_a_node_takes() -> None:
    rig = Rig(batch_bytes=1 << 20)
    for number in range(200):
        rig.add(b"v" * (number * 20), key=b"k" * 20, headers=[("häder", b"x")] * 3)
    rig.records.end_linger()
    taken = list(iter(lambda: rig.records.take(rig.now), None))
    assert sum(ticket.count for ticket in taken) == 200
    assert max(len(ticket.data) for ticket in taken) <= LIMITS.batch_bytes
    assert len(taken) < 100


def test_memory_has_a_limit() -> None:
    rig = Rig(memory_bytes=300)
    added = rig.add(bytes(200))
    assert added is not None
    assert rig.add(bytes(200)) is None
    told: list[str] = []
    rig.records.when_room(lambda: told.append("room"))
    assert told == []
    assert rig.records.due == 0.0, "what nothing can join does not wait"
    rig.take()
    assert rig.add(bytes(200)) is None, "what is on its way counts"
    added[0].resolve(DONE)
    assert told == ["room"]
    assert rig.add(bytes(200)) is not None


def test_one_record_may_be_larger_than_all_memory() -> None:
    rig = Rig(memory_bytes=10)
    assert rig.add(bytes(200)) is not None
    assert rig.add(b"") is None


def test_the_end_reaches_all_who_wait() -> None:
    rig = Rig(memory_bytes=300)
    added = rig.add(bytes(200))
    assert added is not None
    told: list[str] = []
    rig.records.when_room(lambda: told.append("room"))
    rig.records.end(Fenced("outcome"), Fenced("refusal"))
    assert told == ["room"]
    assert isinstance(added[0].outcome, Fenced)
    assert str(added[0].outcome) == "outcome"
    with pytest.raises(Fenced, match="refusal"):
        rig.add(b"v")
    with pytest.raises(Fenced, match="refusal"):
        rig.records.add_batch([b"v"], None, None, None)
    assert rig.records.due is None


def test_the_end_is_told_where_there_is_no_room() -> None:
    """What is on its way keeps its memory: whoever comes must not be told to wait for it."""
    rig = Rig(memory_bytes=300)
    rig.add(bytes(200))
    rig.records.end_linger()
    assert len(rig.take()) == 1
    rig.records.end(Fenced("outcome"), Fenced("refusal"))
    with pytest.raises(Fenced, match="refusal"):
        rig.add(bytes(200))
    with pytest.raises(Fenced, match="refusal"):
        rig.records.add_batch([bytes(200)], None, None, None)


@pytest.mark.parametrize("name", ["linger_ms", "batch_bytes", "memory_bytes"])
def test_a_setting_out_of_range_is_named(name: str) -> None:
    values = {"linger_ms": 5, "batch_bytes": 1000, "memory_bytes": 1000} | {name: -1}
    with pytest.raises(InvalidArgument, match=f"{name} = -1 is not between"):
        ProducerSettings(**values)
