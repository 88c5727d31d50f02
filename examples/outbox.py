"""Copy a table to a log, each row once, however often this is killed and run again.

``python examples/outbox.py shop.db orders`` with a cluster at QUORATE_ENDPOINTS or 127.0.0.1:7401.
The log itself knows how far the copy came: row n has the producer's sequence n.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from contextlib import closing

import quorate

ENDPOINTS = os.environ.get("QUORATE_ENDPOINTS", "127.0.0.1:7401")


def copy(database: sqlite3.Connection, log: quorate.Log) -> int:
    """Send the rows that the log does not have yet; how many these were."""
    with log.producer("outbox") as producer:
        before = producer.last_sequence
        rows = database.execute(
            "select number, payload from outbox where number > ? order by number", [before]
        )
        for number, payload in rows:
            producer.send(payload, key=str(number).encode())
    return producer.last_sequence - before


def main(path: str, name: str) -> None:
    with closing(sqlite3.connect(path)) as database, quorate.Client(ENDPOINTS) as client:
        database.execute(
            "create table if not exists outbox (number integer primary key, payload blob not null)"
        )
        copied = copy(database, client.log(name, create=True))
    print(f"{copied} rows copied")


if __name__ == "__main__":
    main(*sys.argv[1:])
