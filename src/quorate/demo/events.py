"""The orders of the demo: each is made from its number alone, so its fate is known."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

__all__ = ["Expected", "Fate", "expected", "fate", "order", "orders"]

SHOPS = ("north", "south", "east", "west", "web")
# Of ten orders: seven, two and one.
CURRENCIES = ("EUR", "EUR", "EUR", "EUR", "EUR", "EUR", "EUR", "USD", "USD", "GBP")
# Of a thousand orders three are faulty, each in another way.
PERIOD = 1000
CUT_OFF = 137
NO_NUMBER = 411
NEGATIVE = 733
CENTS_MIN = 100
# The span has no divisor in common with the step, so that amounts do not repeat for long.
CENTS_SPAN = 49_900
CENTS_STEP = 7919


class Fate(NamedTuple):
    """The expected result of one order."""

    # DECODE_FAILED or CHECK_FAILED if the order is to be a dead letter.
    error: str | None
    # Whether the order is to be in the log of paid orders.
    paid: bool


class Expected(NamedTuple):
    """The expected results of the first ``orders`` orders."""

    orders: int
    paid: int
    # Dead letters by their code.
    letters: dict[str, int]
    # By shop: the number of paid orders, and the sum of their amounts.
    counts: dict[str, int]
    cents: dict[str, int]


def order(number: int) -> bytes:
    """The record of one order."""
    kind = number % PERIOD
    cents = _cents(number)
    amount = b"%d.%02d" % divmod(cents, 100)
    if kind == NO_NUMBER:
        amount = b'"a lot"'
    elif kind == NEGATIVE:
        amount = b"-" + amount
    text = b'{"id":%d,"shop":"%s","amount":%s,"currency":"%s"}' % (
        number, _shop(number).encode(), amount, CURRENCIES[number % 10].encode(),
    )  # fmt: skip
    return text[:-20] if kind == CUT_OFF else text


def orders(first: int, end: int) -> list[bytes]:
    """The records of the orders from ``first`` to before ``end``."""
    return [order(number) for number in range(first, end)]


def fate(number: int) -> Fate:
    return _FATES[number % PERIOD]


def expected(count: int) -> Expected:
    letters: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    cents: Counter[str] = Counter()
    for kind, (error, paid) in enumerate(_FATES):
        numbers = range(kind, count, PERIOD)
        if paid:
            counts[_shop(kind)] += len(numbers)
            cents[_shop(kind)] += sum(map(_cents, numbers))
        elif error is not None:
            letters[error] += len(numbers)
    return Expected(count, counts.total(), dict(letters), dict(counts), dict(cents))


def _cents(number: int) -> int:
    return CENTS_MIN + number * CENTS_STEP % CENTS_SPAN


def _shop(number: int) -> str:
    return SHOPS[number // 10 % len(SHOPS)]


def _fate(kind: int) -> Fate:
    if kind in (CUT_OFF, NO_NUMBER):
        return Fate("DECODE_FAILED", paid=False)
    if kind == NEGATIVE:
        return Fate("CHECK_FAILED", paid=False)
    return Fate(None, paid=CURRENCIES[kind % 10] == "EUR")


# Currency, shop and fault repeat after a thousand orders; only amounts go on.
_FATES = [_fate(kind) for kind in range(PERIOD)]
