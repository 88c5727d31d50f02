"""Valid bytes made invalid: blindly, or with CRCs that fit again, so that the checks behind a CRC
are tried, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crc32c import crc32c

from quorate.entry import HEADER_BYTES

if TYPE_CHECKING:
    from random import Random

__all__ = ["crc", "proof_at", "seal", "seal_entry", "spoil"]

BODY_CRC_AT = 48
# Numbers at which a check may be off by one, or overflow.
NUMBERS = (
    0, 1, 2, 7, 8, 63, 64, 255, 4095, 4096, 1 << 15, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1,
    1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1,
)  # fmt: skip


def spoil(data: bytes, random: Random) -> bytearray:
    """``data``, which is not empty, with one or two places changed."""
    out = bytearray(data)
    _change(out, random)
    if out and random.random() < 0.3:
        _change(out, random)
    return out


def _change(out: bytearray, random: Random) -> None:
    place = int(random.random() * len(out))
    match int(random.random() * 9):
        case 0 | 1:
            out[place] ^= 1 << int(random.random() * 8)
        case 2:
            out[place] = int(random.random() * 256)
        case 3 | 4 | 5:
            width = 2 << int(random.random() * 3)
            number = NUMBERS[int(random.random() * len(NUMBERS))] & ((1 << 8 * width) - 1)
            place &= -width
            out[place : place + width] = number.to_bytes(width, "little")
        case 6:
            width = 4 << int(random.random() * 2)
            place &= -width
            number = int.from_bytes(out[place : place + width], "little")
            near = (number + int(random.random() * 17) - 8) % (1 << 8 * width)
            out[place : place + width] = near.to_bytes(width, "little")
        case 7:
            source = int(random.random() * len(out))
            out[place : place + 8] = out[source : source + 8]
        case _:
            del out[place:]


# -- CRCs that fit again -------------------------------------------------------------------------


def crc(data: bytes | bytearray, seed: int = 0) -> bytes:
    return crc32c(bytes(data), seed).to_bytes(4, "little")


def proof_at(good: bytes, seed: int = 0) -> int:
    """The place of the CRC of a structure, found in a valid one."""
    places = range(8, len(good) - 3)
    return next(place for place in places if crc(good[:place], seed) == good[place : place + 4])


def seal(data: bytearray, place: int, seed: int = 0) -> None:
    """Make the CRC at ``place`` fit the bytes before it."""
    if len(data) >= place + 4:
        data[place : place + 4] = crc(data[:place], seed)


def seal_entry(frame: bytearray, random: Random) -> None:
    """Sometimes make the CRC of the header of an entry fit, and sometimes that of its body, too."""
    chance = random.random()
    if chance < 0.3:
        frame[BODY_CRC_AT : BODY_CRC_AT + 4] = crc(frame[HEADER_BYTES:])
    if chance < 0.6:
        seal(frame, HEADER_BYTES - 4)
