"""What the driver does with what its tasks staged: one publish for each log, each of them once.

A log knows a repeat again by the number of the batch and by the digest. With several logs, all are
asked before the first publish: if one of them has other rows, no other log gets any.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from quorate.client.blocking_staging import last_publication, last_publications, publish_staged
from quorate.errors import Duplicate, ReplayMismatch
from quorate.spark.digest import NOTHING, digest_of_logs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from quorate.client.blocking import Client, Log
    from quorate.client.staging import Part, Publication
    from quorate.spark.connecting import Cluster
    from quorate.spark.digest import Digest
    from quorate.spark.writer import Share, Written

__all__ = ["Write", "gathered", "publish_job", "publish_portion", "publish_transaction"]

# A batch of that number is published, and not, or not known to be, with these rows.
REPEATED = (Duplicate, ReplayMismatch)


class Addition(NamedTuple):
    """What all tasks of a write staged in one log."""

    parts: list[Part]
    # The log took some of it, so the batch was not published then.
    accepted: bool

    @property
    def records(self) -> int:
        return sum(part.records for part in self.parts)


@dataclass(frozen=True, slots=True)
class Write:
    """All that the tasks of a write staged."""

    app: str
    batch_id: int
    # By log, in the order of their names.
    additions: dict[str, Addition]
    # Of all of them together: that of one log changes with the rows of another.
    digest: bytes


class Refusal(NamedTuple):
    """A log has the batch, or a later one, and not with these rows, as far as is known."""

    log: Log
    error: Duplicate | ReplayMismatch


def gathered(written: Sequence[Written], app: str, batch_id: int, log: str | None) -> Write:
    """``log`` is written to also if there are no rows: so it remembers that there were none."""
    by_log: dict[str, list[Share]] = {} if log is None else {log: []}
    for message in written:
        for name, share in message.shares.items():
            by_log.setdefault(name, []).append(share)
    additions, digests = {}, {}
    for name, shares in sorted(by_log.items()):
        parts = sorted((share.part for share in shares), key=lambda part: part.partition)
        additions[name] = Addition(parts, any(share.accepted for share in shares))
        digests[name] = _sum_of(share.digest for share in shares)
    return Write(app, batch_id, additions, digest_of_logs(digests))


def _sum_of(digests: Iterator[Digest]) -> Digest:
    total = NOTHING
    for digest in digests:
        total = total.plus(digest)
    return total


# -- the three ways to publish ---------------------------------------------------------------------


def publish_job(write: Write, cluster: Cluster) -> None:
    """Of a job without a name. It is never known again, so the logs need not remember it for
    long."""
    with cluster.client() as client:
        for refusal in _refusals(write, _logs(client, write), once=True):
            raise refusal.error


def publish_portion(write: Write, cluster: Cluster, *, keep_first: bool) -> None:
    """Of a stream. A log that has other rows keeps them; unless that is what was asked for, it is
    told, and no log gets anything."""
    with cluster.client() as client:
        logs = _logs(client, write)
        if not keep_first and len(logs) > 1:
            for refusal in _judged_ahead(write, logs).values():
                if refusal is not None:
                    raise refusal.error
        for refusal in _refusals(write, logs):
            if not keep_first:
                raise refusal.error


def publish_transaction(write: Write, cluster: Cluster) -> None:
    """A version that all logs have, or a later one, is passed over with a warning. What only some
    of them have is completed, if it is the same."""
    with cluster.client() as client:
        logs = _logs(client, write)
        if len(logs) > 1:
            _refuse_half_a_repeat(write, logs)
        for refusal in _refusals(write, logs):
            _pass_over(write, refusal)


def _refuse_half_a_repeat(write: Write, logs: Sequence[Log]) -> None:
    judged = _judged_ahead(write, logs)
    refusals = [refusal for refusal in judged.values() if refusal is not None]
    missing = [log.name for log in logs if log.name not in judged]
    if refusals and missing:
        raise type(refusals[0].error)(
            f"{refusals[0].error}; and log {missing[0]} has not published it: so nothing is "
            f"written. Write these rows as another txnVersion if they are wanted"
        )


def _pass_over(write: Write, refusal: Refusal) -> None:
    last = last_publication(refusal.log, write.app)
    reached = write.batch_id if last is None else last.batch_id
    told = (
        f"log {refusal.log.name}: version {write.batch_id} of txnAppId {write.app!r} is not "
        f"written: "
    )
    if isinstance(refusal.error, Duplicate) and write.additions[refusal.log.name].accepted:
        # Somebody else wrote a later version meanwhile. Nobody skipped these rows on purpose.
        raise Duplicate(
            f"{told}version {reached} was published after this write had begun. Whether another "
            f"run wrote the same rows is not known any more"
        )
    why = "with other rows" if reached == write.batch_id else "which is a later one"
    warnings.warn(f"quorate: {told}version {reached} is published, {why}", stacklevel=4)


# -- asking and publishing -------------------------------------------------------------------------


def _logs(client: Client, write: Write) -> list[Log]:
    return [client.log(name) for name in write.additions]


def _judged_ahead(write: Write, logs: Sequence[Log]) -> dict[str, Refusal | None]:
    """What the logs that have published the batch, or a later one, will say; None: that they have
    these very rows."""
    found = zip(logs, last_publications(logs, write.app), strict=True)
    return {
        log.name: _judged(write, log, last)
        for log, last in found
        if last is not None and last.batch_id >= write.batch_id
    }


def _judged(write: Write, log: Log, last: Publication) -> Refusal | None:
    records = write.additions[log.name].records
    told = f"log {log.name}: app {write.app!r} has published batch {last.batch_id}"
    if last.batch_id > write.batch_id:
        return Refusal(log, Duplicate(f"{told}; where {write.batch_id} is, is no longer known"))
    if (last.count, last.digest) == (records, write.digest):
        return None
    return Refusal(
        log,
        ReplayMismatch(
            f"{told} with {last.count} records and digest {last.digest.hex()}; this one has "
            f"{records} and {write.digest.hex()}"
        ),
    )


def _refusals(write: Write, logs: Sequence[Log], *, once: bool = False) -> Iterator[Refusal]:
    """Publish in one log after the other. The same batch with the same rows is answered as the
    first time; whoever is given a refusal decides whether to go on."""
    for log in logs:
        parts = write.additions[log.name].parts
        try:
            publish_staged(log, write.app, write.batch_id, parts, write.digest, once=once)
        except REPEATED as error:
            yield Refusal(log, type(error)(f"log {log.name}: {error}"))
