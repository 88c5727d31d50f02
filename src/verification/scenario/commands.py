"""The commands of scenario files: one function each, found by name in :data:`COMMANDS`.

A command changes the cluster or shows a part of it; its return value is the output. The runner adds
the events on the way.
"""

from __future__ import annotations

from dataclasses import fields
from functools import partial

from quorate.config import Config, Limits, Timing
from quorate.membership import Membership
from quorate.raft.changes import MemberChange
from verification.disk.inode import KEPT, LOST, TORN
from verification.scenario.cluster import ScenarioCluster
from verification.scenario.drawing import plant
from verification.scenario.expectations import expect, named_nodes
from verification.scenario.network import NETWORK_COMMANDS, Act, Output
from verification.scenario.parser import Command, ScenarioError
from verification.scenario.rendering import (
    PADDING,
    log_table,
    peer_line,
    records_of,
    status_line,
)
from verification.scenario.words import (
    duration_ms,
    expand,
    options,
    whole,
)

__all__ = ["COMMANDS", "make_cluster"]

FATES = {"lost": LOST, "kept": KEPT, "torn": TORN}


def make_cluster(command: Command) -> ScenarioCluster:
    """``cluster nodes=4 [voters=3] [leader=n1] [limit or timing of the config]...``: start anew.

    The first ``voters`` nodes are the members of the log; all are, unless it is given. With
    ``leader`` that node has won term 1, and all members have its noop and know it committed.
    """
    timings = {item.name for item in fields(Timing)}
    limits = {item.name for item in fields(Limits)}
    plain, chosen = options(command.words, {"leader", "nodes", "voters"} | timings | limits)
    if plain or "nodes" not in chosen:
        raise ScenarioError(f"is written as {make_cluster.__doc__}")
    leader = chosen.pop("leader", None)
    numbers = {key: whole(value) for key, value in chosen.items()}
    config = Config(
        Timing(**{key: value for key, value in numbers.items() if key in timings}),
        Limits(**{key: value for key, value in numbers.items() if key in limits}),
    )
    cluster = ScenarioCluster(numbers["nodes"], config, numbers.get("voters"))
    if leader is not None:
        (name,) = named_nodes(cluster, [leader])
        cluster.elect(name)
        cluster.run(cluster.config.timing.ticks(cluster.config.timing.heartbeat_ms))
        cluster.forget()
    return cluster


def _plant(cluster: ScenarioCluster, command: Command) -> Output:
    """``plant`` with rows below it: start these nodes anew from drawn logs."""
    plant(cluster, command.body)
    return []


# -- time --------------------------------------------------------------------------------------


def _ticks(cluster: ScenarioCluster, word: str) -> int:
    return cluster.config.timing.ticks(duration_ms(word))


def _run(cluster: ScenarioCluster, command: Command) -> Output:
    """``run 300ms``: time passes for all nodes; messages and flushes are done at once."""
    (time,) = command.words
    cluster.run(_ticks(cluster, time))
    return []


def _tick(cluster: ScenarioCluster, command: Command) -> Output:
    """``tick n2 n3 1s``: time passes for these nodes; no message is delivered."""
    *names, time = command.words
    for name in named_nodes(cluster, names):
        cluster.tick(name, _ticks(cluster, time))
    return []


def _settle(cluster: ScenarioCluster, command: Command) -> Output:
    """``settle``: deliver and flush until no message and no flush is left; no time passes."""
    cluster.settle()
    return []


def _campaign(cluster: ScenarioCluster, command: Command) -> Output:
    """``campaign n1 n2``: each node in turn hears no leader for a timeout and looks for votes."""
    for name in named_nodes(cluster, command.words):
        cluster.campaign(name)
    return []


def _timeout(cluster: ScenarioCluster, command: Command) -> Output:
    """``timeout n2 n3``: these nodes hear no leader for a timeout; their messages are lost
    meanwhile."""
    cluster.time_out(named_nodes(cluster, command.words))
    return []


def _elect(cluster: ScenarioCluster, command: Command) -> Output:
    """``elect n2``: each follower of a leader times out; n2 is the first to stand, and wins."""
    (name,) = named_nodes(cluster, command.words)
    cluster.elect(name)
    return []


# -- processes and disks -----------------------------------------------------------------------


def _crash(cluster: ScenarioCluster, command: Command) -> Output:
    """``crash n1 n2 [power lost|kept|torn]``: kill; with power, un-synced changes meet a fate."""
    words = list(command.words)
    fate = None
    if "power" in words:
        *words, power, outcome = words
        if power != "power" or outcome not in FATES:
            raise ScenarioError(f"crash NODE... power {'|'.join(FATES)}")
        fate = FATES[outcome]
    for name in named_nodes(cluster, words):
        if fate is None:
            cluster.engine(name)  # a process can be killed once, the power can go at any time
        cluster.crash(name, None if fate is None else lambda: fate)
    return []


def _restart(cluster: ScenarioCluster, command: Command) -> Output:
    """``restart n1 n2``: start again with the contents of the disk."""
    for name in named_nodes(cluster, command.words):
        if cluster.nodes[name].engine is not None:
            raise ScenarioError(f"{name} is up")
        cluster.restart(name)
    return []


def _pause(cluster: ScenarioCluster, command: Command) -> Output:
    """``pause n1``: the process stands still; messages to it wait in its sockets."""
    for name in named_nodes(cluster, command.words):
        cluster.pause(name)
    return []


def _resume(cluster: ScenarioCluster, command: Command) -> Output:
    """``resume n1``: the process goes on and finds all waiting messages in one turn."""
    for name in named_nodes(cluster, command.words):
        cluster.resume(name)
    return []


