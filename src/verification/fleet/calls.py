"""The calls of clients that a node carries out, as server/logs/catalog_service.py does: work of a
process, in virtual time.

To learn from a majority whether a log is removed is shorter here: the node looks at the processes
with which it has links.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.batch import encode_batch
from quorate.commands import Receipt
from quorate.errors import LogNotFound, NotLeader, OffsetMismatch, QuorateError
from quorate.replica.engine_io import ReadAnswer
from quorate.server.logs.catalog import (
    Change,
    LogFacts,
    encode_change,
    encode_placement,
    judge_create,
    judge_delete,
    judge_found,
)
from quorate.state.judge import UNCONDITIONAL, AppendConditions
from verification.fleet.process import POLL_US

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from quorate.replica.engine_io import Result
    from verification.fleet.process import Process
    from verification.fleet.replica import FleetReplica, Question

__all__ = ["append", "create", "delete", "read", "set_priorities"]


def create(process: Process, name: str, incarnation: int, drawn_at: int) -> Generator[int]:
    """Make a log, and return once a leader serves it."""
    while True:
        end = yield from _lead(process)
        found = judge_create(process.catalog, name, incarnation, drawn_at)
        if isinstance(found, QuorateError):
            raise found
        if found is None:
            nodes = tuple(sorted(process.world.nodes))
            facts = LogFacts(name, incarnation, nodes, process.world.now)
            made = encode_change(Change(made=True, log=facts))
            if not (yield from _change(process, made, end)):
                continue
        yield from _serving(process, incarnation)
        return


def delete(process: Process, name: str, incarnation: int) -> Generator[int]:
    """Delete a log, and return once a majority of nodes has."""
    while True:
        end = yield from _lead(process)
        found = judge_delete(process.catalog, name, incarnation)
        if isinstance(found, QuorateError):
            raise found
        if found is not None:
            deleted = encode_change(Change(made=False, log=found))
            if not (yield from _change(process, deleted, end)):
                continue
        yield from _majority(process, process.catalog.applied)
        return


def set_priorities(
    process: Process, name: str, incarnation: int, priorities: Mapping[str, int]
) -> Generator[int, None, int]:
    """Set priorities, and return once the members have them: the offset of the record that they
    serve; 0 if this node cannot see that."""
    while True:
        end = yield from _lead(process)
        found = judge_found(process.catalog, name, incarnation)
        if isinstance(found, QuorateError):
            raise found
        before = process.catalog.placement(incarnation)
        assert before is not None  # the log was just found
        wanted = before.with_priorities(name, priorities)
        if wanted != before:
            placed = encode_placement(found, wanted)
            if not (yield from _change(process, placed, end)):
                continue
        return (yield from _placed(process, incarnation))


def append(process: Process, incarnation: int, batch: bytes) -> Generator[int, None, Result]:
    question = _replica(process, incarnation).append(batch, UNCONDITIONAL)
    return (yield from _answer(question))


def read(process: Process, incarnation: int) -> Generator[int, None, Result]:
    return (yield from _answer(_replica(process, incarnation).read()))


def _replica(process: Process, incarnation: int) -> FleetReplica:
    found = process.replicas.get(incarnation)
    if found is None:
        raise NotLeader(f"{process.node.name} has no replica of it")
    return found


def _answer(question: Question) -> Generator[int, None, Result]:
    while question.result is None:
        yield POLL_US
    return question.result


def _lead(process: Process) -> Generator[int, None, int]:
    """The offset at which the catalog ends, if this node leads it and has applied all of it."""
    replica = _replica(process, process.world.catalog)
    if not replica.leads:
        raise NotLeader(f"{process.node.name} does not lead the catalog")
    result = yield from _answer(replica.read())
    if not isinstance(result, ReadAnswer):
        raise _problem(result)
    while process.catalog.applied < result.end_offset:
        yield POLL_US
    return result.end_offset


def _change(process: Process, record: bytes, end: int) -> Generator[int, None, bool]:
    """Append a record to the catalog; return False if another one came in between."""
    replica = _replica(process, process.world.catalog)
    batch = encode_batch([record])
    result = yield from _answer(replica.append(batch, AppendConditions(expect_offset=end)))
    if isinstance(result, OffsetMismatch):
        return False
    if not isinstance(result, Receipt):
        raise _problem(result)
    process.world.history.appended(process.world.catalog, result, batch)
    while process.catalog.applied < result.offset + 1:
        yield POLL_US
    return True


def _serving(process: Process, incarnation: int) -> Generator[int]:
    """Return once a leader of the log has committed the first entry of its term."""
    known = process.catalog.applied
    while process.plan.carried < known:
        yield POLL_US
    while not process.catalog.is_gone(incarnation):
        replica = process.replicas.get(incarnation)
        if incarnation in process.down:
            return  # this node cannot see whether a leader serves the log
        if replica is not None:
            result = yield from _answer(replica.read())
            if isinstance(result, ReadAnswer):
                return
        yield POLL_US
    raise LogNotFound(f"incarnation {incarnation:032x} was deleted meanwhile")


def _placed(process: Process, incarnation: int) -> Generator[int, None, int]:
    """Return once the members of the log serve its newest placement: the offset of its record."""
    while (placement := process.catalog.placement(incarnation)) is not None:
        if incarnation in process.down:
            return 0
        replica = process.replicas.get(incarnation)
        logged = replica.engine.state.membership if replica is not None else None
        if placement.record <= (logged.membership.intent if logged is not None else 0):
            return placement.record
        yield POLL_US
    raise LogNotFound(f"incarnation {incarnation:032x} was deleted meanwhile")


def _majority(process: Process, offset: int) -> Generator[int]:
    """Return once so many nodes have carried out the catalog up to ``offset``."""
    world = process.world
    done: set[str] = set()
    while len(done) <= len(world.nodes) // 2:
        yield POLL_US
        for node in world.nodes.values():
            other = node.process
            linked = other is process or (other and process.links.get(node.name) == other.number)
            if other is not None and linked and other.carried >= offset:
                done.add(node.name)


def _problem(result: Result) -> QuorateError:
    assert isinstance(result, QuorateError)  # every other result is an error
    return result
