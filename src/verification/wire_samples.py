"""A valid frame of every kind, and one function that reads any of them: for tests and for
fuzzing."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from quorate.batch import encode_batch
from quorate.commands import (
    Abort,
    Aborted,
    ChunkLabel,
    ChunkStaged,
    FenceChanged,
    OpenProducer,
    Part,
    ProducerOpened,
    ProducerStamp,
    Publish,
    Receipt,
    SetFence,
)
from quorate.entry import make_entry
from quorate.entry_body import pack_batches
from quorate.errors import Busy, InvalidArgument, NotLeader, QuorateError, WrongCluster
from quorate.raft import messages as raft
from quorate.types import ORIGIN, BootId, EntryKind, GroupId, Index, NodeId, Position, Term
from quorate.wire import calls
from quorate.wire.calls import decode_call, decode_result, encode_call, encode_result
from quorate.wire.frames import FRAME_BYTES, Frame, FrameKind, FrameLimits, Framer, encode_frame
from quorate.wire.handshake import (
    Hello,
    Introduction,
    Seen,
    Welcome,
    decode_hello,
    encode_hello,
    encode_refusal,
    encode_welcome,
    open_welcome,
)
from quorate.wire.messages import decode_envelopes, encode_envelopes
from quorate.wire.requests import (
    AppendRequest,
    Fetch,
    Receipts,
    decode_append,
    decode_failure,
    decode_fetch,
    decode_receipts,
    decode_records,
    encode_append,
    encode_failure,
    encode_fetch,
    encode_receipts,
    encode_records,
)

if TYPE_CHECKING:
    from quorate.entry import Entry

__all__ = ["ENTRIES", "LIMITS", "MESSAGES", "RESULTS", "FrameSample", "frames", "read", "samples"]

# Larger than every sample.
LIMITS = FrameLimits(1 << 16, 1 << 20)

CLUSTER, SOURCE, TARGET = "shop", NodeId("n1"), NodeId("n2")
LOG = 0x0F0E0D0C0B0A09080706050403020100
LOG_ID = LOG.to_bytes(16, "little")
STORAGE_ID = bytes(range(16, 32))
NODES = {"n1": "127.0.0.1:7401", "n2": "127.0.0.1:7402"}


def _entries() -> tuple[Entry, Entry]:
    noop = make_entry(ORIGIN, Term(1), EntryKind.NOOP, append_time=1_000_000)
    body = pack_batches([(encode_batch([b"hello"]), 1), (encode_batch([b"to", b"all"]), 2)])
    data = make_entry(
        noop.position, Term(1), EntryKind.DATA, body, count=3, append_time=1_000_500, runs=2
    )
    return noop, data


ENTRIES = _entries()
_LAST = ENTRIES[-1].position
_REQUEST = raft.RequestId(5, 77)
# One message of every class.
MESSAGES: tuple[raft.Message, ...] = (
    raft.PreVote(Term(3), _REQUEST, _LAST),
    raft.PreVoteReply(Term(3), _REQUEST, True),
    raft.Vote(Term(4), _LAST, transfer=True),
    raft.VoteReply(Term(4), False, 4096, True),
    raft.Compare(Term(4), 9, _LAST),
    raft.Append(Term(4), 9, ORIGIN, ENTRIES, Index(1)),
    raft.Ack(Term(4), 9, Index(2)),
    raft.Mismatch(Term(4), 9, Index(7), Index(3), Term(2)),
    raft.Heartbeat(Term(4), 12, Position(Index(1), Term(1), 0xD410ADF0)),
    raft.HeartbeatReply(Term(4), 12, 65_536, True, unfit=True),
    raft.ReadIndex(Term(4), _REQUEST),
    raft.ReadIndexReply(Term(4), _REQUEST, None),
    raft.ReadIndexReply(Term(4), _REQUEST, Index(2)),
    raft.StateHash(Term(4), Index(2), 0x0123456789ABCDEF, asks=True),
    raft.Transfer(Term(4), _LAST, 1),
    raft.TransferRefused(Term(4), 1),
)

_FOUND = calls.LogFound("orders", LOG_ID, "n2", NODES)
_STATUS = calls.LogStatus(
    "orders", LOG_ID, "leader", "n2", 4, 0, 3, 2, 2, 0, [calls.PeerStatus("n1", 2, "append")]
)
# Every call, with its answer.
RESULTS: tuple[tuple[calls.Call[Any], calls.Found], ...] = (
    (calls.FindLog("orders"), _FOUND),
    (calls.ListLogs(), calls.Logs([_FOUND])),
    (calls.CreateLog("orders", LOG_ID, 30_000), _FOUND),
    (calls.DeleteLog("orders", LOG_ID, 30_000), calls.Done()),
    (calls.SetLog("orders", LOG_ID, 30_000, {"n1": 200, "n2": 0}), calls.Done()),
    (calls.ReadEnds(LOG_ID, barrier=False), calls.Ends(0, 3, 2)),
    (calls.OffsetAt(LOG_ID, 1_000_500), calls.OffsetFound(0)),
    (calls.TransferLog(LOG_ID, "n3"), calls.LeaderMoved("n3")),
    (
        calls.LogCall(LOG_ID, OpenProducer("loader-7", STORAGE_ID, 16, 604_800_000_000, 2)),
        ProducerOpened(3, 120, held=True),
    ),
    (calls.LogCall(LOG_ID, SetFence("writer-3", None)), FenceChanged(4)),
    (
        calls.LogCall(LOG_ID, ChunkLabel("query-1", STORAGE_ID, 5, 3, LOG_ID, 0)),
        ChunkStaged(6, published=False),
    ),
    (
        calls.LogCall(
            LOG_ID,
            Publish("query-1", 5, (Part(3, LOG_ID, 1, 2),), bytes(range(32)), "writer-3"),
        ),
        Receipt(40, 2, 7, 4, 2),
    ),
    (calls.LogCall(LOG_ID, Abort("query-1", 5, STORAGE_ID)), Aborted(8, 1)),
    (
        calls.LastPublished(LOG_ID, "query-1"),
        calls.LastFound(5, 40, 2, 7, bytes(range(32))),
    ),
    (calls.Status(), calls.NodeStatus("n2", NODES["n2"], NODES, [_STATUS])),
    (calls.AwaitCatalog(3, 2000), calls.CatalogReached(3)),
)


class FrameSample(NamedTuple):
    """A valid frame, in parts."""

    kind: FrameKind
    control: bytes
    # The parts of the bulk: a batch, or frames of entries.
    bulk: tuple[bytes, ...] = ()
    # The call that a RESULT answers.
    call: calls.Call[Any] | None = None

    @property
    def data(self) -> bytes:
        bulk = b"".join(self.bulk)
        return encode_frame(self.kind, self.control, len(bulk)) + bulk


@cache
def samples() -> tuple[FrameSample, ...]:
    return (*_handshakes(), *_requests(), *_calls(), *_peers())


def _sample(front: bytes, *bulk: bytes, call: calls.Call[Any] | None = None) -> FrameSample:
    return FrameSample(FrameKind(front[3]), front[FRAME_BYTES:], bulk, call)


def _handshakes() -> list[FrameSample]:
    most = (1 << 63) - 1
    known = {name: Seen(STORAGE_ID, 3, most, {2: (4, most)}) for name in NODES}
    introduction = Introduction(STORAGE_ID, most, 7, {1: 0, 2: most}, True, known, ("n1", "n2"))
    peer = Hello("bulk", cluster=CLUSTER, node=SOURCE, target=TARGET, introduction=introduction)
    welcome = Welcome(CLUSTER, TARGET, introduction, 1, 1, 4 << 20, 8 << 20, NODES)
    return [
        _sample(encode_hello(Hello("client"))),
        _sample(encode_hello(peer)),
        _sample(encode_welcome(welcome)),
        _sample(encode_refusal(WrongCluster("this is n2"))),
        _sample(encode_frame(FrameKind.PING, b"")),
        _sample(encode_frame(FrameKind.PONG, b"")),
    ]


def _requests() -> list[FrameSample]:
    batch = encode_batch([b"hello", b"world!"], keys=[b"k1", None])
    stamped = AppendRequest(8, LOG, batch, 42, "writer-3", ProducerStamp("loader-7", 3, 121), 1000)
    rows = [(entry.base_offset, entry.count, entry.size, entry.append_time) for entry in ENTRIES]
    return [
        _sample(encode_append(AppendRequest(7, LOG, batch)), batch),
        _sample(encode_append(stamped), batch),
        _sample(encode_receipts(Receipts(Index(2), Term(1), 40, 2, [(7, 1, 0, 2), (8, 3, 2, 1)]))),
        _sample(encode_fetch(Fetch(9, LOG, 40, 1 << 20, 500, 43))),
        _sample(encode_records(9, 0, 43, rows), *(entry.header + entry.body for entry in ENTRIES)),
        _sample(encode_failure(10, Busy("wait"))),
        _sample(encode_failure(11, NotLeader("another leads", leader=TARGET))),
    ]


def _calls() -> list[FrameSample]:
    batch = encode_batch([b"hello", b"world!"])
    asked = []
    for call, _ in RESULTS:
        stages = isinstance(call, calls.LogCall) and isinstance(call.command, ChunkLabel)
        bulk = (batch,) if stages else ()
        asked.append(_sample(encode_call(11, call, sum(map(len, bulk))), *bulk))
    return asked + [_sample(encode_result(11, found), call=call) for call, found in RESULTS]


def _peers() -> list[FrameSample]:
    envelopes = [
        raft.Envelope(GroupId(CLUSTER, LOG + place), SOURCE, TARGET, BootId(5, 99), message)
        for place, message in enumerate(MESSAGES)
    ]
    entries = [entry.header + entry.body for entry in ENTRIES]
    return [
        _sample(bytes(encode_envelopes(envelopes)[0]), *entries),
        *(
            _sample(
                bytes(encode_envelopes([envelope])[0]),
                *(entries if isinstance(envelope.message, raft.Append) else ()),
            )
            for envelope in envelopes
        ),
    ]


def frames(data: bytes) -> list[Frame]:
    """The frames that a receiver reads from ``data``."""
    return list(Framer(LIMITS).feed(data))


def read(frame: Frame, call: calls.Call[Any] | None = None) -> tuple[object, bytes]:
    """The value of ``frame``, and its encoding made again. ``call`` is the call that a RESULT
    answers."""
    match frame.kind:
        case FrameKind.HELLO:
            hello = decode_hello(frame)
            return hello, encode_hello(hello)
        case FrameKind.WELCOME:
            welcome = open_welcome(frame)
            return welcome, encode_welcome(welcome)
        case FrameKind.REFUSAL:
            return _read_refusal(frame)
        case FrameKind.APPEND:
            append = decode_append(frame)
            return append, encode_append(append) + append.batch
        case FrameKind.RECEIPTS:
            receipts = decode_receipts(frame)
            return receipts, encode_receipts(receipts)
        case FrameKind.FETCH:
            fetch = decode_fetch(frame)
            return fetch, encode_fetch(fetch)
        case FrameKind.RECORDS:
            return _read_records(frame)
        case FrameKind.FAILURE:
            request, error = decode_failure(frame)
            leader = error.leader if isinstance(error, NotLeader) else None
            return (request, error.code, str(error), leader), encode_failure(request, error)
        case FrameKind.CALL:
            number, asked = decode_call(frame)
            return (number, asked), encode_call(number, asked, len(frame.bulk)) + frame.bulk
        case FrameKind.RESULT if call is not None:
            found = decode_result(frame, call)
            number = int.from_bytes(frame.control[:4], "little")
            return found, encode_result(number, found)
        case FrameKind.PEER:
            envelopes = decode_envelopes(frame, CLUSTER, SOURCE, TARGET)
            return envelopes, b"".join(encode_envelopes(envelopes))
        case FrameKind.PING | FrameKind.PONG | FrameKind.RESULT:
            return None, encode_frame(frame.kind, frame.control)


def _read_refusal(frame: Frame) -> tuple[object, bytes]:
    try:
        open_welcome(frame)
    except QuorateError as refusal:
        if isinstance(refusal, InvalidArgument) and str(refusal).startswith("REFUSAL: "):
            raise
        return (refusal.code, str(refusal)), encode_refusal(refusal)
    raise AssertionError("a refusal is raised")


def _read_records(frame: Frame) -> tuple[object, bytes]:
    records = decode_records(frame)
    rows = [
        (offset, count, len(entry.frame), entry.append_time)
        for offset, count, entry in records.rows
    ]
    front = encode_records(records.request, records.first_offset, records.end_offset, rows)
    return records, b"".join((front, *(entry.frame for *_, entry in records.rows)))
