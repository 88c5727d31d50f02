"""The second phase: faults have stopped, and the cluster must come back by itself (C10, C11)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from quorate.raft.progress import PADDING_BYTES
from quorate.storage.layout import PAGE
from quorate.types import Index
from verification.sim.changes import require_settled_members
from verification.sim.committed import has_committed
from verification.sim.plans import LOOK_FOR_ROOM_US
from verification.sim.violation import Violation

if TYPE_CHECKING:
    from quorate.replica.engine import Engine
    from verification.sim.node import SimulatedNode
    from verification.sim.world import World

__all__ = ["end_over_budget", "recover_cluster", "serve_without_room"]

# Timeouts are drawn between one and two election timeouts, so five of them take at most ten.
LEADER_ELECTIONS = 10
# The number of times a leader may change because it lost an entry that another node has.
HANDOVERS = 50
# Election timeouts until nodes that cannot serve have fed one that can, and made room for it: they
# give up less and less often, at last after 160 election timeouts.
SERVING_ELECTIONS = 500
# Election timeouts until a leader that cannot serve made room for one that can.
SERVED_ELECTIONS = 40
FED_WITHIN_US = 1_000_000
MOVES_WITHIN_US = 2_000_000
ANSWER_WITHIN_US = 5_000_000
FRESH_APPENDS = 3
FRESH_BYTES = 10
# Bytes that a leader may still log of its own before the append: a noop, and a page of proof.
OWN_BYTES = 2 * PAGE
OVER_BUDGET_US = 5_000_000
STALLED = "event peer-stalled"

# Matches a file with the entries or the record that it lost.
_PRECISE = re.compile(r"\.segment.*entr|vote record")


def recover_cluster(world: World) -> None:
    """Heal ``world`` and require all that a healthy cluster promises its users."""
    world.heal()
    stalls = _begun_in_trouble(world)
    _require_serving_leader(world)
    require_settled_members(world)
    _require_leader(world)
    if _lacks_entries(world):
        _require_lasting_leader(world)
    _require_feeding(world)
    _require_convergence(world)
    _require_answers(world)
    _require_reads(world)
    _require_appends(world)
    _require_convergence(world)
    _require_records(world)
    healthy = len(_fed(world)) == len(_engines(world))
    if healthy and not _lacks_entries(world):
        _require_transfer(world)
    if not healthy:
        world.sometimes["stayed behind an entry that the leader lost"] += 1
    elif stalls and world.sometimes[STALLED] > stalls[0]:
        raise Violation("C11", "the watchdog had to free a peer of a healthy cluster")
    world.sometimes["recovered"] += 1


def serve_without_room(world: World) -> None:
    """Disks stay full, and all other trouble is over: a node leads and answers reads. Entries that
    it replaced give their room back. Appends are taken, too, if they fit on a majority of disks."""
    world.heal()
    _require_leader(world)
    # A leader that cannot serve has to notice it, and another node has to be elected.
    patience = world.now + SERVED_ELECTIONS * world.config.timing.election_ms * 1000
    while not _is_read(world):
        if world.now > patience:
            raise Violation("C11", "on full disks no leader answers a read")
    while _holds_replaced(world):
        if world.now > patience:
            raise Violation("C11", "entries that the leader replaced keep their room on a disk")
        world.run_until(lambda: False, world.now + 1000 * world.config.timing.heartbeat_ms)
    with_room = {engine.node for engine in _engines(world) if _takes_appends(engine)}
    if world.invariants.quorums.settled.agreed(with_room.__contains__):
        while not _is_appended(world):
            if world.now > patience:
                raise Violation("C11", "a majority has room for an append, and no leader takes it")
        world.sometimes["took appends on disks that stay full"] += 1
    _require_answers(world)
    world.sometimes["served reads on full disks"] += 1


def _holds_replaced(world: World) -> bool:
    """Whether a log differs from the leader's before the leader's end: the leader has entries that
    take the place of those, room or not."""
    node = world.leader()
    if node is None or node.engine is None:
        return True
    logs = [engine.core.raft.log for engine in _engines(world)]
    led = node.engine.core.raft.log
    return not all(led.holds(log.position(min(log.last_index, led.last_index))) for log in logs)


def _takes_appends(engine: Engine) -> bool:
    """Whether there is room for an append, and for the records that the group logs along with
    it."""
    return engine.disk_space.takes(FRESH_BYTES + PADDING_BYTES + OWN_BYTES, 1)


def _is_appended(world: World) -> bool:
    """Whether the leader, if there is one now, takes an append."""
    node = world.leader()
    world.run_until(lambda: False, world.now + 1000 * world.config.timing.heartbeat_ms)
    return node is not None and _append(world, node)


def _is_read(world: World) -> bool:
    """Whether the leader, if there is one now, answers a read."""
    node = world.leader()
    if node is None:
        world.run_until(lambda: False, world.now + 1000 * world.config.timing.election_ms)
        return False
    answered = world.clients.read
    token = world.clients.ask(node)
    world.run_until(lambda: not world.clients.open(token), world.now + ANSWER_WITHIN_US)
    return world.clients.read > answered


def _members(world: World) -> list[SimulatedNode]:
    """The nodes that hold the log by the last membership that was committed."""
    return [world.nodes[name] for name in world.invariants.quorums.settled.members]


def _engines(world: World) -> list[Engine]:
    """The engines of the members that are up."""
    return [node.engine for node in _members(world) if node.engine is not None]


def _whole(world: World) -> list[SimulatedNode]:
    """The nodes that are up and can apply every committed entry."""
    losses = world.losses
    return [
        node
        for node in _fed(world)
        if node.engine is not None
        and (node.name not in losses.unfit or not node.engine.core.raft.without_body)
        and node.engine.core.raft.lost is None
    ]


def _fed(world: World) -> list[SimulatedNode]:
    """The nodes that are up and lack no entry that the leader lost."""
    leader = world.leader()
    return [
        node
        for node in _members(world)
        if node.engine is not None and (leader is None or not world.losses.bars(leader, node))
    ]


def _begun_in_trouble(world: World) -> list[int]:
    """The number of times the watchdog had to act, once every node that stood still in trouble has
    moved again or was freed; an empty list until then."""
    counts: list[int] = []
    calm = max(world.now, *(node.disk_busy_until for node in world.nodes.values()))
    wait_us = calm - world.now + 1000 * world.config.timing.watchdog_ms
    world.after(wait_us, lambda: counts.append(world.sometimes[STALLED]))
    return counts


def end_over_budget(world: World) -> None:
    """More disks rotted than a group can stand. The group may go on or stand still; a node that
    gave up must have named its losses precisely, and every answer must be true: the invariants
    check that.
    """
    world.heal()
    world.run_until(lambda: False, world.now + OVER_BUDGET_US)
    for halt in world.halts:
        if not (_PRECISE.search(halt) and "go on with the other nodes" in halt):
            raise Violation("halt", f"gave up without naming its losses: {halt}")
    gone = sum(node.dead for node in world.nodes.values())
    if 2 * gone >= len(world.nodes):
        world.sometimes["stood still without a majority of disks"] += 1


def _led(world: World) -> bool:
    """Whether every member is up and follows the same leader in the same term."""
    engines, members = _engines(world), _members(world)
    if len(engines) + sum(node.dead for node in members) < len(members):
        return False
    rafts = [engine.core.raft for engine in engines]
    return (
        len({raft.term for raft in rafts}) == 1
        and len({raft.leader for raft in rafts}) == 1
        and rafts[0].leader is not None
    )


def _require_leader(world: World) -> None:
    election_us = world.config.timing.election_ms * 1000
    # A disk step that was slow when the fault ended takes its full time; the count starts after it.
    world.run_until(lambda: False, max(node.disk_busy_until for node in world.nodes.values()))
    # A node that looks for room finds the room that is there again.
    world.run_until(lambda: not _any_full(world), world.now + 2 * LOOK_FOR_ROOM_US)
    healed = world.now
    # A leader that was cut off until now may look like one for another timeout.
    world.run_until(lambda: False, healed + 2 * election_us)
    if not world.run_until(lambda: _led(world), healed + LEADER_ELECTIONS * election_us):
        roles = [(e.node, e.role.name, e.core.raft.term) for e in _engines(world)]
        raise Violation("C11", f"no leader in five election timeouts after healing: {roles}")


def _require_serving_leader(world: World) -> None:
    """Nodes that cannot serve may lead, to feed the others, until one can."""
    election_us = world.config.timing.election_ms * 1000
    led = world.leader()
    resorts = led is not None and not _serves(led)
    if not (world.losses.stopped or resorts):
        return

    def served() -> bool:
        leader = world.leader()
        return leader is not None and _serves(leader)

    world.sometimes["led by a node that cannot serve"] += 1
    if not world.run_until(served, world.now + SERVING_ELECTIONS * election_us):
        raise Violation("C11", "no node leads that can serve, and each entry is whole somewhere")


def _serves(node: SimulatedNode) -> bool:
    return node.engine is not None and node.engine.core.raft.lost is None


def _lacks_entries(world: World) -> bool:
    """Whether a node lost entries that it may have to feed to another one."""
    lost = any(engine.core.raft.without_body for engine in _engines(world))
    return lost or world.losses.bodies > 0


def _require_lasting_leader(world: World) -> None:
    """Leaders that lost entries hand over to one another until no node needs an entry that the
    leader lacks."""
    election_us = world.config.timing.election_ms * 1000
    for _ in range(HANDOVERS):
        before = world.leader()
        world.run_until(
            lambda before=before: world.leader() is not before,  # type: ignore[misc]
            world.now + LEADER_ELECTIONS * election_us,
        )
        if world.leader() is before and _led(world):
            return
        world.sometimes["handed over for an entry that is lost"] += 1
        _require_leader(world)
    raise Violation("C11", f"the leader changed {HANDOVERS} times after healing")


def _any_full(world: World) -> bool:
    return any(engine.core.raft.full for engine in _engines(world))


def _leader(world: World) -> tuple[SimulatedNode, Engine]:
    node = world.leader()
    if node is None or node.engine is None:
        raise Violation("C11", "the leader of a healthy cluster was lost")
    return node, node.engine


def _require_feeding(world: World) -> None:
    """A node that lacks entries gets some within a second, however long it was cut off."""
    node, engine = _leader(world)
    leader = engine.core.leader
    if leader is None:
        raise Violation("C11", "the leader of a healthy cluster was lost")
    last = engine.core.raft.log.last_index
    members = world.invariants.quorums.settled.members
    before = {name: progress.match for name, progress in leader.progress.items() if name in members}

    def fed() -> bool:
        return all(
            leader.progress[name].match > match
            or leader.progress[name].match >= last
            or world.nodes[name].dead
            or world.losses.bars(node, world.nodes[name])
            for name, match in before.items()
        )

    if not world.run_until(fed, world.now + FED_WITHIN_US):
        after = {name: progress.match for name, progress in leader.progress.items()}
        raise Violation("C11", f"not fed within a second: last {last}, {before} -> {after}")


def _require_answers(world: World) -> None:
    """Every request that was sent under fire has an answer by now, at least that its outcome is
    unknown."""
    if not world.run_until(lambda: world.clients.idle, world.now + ANSWER_WITHIN_US):
        raise Violation("C11", "an operation of a live process got no answer")


def _require_reads(world: World) -> None:
    """Every node answers a read before the first append: the leader's noop must suffice."""
    for node in _whole(world):
        _require_read(world, node)


