"""The bytes of a state in a checkpoint: sections, each of them encoded and decoded by itself.

A state may have hundreds of megabytes. Each step of this module handles one section, which has
about SECTION_BYTES and at most SECTION_ITEMS, so that a node can do other work between two steps.
Numbers are little-endian and unsigned. A section begins with 8 bytes, kind u8, version u8, 0 u16,
items u32, and goes on with its items::

    head, once          end, append time, age: u64 each, producers, apps, runs, attempts: u32 each,
                        length of fence u8, 1 if there is a membership else 0 u8, 0 6 bytes, fence
    producers           each: epoch u64, last sequence u64, expiry u64, active u64,
                        instance 16 bytes, window u32, runs u16, length of name u8, 0 u8, name,
                        then its runs, 40 bytes each: sequence, count, offset, index, term: u64 each
    apps                each: batch id, offset, count, index, term, active: u64 each,
                        digest 32 bytes, length of name u8, 1 if it published once and for all
                        else 0 u8, 0 6 bytes, name
    runs of apps        each: index of its first chunk u64, run 16 bytes, length of app u8,
                        0 7 bytes, app
    attempts            each: batch id u64, active u64, partition u32, chunks u32, run 16 bytes,
                        attempt 16 bytes, length of app u8, 0 7 bytes, app, then its chunks as in a
                        publish entry
    membership          index u64, length u64, membership as in its entry
    end, once           digest u64

The fence and the names are padded with zeros to a multiple of 8 bytes. Producers stand in rising
order of epoch, their runs in rising order of sequence, apps in rising order of index, runs of apps
and attempts in rising order of their first chunks; each of these four kinds may have several
sections, or none. A state that no log can lead to is refused.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from quorate.commands import ChunkLabel, OpenProducer, check_name
from quorate.entry_body import CHUNK_BYTES, Chunk
from quorate.errors import InvalidArgument
from quorate.membership import LoggedMembership, decode_membership, encode_membership
from quorate.state.attempts import App, attempt_of
from quorate.state.producers import Producers, ProducerState
from quorate.state.runs import ROW_BYTES, Runs
from quorate.state.staging import Staging
from quorate.types import Index, Term

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from quorate.state.attempts import Attempt

__all__ = ["SECTION_BYTES", "SECTION_ITEMS", "Reading", "StateFields", "encode_sections"]

VERSION = 4
# A section ends with the item that makes it this long, or after this many items. An item has at
# most a megabyte of chunks, or 40 KiB of runs, which are copied as they are; so a section takes a
# few milliseconds to encode or to decode.
SECTION_BYTES = 128 * 1024
SECTION_ITEMS = 256

(
    _HEAD_KIND, _PRODUCERS_KIND, _APPS_KIND, _RUNS_KIND, _ATTEMPTS_KIND, _MEMBERSHIP_KIND,
    _END_KIND,
) = range(1, 8)  # fmt: skip

_SECTION = struct.Struct("<BBHI")
_HEAD = struct.Struct("<QQQIIIIBB6x")
_PRODUCER = struct.Struct("<QQQQ16sIHBB")
_APP = struct.Struct("<QQQQQQ32sBB6x")
_RUN = struct.Struct("<Q16sB7x")
_ATTEMPT = struct.Struct("<QQII16s16sB7x")
_CHUNK = struct.Struct("<QII")
_MEMBERSHIP = struct.Struct("<QQ")
_DIGEST = struct.Struct("<Q")


class StateFields(NamedTuple):
    """The fields of a state."""

    end: int
    append_time: int
    age: int
    fence: str | None
    producers: Producers
    staging: Staging
    membership: LoggedMembership | None


# -- writing -------------------------------------------------------------------------------------


def encode_sections(contents: StateFields, digest: Callable[[], int]) -> Iterator[bytes]:
    """Encode all sections, one after the other. The contents must not change meanwhile."""
    end, append_time, age, fence, producers, staging, membership = contents
    label = (fence or "").encode()
    apps = staging.apps()
    runs = staging.succession
    sizes = len(producers), len(apps), len(runs), len(staging.attempts)
    changed = membership is not None
    head = _HEAD.pack(end, append_time, age, *sizes, len(label), changed) + _padded(label)
    yield _section(_HEAD_KIND, [head])
    yield from _sections(_PRODUCERS_KIND, map(_encode_producer, producers))
    yield from _sections(_APPS_KIND, map(_encode_app, apps))
    yield from _sections(_RUNS_KIND, (_encode_run(*begun[:2], index) for index, begun in runs))
    yield from _sections(_ATTEMPTS_KIND, map(_encode_attempt, staging.attempts))
    if membership is not None:
        yield _section(_MEMBERSHIP_KIND, [_encode_membership(membership)])
    yield _section(_END_KIND, [_DIGEST.pack(digest())])


def _sections(kind: int, items: Iterable[bytes]) -> Iterator[bytes]:
    taken: list[bytes] = []
    size = 0
    for item in items:
        taken.append(item)
        size += len(item)
        if size >= SECTION_BYTES or len(taken) == SECTION_ITEMS:
            yield _section(kind, taken)
            taken, size = [], 0
    if taken:
        yield _section(kind, taken)


def _section(kind: int, items: list[bytes]) -> bytes:
    return b"".join((_SECTION.pack(kind, VERSION, 0, len(items)), *items))


def _encode_producer(producer: ProducerState) -> bytes:
    name, epoch, instance, last_sequence, runs, window, expiry_us, active_us = producer
    label = name.encode()
    head = _PRODUCER.pack(
        epoch, last_sequence, expiry_us, active_us, instance, window, len(runs), len(label), 0
    )
    return b"".join((head, _padded(label), runs.rows))


def _encode_app(app: App) -> bytes:
    name, batch_id, digest, offset, count, index, term, active_us, once = app
    label = name.encode()
    head = _APP.pack(batch_id, offset, count, index, term, active_us, digest, len(label), once)
    return head + _padded(label)


def _encode_run(app: str, run: bytes, index: int) -> bytes:
    label = app.encode()
    return _RUN.pack(index, run, len(label)) + _padded(label)


def _encode_attempt(attempt: Attempt) -> bytes:
    label = attempt.app.encode()
    head = _ATTEMPT.pack(
        attempt.batch_id, attempt.active_us, attempt.partition, attempt.chunk_count, attempt.run,
        attempt.id, len(label),
    )  # fmt: skip
    return b"".join((head, _padded(label), attempt.rows))


def _encode_membership(logged: LoggedMembership) -> bytes:
    body = encode_membership(logged.membership)
    return _MEMBERSHIP.pack(logged.index, len(body)) + body


def _padded(label: bytes) -> bytes:
    return label + bytes(-len(label) % 8)


# -- reading -------------------------------------------------------------------------------------


class Reading:
    """A decoder of sections, with the contents that it has read so far. The cost of a call grows
    with its section. A call raises InvalidArgument for contents that no log leads to."""

    __slots__ = ("_kind", "_last", "_left", "contents", "digest")

    def __init__(self) -> None:
        self.contents = StateFields(0, 0, 0, None, Producers(), Staging(), None)
        # The digest of the whole state, from the last section; None until that is read.
        self.digest: int | None = None
        # The kind of the section before.
        self._kind = 0
        # The number of items that are still to come, by kind.
        self._left: dict[int, int] = {}
        # The epoch, publish or first chunk of the item before, if that had the same kind; else 0.
        self._last = 0

    def take(self, section: bytes) -> None:
        """Add the items of the next section."""
        try:
            kind, version, _, count = _SECTION.unpack_from(section)
            self._check_order(kind, version, count)
            position = _SECTION.size
            for _ in range(count):
                item, end = _READERS[kind](self, section, position)
                if section[position:end] != item:
                    raise InvalidArgument("state has bytes that no release writes")
                position = end
        except (struct.error, UnicodeDecodeError) as odd:
            what = f"section of {len(section)} bytes of a state cannot be read"
            raise InvalidArgument(f"{what}: {odd}") from odd
        if position != len(section) or section[:8] != _SECTION.pack(kind, VERSION, 0, count):
            raise InvalidArgument(f"section has {len(section)} bytes, {position} are known")

    def _check_order(self, kind: int, version: int, count: int) -> None:
        if version != VERSION or kind not in _READERS:
            raise InvalidArgument(f"not a section of a state: kind {kind} version {version}")
        several = kind in self._left
        if (kind == _HEAD_KIND) != (self._kind == 0) or (kind <= self._kind and not several):
            raise InvalidArgument(f"section of kind {kind} after one of kind {self._kind}")
        if kind < self._kind or count < 1 or count > self._left.get(kind, 1):
            raise InvalidArgument(f"section of kind {kind} with {count} items is not expected")
        if several:
            self._left[kind] -= count
        elif kind == _END_KIND and any(self._left.values()):
            raise InvalidArgument(f"state ends without {sum(self._left.values())} of its items")
        if kind != self._kind:
            self._kind, self._last = kind, 0

    def _follow(self, what: str, number: int, *, known: bool) -> None:
        """Check that the items of a kind stand in rising order, each once."""
        if number <= self._last or known:
            raise InvalidArgument(f"state has {what} twice or out of order")
        self._last = number

    def _read_head(self, data: bytes, position: int) -> tuple[bytes, int]:
        end, append_time, age, *sizes, length, changed = _HEAD.unpack_from(data, position)
        fence, after = _read_label(data, position + _HEAD.size, length)
        if age > append_time:
            raise InvalidArgument(f"state is {age} µs old, which is more than its append time")
        kinds = _PRODUCERS_KIND, _APPS_KIND, _RUNS_KIND, _ATTEMPTS_KIND, _MEMBERSHIP_KIND
        self._left = dict(zip(kinds, (*sizes, changed), strict=True))
        self.contents = StateFields(
            end, append_time, age, fence or None, Producers(), Staging(), None
        )
        head = _HEAD.pack(end, append_time, age, *sizes, length, bool(changed))
        return head + _padded(fence.encode()), after

    def _read_producer(self, data: bytes, position: int) -> tuple[bytes, int]:
        (
            epoch, last_sequence, expiry_us, active_us, instance, window, count, length, _,
        ) = _PRODUCER.unpack_from(data, position)  # fmt: skip
        name, start = _read_label(data, position + _PRODUCER.size, length)
        end = start + count * ROW_BYTES
        if end > len(data):
            raise InvalidArgument(f"state lacks some of the {count} runs of producer {name!r}")
        runs = Runs.of_rows(data[start:end])
        producer = ProducerState(
            name, epoch, instance, last_sequence, runs, window, expiry_us, active_us
        )
        producers = self.contents.producers
        self._follow(f"producer {name!r}", epoch, known=producers.get(name) is not None)
        _check_producer(producer, self.contents)
        producers.add(producer)
        return _encode_producer(producer), end

    def _read_app(self, data: bytes, position: int) -> tuple[bytes, int]:
        (
            batch_id, offset, count, index, term, active_us, digest, length, once,
        ) = _APP.unpack_from(data, position)  # fmt: skip
        name, end = _read_label(data, position + _APP.size, length)
        app = App(
            name, batch_id, digest, offset, count, Index(index), Term(term), active_us, once == 1
        )
        contents = self.contents
        self._follow(f"app {name!r}", index, known=contents.staging.app(name) is not None)
        if not name or offset + count > contents.end or active_us > contents.age:
            raise InvalidArgument(f"state of app {name!r}: more than the log can have led to")
        contents.staging.put_app(app)
        return _encode_app(app), end

    def _read_run(self, data: bytes, position: int) -> tuple[bytes, int]:
        index, run, length = _RUN.unpack_from(data, position)
        name, end = _read_label(data, position + _RUN.size, length)
        check_name("app", name)
        runs = self.contents.staging.succession
        self._follow(f"a run of {name!r}", index, known=runs.began(name, run) is not None)
        runs.begin(name, run, index)
        return _encode_run(name, run, index), end

    def _read_attempt(self, data: bytes, position: int) -> tuple[bytes, int]:
        batch_id, active_us, partition, count, run, attempt_id, length = _ATTEMPT.unpack_from(
            data, position
        )
        name, start = _read_label(data, position + _ATTEMPT.size, length)
        end = start + count * CHUNK_BYTES
        if end > len(data):
            raise InvalidArgument(f"state lacks some of the {count} chunks of app {name!r}")
        chunks = tuple(map(Chunk._make, _CHUNK.iter_unpack(data[start:end])))
        ChunkLabel(
            name, run, batch_id, partition, attempt_id, 0
        )  # refuses fields that no request has
        if not chunks:
            raise InvalidArgument(f"state of app {name!r}: an attempt without chunks")
        key = batch_id, partition, attempt_id
        attempt = attempt_of(name, key, run, chunks, active_us)
        staging = self.contents.staging
        known = staging.attempts.get(name, *key) is not None
        self._follow(f"an attempt of {name!r}", attempt.first, known=known)
        _check_attempt(attempt, chunks, self.contents)
        staging.add(attempt)
        return _encode_attempt(attempt), end

    def _read_membership(self, data: bytes, position: int) -> tuple[bytes, int]:
        index, length = _MEMBERSHIP.unpack_from(data, position)
        end = position + _MEMBERSHIP.size + length
        membership = decode_membership(data[position + _MEMBERSHIP.size : end])
        self._follow("a membership", index, known=False)
        logged = LoggedMembership(Index(index), membership)
        self.contents = self.contents._replace(membership=logged)
        return _encode_membership(logged), end

    def _read_end(self, data: bytes, position: int) -> tuple[bytes, int]:
        (self.digest,) = _DIGEST.unpack_from(data, position)
        self.contents.staging.settle()
        return _DIGEST.pack(self.digest), position + _DIGEST.size


_READERS: dict[int, Callable[[Reading, bytes, int], tuple[bytes, int]]] = {
    _HEAD_KIND: Reading._read_head,
    _PRODUCERS_KIND: Reading._read_producer,
    _APPS_KIND: Reading._read_app,
    _RUNS_KIND: Reading._read_run,
    _ATTEMPTS_KIND: Reading._read_attempt,
    _MEMBERSHIP_KIND: Reading._read_membership,
    _END_KIND: Reading._read_end,
}


def _read_label(data: bytes, position: int, length: int) -> tuple[str, int]:
    """The text at ``position``, and the position after its padding."""
    end = position + length
    return data[position:end].decode(), end + -length % 8


def _check_producer(producer: ProducerState, contents: StateFields) -> None:
    """Refuse a producer that no entries lead to."""
    name, _, instance, last_sequence, runs, window, expiry_us, active_us = producer
    OpenProducer(name, instance, window, expiry_us)  # refuses fields that no request has
    if not runs.follow():
        raise InvalidArgument(f"state of producer {name!r}: its runs do not follow each other")
    newest = runs[-1] if len(runs) else None
    sequence, offset = (newest.sequence, newest.offset) if newest is not None else (1, 0)
    count = newest.count if newest is not None else 0
    if sequence + count != last_sequence + 1:
        raise InvalidArgument(
            f"state of producer {name!r}: runs end before {sequence + count}, it is at "
            f"{last_sequence}"
        )
    if len(runs) > window or offset + count > contents.end or active_us > contents.age:
        raise InvalidArgument(f"state of producer {name!r}: more than the log can have led to")


def _check_attempt(attempt: Attempt, chunks: tuple[Chunk, ...], contents: StateFields) -> None:
    """Refuse an attempt that no entries lead to."""
    app = attempt.app
    indexes = [chunk.index for chunk in chunks]
    if indexes != sorted(set(indexes)) or not all(chunk.records for chunk in chunks):
        raise InvalidArgument(f"state of app {app!r}: chunks that do not follow each other")
    published = contents.staging.app(app)
    if published is not None and published.batch_id >= attempt.batch_id:
        raise InvalidArgument(f"state of app {app!r}: staged for a batch that is published")
    if attempt.active_us > contents.age:
        raise InvalidArgument(f"state of app {app!r}: more than the log can have led to")
    began = contents.staging.succession.began(app, attempt.run)
    if began is None or began > attempt.first:
        raise InvalidArgument(f"state of app {app!r}: an attempt of a run that began later")
