"""The error texts for a node that must not vote on its data directory, with advice for
operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.errors import QuorateError, WrongCluster, WrongDirectory

if TYPE_CHECKING:
    from quorate.storage.manifest import Outdated
    from quorate.wire.handshake import Introduction

__all__ = ["AS_LOST", "START_OVER", "describe_missed", "describe_older_copy"]

START_OVER = (
    "if no node of this cluster was ever ready, stop all of them, remove the data directory of "
    "each and start them again"
)
AS_LOST = (
    "put the newest data directory of {node} back, or leave {node} stopped: this release cannot "
    "replace it yet"
)
# Some peers may know one copy, others the other copy: no peer can tell which is the newest.
OTHER_COPY = (
    "put the data directory of that process back, unless it is refused, too; otherwise leave "
    "{node} stopped: this release cannot replace it yet"
)


def describe_missed(peer: str, said: Introduction, start: int, own: str) -> QuorateError:
    """The error with which ``own`` refuses ``peer`` for its introduction ``said``: the peer was not
    the process that ``own`` knows as start ``start`` of it, or does not remember that start."""
    what = f"node {peer} is at start {said.start}"
    if said.start < start:
        return WrongCluster(
            f"{what}, {own} knows of its start {start}: its data directory was rolled back to an "
            f"older copy, and what it acknowledged since then is not there; "
            f"{AS_LOST.format(node=peer)}"
        )
    if start == said.start or start in said.earlier:
        return WrongCluster(
            f"{what}, and its start {start} was another process than the one that {own} knows: "
            f"two copies of its data directory were started; {OTHER_COPY.format(node=peer)}"
        )
    return WrongCluster(
        f"{what}, and does not remember its start {start}, which {own} knows: it may be an older "
        f"copy that was started often. Restart {own}: it lets {peer} in if another node knows a "
        f"later start. Otherwise {AS_LOST.format(node=peer)}"
    )


def describe_older_copy(own: str, newest: int, proof: Outdated) -> WrongDirectory:
    """The error with which ``own`` halts; its directory knows starts up to ``newest``."""
    if proof.start > newest:
        what = f"knows its start {proof.start}, this directory knows up to {newest}"
        advice = AS_LOST.format(node=own)
    else:
        what = f"knows its start {proof.start} as another process"
        advice = OTHER_COPY.format(node=own)
    return WrongDirectory(
        f"the data directory of {own} is an older copy: {proof.peer} {what}. It was rolled back, "
        f"or a copy of it was started elsewhere. Nothing may be served from it, and {own} must not "
        f"vote; {advice}"
    )
