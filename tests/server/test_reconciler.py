"""What a node decides to make, open and delete: step by step, and under crashes at every step."""

from __future__ import annotations

import errno
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING

import pytest

from quorate.server.logs import catalog as catalogs
from quorate.server.logs.catalog import Catalog, Change, LogFacts, encode_change
from quorate.server.logs.reconciler import Make, Open, Reconciler, Remove, Retire
from quorate.storage.manifest import LogLife, LogState, Manifest, Member
from quorate.types import NodeId

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

    from quorate.server.logs.reconciler import Step

N1, N2 = NodeId("n1"), NodeId("n2")
CATALOG = 0xCA7
SEEDS = 300


def facts(name: str, incarnation: int, *nodes: NodeId) -> LogFacts:
    return LogFacts(name, incarnation, nodes or (N1, N2), 1)


def life(log: LogFacts, state: LogState = LogState.MADE) -> LogLife:
    return LogLife(state, log.created_us, log.nodes, log.name)


class Node:
    """A node whose disk is a manifest as bytes and a set of directories. Everything else of it is
    forgotten by a crash."""

    def __init__(self) -> None:
        self.stored = Manifest(
            {N1: Member("a:1", None)}, {CATALOG: life(facts("/catalog", 0))}
        ).encode()
        self.directories = {CATALOG}
        self.table = Catalog().encode()
        # Logs whose files are gone after they were recorded as made: they never come back.
        self.deleted: set[int] = set()
        self.start()

    def start(self) -> None:
        """What a crash leaves is all that there is."""
        manifest, catalog = Manifest.decode(self.stored), Catalog.decode(self.table)
        assert manifest is not None
        assert catalog is not None
        self.manifest, self.catalog = manifest, catalog
        self.open: set[int] = set()
        self.plan = Reconciler(
            N1, manifest, catalog, self.directories, self.open.__contains__, CATALOG
        )
        self.work: Iterator[None] = iter(())
        # Openings under way, side by side.
        self.openings: dict[int, Generator[None, None, None]] = {}

    def read(self, record: bytes) -> None:
        change = self.catalog.apply(record)
        if change is not None:
            self.plan.take(change)

    def advance(self, *, fails: bool = False) -> bool:
        """Do the next part of a step that is no opening; whether there was one."""
        try:
            next(self.work)
        except StopIteration:
            self.begin_openings()
            step = self.plan.next()
            if step is None:
                return False
            self.work = self.carry_out(step, fails=fails)
        return True

    def begin_openings(self) -> None:
        for step in self.plan.openings():
            assert step.incarnation not in self.openings, "a log is opened twice"
            self.openings[step.incarnation] = self.open_slowly(step)

    def advance_opening(self, *, fails: bool = False, but: int | None = None) -> bool:
        """Bring the oldest opening to its end, but not that of log ``but``; whether there was
        one."""
        for incarnation, opening in self.openings.items():
            if incarnation == but:
                continue
            with suppress(StopIteration):
                next(opening)
                if fails:
                    opening.throw(OSError())
                next(opening)
            del self.openings[incarnation]
            return True
        return False

    def settle(self) -> None:
        while self.advance() or self.advance_opening():
            pass

    def carry_out(self, step: Step, *, fails: bool) -> Iterator[None]:
        """Each part ends where a crash may come; a step that fails does so at its save."""
        try:
            if isinstance(step, Make):
                incarnation = step.log.incarnation
                assert incarnation not in self.deleted, "a deleted log is made again"
                self.directories.add(incarnation)
                yield
                yield from self.save({incarnation: life(step.log)}, fails=fails)
            elif isinstance(step, Retire):
                assert not self.openings.keys() & {*step.incarnations}, "it is being opened"
                self.open.difference_update(step.incarnations)
                yield
                lives = self.manifest.logs
                doomed = {
                    one: lives[one]._replace(state=LogState.DELETING) for one in step.incarnations
                }
                yield from self.save(doomed, fails=fails)
            else:
                yield from self.remove(step.incarnation, fails=fails)
        except OSError:
            self.plan.put_off(step, "no room")

    def open_slowly(self, step: Open) -> Generator[None, None, None]:
        try:
            yield
            self.open_log(step.incarnation)
        except OSError:
            self.plan.put_off(step, "no room")
        else:
            self.plan.opened(step)

    def save(self, lives: Mapping[int, LogLife | None], *, fails: bool) -> Iterator[None]:
        with self.plan.recorded(lives):
            yield
            if fails:
                raise OSError
            self.stored = self.manifest.encode()
        yield

    def open_log(self, incarnation: int) -> None:
        assert self.durable(incarnation) is LogState.MADE, "a replica speaks before the manifest"
        assert incarnation in self.directories
        self.open.add(incarnation)

    def remove(self, incarnation: int, *, fails: bool) -> Iterator[None]:
        state = self.durable(incarnation)
        assert state is not LogState.MADE, "files are removed before the manifest says so"
        assert incarnation not in self.open
        assert incarnation not in self.openings
        self.directories.discard(incarnation)
        self.plan.removed(incarnation)
        if state is LogState.DELETING:
            self.deleted.add(incarnation)
        yield
        if incarnation in self.manifest.logs:
            yield from self.save({incarnation: None}, fails=fails)

    def durable(self, incarnation: int) -> LogState | None:
        manifest = Manifest.decode(self.stored)
        assert manifest is not None
        return manifest.logs[incarnation].state if incarnation in manifest.logs else None

    def keep_table(self) -> None:
        if self.plan.deletions_done:
            self.table = self.catalog.encode()


