"""``quorate append``: lines become records."""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from quorate.cli.options import client_options
from quorate.cli.output import Counter, count, print_json
from quorate.errors import OutcomeUnknown, QuorateError, TooLarge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from quorate.cli.options import ClientOptions
    from quorate.client.producer import Producer
    from quorate.client.results import Receipt

    Header = tuple[str, bytes]

__all__ = ["append"]

BATCH = 500
# A batch ends there even if it has fewer records: half of what a node takes unless told otherwise.
BATCH_BYTES = 4 << 20
# No node takes a record of more.
LINE_BYTES_MAX = 512 << 20


def _headers(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> list[Header]:
    headers = []
    for one in given:
        name, equals, value = one.partition("=")
        if not (name and equals):
            raise click.BadParameter(f"{one!r} is not K=V")
        headers.append((name, value.encode()))
    return headers


def _separator(_: click.Context, __: click.Parameter, given: str | None) -> bytes | None:
    if given == "":
        raise click.BadParameter("it has at least one character")
    return None if given is None else given.encode()


@click.command()
@click.argument("name")
@click.argument("file", metavar="[FILE|-]", type=click.File("rb"), default="-")
@click.option(
    "--batch",
    metavar="N",
    type=click.IntRange(1),
    help=f"Records that are appended together, at most: {BATCH}, or 1 if they are typed.",
)
@click.option(
    "--key-separator",
    metavar="S",
    callback=_separator,
    help="What comes before the first S of a line is its key.",
)
@click.option(
    "--header", "headers", metavar="K=V", multiple=True, callback=_headers,
    help="A header for every record; repeatable.",
)  # fmt: skip
@click.option(
    "--producer", metavar="ID", help="Line n is sequence n; what the log has of it is skipped."
)
@client_options
def append(
    options: ClientOptions,
    name: str,
    file: BinaryIO,
    batch: int | None,
    key_separator: bytes | None,
    headers: list[Header],
    producer: str | None,
) -> None:
    """Append lines to the log NAME, one record each.

    A blank line is an empty value; a newline at the end adds none. Batches are appended one after
    the other, each as a whole.

    With --producer a run that was cut short can be repeated with the same input: nothing is lost,
    and nothing is there twice.
    """
    size = batch or (1 if file.isatty() else BATCH)
    job = _Job(options, key_separator, headers)
    with options.client() as client:
        log = client.log(name)
        act: Callable[..., Receipt] = log.append_batch
        lines = _lines(file)
        if producer is not None:
            opened = log.producer(producer)
            act = partial(_deliver, opened)
            job.skipped = sum(1 for _ in islice(lines, opened.last_sequence))
        job.run(log.name, act, _batches(lines, size))
    if not options.as_json:
        click.echo(job.summary())


class _Job:
    """Appends batch after batch, and knows how far it came."""

    def __init__(
        self, options: ClientOptions, separator: bytes | None, headers: list[Header]
    ) -> None:
        self._options = options
        self._separator = separator
        self._headers = headers
        # Lines that the log had already, and that were appended now.
        self.skipped = 0
        self._appended = 0
        self._first: int | None = None
        self._last = 0

    def run(self, name: str, act: Callable[..., Receipt], batches: Iterator[list[bytes]]) -> None:
        with Counter("appended", printing=self._options.as_json) as counter:
            for lines in batches:
                try:
                    receipt = _surely(partial(act, **self._terms(lines)))
                except QuorateError:
                    if done := self.skipped + self._appended:
                        click.echo(f"lines 1 to {done} are in the log", err=True)
                    raise
                self._note(name, receipt)
                counter.show(self._appended)

    def _terms(self, lines: list[bytes]) -> dict[str, Any]:
        terms: dict[str, Any] = {"values": lines}
        if self._separator is not None:
            parts = [line.partition(self._separator) for line in lines]
            terms["keys"] = [key if found else None for key, found, _ in parts]
            terms["values"] = [rest if found else key for key, found, rest in parts]
        if self._headers:
            terms["headers"] = [self._headers] * len(lines)
        return terms

    def _note(self, name: str, receipt: Receipt) -> None:
        self._appended += receipt.count
        self._first = receipt.offset if self._first is None else self._first
        self._last = receipt.offset + receipt.count - 1
        if self._options.as_json:
            print_json({"log": name, **receipt._asdict()})

    def summary(self) -> str:
        text = f"appended {count(self._appended, 'record')}"
        if self._first is not None:
            text += f", offsets {self._first} to {self._last}"
        if self.skipped:
            text += f"; the log had {count(self.skipped, 'line')} already"
        return text


def _deliver(producer: Producer, **terms: Any) -> Receipt:
    return producer.send_batch(**terms).result()


def _surely(act: Callable[[], Receipt]) -> Receipt:
    """An append that is interrupted may be carried out all the same."""
    try:
        return act()
    except KeyboardInterrupt:
        raise OutcomeUnknown("interrupted while a batch was on its way") from None


def _lines(file: BinaryIO) -> Iterator[bytes]:
    number = 0
    while line := file.readline(LINE_BYTES_MAX + 1):
        number += 1
        if len(line) > LINE_BYTES_MAX:
            raise TooLarge(f"line {number} has more than {LINE_BYTES_MAX} bytes")
        yield line.removesuffix(b"\n")


def _batches(lines: Iterator[bytes], size: int) -> Iterator[list[bytes]]:
    """Up to ``size`` lines each; never more of the input than that is in memory."""
    batch: list[bytes] = []
    length = 0
    for line in lines:
        if batch and length + len(line) > BATCH_BYTES:
            yield batch
            batch, length = [], 0
        batch.append(line)
        length += len(line)
        # At once: the next line may be long in coming.
        if len(batch) == size:
            yield batch
            batch, length = [], 0
    if batch:
        yield batch
