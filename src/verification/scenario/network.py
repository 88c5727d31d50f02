"""The commands about messages and links: they deliver, lose, hold and show messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from verification.scenario.cluster import Loss, ScenarioCluster
from verification.scenario.expectations import named_nodes
from verification.scenario.parser import Command, ScenarioError
from verification.scenario.rendering import message_line
from verification.scenario.words import Selection, links, options, selection, whole

__all__ = ["NETWORK_COMMANDS", "Act", "Output"]

Output = Sequence[str]
Act = Callable[[ScenarioCluster, Command], Output]


def _selected(cluster: ScenarioCluster, words: Sequence[str]) -> Selection:
    plain, more = options(words, ("term",))
    return selection(plain, cluster.names, more.get("term"))


def _deliver(cluster: ScenarioCluster, command: Command) -> Output:
    """``deliver [n1->n2] [kind] [term=T] [first=K] [reversed]``: deliver messages of the table."""
    plain, more = options(command.words, ("term", "first"))
    backwards = "reversed" in plain
    chosen = selection(
        [word for word in plain if word != "reversed"], cluster.names, more.get("term")
    )
    taken = cluster.take(chosen)
    if not taken:
        raise ScenarioError("no such message is on the table")
    count = whole(more["first"]) if "first" in more else len(taken)
    now, later = taken[:count], taken[count:]
    cluster.table[:0] = later
    for envelope in reversed(now) if backwards else now:
        cluster.deliver(envelope)
    return []


def _drop(cluster: ScenarioCluster, command: Command) -> Output:
    """``drop [n1->n2] [kind]``: lose messages that are on the table now."""
    if not cluster.take(_selected(cluster, command.words)):
        raise ScenarioError("no such message is on the table")
    return []


def _copy(cluster: ScenarioCluster, command: Command) -> Output:
    """``copy n1->n2 append as old``: remember messages that lie on the table."""
    *words, joint, name = command.words
    chosen = _selected(cluster, words)
    found = [envelope for envelope in cluster.table if chosen(envelope)]
    if joint != "as" or not found:
        raise ScenarioError("copy SELECTION as NAME, of messages on the table")
    cluster.copies[name] = found
    return []


def _replay(cluster: ScenarioCluster, command: Command) -> Output:
    """``replay old``: the remembered messages arrive (once more)."""
    (name,) = command.words
    if name not in cluster.copies:
        raise ScenarioError(f"no message was copied as {name}")
    for envelope in cluster.copies[name]:
        cluster.deliver(envelope)
    return []


def _hold(cluster: ScenarioCluster, command: Command) -> Output:
    """``hold n1->n2 vote``: from now on such messages wait on the way."""
    cluster.holds.append(_selected(cluster, command.words))
    return []


def _release(cluster: ScenarioCluster, command: Command) -> Output:
    """``release``: no message waits any longer; those that did are on the table again."""
    cluster.release()
    return []


def _lose(cluster: ScenarioCluster, command: Command) -> Output:
    """``lose append one-in=3``: from now on a third of such messages is lost."""
    plain, more = options(command.words, ("one-in", "term"))
    chosen = selection(plain, cluster.names, more.get("term"))
    cluster.losses.append(Loss(chosen, whole(more.get("one-in", "1"))))
    return []


def _cut(cluster: ScenarioCluster, command: Command) -> Output:
    """``cut n1->n2 n3--n4``: links that lose every message, in one or both directions."""
    for source, target in links(command.words, cluster.names):
        cluster.cut(source, target)
    return []


def _isolate(cluster: ScenarioCluster, command: Command) -> Output:
    """``isolate n1 n2``: cut each of them off from every other node."""
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
    """``link-refused n2 n1``: n2 tries to connect to n1, and no process listens there."""
    name, peer = named_nodes(cluster, command.words)
    cluster.close_link(name, peer, refused=True)
    return []


def _table(cluster: ScenarioCluster, command: Command) -> Output:
    """``table [n1->n2] [kind]``: the messages that are on their way."""
    chosen = _selected(cluster, command.words)
    found = [message_line(envelope) for envelope in cluster.table if chosen(envelope)]
    return found or ["no message is on its way"]


NETWORK_COMMANDS: dict[str, Act] = {
    "copy": _copy,
    "cut": _cut,
    "deliver": _deliver,
    "drop": _drop,
    "heal": _heal,
    "hold": _hold,
    "isolate": _isolate,
    "link-closed": _link_closed,
    "link-refused": _link_refused,
    "lose": _lose,
    "release": _release,
    "replay": _replay,
    "table": _table,
}