# -- step by step ------------------------------------------------------------------------------

ORDERS, BILLS = facts("orders", 1), facts("bills", 2)
MAKE_ORDERS, MAKE_BILLS = (encode_change(Change(True, log)) for log in (ORDERS, BILLS))
DELETE_ORDERS, DELETE_BILLS = (encode_change(Change(False, log)) for log in (ORDERS, BILLS))


def with_logs(*records: bytes) -> Node:
    node = Node()
    for record in records:
        node.read(record)
    node.settle()
    return node


def test_a_log_is_made_recorded_and_opened() -> None:
    node = Node()
    assert node.plan.next() is None
    node.read(MAKE_ORDERS)
    assert node.plan.next() == Make(ORDERS)
    assert node.plan.carried == 0
    node.settle()
    assert node.open == {1}
    assert node.durable(1) is LogState.MADE
    assert node.plan.carried == 1


def test_a_log_of_other_nodes_is_nothing_to_do() -> None:
    theirs = facts("theirs", 3, N2)
    node = with_logs(*(encode_change(Change(made, theirs)) for made in (True, False)))
    assert node.directories == {CATALOG}
    assert node.plan.carried == 2
    assert node.plan.deletions_done


def test_a_deletion_is_recorded_before_files_are_removed() -> None:
    node = with_logs(MAKE_ORDERS)
    node.read(DELETE_ORDERS)
    assert node.plan.next() == Retire((1,))
    assert node.plan.carried == 1
    node.settle()
    assert (node.open, node.directories, node.durable(1)) == (set(), {CATALOG}, None)
    assert node.plan.carried == 2


def test_deletions_that_wait_are_recorded_together() -> None:
    node = with_logs(MAKE_ORDERS, MAKE_BILLS)
    for record in (DELETE_ORDERS, DELETE_BILLS):
        node.read(record)
    assert node.plan.next() == Retire((1, 2))


def test_a_log_without_room_is_put_off_and_what_comes_after_it_is_not() -> None:
    node = Node()
    node.read(MAKE_ORDERS)
    step = node.plan.next()
    assert step is not None
    assert node.plan.put_off(step, "no room") == [1]
    assert node.plan.next() is None
    # It does not count: whoever waits for later records must not wait for room.
    assert node.plan.carried == 1
    assert node.plan.why_late(1) == "no room"
    node.read(MAKE_BILLS)
    assert node.plan.next() == Make(BILLS)
    node.settle()
    node.plan.retry()
    assert node.plan.next() == Make(ORDERS)
    # It is told once.
    assert node.plan.put_off(step, "no room") == []
    node.plan.retry()
    node.settle()
    assert node.open == {1, 2}
    assert node.plan.why_late(1) is None


