"""Nodes that are killed, stopped, cut off and started again while clients write."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from faults_rig import SMALL, Raw, Writer, batch_of, lag_free, page, until

from quorate.errors import OutcomeUnknown, QuorateError
from quorate.testing.processes import cluster
from quorate.wire.calls import ReadEnds, decode_result, encode_call
from quorate.wire.frames import FrameKind
from quorate.wire.requests import (
    AppendRequest,
    decode_failure,
    decode_receipts,
    encode_append,
    request_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from quorate.client.results import LogSummary
    from quorate.testing.processes import Cluster

# A machine may be busy with other things.
pytestmark = pytest.mark.timeout(240)

LOG = "orders"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("faults")
    with cluster(logs=[LOG], directory=directory, settings=SMALL) as running:
        yield running


@pytest.fixture
def nodes(shared: Cluster) -> Iterator[Cluster]:
    """All nodes are up and equal, before and after: so the log grows from test to test."""
    settle(shared)
    yield shared
    shared.heal()
    for name in shared.nodes:
        shared.resume(name)
        shared.begin(name)
    settle(shared)
    assert not any(node.gave_up for node in shared.nodes.values())


def settle(nodes: Cluster) -> None:
    until(lambda: lag_free(nodes, LOG), "all nodes have everything")


def look(nodes: Cluster) -> LogSummary:
    found = nodes.look(LOG)
    assert found is not None
    return found


class Questions:
    """What is put to one node, to be answered whenever it can."""

    def __init__(self, nodes: Cluster, name: str) -> None:
        self._raw = Raw(nodes.address(name))
        self._raw.say_hello()
        self._log = self._raw.find(LOG)

    def ask(self) -> None:
        """An append, and where the log ends."""
        batch = batch_of(b"to the old leader")
        self._raw.send(encode_append(AppendRequest(1, self._log, batch)), batch)
        self._raw.send(encode_call(2, ReadEnds(self._log.to_bytes(16, "little"))))

    def answers(self) -> tuple[str, str | int]:
        """What the append was answered, and where the log ends; codes of errors instead."""
        found: dict[int, str | int] = {}
        while len(found) < 2:
            frame = self._raw.receive()
            assert frame is not None, "the connection ended without an answer"
            if frame.kind is FrameKind.FAILURE:
                failure = decode_failure(frame)
                found[failure.request] = failure.error.code
            elif frame.kind is FrameKind.RECEIPTS:
                found[1] = f"term {decode_receipts(frame).term}"
            else:
                ends = ReadEnds(self._log.to_bytes(16, "little"))
                found[request_of(frame)] = decode_result(frame, ends).end
        self._raw.socket.close()
        return str(found[1]), found[2]


# -- killed ------------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", ["leader", "follower"])
def test_one_of_three_is_killed_and_nothing_is_lost(nodes: Cluster, victim: str) -> None:
    with Writer(nodes.client(), LOG) as writer:
        writer.goes_on()
        leader = nodes.wait_leader(LOG)
        killed = leader if victim == "leader" else nodes.others(leader)[0]
        nodes.kill(killed)
        writer.goes_on()
        nodes.begin(killed)
        settle(nodes)
        writer.goes_on()
    writer.check()


def test_all_are_killed_at_once_and_nothing_is_lost(nodes: Cluster) -> None:
    with Writer(nodes.client(), LOG) as writer:
        writer.goes_on()
        for name in nodes.nodes:
            nodes.kill(name)
        for name in nodes.nodes:
            nodes.begin(name)
        writer.goes_on()
    writer.check()


def test_two_of_three_are_killed_and_nothing_is_acknowledged(nodes: Cluster) -> None:
    leader = nodes.wait_leader(LOG)
    log = nodes.client(timeout=1.5).log(LOG)
    end = log.end_offset()
    for name in nodes.others(leader):
        nodes.kill(name)
    with pytest.raises(QuorateError) as refused:
        log.append(b"nobody can promise this")
    assert refused.value.code in ("OUTCOME_UNKNOWN", "NO_QUORUM", "NOT_LEADER", "TIMEOUT")
    with pytest.raises(QuorateError):
        log.end_offset()
    for name in nodes.others(leader):
        nodes.begin(name)
    settle(nodes)
    assert end <= nodes.client().log(LOG).end_offset() <= end + 1


# -- stopped -----------------------------------------------------------------------------------


def test_a_leader_that_was_stopped_knows_that_it_leads_no_more(nodes: Cluster) -> None:
    """What it is asked while it stands still, it answers as somebody who may be outdated."""
    leader = nodes.wait_leader(LOG)
    before = look(nodes)
    questions = Questions(nodes, leader)
    nodes.pause(leader)
    questions.ask()
    log = nodes.client().log(LOG)
    with suppress(OutcomeUnknown):
        log.append(b"to whoever leads")
    until(lambda: look(nodes)["leader"] not in (None, leader), "another one leads")
    acked = log.append(b"to the new leader")
    assert acked.term > before["term"]
    nodes.resume(leader)
    appended, end = questions.answers()
    assert appended in ("NOT_LEADER", "OUTCOME_UNKNOWN", "NO_QUORUM")
    assert isinstance(end, str) or end > acked.offset
    settle(nodes)
    assert [record.value for record in log.read(acked.offset)][:1] == [b"to the new leader"]


def test_a_stopped_leader_logs_no_append_whose_client_has_gone(tmp_path: Path) -> None:
    """It lies in the socket when the process goes on. A node alone leads on: no other may."""
    with cluster(1, logs=[LOG], directory=tmp_path, settings=SMALL) as alone:
        log = alone.client().log(LOG)
        log.append(b"before")
        gone, stays = Raw(alone.address("n1")), Raw(alone.address("n1"))
        for one in (gone, stays):
            one.say_hello()
        number, batch = stays.find(LOG), batch_of(b"late")
        alone.pause("n1")
        for one, request, deadline_ms in ((gone, 1, 500), (stays, 2, 500), (stays, 3, 60_000)):
            one.send(
                encode_append(AppendRequest(request, number, batch, deadline_ms=deadline_ms)), batch
            )
        gone.socket.close()
        time.sleep(1.5)
        alone.resume("n1")
        found = {}
        for _ in range(2):
            frame = stays.receive()
            assert frame is not None
            if frame.kind is FrameKind.FAILURE:
                failure = decode_failure(frame)
                found[failure.request] = failure.error.code
            else:
                [(request, offset, _)] = decode_receipts(frame).answers()
                found[request] = f"offset {offset}"
        stays.socket.close()
        assert found == {2: "TIMEOUT", 3: "offset 1"}
        assert log.end_offset() == 2


def test_a_short_stop_of_a_follower_changes_nothing(nodes: Cluster) -> None:
    leader = nodes.wait_leader(LOG)
    term = look(nodes)["term"]
    with Writer(nodes.client(), LOG) as writer:
        for follower in nodes.others(leader):
            nodes.pause(follower)
            writer.goes_on()
            nodes.resume(follower)
            settle(nodes)
    assert not writer.unknown
    assert not writer.refused
    assert look(nodes)["term"] == term
    writer.check()


# -- cut off -----------------------------------------------------------------------------------


def test_a_leader_that_is_cut_off_promises_nothing(nodes: Cluster) -> None:
    leader = nodes.wait_leader(LOG)
    before = look(nodes)
    questions = Questions(nodes, leader)
    nodes.partition([leader], nodes.others(leader))
    questions.ask()
    appended, end = questions.answers()
    assert appended in ("NOT_LEADER", "OUTCOME_UNKNOWN", "NO_QUORUM")
    assert end in ("NOT_LEADER", "NO_QUORUM", "BUSY", "TIMEOUT")
    # The others have a leader, who takes what the old one must not.
    log = nodes.client().log(LOG)
    until(lambda: look(nodes)["leader"] not in (None, leader), "another one leads")
    acked = log.append(b"to the majority")
    assert acked.term > before["term"]
    # Whoever asks only the one that is cut off is refused again, and learns nothing old.
    again = Questions(nodes, leader)
    again.ask()
    appended, end = again.answers()
    assert appended == "NOT_LEADER"
    assert isinstance(end, str)
    nodes.heal()
    settle(nodes)
    values = [record.value for record in log.read(before["end_offset"], linearizable=True)]
    assert b"to the majority" in values
    assert values.count(b"to the old leader") <= 1


@pytest.mark.parametrize("deaf", [True, False], ids=["deaf", "mute"])
def test_a_leader_that_is_cut_off_one_way_is_replaced(nodes: Cluster, deaf: bool) -> None:
    leader = nodes.wait_leader(LOG)
    term = look(nodes)["term"]
    with Writer(nodes.client(), LOG) as writer:
        writer.goes_on()
        for other in nodes.others(leader):
            nodes.cut(*((other, leader) if deaf else (leader, other)))
        until(lambda: look(nodes)["leader"] not in (None, leader), "another one leads")
        writer.goes_on()
        nodes.heal()
        settle(nodes)
    writer.check()
    assert look(nodes)["term"] <= term + 5


def test_a_follower_that_is_cut_off_returns_in_peace(nodes: Cluster) -> None:
    leader = nodes.wait_leader(LOG)
    term = look(nodes)["term"]
    follower = nodes.others(leader)[0]
    with Writer(nodes.client(), LOG) as writer:
        nodes.partition([follower], [other for other in nodes.nodes if other != follower])
        until(lambda: page(nodes, follower, "/livez")[0] == 200, "it lives")
        # Longer than any election waits.
        time.sleep(2.5)
        writer.goes_on()
        nodes.heal()
        settle(nodes)
    assert not writer.unknown
    assert look(nodes)["term"] == term
    writer.check()


def test_links_that_flap_make_no_terms(nodes: Cluster) -> None:
    """Every link of the leader, five times a second: nobody may campaign his way up."""
    leader = nodes.wait_leader(LOG)
    term = look(nodes)["term"]
    with Writer(nodes.client(), LOG) as writer:
        for _ in range(25):
            nodes.partition([leader], nodes.others(leader))
            time.sleep(0.1)
            nodes.heal()
            time.sleep(0.1)
        writer.goes_on()
    assert look(nodes)["term"] <= term + 3
    writer.check()


# -- started again -----------------------------------------------------------------------------


def test_a_rolling_restart_loses_nothing(nodes: Cluster) -> None:
    with Writer(nodes.client(), LOG) as writer:
        for name in nodes.nodes:
            writer.goes_on()
            nodes.stop(name)
            nodes.begin(name)
            settle(nodes)
        writer.goes_on()
    writer.check()


def test_all_restart_at_once_and_nothing_is_lost(nodes: Cluster) -> None:
    with Writer(nodes.client(), LOG) as writer:
        writer.goes_on()
        for name in nodes.nodes:
            nodes.stop(name)
        for name in nodes.nodes:
            nodes.begin(name)
        writer.goes_on()
    writer.check()
