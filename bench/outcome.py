"""What one round of one system brought, as it stands in the results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quorate.cli.workloads import Tally, Workload

    # Figures by name; ``done`` are the records acknowledged at any time, ``quantiles_ms`` is the
    # latency at each percent of the appends.
    Outcome = dict[str, Any]

__all__ = ["outcome_of"]


def outcome_of(tally: Tally, workload: Workload) -> Outcome:
    """A round in which nothing was answered has no latencies."""
    shares = [percent / 100 for percent in range(100)] + [1.0]
    taken = tally.quantiles(shares)
    quantiles = [round(1000 * seconds, 4) for seconds in taken if seconds is not None]
    return {**tally.document(workload), "done": tally.done, "quantiles_ms": quantiles}
