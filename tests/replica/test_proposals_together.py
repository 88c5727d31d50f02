"""Batches that came together are proposed together: one entry, one answer, and offsets as if each
had come alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster_rig import led, log_of, receipt, refused
from core_rig import config
from proposal_rig import open_producer, stamped
from quorate.config import Config, Storage
from quorate.entry_body import pack_runs, unpack_batches, unpack_stamps
from quorate.errors import DiskFull, NotLeader, TooLarge
from quorate.replica.disk_space import ENTRY_OVERHEAD
from quorate.replica.engine_io import Propose, Room

if TYPE_CHECKING:
    from collections.abc import Sequence


def together(token: int, batches: Sequence[tuple[bytes, int]]) -> Propose:
    rows = pack_runs((len(batch), count) for batch, count in batches)
    total = sum(count for _, count in batches)
    return Propose(token, b"".join(batch for batch, _ in batches), total, rows=rows)


def test_they_share_an_entry_in_which_each_is_a_run() -> None:
    cluster = led(3)
    batches = [(b"one", 1), (b"three", 3), (b"two", 2)]
    cluster.turn("n1", [together(1, batches), Propose(2, b"alone", 4)])
    cluster.settle()
    first, second = receipt(cluster, 1), receipt(cluster, 2)
    assert (first.offset, first.count, second.offset, second.count) == (0, 6, 6, 4)
    assert first.index == second.index
    [entry] = log_of(cluster, "n2")[1:]
    assert unpack_batches(entry) == [*batches, (b"alone", 4)]
    assert (entry.runs, entry.count) == (4, 10)


def test_a_stamp_behind_them_names_its_own_run() -> None:
    cluster = led(1)
    epoch = open_producer(cluster, "p").epoch
    batches = [(b"one", 1), (b"three", 3)]
    cluster.turn("n1", [together(1, batches), Propose(2, b"stamped", 2, None, stamped(epoch, 1))])
    cluster.settle()
    entry = log_of(cluster, "n1")[-1]
    assert unpack_stamps(entry) == [(2, epoch, 1)]
    assert receipt(cluster, 2).offset == 4
    producer = cluster.engine("n1").state.producers.get("p")
    assert producer is not None
    [run] = producer.runs
    assert (run.offset, run.count) == (4, 2)


def test_they_are_not_divided() -> None:
    cluster = led(1, config(entry_bytes=10, batch_bytes=100))
    cluster.turn(
        "n1", [Propose(1, b"x" * 8, 1), together(2, [(b"abc", 1)] * 3), Propose(3, b"y", 1)]
    )
    cluster.settle()
    entries = log_of(cluster, "n1")[1:]
    assert [entry.runs for entry in entries] == [1, 3, 1]
    assert [receipt(cluster, token).offset for token in (1, 2, 3)] == [0, 1, 4]


def test_a_refusal_is_for_all_of_them() -> None:
    cluster = led(3)
    cluster.turn("n2", [together(1, [(b"a", 1), (b"b", 1)])])
    refused(cluster, 1, NotLeader)
    cluster.turn("n1", [together(2, [(bytes(cluster.config.limits.batch_bytes), 1), (b"b", 1)])])
    refused(cluster, 2, TooLarge)
    cluster.turn("n1", [Propose(3, b"c", 1)])
    cluster.settle()
    assert receipt(cluster, 3).offset == 0


def test_their_rows_take_room_on_disk_too() -> None:
    cluster = led(1, Config(storage=Storage(reserve_bytes=1024)))
    cluster.auto_flush = False
    size, many = 64, 4096
    fits = size * many + 8 * many + ENTRY_OVERHEAD + 1024
    crowd = [(bytes(size), 1)] * many
    cluster.turn("n1", [Room(fits - 1, "no space")])
    cluster.turn("n1", [together(1, crowd)])
    refused(cluster, 1, DiskFull)
    cluster.turn("n1", [Room(fits)])
    cluster.turn("n1", [together(2, crowd)])
    cluster.auto_flush = True
    cluster.settle()
    assert receipt(cluster, 2).count == many
