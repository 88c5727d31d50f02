"""Mutated frames for every decoder that reads from a socket.

A frame is spoiled as a whole, or its parts are spoiled and framed again, so that its CRC fits. It
arrives in odd pieces. A frame that is accepted is encoded again: frames that are packed by hand
must give the very same bytes, because each value has one encoding; shapes must give an equal value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.wire.frames import Frame, FrameKind, Framer, encode_frame
from quorate.wire.shapes import TEXT_MAX
from verification.spoiling import seal_entry, spoil
from verification.wire_samples import LIMITS, FrameSample, frames, read, samples

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

__all__ = ["wire_attempts"]

_HANDSHAKES = {FrameKind.HELLO, FrameKind.WELCOME, FrameKind.REFUSAL}
_CALLS = {FrameKind.CALL, FrameKind.RESULT}
_SHAPES = _HANDSHAKES | _CALLS
_PEERS = {FrameKind.PEER}
_KINDS = tuple(FrameKind)


def wire_attempts() -> dict[str, Callable[[Random], object]]:
    """The decoders, by the names under which their inputs are counted."""
    requests = set(FrameKind) - _SHAPES - _PEERS
    return {
        "hello": _attempt(_HANDSHAKES),
        "request": _attempt(requests),
        "call": _attempt(_CALLS),
        "peer": _attempt(_PEERS),
    }


def _attempt(kinds: set[FrameKind]) -> Callable[[Random], object]:
    good = [sample for sample in samples() if sample.kind in kinds]

    def attempt(random: Random) -> object:
        sample = good[int(random.random() * len(good))]
        blind = random.random() < 0.3
        data = bytes(spoil(sample.data, random)) if blind else _framed_anew(sample, random)
        found = [_reread(frame, sample) for frame in _received(data, random)]
        return found or None

    return attempt


def _framed_anew(sample: FrameSample, random: Random) -> bytes:
    """A frame of ``sample`` with spoiled parts, under a head that fits them."""
    kind, control, pieces, _ = sample
    chance = random.random()
    if control and chance < 0.8:
        control = bytes(spoil(control, random))
    elif chance > 0.95:
        kind = _KINDS[int(random.random() * len(_KINDS))]
    bulk = b"".join(pieces)
    if pieces and random.random() < 0.4:
        place = int(random.random() * len(pieces))
        piece = spoil(pieces[place], random)
        if sample.kind in (FrameKind.PEER, FrameKind.RECORDS):  # other targets decode batches
            seal_entry(piece, random)
        bulk = b"".join((*pieces[:place], piece, *pieces[place + 1 :]))
    return encode_frame(kind, control, len(bulk)) + bulk


def _received(data: bytes, random: Random) -> list[Frame]:
    """Pass ``data`` to a framer, cut at up to three places, as a network would."""
    framer = Framer(LIMITS)
    cuts = sorted(int(random.random() * (len(data) + 1)) for _ in range(int(random.random() * 4)))
    pieces = [data[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    found = [frame for piece in pieces for frame in framer.feed(piece)]
    rest = len(data) - sum(frame.size for frame in found)
    assert framer.waiting == rest, "bytes behind the last frame wait for the rest of one"
    return found


def _reread(frame: Frame, sample: FrameSample) -> object:
    found, again = read(frame, sample.call)
    if frame.kind in _SHAPES:
        (other,) = frames(again)
        assert read(other, sample.call)[0] == found, "a shape says the same again"
    elif frame.kind is not FrameKind.FAILURE or len(str(found)) < TEXT_MAX:
        (other,) = frames(again)
        assert other == frame, "there is one encoding"
    return found
