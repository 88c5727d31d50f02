"""Counts of the orders in a log, read with the ordinary client: Spark does not judge itself."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from quorate.demo.events import fate

if TYPE_CHECKING:
    from quorate.client.blocking import Log

__all__ = ["SinkTally", "count_letters", "count_paid"]

# The count of one order stops here: it has to fit into a byte.
SEEN_MAX = 255


class SinkTally(NamedTuple):
    """The contents of the log of a sink, compared with the expected orders."""

    records: int
    # Orders that have to be there and are not.
    lost: int
    # Records beyond the first of their order.
    duplicates: int
    # Records of orders that must not be there.
    strangers: int


class _Paid(msgspec.Struct):
    id: int


def count_paid(log: Log, orders: int) -> SinkTally:
    """Count the log of a sink. There are ``orders`` in all; which of them are paid is known."""
    decode = msgspec.json.Decoder(_Paid).decode
    seen = bytearray(orders)
    records = strangers = 0
    for batch in log.read_arrow(0, log.end_offset()):
        for value in batch.column("value").to_pylist():
            number = decode(value).id
            records += 1
            if not 0 <= number < orders:
                strangers += 1
            elif seen[number] < SEEN_MAX:
                seen[number] += 1
    distinct = lost = 0
    for number, times in enumerate(seen):
        if fate(number).paid:
            distinct += times > 0
            lost += times == 0
        else:
            strangers += times
    return SinkTally(records, lost, records - strangers - distinct, strangers)


def count_letters(log: Log) -> Counter[str]:
    """Dead letters by the code of their error."""
    return Counter(
        value.decode()
        for record in log.read(0, log.end_offset())
        for name, value in record.headers
        if name == "error.code"
    )
