"""The settings of a producer: how long records wait for each other, and how much room they take."""

from __future__ import annotations

from dataclasses import dataclass

from quorate.errors import InvalidArgument

__all__ = ["BATCH_BYTES", "LINGER_MS", "MEMORY_BYTES", "ProducerSettings"]

# The defaults.
LINGER_MS = 5.0
BATCH_BYTES = 256 << 10
MEMORY_BYTES = 32 << 20

LINGER_MS_MAX = 60_000
MEMORY_MAX = 1 << 40


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """A producer's settings, as its caller gave them."""

    # A record waits this long for others to share its batch.
    linger_ms: float
    # A batch of this size takes no more records.
    batch_bytes: int
    # Bytes of all records without an outcome; more have to wait.
    memory_bytes: int

    def __post_init__(self) -> None:
        ranges: tuple[tuple[str, object, int, int], ...] = (
            ("linger_ms", self.linger_ms, 0, LINGER_MS_MAX),
            ("batch_bytes", self.batch_bytes, 1, MEMORY_MAX),
            ("memory_bytes", self.memory_bytes, 1, MEMORY_MAX),
        )
        for name, value, low, high in ranges:
            if not (isinstance(value, int | float) and low <= value <= high):
                raise InvalidArgument(f"{name} = {value!r} is not between {low} and {high}")
