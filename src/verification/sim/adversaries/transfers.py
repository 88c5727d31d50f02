"""Adversaries of the transfer of the leadership: messages of it that come late, or never."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.raft.messages import Envelope, Transfer, TransferRefused, Vote
from verification.sim.violation import Violation

if TYPE_CHECKING:
    from verification.sim.script import Script, ScriptStage

__all__ = ["late_transfer", "late_transfer_vote", "lost_transfer"]


def _is_transfer(envelope: Envelope) -> bool:
    return type(envelope.message) is Transfer


def _is_transfer_vote(envelope: Envelope) -> bool:
    return isinstance(envelope.message, Vote) and envelope.message.transfer


def late_transfer(stage: ScriptStage) -> Script:
    """The request to take over arrives when the leader has given it up and logged more, and in some
    rounds when another node has led meanwhile: it must depose no node."""
    world = stage.world
    while True:
        stage.held.clear()
        stage.mend()
        yield stage.until_led()
        yield stage.until_equal(stage.all)
        leader = world.leader()
        if leader is None:
            continue
        term = leader.term
        target = stage.others(leader)[stage.pick(len(stage.others(leader)))]
        stage.hold(_is_transfer)
        world.clients.transfers.ask(leader, target.name)
        yield stage.within(1, lambda: bool(stage.held))
        yield 3 * stage.election_us // 2
        world.network.intercept = None
        stage.append(leader)
        yield stage.until_longer(target, target.store.durable.last)
        moved = stage.pick(3) == 0
        if moved:
            world.clients.transfers.ask(leader, None)
            yield stage.election_us
        led = world.leader()
        stage.release()
        yield stage.election_us
        if not moved and leader.term == term and not leader.leads:
            raise Violation("R16", f"{leader.name} lost term {term} to a late transfer")
        if led is not None and led.term > term and not led.leads:
            raise Violation("R16", f"{led.name} lost term {led.term} to a transfer of {term}")


def late_transfer_vote(stage: ScriptStage) -> Script:
    """The votes that a candidate asks for, at the leader's request, arrive when others have led."""
    world = stage.world
    while True:
        stage.held.clear()
        stage.mend()
        yield stage.until_led()
        leader = world.leader()
        if leader is None:
            continue
        stage.hold(_is_transfer_vote)
        world.clients.transfers.ask(leader, None)
        yield stage.within(2, lambda: bool(stage.held))
        yield (1 + stage.pick(4)) * stage.election_us
        stage.append(world.leader() or leader)
        world.network.intercept = None
        stage.release()
        yield stage.election_us


def lost_transfer(stage: ScriptStage) -> Script:
    """The request to take over is lost, its refusal is lost, or its target dies or hangs: the
    leader takes appends again after an election timeout."""
    world = stage.world
    while True:
        stage.mend()
        stage.start(*stage.all)
        yield stage.until_led()
        yield stage.until_equal(stage.all)
        leader = world.leader()
        if leader is None:
            continue
        term = leader.term
        target = stage.others(leader)[stage.pick(len(stage.others(leader)))]
        way = stage.pick(3)
        if way == 0:
            stage.lose(_is_transfer)
        elif way == 1:
            stage.lose(lambda envelope: type(envelope.message) is TransferRefused)
        world.clients.transfers.ask(leader, target.name)
        if way == 2:
            yield stage.pick(4 * world.options.delay_us)
            world.faults.inject("kill", target, 2 * stage.election_us, 0)
        stage.append(leader)
        yield 5 * stage.election_us // 2
        acked = world.clients.acked
        stage.append(leader)
        yield stage.within(1, lambda acked=acked: world.clients.acked > acked)  # type: ignore[misc]
        same = leader.leads and leader.term == term
        if same and world.clients.acked == acked:
            raise Violation("R17", f"{leader.name} takes no append after a transfer that failed")
