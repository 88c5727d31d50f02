"""Proposals with conditions and operations, at a cluster that is moved by hand."""

from __future__ import annotations

from itertools import count as counting
from typing import TYPE_CHECKING

from cluster_rig import led
from core_rig import config
from quorate.commands import OpenProducer, ProducerOpened, ProducerStamp, SetFence
from quorate.replica.engine_io import Operate, Propose
from quorate.state.judge import UNCONDITIONAL, AppendConditions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from verification.hand import HandCluster

SECOND_US = 1_000_000

# Above all that a cluster counts up to by itself.
_tokens = counting(1_000_000)


def stuck(**limits: int) -> HandCluster:
    """A group of one that leads and whose disk does nothing from now on: nothing commits."""
    cluster = led(1, config(**limits))
    cluster.auto_flush = False
    return cluster


def unstick(cluster: HandCluster) -> None:
    """Let the disk write what waits for it, and hang again."""
    cluster.auto_flush = True
    cluster.settle()
    cluster.auto_flush = False


def opening(name: str, number: int = 1, window: int = 4) -> OpenProducer:
    """By the ``number``-th instance; forgotten after a second."""
    return OpenProducer(name, number.to_bytes(16, "little"), window, SECOND_US)


def stamped(epoch: int, sequence: int, *, name: str = "p") -> AppendConditions:
    return AppendConditions(ProducerStamp(name, epoch, sequence))


def propose(
    cluster: HandCluster,
    conditions: AppendConditions = UNCONDITIONAL,
    *,
    count: int = 1,
    name: str = "n1",
) -> int:
    """One batch in a turn of its own."""
    token = next(_tokens)
    cluster.turn(name, [Propose(token, b"x", count, None, conditions)])
    return token


def at_once(
    cluster: HandCluster, conditions: Sequence[AppendConditions], *, name: str = "n1"
) -> list[int]:
    """Batches of one record that arrive in one turn."""
    tokens = [next(_tokens) for _ in conditions]
    proposals = zip(tokens, conditions, strict=True)
    cluster.turn(name, [Propose(token, b"x", 1, None, each) for token, each in proposals])
    return tokens


def operate(cluster: HandCluster, operation: OpenProducer | SetFence, *, name: str = "n1") -> int:
    token = next(_tokens)
    cluster.turn(name, [Operate(token, operation)])
    return token


def open_producer(
    cluster: HandCluster, name: str, number: int = 1, window: int = 4
) -> ProducerOpened:
    token = operate(cluster, opening(name, number, window))
    cluster.run(1)
    return opened(cluster, token)


def opened(cluster: HandCluster, token: int) -> ProducerOpened:
    answer = cluster.answers[token]
    assert isinstance(answer, ProducerOpened), answer
    return answer
