"""The orders of the demo, read by somebody who knows nothing of how they are made."""

from __future__ import annotations

import json
from collections import Counter

from quorate.demo.events import Expected, expected, fate, order, orders

COUNT = 12_345


def judged(record: bytes) -> tuple[str | None, bool]:
    """What the pipeline has to do with a record, from the record alone."""
    try:
        found = json.loads(record)
    except ValueError:
        return "DECODE_FAILED", False
    if not isinstance(found["amount"], float):
        return "DECODE_FAILED", False
    if found["amount"] <= 0:
        return "CHECK_FAILED", False
    return None, found["currency"] == "EUR"


def test_every_order_has_the_fate_that_it_looks_like() -> None:
    for number in range(COUNT):
        assert tuple(fate(number)) == judged(order(number)), order(number)


def test_what_is_expected_is_what_counting_finds() -> None:
    letters: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    cents: Counter[str] = Counter()
    for record in orders(0, COUNT):
        error, paid = judged(record)
        if paid:
            found = json.loads(record)
            counts[found["shop"]] += 1
            cents[found["shop"]] += round(100 * found["amount"])
        elif error is not None:
            letters[error] += 1
    want = expected(COUNT)
    assert want == Expected(COUNT, counts.total(), dict(letters), dict(counts), dict(cents))
    assert min(letters.values()) > 0
    assert len(counts) == 5


def test_orders_are_numbered() -> None:
    assert [json.loads(record)["id"] for record in orders(1000, 1003)] == [1000, 1001, 1002]