def test_a_deletion_that_is_put_off_is_not_done() -> None:
    node = with_logs(MAKE_ORDERS)
    node.read(DELETE_ORDERS)
    step = node.plan.next()
    assert step is not None
    node.plan.put_off(step, "no room")
    node.read(MAKE_BILLS)
    node.settle()
    assert node.open == {1, 2}
    assert node.plan.carried == 1
    assert not node.plan.deletions_done
    node.plan.retry()
    node.settle()
    assert node.plan.carried == 3
    assert node.plan.deletions_done


def test_a_log_that_was_put_off_and_deleted_leaves_no_directory() -> None:
    node = Node()
    node.read(MAKE_ORDERS)
    while node.plan.why_late(1) is None:
        node.advance(fails=True)
    assert node.directories == {CATALOG, 1}
    node.read(DELETE_ORDERS)
    assert node.plan.next() == Remove(1)
    node.settle()
    assert node.directories == {CATALOG}
    assert node.plan.carried == 2


def test_a_save_that_fails_leaves_the_logs_as_they_were() -> None:
    node = with_logs(MAKE_ORDERS)
    before = dict(node.manifest.logs)
    node.read(DELETE_ORDERS)
    with pytest.raises(OSError), node.plan.recorded({1: None, 2: life(BILLS)}):
        assert node.manifest.applied == 2
        raise OSError
    assert node.manifest.logs == before
    # It has read so much of the table: that stays true.
    assert node.manifest.applied == node.catalog.applied == 2


def test_an_old_table_makes_nothing_and_deletes_nothing() -> None:
    """At a start the table is what was read of it so far."""
    node = with_logs(MAKE_ORDERS, MAKE_BILLS, DELETE_ORDERS)
    node.start()
    node.settle()
    assert node.open == {2}
    for record in (MAKE_ORDERS, MAKE_BILLS):
        node.read(record)
        assert node.plan.next() is None
        assert node.plan.carried == 0
    node.read(DELETE_ORDERS)
    assert node.plan.next() is None
    assert node.plan.carried == 3


def test_what_a_start_can_do_without_the_catalog() -> None:
    node = with_logs(MAKE_ORDERS, MAKE_BILLS)
    node.manifest.logs[1] = life(ORDERS, LogState.DELETING)
    node.stored = node.manifest.encode()
    node.directories.add(3)
    node.start()
    assert node.plan.openings() == [Open(2, life(BILLS))]
    assert node.plan.openings() == []
    assert node.plan.next() == Remove(1)


def test_a_log_that_is_being_opened_holds_up_no_other_log() -> None:
    node = with_logs(MAKE_ORDERS)
    node.start()
    node.begin_openings()
    assert node.plan.opening == ["orders"]
    # The record that made it is read again after each start.
    for record in (MAKE_ORDERS, MAKE_BILLS, DELETE_BILLS):
        node.read(record)
        while node.advance() or node.advance_opening(but=1):
            pass
    assert node.plan.is_opening(1)
    assert node.plan.carried == 3
    assert node.plan.deletions_done
    node.settle()
    assert (node.open, node.plan.opening) == ({1}, [])


@pytest.mark.parametrize("fails", [False, True])
def test_a_log_that_is_deleted_while_it_is_opened_is_deleted_after_that(fails: bool) -> None:
    node = with_logs(MAKE_ORDERS)
    node.start()
    node.begin_openings()
    for record in (MAKE_ORDERS, DELETE_ORDERS):
        node.read(record)
    assert node.plan.next() is None
    assert node.plan.carried == 1
    assert not node.plan.deletions_done
    node.advance_opening(fails=fails)
    assert node.plan.openings() == []
    # An opening that failed meanwhile does not put the deletion off.
    assert node.plan.next() == Retire((1,))
    assert node.plan.why_late(1) is None
    node.settle()
    assert (node.open, node.directories, node.plan.carried) == (set(), {CATALOG}, 2)


