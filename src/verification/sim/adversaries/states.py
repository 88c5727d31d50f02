"""Adversaries of the replicated state: refusals that are not certain, producers that fall silent,
and a state that strays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.raft.messages import Append
from quorate.replica.state_check import COMPARED_EVERY
from quorate.state.judge import AppendConditions
from quorate.state.producers import ProducerState
from quorate.state.runs import Runs
from verification.sim.violation import Violation

if TYPE_CHECKING:
    from quorate.raft.messages import Envelope
    from verification.sim.node import SimulatedNode
    from verification.sim.script import Script, ScriptStage

__all__ = ["hasty_refusal", "idle_producers", "stale_refusal", "strayed_state"]

SECOND_US = 1_000_000
FOREVER_US = 10**12


def stale_refusal(stage: ScriptStage) -> Script:
    """A leader that was replaced and does not know it gets an append that its successor would take.

    By its own state the log ends elsewhere: it must not refuse the append for that.
    """
    world = stage.world
    while True:
        stage.mend()
        stage.reset_clock_rates()
        yield stage.until_led()
        old = world.leader()
        if old is None:
            continue
        others = stage.others(old)
        stage.set_clock_rates(fast=others, slow=[old])
        stage.only([old], others)
        yield stage.until_led_by(others)
        new = stage.leader_of(others)
        if new is None:
            continue
        acked = world.clients.acked
        stage.append(new, 2)
        yield stage.within(1, lambda acked=acked: world.clients.acked > acked)  # type: ignore[misc]
        _append_at_the_end(stage, old)
        yield stage.election_us // 4


def hasty_refusal(stage: ScriptStage) -> Script:
    """A conditional append comes in one turn with the batch that makes its condition fail.

    The batch reaches no other node, while the leader still hears its peers: its place is not
    certain yet.
    """
    world = stage.world
    while True:
        stage.mend()
        yield stage.until_led()
        yield stage.election_us // 2
        leader = world.leader()
        if leader is None:
            continue
        stage.lose(_appends)
        leader.pause()
        stage.append(leader)
        _append_at_the_end(stage, leader)
        leader.resume()
        yield stage.election_us // 2


def _append_at_the_end(stage: ScriptStage, node: SimulatedNode) -> None:
    """Append with the condition that the log ends at the highest end ever applied."""
    ledger = stage.world.clients.ledger
    conditions = AppendConditions(fence=ledger.fence, expect_offset=ledger.ends[-1])
    stage.world.clients.append(node, conditions=conditions)


def _appends(envelope: Envelope) -> bool:
    return type(envelope.message) is Append


def idle_producers(stage: ScriptStage) -> Script:
    """Producers fall silent for longer than they may, and no two clocks agree."""
    while True:
        stage.start(*stage.all)
        for node in stage.all:
            node.wall_offset_us = stage.pick(30) * SECOND_US
        yield stage.until_led()
        yield 4 * SECOND_US
        leader = stage.world.leader()
        if leader is not None and stage.pick(2):
            leader.kill()
            yield stage.election_us * 2


def strayed_state(stage: ScriptStage) -> Script:
    """A follower's state is changed without its knowledge, where applying does not notice it.

    The replicas exchange digests of their states: it must learn that it strayed, and stop.
    """
    world = stage.world
    yield stage.until_led()
    yield stage.pick(stage.election_us)
    leader = world.leader()
    victim = stage.others(leader)[stage.pick(2)] if leader is not None else None
    if leader is not None and victim is not None:
        while not _stray(victim):
            yield 10 * world.options.delay_us
        due = (_applied(victim) // COMPARED_EVERY + 1) * COMPARED_EVERY
        while any(_applied(node) < due for node in stage.all):
            stage.append(leader)
            yield 2 * (world.options.delay_us + world.options.disk_us)
        yield stage.election_us
        if not victim.dead:
            raise Violation("C10", f"{victim.name} strayed before entry {due} and goes on")
    yield FOREVER_US


def _stray(node: SimulatedNode) -> bool:
    """Add a producer that no entry opened. False if the epoch is taken: not now, then."""
    engine = node.engine
    if engine is None or any(one.epoch == engine.applied for one in engine.state.producers):
        return False
    stray = ProducerState("stray", engine.applied, bytes(16), 0, Runs.of(), 1, SECOND_US, 0)
    engine.state.producers.add(stray)
    node.strayed = True
    return True


def _applied(node: SimulatedNode) -> int:
    """The index that a node has applied; a node that is down counts as far ahead."""
    return node.engine.applied if node.engine is not None else FOREVER_US
