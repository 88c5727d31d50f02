"""The types of fields that come from outside: numbers and names with their ranges.

A decoder of MessagePack checks them, and names the field that is out of range.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

__all__ = [
    "DIGEST_BYTES",
    "ID_BYTES",
    "NAME_MAX",
    "NAME_PATTERN",
    "Digest",
    "Id",
    "Milliseconds",
    "Name",
    "Number",
    "Short",
    "Time",
]

# Bytes of an id that is drawn once and never again: of incarnations, instances of producers, disks.
ID_BYTES = 16
# Bytes of the digest of a batch.
DIGEST_BYTES = 32
# Maximum bytes of a name that is packed by hand, and maximum characters of a name in a shape; the
# part that keeps the name may allow less.
NAME_MAX = 255
# Names end up in messages, log lines and labels: a line break or a NUL in one is a trap.
NAME_PATTERN = r"^[^\x00-\x1f\x7f-\x9f]+\Z"

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_MAX, pattern=NAME_PATTERN)]
Id = Annotated[bytes, msgspec.Meta(min_length=ID_BYTES, max_length=ID_BYTES)]
Digest = Annotated[bytes, msgspec.Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
# Offsets, indexes, terms: 63 bits, which no log fills.
Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
# A count within a request or an entry, such as partitions and chunks.
Short = Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)]
Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)]
# Microseconds since 1970, by the clock of a leader.
Time = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