def _require_read(world: World, node: SimulatedNode) -> None:
    answered = world.clients.read
    token = world.clients.ask(node)
    if not world.run_until(lambda: not world.clients.open(token), world.now + ANSWER_WITHIN_US):
        raise Violation("C11", f"a read at {node.name} got no answer")
    if world.clients.read == answered:
        raise Violation("C11", f"a read at {node.name} was refused in a healthy cluster")


def _require_records(world: World) -> None:
    """Every node that lost no entry shows the whole log; together, the nodes always do."""
    for node in _whole(world):
        if node not in world.losses:
            world.clients.readers.read_all([node])
    world.clients.readers.read_all(_members(world))


def _require_appends(world: World) -> None:
    for _ in range(FRESH_APPENDS):
        node, _ = _leader(world)
        # A peer may have told of little room before it found more. Until its next answer to a
        # heartbeat the leader refuses an append that may not fit.
        if _append(world, node) or _is_appended(world):
            continue
        # The leader may have handed over for an entry that it lost and a slow peer still needs.
        if _lacks_entries(world):
            _require_lasting_leader(world)
            if _is_appended(world):
                continue
        raise Violation("C11", f"an append at {node.name} was not acked in a healthy cluster")


def _require_transfer(world: World) -> None:
    """The leader can give the leadership to each other node that can serve, and all goes on. A node
    of priority 0 is not asked for."""
    deadline = world.now + LEADER_ELECTIONS * world.config.timing.election_ms * 1000
    _, engine = _leader(world)
    settled = world.invariants.quorums.settled
    targets = {*settled.voters} - settled.leads_last
    others = [node for node in _whole(world) if node.engine is not engine and node.name in targets]
    for target in others:
        # A node that handed over for its disk refuses for a while; so may the first leader asked.
        while not _transfer(world, target):
            if world.now > deadline:
                raise Violation("C14", f"{target.name} cannot be given the leadership")
            _require_leader(world)
    if others:
        _require_appends(world)


