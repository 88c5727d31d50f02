"""Counting finds what is planted: an order that is lost, one that is there twice, a stranger."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import quorate.testing
from quorate.demo.counting import SinkTally, count_letters, count_paid
from quorate.demo.events import expected, fate, order

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorate.testing import Cluster

COUNT = 2000
PAID = [number for number in range(COUNT) if fate(number).paid]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    with quorate.testing.cluster(nodes=1, cuttable=False) as running:
        yield running


def filled(nodes: Cluster, name: str, numbers: list[int]) -> quorate.Log:
    log = nodes.client().create_log(name)
    log.append_batch([order(number) for number in numbers])
    return log


def test_a_log_without_a_fault(nodes: Cluster) -> None:
    assert len(PAID) == expected(COUNT).paid
    assert count_paid(filled(nodes, "right", PAID), COUNT) == SinkTally(len(PAID), 0, 0, 0)


def test_each_fault_is_found(nodes: Cluster) -> None:
    unpaid = next(number for number in range(COUNT) if not fate(number).paid)
    # Two are lost, one is there three times, one must not be there, and one nobody ever sent.
    numbers = [*PAID[2:], PAID[5], PAID[5], unpaid, COUNT]
    found = count_paid(filled(nodes, "wrong", numbers), COUNT)
    assert found == SinkTally(len(numbers), lost=2, duplicates=2, strangers=2)


def test_dead_letters_are_counted_by_their_code(nodes: Cluster) -> None:
    log = nodes.client().create_log("letters")
    for code in ("DECODE_FAILED", "CHECK_FAILED", "DECODE_FAILED"):
        log.append(b"?", headers=[("kept", b"x"), ("error.code", code.encode())])
    assert count_letters(log) == {"DECODE_FAILED": 2, "CHECK_FAILED": 1}