def test_a_log_that_is_deleted_before_it_is_opened_is_not_opened() -> None:
    node = with_logs(MAKE_ORDERS)
    node.start()
    for record in (MAKE_ORDERS, DELETE_ORDERS):
        node.read(record)
    assert node.plan.openings() == []
    assert node.plan.next() == Retire((1,))


def test_an_opening_that_fails_for_now_is_tried_again_after_a_pause() -> None:
    node = with_logs(MAKE_ORDERS)
    node.start()
    node.begin_openings()
    node.advance_opening(fails=True)
    assert node.plan.openings() == []
    assert (node.plan.why_late(1), node.plan.opening) == ("no room", [])
    node.plan.retry()
    assert node.plan.openings() == [Open(1, life(ORDERS))]
    # The reason is told until the log is open.
    assert node.plan.why_late(1) == "no room"
    node.plan.opened(Open(1, life(ORDERS)))
    assert node.plan.why_late(1) is None


def test_a_directory_that_no_log_has_is_removed_once_the_table_is_new_enough() -> None:
    node = with_logs(MAKE_ORDERS)
    node.directories.add(3)
    node.start()
    node.settle()
    assert 3 in node.directories
    node.read(MAKE_ORDERS)
    node.settle()
    assert node.directories == {CATALOG, 1}


def test_a_deletion_of_which_only_the_kept_table_knows_is_done() -> None:
    node = with_logs(MAKE_ORDERS)
    node.read(DELETE_ORDERS)
    node.table = node.catalog.encode()
    node.start()
    assert node.plan.next() == Retire((1,))


def test_a_change_that_fails_takes_back_nothing_of_one_beside_it() -> None:
    """Both are under way at the same time, as at a start that finishes several deletions: the
    second is durable, with how new the table was. The first one fails after that."""
    node = with_logs(MAKE_ORDERS, MAKE_BILLS)
    node.manifest.applied = 1
    first, second = node.plan.recorded({1: None}), node.plan.recorded({2: None})
    first.__enter__()
    second.__enter__()
    durable = Manifest.decode(node.manifest.encode())
    second.__exit__(None, None, None)
    error = OSError(errno.ENOSPC, "as told")
    assert not first.__exit__(OSError, error, None)
    assert durable is not None
    assert node.manifest.applied == durable.applied == node.catalog.applied == 2
    assert 1 in node.manifest.logs
    assert 2 not in node.manifest.logs


# -- many logs ---------------------------------------------------------------------------------


class Counted(int):
    """An incarnation that counts how often a table is searched for it."""

    looks = 0

    def __hash__(self) -> int:
        Counted.looks += 1
        return super().__hash__()


def with_many(count: int) -> tuple[Node, list[LogFacts]]:
    """A node that is to make so many logs, each with an incarnation that counts."""
    node = Node()
    logs = [facts(f"log-{number}", Counted(1000 + number)) for number in range(count)]
    for log in logs:
        node.catalog.apply(encode_change(Change(True, log)))
        node.plan.take(Change(True, log))
    return node, logs


@pytest.mark.parametrize("lacks_files", [False, True])
def test_a_step_costs_the_same_however_many_logs_wait(lacks_files: bool) -> None:
    node, logs = with_many(1000)
    for _ in range(2):
        Counted.looks = 0
        for log in logs:
            assert node.plan.openings() == []
            step = node.plan.next()
            assert isinstance(step, Make)
            assert step.log == log
            node.plan.put_off(Make(log), "refused", lacks_files=lacks_files)
        assert node.plan.next() is None
        assert Counted.looks < 60 * len(logs)
        node.plan.retry()
        node.plan.admit(len(logs))


