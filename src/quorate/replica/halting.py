"""What a replica that must stop tells as its reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.errors import Busy, DiskFailed, InvariantBroken, ReplicaHalted

if TYPE_CHECKING:
    from quorate.types import NodeId

__all__ = ["halt_after"]


def halt_after(error: Exception, node: NodeId) -> ReplicaHalted:
    """The halt that an error in a turn or in a read brings about."""
    if isinstance(error, ReplicaHalted):
        return error
    halt: ReplicaHalted = InvariantBroken(f"{node}: a turn failed: {error!r}")
    if isinstance(error, OSError | Busy):
        halt = DiskFailed(f"{node} cannot read its disk: {error}")
    halt.__cause__ = error
    return halt
