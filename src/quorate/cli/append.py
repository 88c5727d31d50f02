"""``quorate append``: append the lines of a file, or of the standard input, as records."""

from __future__ import annotations

import os
import select
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from quorate.cli.options import WholeNumber, client_options, log_name
from quorate.cli.output import Counter, OutputFailed, count, print_json, print_line, span, tell
from quorate.client.produce.accumulator import HEADER_OVERHEAD, RECORD_OVERHEAD
from quorate.errors import InvalidArgument, OutcomeUnknown, TooLarge
from quorate.wire.shapes import check_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from io import BufferedReader

    from quorate.cli.options import ClientOptions
    from quorate.client.produce.producer import Producer
    from quorate.commands import Receipt

    Header = tuple[str, bytes]

__all__ = ["append"]

BATCH = 500
# Bytes at which a batch ends even if it has fewer records: half of a node's default limit.
BATCH_BYTES = 4 << 20
# Seconds without another line at which a batch ends, too: a user who follows a file wants its lines
# in the log.
QUIET_S = 0.2
# Bytes of the input that are read at once.
CHUNK_BYTES = 1 << 18
# The longest line, in bytes: no node accepts a larger record.
LINE_BYTES_MAX = 64 << 20


def _headers(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> list[Header]:
    headers = []
    for one in given:
        name, equals, value = one.partition("=")
        if not (name and equals):
            raise click.BadParameter(f"{one!r} is not K=V")
        try:
            name.encode()
        except UnicodeEncodeError:
            raise click.BadParameter(f"{name!a} cannot be written as UTF-8") from None
        headers.append((name, os.fsencode(value)))
    return headers


def _separator(_: click.Context, __: click.Parameter, given: str | None) -> bytes | None:
    if given == "":
        raise click.BadParameter("S needs at least one character")
    return None if given is None else os.fsencode(given)


def _producer(_: click.Context, __: click.Parameter, given: str | None) -> str | None:
    if given is not None:
        try:
            check_name("producer name", given)
        except InvalidArgument as error:
            raise click.BadParameter(str(error)) from None
    return given


@click.command()
@click.argument("name", callback=log_name)
@click.argument("file", metavar="[FILE|-]", type=click.File("rb"), default="-")
@click.option(
    "--batch",
    metavar="N",
    type=WholeNumber(1),
    help=f"Maximum records in one batch: {BATCH} by default, or 1 if the input is a terminal.",
)
@click.option(
    "--key-separator",
    metavar="S",
    callback=_separator,
    help="The part of a line before its first S is the key.",
)
@click.option(
    "--header", "headers", metavar="K=V", multiple=True, callback=_headers,
    help="A header for every record; may be repeated.",
)  # fmt: skip
@click.option(
    "--producer", metavar="ID", callback=_producer,
    help="Producer name: line n is sequence n, and lines that the log has already are skipped.",
)  # fmt: skip
@client_options
def append(
    options: ClientOptions,
    name: str,
    file: BufferedReader,
    batch: int | None,
    key_separator: bytes | None,
    headers: list[Header],
    producer: str | None,
) -> None:
    """Append lines to the log NAME, one record each.

    A blank line is a record with an empty value; a newline at the end of the input adds no record.
    Batches are appended one after the other, each as a whole. A batch ends early when no other line
    comes for 0.2 seconds.

    With --producer a run that was cut short can be repeated with the same input: no line is lost,
    and no line is appended twice.
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
            whole = (line for line in lines if line is not None)
            job.skipped = sum(1 for _ in islice(whole, opened.last_sequence))
        with job.told_how_far():
            around = sum(HEADER_OVERHEAD + len(key.encode()) + len(value) for key, value in headers)
            job.run(log.name, act, _batches(lines, size, RECORD_OVERHEAD + around))
            if not options.as_json:
                print_line(job.summary())


class _Job:
    """Appends batch after batch, and counts the lines that are in the log."""

    def __init__(
        self, options: ClientOptions, separator: bytes | None, headers: list[Header]
    ) -> None:
        self._options = options
        self._separator = separator
        self._headers = headers
        # Lines that the log had already, and lines that this run appended.
        self.skipped = 0
        self._appended = 0
        self._first: int | None = None
        self._last = 0

    def run(self, name: str, act: Callable[..., Receipt], batches: Iterator[list[bytes]]) -> None:
        with Counter("appended", printing=self._options.as_json) as counter:
            for lines in batches:
                self._note(name, _surely(partial(act, **self._arguments(lines))))
                counter.show(self._appended)

    @contextmanager
    def told_how_far(self) -> Iterator[None]:
        """Tell which lines are in the log if an error or Ctrl-C stops the run: they stay there."""
        try:
            yield
        except (Exception, KeyboardInterrupt) as error:
            if done := self.skipped + self._appended:
                tell(f"{span(1, done, 'line')} {'is' if done == 1 else 'are'} in the log")
            if isinstance(error, OutputFailed):
                # The user asked for appends, not only for output.
                error.excused = False
            raise

    def _arguments(self, lines: list[bytes]) -> dict[str, Any]:
        arguments: dict[str, Any] = {"values": lines}
        if self._separator is not None:
            parts = [line.partition(self._separator) for line in lines]
            arguments["keys"] = [key if found else None for key, found, _ in parts]
            arguments["values"] = [rest if found else key for key, found, rest in parts]
        if self._headers:
            arguments["headers"] = [self._headers] * len(lines)
        return arguments

    def _note(self, name: str, receipt: Receipt) -> None:
        self._appended += receipt.count
        self._first = receipt.offset if self._first is None else self._first
        self._last = receipt.offset + receipt.count - 1
        if self._options.as_json:
            print_json({"log": name, **receipt._asdict()})

    def summary(self) -> str:
        text = f"appended {count(self._appended, 'record')}"
        if self._first is not None:
            text += f", {span(self._first, self._last, 'offset')}"
        if self.skipped:
            text += f"; the log had {count(self.skipped, 'line')} already"
        return text


def _deliver(producer: Producer, **arguments: Any) -> Receipt:
    return producer.send_batch(**arguments).result()


def _surely(act: Callable[[], Receipt]) -> Receipt:
    """Run an append. Its outcome is unknown if it is interrupted: it may be carried out later."""
    try:
        return act()
    except KeyboardInterrupt:
        raise OutcomeUnknown("interrupted while a batch was on its way") from None


def _chunks(file: BufferedReader) -> Iterator[bytes | None]:
    """The input as it arrives. None means that no byte came for ``QUIET_S`` seconds."""
    quiet = select.poll()
    try:
        quiet.register(file.fileno(), select.POLLIN)
    except OSError:  # not a file of the operating system, so a read does not wait
        while chunk := file.read1(CHUNK_BYTES):
            yield chunk
        return
    while True:
        if not quiet.poll(1000 * QUIET_S):
            yield None
        # More than the file's buffer holds: ``poll`` would not see bytes that are left in there.
        chunk = file.read1(CHUNK_BYTES)
        if not chunk:
            return
        yield chunk


def _lines(file: BufferedReader) -> Iterator[bytes | None]:
    """Lines without their ends. None means that no byte came for ``QUIET_S`` seconds."""
    # Pieces of the line that has not ended.
    pieces: list[bytes] = []
    length = 0
    number = 1
    for chunk in _chunks(file):
        if chunk is None:
            yield None
            continue
        first, *others = chunk.split(b"\n")
        pieces.append(first)
        length += len(first)
        if length > LINE_BYTES_MAX:
            raise TooLarge(f"line {number} has more than {LINE_BYTES_MAX} bytes")
        if others:
            yield b"".join(pieces)
            yield from others[:-1]
            pieces = others[-1:]
            length = len(others[-1])
            number += len(others)
    if length:
        yield b"".join(pieces)


def _batches(lines: Iterator[bytes | None], size: int, around: int) -> Iterator[list[bytes]]:
    """Batches of up to ``size`` lines; each line takes ``around`` bytes in addition to its own.

    Little more of the input than one batch is in memory.
    """
    batch: list[bytes] = []
    length = 0
    for line in lines:
        if line is None:
            if batch:
                yield batch
                batch, length = [], 0
            continue
        taken = around + len(line)
        if batch and length + taken > BATCH_BYTES:
            yield batch
            batch, length = [], 0
        batch.append(line)
        length += taken
        # Give out a full batch at once: the next line may be long in coming.
        if len(batch) == size:
            yield batch
            batch, length = [], 0
    if batch:
        yield batch