def test_deletions_come_before_logs_that_are_to_be_made() -> None:
    """They free space, and a log that is to be made may fail for lack of it."""
    node = with_logs(MAKE_ORDERS)
    for record in (MAKE_BILLS, DELETE_ORDERS):
        node.read(record)
    assert node.plan.next() == Retire((1,))
    while node.durable(1) is not LogState.DELETING:
        node.advance()
    assert node.plan.next() == Remove(1)
    node.settle()
    assert (node.open, node.plan.carried) == ({2}, 3)


def test_of_the_logs_that_lack_files_as_many_are_tried_as_there_are_files_for() -> None:
    node, logs = with_many(5)
    for log in logs:
        node.plan.put_off(Make(log), "no files", lacks_files=True)
    node.plan.retry()
    assert node.plan.next() is None
    assert node.plan.puts_off
    node.plan.admit(2)
    node.settle()
    assert node.open == {1000, 1001}
    # One that is deleted has nothing to wait for.
    node.read(encode_change(Change(False, logs[2])))
    node.settle()
    node.plan.admit(5)
    node.settle()
    assert node.open == {1000, 1001, 1003, 1004}
    assert not node.plan.puts_off


# -- under crashes -----------------------------------------------------------------------------


class Churn:
    """Logs are made and deleted, a node follows, fails and crashes, as a seed says."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        self.node = Node()
        self.records: list[bytes] = []
        self.there: list[LogFacts] = []
        self.number = 0

    def append(self) -> None:
        if self.there and self.draw.random() < 0.5:
            log = self.there.pop(self.draw.randrange(len(self.there)))
            self.records.append(encode_change(Change(False, log)))
        else:
            self.number += 1
            nodes = (N1, N2) if self.draw.random() < 0.8 else (N2,)
            log = facts(f"log-{self.number}", self.number, *nodes)
            self.there.append(log)
            self.records.append(encode_change(Change(True, log)))

    def read(self) -> None:
        if self.node.catalog.applied < len(self.records):
            self.node.read(self.records[self.node.catalog.applied])

    def step(self) -> None:
        kind = self.draw.choices(
            (self.append, self.read, self.node.advance, self.fail, self.node.plan.retry,
             self.node.keep_table, self.node.start, self.node.advance_opening, self.fail_opening),
            (4, 6, 20, 2, 2, 2, 1, 4, 1),
        )[0]  # fmt: skip
        kind()

    def fail(self) -> None:
        self.node.advance(fails=True)

    def fail_opening(self) -> None:
        self.node.advance_opening(fails=True)

    def check(self) -> None:
        """Whoever waits for a deletion was told the truth."""
        node = self.node
        assert node.plan.carried <= node.catalog.applied
        seen = Catalog()
        gone = [seen.apply(record) for record in self.records[: node.plan.carried]]
        deleted = {change.log.incarnation for change in gone if change and not change.made}
        assert not deleted & (node.directories | node.open | node.manifest.logs.keys())

    def end(self) -> None:
        """Once all is read and nothing fails, the node has what the catalog says."""
        node = self.node
        while node.catalog.applied < len(self.records):
            self.read()
        while (
            node.advance()
            or node.advance_opening()
            or node.plan.carried < len(self.records)
            or node.plan._put_off
        ):
            node.plan.retry()
        wanted = {log.incarnation for log in self.there if N1 in log.nodes}
        assert node.open == wanted
        assert node.directories == wanted | {CATALOG}
        assert node.manifest.logs.keys() == wanted | {CATALOG}
        assert node.stored == node.manifest.encode()
        assert node.plan.deletions_done


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_node_has_the_logs_of_the_catalog_whatever_happened(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So few that deletions are forgotten before they are carried out.
    monkeypatch.setattr(catalogs, "GONE_MAX", 2)
    churn = Churn(seed)
    for _ in range(400):
        churn.step()
        churn.check()
    churn.end()
