"""Do something with each record of a log as it comes, and go on there after a restart.

``python examples/follow.py orders orders.position [COUNT]`` with a cluster at QUORATE_ENDPOINTS or
127.0.0.1:7401. It runs until Ctrl-C, or until it has seen COUNT records.

The position is written down after the work is done: a record is worked on again if this dies in
between. Where that matters, keep the position with the result, in one transaction.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from itertools import islice
from pathlib import Path

import quorate

ENDPOINTS = os.environ.get("QUORATE_ENDPOINTS", "127.0.0.1:7401")


def work(record: quorate.Record) -> None:
    print(record.offset, record.value.decode(), flush=True)


def main(name: str, path: str, count: str | None = None) -> None:
    position = Path(path)
    start = int(position.read_text()) if position.exists() else 0
    with quorate.Client(ENDPOINTS) as client:
        records = client.log(name).read(start, follow=True)
        for record in islice(records, None if count is None else int(count)):
            work(record)
            # In one step: whoever reads it sees the old number or the new one.
            new = position.with_suffix(".new")
            new.write_text(str(record.offset + 1))
            new.replace(position)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main(*sys.argv[1:])
