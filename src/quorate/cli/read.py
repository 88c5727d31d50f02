"""``quorate read``: print records as lines."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import click

from quorate.cli.options import WholeNumber, client_options, log_name
from quorate.cli.output import Counter, print_bytes

if TYPE_CHECKING:
    from quorate.cli.options import ClientOptions
    from quorate.client.blocking import Log
    from quorate.client.read.reading import Start
    from quorate.client.results import Record

__all__ = ["read"]

OFFSET_MAX = (1 << 63) - 1
# Records between two looks at the clock.
SHOWN = 1000


# -0 is 0 records before the end, so it is the end; as a number it would be the beginning.
_WORDS: dict[str, Start] = {"earliest": "earliest", "latest": "latest", "-0": "latest"}


class _Time(NamedTuple):
    """A time, in microseconds since 1970."""

    us: int


def _start(_: click.Context, __: click.Parameter, given: str) -> Start | _Time:
    if given in _WORDS:
        return _WORDS[given]
    with suppress(ValueError):
        return _Time(_microseconds(given[1:])) if given.startswith("@") else int(given)
    raise click.BadParameter(f"{given!r} is not OFFSET, earliest, latest, -N or @ISO8601")


def _microseconds(text: str) -> int:
    """The microseconds since 1970 of a time. Without a zone it is UTC: the same everywhere."""
    when = datetime.fromisoformat(text)
    when = when.replace(tzinfo=UTC) if when.tzinfo is None else when
    since = when - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


@click.command()
@click.argument("name", callback=log_name)
@click.option(
    "--from", "start", metavar="OFFSET|earliest|latest|-N|@ISO8601", callback=_start,
    default="earliest", show_default=True,
    help="Where to begin: -N is N records before the end, @ISO8601 the first record appended at "
    "that time or later; without a zone it is UTC.",
)  # fmt: skip
@click.option(
    "--to",
    "stop",
    metavar="OFFSET",
    type=WholeNumber(0, OFFSET_MAX),
    help="End before this offset.",
)
@click.option(
    "-n", "most", metavar="N", type=WholeNumber(0, OFFSET_MAX), help="Read N records at most."
)
@click.option("--follow", is_flag=True, help="Wait at the end for more records, until Ctrl-C.")
@client_options
def read(
    options: ClientOptions,
    name: str,
    start: Start | _Time,
    stop: int | None,
    most: int | None,
    follow: bool,
) -> None:
    """Print the records of the log NAME, one value a line.

    Every record that was acknowledged before the command began is printed. Without --follow it
    stops where the log ended when it began. With --json a line has offset, timestamp_us, key, value
    and headers; bytes that are not UTF-8 are {"base64": "…"}.
    """
    with options.client() as client:
        log = client.log(name)
        if isinstance(start, _Time):
            start = log.offset_at(start.us)
        if follow:
            # Ctrl-C is the usual end of --follow.
            with suppress(KeyboardInterrupt):
                _print(options, log, start, stop, most, follow=True)
        else:
            _print(options, log, start, stop, most, follow=False)


def _print(
    options: ClientOptions,
    log: Log,
    start: Start,
    stop: int | None,
    most: int | None,
    *,
    follow: bool,
) -> None:
    records = log.read(start, stop, follow, linearizable=True)
    try:
        with Counter("read", printing=True) as counter:
            for number, record in enumerate(islice(records, most), 1):
                line = _json(record) if options.as_json else record.value
                print_bytes(line + b"\n", flush=follow)
                if number % SHOWN == 0:
                    counter.show(number)
    finally:
        # An error is the last line of the output, so all records are written before it.
        print_bytes(b"", flush=True)


def _json(record: Record) -> bytes:
    return json.dumps(_document(record)).encode()


def _document(record: Record) -> dict[str, object]:
    return {
        "offset": record.offset,
        "timestamp_us": record.timestamp,
        "key": None if record.key is None else _text(record.key),
        "value": _text(record.value),
        "headers": [[name, _text(value)] for name, value in record.headers],
    }


def _text(data: bytes) -> str | dict[str, str]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
