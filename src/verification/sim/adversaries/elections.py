"""Adversaries of elections: votes lost, late or undeserved, and links that only look dead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.raft.messages import Envelope, Vote, VoteReply
from quorate.storage.layout import VOTE_COPIES
from quorate.types import Role
from verification.sim.script import Until
from verification.sim.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Callable

    from verification.sim.node import SimulatedNode
    from verification.sim.script import Script, ScriptStage

__all__ = [
    "behind_campaigner",
    "crash_loop",
    "flapping_link",
    "late_vote",
    "lost_vote",
    "slow_leader",
    "torn_open",
    "unheard_leader",
]

# The factor of a disk that is as slow as the simulator allows.
SLOW = 1_000_000


def lost_vote(stage: ScriptStage) -> Script:
    """The only node that two candidates reach votes, loses power and is asked again."""
    world = stage.world
    nodes = stage.all
    while True:
        stage.mend()
        world.faults.inject("power_all", nodes[0], 1, 0)
        shift = stage.pick(len(nodes))
        voter, one, other = (nodes[shift:] + nodes[:shift])[:3]
        stage.only([voter, one], [voter, other])
        winners: list[SimulatedNode] = []
        world.network.intercept = _note_votes(stage, voter, winners)
        yield stage.within(6, lambda seen=winners: bool(seen))  # type: ignore[misc]
        if winners:
            stage.power_cut(voter, 1)
            yield world.options.delay_us * 3
            stage.only([voter, other if winners[0] is one else one])
            yield stage.election_us * 3
        stage.mend()
        yield stage.election_us * 2


def _note_votes(
    stage: ScriptStage, voter: SimulatedNode, winners: list[SimulatedNode]
) -> Callable[[Envelope], bool]:
    """Let every message pass, and note the candidates that ``voter`` votes for."""

    def watch(envelope: Envelope) -> bool:
        message = envelope.message
        if envelope.source == voter.name and type(message) is VoteReply and message.granted:
            winners.append(stage.world.nodes[envelope.target])
        return False

    return watch


def crash_loop(stage: ScriptStage) -> Script:
    """One node dies again and again, mostly while it writes its vote or opens its disk.

    Killed, it leaves writes that can be read and are not durable; then the power goes.
    """
    world = stage.world
    while True:
        victim = stage.all[stage.pick(len(stage.all))]
        for _ in range(1 + stage.pick(6)):
            world.faults.inject("kill" if stage.pick(2) else "power", victim, 1, 0)
            yield 1 + stage.pick(12 * world.options.disk_us)
        yield stage.pick(2 * stage.election_us)


def torn_open(stage: ScriptStage) -> Script:
    """A node dies while it opens, and loses power while it opens again.

    The writes of the first process are readable and not durable: if the second touches the other
    copy of the vote before that is settled, one power cut can tear both.
    """
    world = stage.world
    step = world.options.disk_us
    while True:
        victim = stage.all[stage.pick(len(stage.all))]
        victim.kill()
        victim.start()
        yield 1 + stage.pick(8 * step)
        victim.kill()
        victim.start()
        yield Until(lambda disk=victim.store.disk: disk.unsynced_in(VOTE_COPIES) > 1, 8 * step)  # type: ignore[misc]
        stage.power_cut(victim, 1)
        yield stage.election_us


def slow_leader(stage: ScriptStage) -> Script:
    """The leader's disk hangs while all others sync: it must not lead on others' disks for ever."""
    while True:
        yield stage.until_led()
        yield stage.until_equal(stage.all)
        leader = stage.world.leader()
        if leader is None:
            continue
        leader.disk_factor = SLOW
        stage.append(leader)
        term = leader.term
        yield stage.within(4, lambda node=leader, term=term: node.term > term or not node.leads)  # type: ignore[misc]
        if leader.leads and leader.term == term:
            raise Violation("slow-disk", f"{leader.name} still leads with a disk that hangs")
        leader.disk_factor = 1
        yield 8 * stage.election_us


def unheard_leader(stage: ScriptStage) -> Script:
    """One follower alone does not hear the leader: those that do must not help to replace it."""
    world = stage.world
    yield stage.until_led()
    yield stage.election_us * 2
    leader = world.leader()
    if leader is None:
        raise Violation("S5", "a quiet cluster has no leader")
    term = leader.term
    while True:
        victim = stage.others(leader)[stage.pick(len(stage.others(leader)))]
        links = world.links_between([leader.name], [victim.name])
        world.network.cut(links)
        yield (2 + stage.pick(3)) * stage.election_us
        world.network.mend(links)
        yield stage.election_us
        if not leader.leads or leader.term != term:
            raise Violation("S5", f"{leader.name} lost term {term} to {victim.name}")


def late_vote(stage: ScriptStage) -> Script:
    """A candidate's request arrives when more was committed without it.

    The candidate won the pre-vote while no voter heard the leader; before its request for votes
    arrives the leader, whose clock is slow, commits another entry with the very node that is asked.
    """
    while True:
        stage.held.clear()
        stage.mend()
        stage.reset_clock_rates()
        yield stage.until_led()
        leader = stage.world.leader()
        if leader is None:
            continue
        followers = stage.others(leader)
        yield stage.until_equal(stage.all)
        stage.set_clock_rates(fast=followers, slow=[leader])
        stage.only(followers)
        stage.hold(lambda envelope: type(envelope.message) is Vote)
        yield stage.within(2, lambda: bool(stage.held))
        if not stage.held or not leader.leads:
            continue
        candidate = stage.world.nodes[stage.held[0].source]
        candidate.set_clock_rate(0.5)  # it waits for the answers all the while
        voter = next(node for node in followers if node is not candidate)
        stage.only([leader, voter])
        stage.append(leader)
        yield stage.until_longer(voter, voter.store.durable.last)
        yield stage.election_us // 4
        stage.only([candidate, voter])
        yield stage.election_us * 3 // 4
        stage.world.network.intercept = None
        stage.release()
        yield stage.election_us


def behind_campaigner(stage: ScriptStage) -> Script:
    """A node that lacks entries may ask for pre-votes and must not get them."""
    while True:
        stage.mend()
        stage.start(*stage.all)
        yield stage.until_led()
        leader = stage.world.leader()
        if leader is None:
            continue
        behind, ahead = stage.others(leader)[:2]
        yield stage.until_equal(stage.all)
        stage.only([leader, ahead])
        last = behind.store.durable.last
        stage.append(leader, 2)
        yield stage.until_longer(ahead, last)
        yield stage.election_us // 4
        leader.kill()
        yield 4 * stage.world.options.delay_us  # messages that it sent to either have arrived
        if _last(ahead) <= _last(behind):
            continue  # an entry on its way to a disk counts in a vote
        stage.only([behind, ahead])
        term = max(behind.term, ahead.term)
        yield stage.within(6, _one_of(behind, ahead))
        if _campaigns(behind) and behind.term == term + 1 and ahead.term <= behind.term:
            raise Violation("S5", f"{behind.name} lacks entries and was let campaign")


def _one_of(behind: SimulatedNode, ahead: SimulatedNode) -> Callable[[], bool]:
    return lambda: ahead.leads or _campaigns(behind)


def _last(node: SimulatedNode) -> int:
    return node.engine.core.raft.log.last_index if node.engine is not None else 0


def _campaigns(node: SimulatedNode) -> bool:
    return node.engine is not None and node.engine.role is Role.CANDIDATE


def flapping_link(stage: ScriptStage) -> Script:
    """Links to the leader close and can be opened again at once: no leader may be deposed by
    that."""
    world = stage.world
    yield stage.until_led()
    yield stage.election_us * 2
    leader = world.leader()
    if leader is None:
        raise Violation("S35", "a quiet cluster has no leader")
    term = leader.term
    while True:
        for other in stage.others(leader):
            world.close_link(leader.name, other.name)
        yield 1 + stage.pick(stage.election_us // 4)
        if not leader.leads or leader.term != term:
            raise Violation("S35", f"{leader.name} lost term {term} to a flapping link")