def _disk(cluster: ScenarioCluster, command: Command) -> Output:
    """``disk n1 stuck``, ``disk n1 free``, ``disk n1 fails [steps=K]``: at its next flush."""
    plain, more = options(command.words, ("steps",))
    *names, state = plain
    for name in named_nodes(cluster, names):
        match state:
            case "stuck":
                cluster.stuck.add(name)
            case "free":
                cluster.stuck.discard(name)
                cluster.flush(name)
            case "fails":
                cluster.failing[name] = whole(more.get("steps", "0"))
                cluster.flush(name)
            case _:
                raise ScenarioError(f"disk {name} stuck|free|fails")
    return []


def _flush(cluster: ScenarioCluster, command: Command) -> Output:
    """``flush n1 [steps=K]``: carry out the flush of a stuck disk, or only its first steps."""
    plain, more = options(command.words, ("steps",))
    for name in named_nodes(cluster, plain):
        cluster.flush_by_hand(name, whole(more["steps"]) if "steps" in more else None)
    return []


# -- clients -----------------------------------------------------------------------------------


def _propose(cluster: ScenarioCluster, command: Command) -> Output:
    """``propose n1 a b x1..x9 [size=100]``: one append each, known by its value."""
    plain, more = options(command.words, ("size",))
    (name,) = named_nodes(cluster, plain[:1])
    cluster.engine(name)
    for value in expand(plain[1:]):
        record = value.ljust(whole(more.get("size", "0")), PADDING).encode()
        cluster.call(value, partial(cluster.propose, name, record))
    return []


def _read(cluster: ScenarioCluster, command: Command) -> Output:
    """``read n2 as r1``: ask n2 for the end of the log, linearizably."""
    name, joint, *labels = command.words
    (node,) = named_nodes(cluster, [name])
    cluster.engine(node)
    if joint != "as" or not labels:
        raise ScenarioError("read NODE as NAME...")
    for label in expand(labels):
        cluster.call(label, partial(cluster.read, node))
    return []


def _transfer(cluster: ScenarioCluster, command: Command) -> Output:
    """``transfer n1 n2 as t``: ask n1 to give the leadership to n2; ``transfer n1 as t``: to the
    fittest."""
    *names, joint, label = command.words
    named = named_nodes(cluster, names)
    if joint != "as" or len(named) not in (1, 2):
        raise ScenarioError("transfer NODE [NODE] as NAME")
    cluster.engine(named[0])
    cluster.call(label, partial(cluster.transfer, *named))
    return []


def _change(cluster: ScenarioCluster, command: Command) -> Output:
    """``change n1 voters=n1,n2,n4 [learners=n5] as c``: ask n1 to change the members."""
    words, chosen = options(command.words, {"voters", "learners"})
    if len(words) != 3 or words[1] != "as" or "voters" not in chosen:
        raise ScenarioError("change NODE voters=NODES [learners=NODES] as NAME")
    sets = {what: tuple(named_nodes(cluster, nodes.split(","))) for what, nodes in chosen.items()}
    (node,) = named_nodes(cluster, words[:1])
    cluster.engine(node)
    change = MemberChange(Membership(sets["voters"], sets.get("learners", ())))
    cluster.call(words[2], partial(cluster.change, node, change))
    return []


def _stop(cluster: ScenarioCluster, command: Command) -> Output:
    """``stop n1``: the node is told that it stops soon; its process goes on."""
    for name in named_nodes(cluster, command.words):
        cluster.stop(name)
    return []


# -- views -------------------------------------------------------------------------------------


def _logs(cluster: ScenarioCluster, command: Command) -> Output:
    """``logs [nodes]``: a row per node, a column per index."""
    names = named_nodes(cluster, command.words or cluster.names)
    return log_table([cluster.nodes[name] for name in names])


def _status(cluster: ScenarioCluster, command: Command) -> Output:
    """``status [nodes]``: role, term, vote and watermarks."""
    names = named_nodes(cluster, command.words or cluster.names)
    return [status_line(cluster.nodes[name]) for name in names]


def _peers(cluster: ScenarioCluster, command: Command) -> Output:
    """``peers n1``: the leader's knowledge of the other nodes."""
    (name,) = named_nodes(cluster, command.words)
    leader = cluster.engine(name).core.leader
    if leader is None:
        raise ScenarioError(f"{name} does not lead")
    return [peer_line(peer) for peer in leader.progress.values()]


def _records(cluster: ScenarioCluster, command: Command) -> Output:
    """``records n1``: the values of all applied records."""
    names = named_nodes(cluster, command.words or ["all"])
    return [f"{name}: {' '.join(records_of(cluster.engine(name)))}" for name in names]


def _expect(cluster: ScenarioCluster, command: Command) -> Output:
    """``expect ...``: fails the scenario unless the condition holds, also while output is
    rewritten."""
    expect(cluster, command.words)
    return []


COMMANDS: dict[str, Act] = {
    **NETWORK_COMMANDS,
    "campaign": _campaign,
    "change": _change,
    "crash": _crash,
    "disk": _disk,
    "elect": _elect,
    "expect": _expect,
    "flush": _flush,
    "logs": _logs,
    "pause": _pause,
    "peers": _peers,
    "plant": _plant,
    "propose": _propose,
    "read": _read,
    "records": _records,
    "restart": _restart,
    "resume": _resume,
    "run": _run,
    "settle": _settle,
    "status": _status,
    "stop": _stop,
    "tick": _tick,
    "timeout": _timeout,
    "transfer": _transfer,
}
