"""Adversaries of linearizable reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.raft.messages import HeartbeatReply, ReadIndexReply

if TYPE_CHECKING:
    from collections.abc import Callable

    from quorate.raft.messages import Envelope
    from verification.sim.node import SimulatedNode
    from verification.sim.script import Script, ScriptStage

__all__ = ["answer_of_an_earlier_boot", "late_vouch", "stale_read"]


def stale_read(stage: ScriptStage) -> Script:
    """A leader that was replaced and does not know it is asked to read."""
    while True:
        stage.mend()
        yield stage.until_led()
        old = stage.world.leader()
        if old is None:
            continue
        others = stage.others(old)
        stage.only([old], others)
        if stage.pick(2):
            old.pause()
        yield stage.until_led_by(others)
        new = stage.leader_of(others)
        if new is not None:
            stage.append(new, 2)
            stage.world.clients.ask(old)
            yield stage.election_us // 4
            stage.world.clients.ask(old)
        old.resume()
        yield stage.election_us // 4
        stage.world.clients.ask(old)


def late_vouch(stage: ScriptStage) -> Script:
    """Answers to heartbeats of before a read arrive after it, at a leader that was replaced.

    The answers say that the leader was followed then, not that it still is.
    """
    world = stage.world
    while True:
        stage.held.clear()
        stage.mend()
        stage.reset_clock_rates()
        yield stage.until_led()
        old = world.leader()
        if old is None:
            continue
        others = stage.others(old)
        stage.set_clock_rates(fast=others, slow=[old])
        stage.hold(_heartbeat_reply(old))
        yield stage.election_us // 4
        stage.only(others)
        yield stage.until_led_by(others)
        new = stage.leader_of(others)
        if new is None:
            continue
        acked = world.clients.acked
        stage.append(new, 2)
        yield stage.within(1, lambda acked=acked: world.clients.acked > acked)  # type: ignore[misc]
        world.clients.ask(old)
        yield 1 + world.options.gather_us
        stage.release()
        yield stage.election_us // 4


def _heartbeat_reply(leader: SimulatedNode) -> Callable[[Envelope], bool]:
    def picked(envelope: Envelope) -> bool:
        return envelope.target == leader.name and type(envelope.message) is HeartbeatReply

    return picked


def answer_of_an_earlier_boot(stage: ScriptStage) -> Script:
    """A read's answer arrives when the asker has restarted and asked again by the same number."""
    while True:
        stage.held.clear()
        stage.mend()
        yield stage.until_led()
        leader = stage.world.leader()
        if leader is None:
            continue
        asker = stage.others(leader)[0]
        asker.kill()
        asker.start()
        yield stage.within(4, _caught_up(asker))
        stage.hold(_read_answer(asker))
        stage.world.clients.ask(asker)
        yield stage.within(2, lambda: bool(stage.held))
        asker.kill()
        asker.start()
        yield stage.within(4, _caught_up(asker))
        stage.lose(_any_to(asker))
        stage.append(leader)
        yield stage.election_us // 4
        stage.world.clients.ask(asker)
        yield 2 * stage.world.options.delay_us
        stage.release()
        yield stage.election_us // 2


def _read_answer(asker: SimulatedNode) -> Callable[[Envelope], bool]:
    def picked(envelope: Envelope) -> bool:
        return envelope.target == asker.name and type(envelope.message) is ReadIndexReply

    return picked


def _any_to(node: SimulatedNode) -> Callable[[Envelope], bool]:
    return lambda envelope: envelope.target == node.name


def _caught_up(node: SimulatedNode) -> Callable[[], bool]:
    def caught_up() -> bool:
        engine = node.engine
        return engine is not None and 0 < engine.core.raft.log.last_index == engine.applied

    return caught_up
