"""The commands of scenario files: one function each, found by name in :data:`COMMANDS`.

A command changes the cluster or shows something of it; what it returns is output. What happened on
the way is added by the runner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial

from quorate.config import Config, Limits, Timing
from quorate.testing.scenario.cluster import Loss, ScenarioCluster
from quorate.testing.scenario.drawing import plant
from quorate.testing.scenario.expectations import expect, named_nodes
from quorate.testing.scenario.parser import Command, ScenarioError
from quorate.testing.scenario.rendering import (
    PADDING,
    log_table,
    message_line,
    peer_line,
    records_of,
    status_line,
)
from quorate.testing.scenario.words import (
    Selection,
    duration_ms,
    expand,
    links,
    options,
    selection,
    whole,
)

__all__ = ["COMMANDS", "make_cluster"]

Output = Sequence[str]
FATES = ("lost", "kept", "torn")


def make_cluster(command: Command) -> ScenarioCluster:
    """``cluster nodes=3 [leader=n1] [seed=1] [limit or timing of the config]...``: start anew.

    With ``leader`` that node has won term 1, and all have its noop and know it committed.
    """
    timings = {item.name for item in fields(Timing)}
    limits = {item.name for item in fields(Limits)}
    plain, chosen = options(command.words, {"leader", "nodes", "seed"} | timings | limits)
    if plain or "nodes" not in chosen:
        raise ScenarioError("cluster nodes=N [option=value]...")
    leader = chosen.pop("leader", None)
    numbers = {key: whole(value) for key, value in chosen.items()}
    config = Config(
        Timing(**{key: value for key, value in numbers.items() if key in timings}),
        Limits(**{key: value for key, value in numbers.items() if key in limits}),
    )
    cluster = ScenarioCluster(numbers["nodes"], config, seed=numbers.get("seed", 0))
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
    """``run 300ms``: time passes for all; everything is delivered and flushed at once."""
    (time,) = command.words
    cluster.run(_ticks(cluster, time))
    return []


def _tick(cluster: ScenarioCluster, command: Command) -> Output:
    """``tick n2 n3 1s``: time passes for these nodes; nothing is delivered."""
    *names, time = command.words
    for name in named_nodes(cluster, names):
        cluster.tick(name, _ticks(cluster, time))
    return []


def _settle(cluster: ScenarioCluster, command: Command) -> Output:
    """``settle``: deliver and flush until nothing moves; no time passes."""
    cluster.settle()
    return []


def _campaign(cluster: ScenarioCluster, command: Command) -> Output:
    """``campaign n1 n2``: one after the other loses patience and looks for votes."""
    for name in named_nodes(cluster, command.words):
        cluster.campaign(name)
    return []


def _elect(cluster: ScenarioCluster, command: Command) -> Output:
    """``elect n2``: nobody but a leader hears from one for a timeout, then n2 campaigns."""
    (name,) = named_nodes(cluster, command.words)
    cluster.elect(name)
    return []


# -- messages ----------------------------------------------------------------------------------


def _selected(cluster: ScenarioCluster, words: Sequence[str]) -> Selection:
    plain, more = options(words, ("term",))
    return selection(plain, cluster.voters, more.get("term"))


def _deliver(cluster: ScenarioCluster, command: Command) -> Output:
    """``deliver [n1->n2] [kind] [term=T] [first=K] [reversed]``: what lies on the table now."""
    plain, more = options(command.words, ("term", "first"))
    backwards = "reversed" in plain
    chosen = selection(
        [word for word in plain if word != "reversed"], cluster.voters, more.get("term")
    )
    taken = cluster.take(chosen)
    if not taken:
        raise ScenarioError("nothing of that kind is on the table")
    count = whole(more["first"]) if "first" in more else len(taken)
    now, later = taken[:count], taken[count:]
    cluster.table[:0] = later
    for envelope in reversed(now) if backwards else now:
        cluster.deliver(envelope)
    return []


def _drop(cluster: ScenarioCluster, command: Command) -> Output:
    """``drop [n1->n2] [kind]``: what lies on the table now is lost."""
    if not cluster.take(_selected(cluster, command.words)):
        raise ScenarioError("nothing of that kind is on the table")
    return []


def _copy(cluster: ScenarioCluster, command: Command) -> Output:
    """``copy n1->n2 append as old``: remember messages that lie on the table."""
    *words, joint, name = command.words
    chosen = _selected(cluster, words)
    found = [envelope for envelope in cluster.table if chosen(envelope)]
    if joint != "as" or not found:
        raise ScenarioError("copy SELECTION as NAME, of what is on the table")
    cluster.copies[name] = found
    return []


def _replay(cluster: ScenarioCluster, command: Command) -> Output:
    """``replay old``: what was remembered arrives (once more)."""
    (name,) = command.words
    if name not in cluster.copies:
        raise ScenarioError(f"nothing was copied as {name}")
    for envelope in cluster.copies[name]:
        cluster.deliver(envelope)
    return []


def _hold(cluster: ScenarioCluster, command: Command) -> Output:
    """``hold n1->n2 vote``: from now on such messages wait on the way."""
    cluster.holds.append(_selected(cluster, command.words))
    return []


def _release(cluster: ScenarioCluster, command: Command) -> Output:
    """``release``: nothing waits any longer; what did is on the table again."""
    cluster.release()
    return []


def _lose(cluster: ScenarioCluster, command: Command) -> Output:
    """``lose append one-in=3``: from now on a third of such messages is lost."""
    plain, more = options(command.words, ("one-in", "term"))
    chosen = selection(plain, cluster.voters, more.get("term"))
    cluster.losses.append(Loss(chosen, whole(more.get("one-in", "1"))))
    return []


def _cut(cluster: ScenarioCluster, command: Command) -> Output:
    """``cut n1->n2 n3--n4``: links that lose everything, in one or both directions."""
    for source, target in links(command.words, cluster.voters):
        cluster.cut(source, target)
    return []


def _isolate(cluster: ScenarioCluster, command: Command) -> Output:
    """``isolate n1 n2``: cut each of them off from everybody."""
    for name in named_nodes(cluster, command.words):
        cluster.isolate(name)
    return []


def _heal(cluster: ScenarioCluster, command: Command) -> Output:
    """``heal``: no link is cut or lossy any more."""
    cluster.heal()
    cluster.losses.clear()
    return []


def _link_closed(cluster: ScenarioCluster, command: Command) -> Output:
    """``link-closed n2 n1``: n2 sees its connection to n1 end."""
    name, peer = named_nodes(cluster, command.words)
    cluster.close_link(name, peer, refused=False)
    return []


def _link_refused(cluster: ScenarioCluster, command: Command) -> Output:
    """``link-refused n2 n1``: n2 tries to connect to n1 and nobody listens there."""
    name, peer = named_nodes(cluster, command.words)
    cluster.close_link(name, peer, refused=True)
    return []


# -- processes and disks -----------------------------------------------------------------------


def _crash(cluster: ScenarioCluster, command: Command) -> Output:
    """``crash n1 n2 [power lost|kept|torn]``: kill; with power, un-synced writes meet a fate."""
    words = list(command.words)
    fate = None
    if "power" in words:
        *words, power, outcome = words
        if power != "power" or outcome not in FATES:
            raise ScenarioError(f"crash NODE... power {'|'.join(FATES)}")
        fate = outcome
    for name in named_nodes(cluster, words):
        cluster.engine(name)
        cluster.crash(name, None if fate is None else lambda: fate)
    return []


def _restart(cluster: ScenarioCluster, command: Command) -> Output:
    """``restart n1 n2``: start again from what is on disk."""
    for name in named_nodes(cluster, command.words):
        if cluster.nodes[name].engine is not None:
            raise ScenarioError(f"{name} is up")
        cluster.restart(name)
    return []


def _pause(cluster: ScenarioCluster, command: Command) -> Output:
    """``pause n1``: the process stands still; what is sent to it waits in its sockets."""
    for name in named_nodes(cluster, command.words):
        cluster.pause(name)
    return []


def _resume(cluster: ScenarioCluster, command: Command) -> Output:
    """``resume n1``: it goes on and finds all that in one turn."""
    for name in named_nodes(cluster, command.words):
        cluster.resume(name)
    return []


def _disk(cluster: ScenarioCluster, command: Command) -> Output:
    """``disk n1 stuck``, ``disk n1 free``, ``disk n1 fails [steps=K]``: of its next flush."""
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
    """``flush n1 [steps=K]``: carry out what a stuck disk was given, or only its first steps."""
    plain, more = options(command.words, ("steps",))
    for name in named_nodes(cluster, plain):
        cluster.flush_by_hand(name, whole(more["steps"]) if "steps" in more else None)
    return []


# -- clients -----------------------------------------------------------------------------------


def _propose(cluster: ScenarioCluster, command: Command) -> Output:
    """``propose n1 a b x1..x9 [size=100] [term=2]``: one append each, known by its value."""
    plain, more = options(command.words, ("size", "term"))
    (name,) = named_nodes(cluster, plain[:1])
    cluster.engine(name)
    term = whole(more["term"]) if "term" in more else None
    for value in expand(plain[1:]):
        record = value.ljust(whole(more.get("size", "0")), PADDING).encode()
        cluster.call(value, partial(cluster.propose, name, record, 1, term))
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


# -- what can be seen --------------------------------------------------------------------------


def _logs(cluster: ScenarioCluster, command: Command) -> Output:
    """``logs [nodes]``: a row per node, a column per index."""
    names = named_nodes(cluster, command.words or cluster.voters)
    return log_table([cluster.nodes[name] for name in names])


def _status(cluster: ScenarioCluster, command: Command) -> Output:
    """``status [nodes]``: role, term, vote and watermarks."""
    names = named_nodes(cluster, command.words or cluster.voters)
    return [status_line(cluster.nodes[name]) for name in names]


def _table(cluster: ScenarioCluster, command: Command) -> Output:
    """``table [n1->n2] [kind]``: the messages that are on their way."""
    chosen = _selected(cluster, command.words)
    found = [message_line(envelope) for envelope in cluster.table if chosen(envelope)]
    return found or ["nothing is on its way"]


def _peers(cluster: ScenarioCluster, command: Command) -> Output:
    """``peers n1``: what the leader knows of the others."""
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
    """``expect ...``: fails the scenario unless it holds, whatever the output says."""
    expect(cluster, command.words)
    return []


COMMANDS: dict[str, Callable[[ScenarioCluster, Command], Output]] = {
    "campaign": _campaign,
    "copy": _copy,
    "crash": _crash,
    "cut": _cut,
    "deliver": _deliver,
    "disk": _disk,
    "drop": _drop,
    "elect": _elect,
    "expect": _expect,
    "flush": _flush,
    "heal": _heal,
    "hold": _hold,
    "isolate": _isolate,
    "link-closed": _link_closed,
    "link-refused": _link_refused,
    "logs": _logs,
    "lose": _lose,
    "pause": _pause,
    "peers": _peers,
    "plant": _plant,
    "propose": _propose,
    "read": _read,
    "records": _records,
    "release": _release,
    "replay": _replay,
    "restart": _restart,
    "resume": _resume,
    "run": _run,
    "settle": _settle,
    "status": _status,
    "table": _table,
    "tick": _tick,
}