def _transfer(world: World, target: SimulatedNode) -> bool:
    """Whether the leader gives the leadership to ``target``."""
    node, _ = _leader(world)
    transfers = world.clients.transfers
    done = transfers.done
    token = transfers.ask(node, target.name)
    world.run_until(lambda: not world.clients.open(token), world.now + ANSWER_WITHIN_US)
    return transfers.done > done


def _append(world: World, node: SimulatedNode) -> bool:
    """Whether an append at ``node`` is acknowledged."""
    acked = world.clients.acked
    token = world.clients.append(node, size=FRESH_BYTES)
    world.run_until(lambda: not world.clients.open(token), world.now + ANSWER_WITHIN_US)
    return world.clients.acked > acked


def _require_no_debts(engine: Engine) -> None:
    """I15 needs counts that return to zero: a leak would close a window or a queue."""
    leader = engine.core.leader
    if leader is None or leader.uncommitted_bytes:
        raise Violation("I15", f"{engine.node}: all is committed, but not by its count of bytes")
    for peer in leader.progress.values():
        if peer.match == engine.core.raft.log.last_index and peer.inflight_bytes:
            raise Violation("I15", f"{engine.node}: {peer.node} acked all, {peer.inflight_bytes}")


def _require_convergence(world: World) -> None:
    def equal() -> bool:
        _, leader = _leader(world)
        last = leader.core.raft.log.last_index
        return all(
            node.engine is not None and node.engine.core.raft.persisted == last
            for node in _fed(world)
        ) and all(node.engine is not None and node.engine.applied == last for node in _whole(world))

    def marks() -> list[tuple[str, Index, Index]]:
        return [
            (engine.node, engine.core.raft.persisted, engine.applied) for engine in _engines(world)
        ]

    # Small windows over long links take time: the rule requires only that some index moves.
    before = marks()
    while not world.run_until(equal, world.now + MOVES_WITHIN_US):
        if marks() == before:
            raise Violation("C11", f"copies do not become equal: {before}")
        before = marks()
    _, leader = _leader(world)
    _require_no_debts(leader)
    engines = [node.engine for node in _whole(world) if node.engine is not None]
    states = {(engine.state.end, engine.state.digest()) for engine in engines}
    if len(states) > 1:
        raise Violation("C10", f"equal logs, other states: {sorted(states)}")
    committed = Index(len(world.invariants.committed))
    if not has_committed(world.invariants.committed, leader.core.raft, committed):
        raise Violation("C1", f"entry {committed} was committed and is gone")
