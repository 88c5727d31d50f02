"""The driver's part of a write: one publish in each log makes the staged rows visible, once.

A log recognises a repeat by the number of the batch and by the digest. With several logs, all are
asked before the first publish: if one log has other rows, no other log gets any.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from quorate.client.staging import (
    last_publication,
    last_publications,
    publish_staged,
)
from quorate.errors import Duplicate, ReplayMismatch
from quorate.spark.write.digest import NOTHING, digest_of_logs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from quorate.client.blocking import Client, Log
    from quorate.client.staging import LastPublish
    from quorate.commands import Part
    from quorate.spark.cluster_address import ClusterAddress
    from quorate.spark.write.digest import Digest
    from quorate.spark.write.task import CommitMessage, Share

__all__ = [
    "StagedWrite",
    "publish_job",
    "publish_micro_batch",
    "publish_transaction",
    "staged_write",
]

# The errors of a batch whose number is published, and not, or not known to be, with these rows.
REPEATED = (Duplicate, ReplayMismatch)


class LogParts(NamedTuple):
    """The parts that all tasks of a write staged in one log."""

    parts: list[Part]
    # The log took some chunks, so the batch was not published then.
    accepted: bool

    @property
    def records(self) -> int:
        return sum(part.records for part in self.parts)


@dataclass(frozen=True, slots=True)
class StagedWrite:
    """The rows that all tasks of a job or a micro-batch staged, by log."""

    app: str
    batch_id: int
    # The parts in each log, in the order of the names of the logs.
    logs: dict[str, LogParts]
    # One digest for all logs together: a log's publish differs if the rows of another log differ.
    digest: bytes


class PublishRefusal(NamedTuple):
    """The refusal of a log that has the batch, or a later one, and not, as far as known, with
    these rows."""

    log: Log
    error: Duplicate | ReplayMismatch


def staged_write(
    messages: Sequence[CommitMessage], app: str, batch_id: int, log: str | None
) -> StagedWrite:
    """The write that the messages of all tasks add up to.

    ``log`` gets a publish also if there are no rows: so it remembers that there were none.
    """
    by_log: dict[str, list[Share]] = {} if log is None else {log: []}
    for message in messages:
        for name, share in message.shares.items():
            by_log.setdefault(name, []).append(share)
    logs, digests = {}, {}
    for name, shares in sorted(by_log.items()):
        parts = sorted((share.part for share in shares), key=lambda part: part.partition)
        logs[name] = LogParts(parts, any(share.accepted for share in shares))
        digests[name] = _sum_of(share.digest for share in shares)
    return StagedWrite(app, batch_id, logs, digest_of_logs(digests))


def _sum_of(digests: Iterator[Digest]) -> Digest:
    total = NOTHING
    for digest in digests:
        total = total.plus(digest)
    return total


# -- the three ways to publish ---------------------------------------------------------------------


def publish_job(write: StagedWrite, cluster: ClusterAddress) -> None:
    """Publish the rows of a job without a name.

    Such a job is never repeated under its id, so the logs need not remember it for long.
    """
    with cluster.client() as client:
        for refusal in _publish_each(write, _logs(client, write), once=True):
            raise refusal.error


def publish_micro_batch(write: StagedWrite, cluster: ClusterAddress, *, keep_first: bool) -> None:
    """Publish a micro-batch of a stream.

    A log that has published other rows keeps them. Unless ``keep_first`` asks for that, this is an
    error, and no log gets a row.
    """
    with cluster.client() as client:
        logs = _logs(client, write)
        if not keep_first and len(logs) > 1:
            for refusal in _expected_refusals(write, logs).values():
                if refusal is not None:
                    raise refusal.error
        for refusal in _publish_each(write, logs):
            if not keep_first:
                raise refusal.error


def publish_transaction(write: StagedWrite, cluster: ClusterAddress) -> None:
    """Publish the rows of a transaction.

    If all logs have the version, or a later one, it is passed over with a warning. A version that
    only some logs have is completed, if their rows are the same.
    """
    with cluster.client() as client:
        logs = _logs(client, write)
        if len(logs) > 1:
            _refuse_half_a_repeat(write, logs)
        for refusal in _publish_each(write, logs):
            _pass_over(write, refusal)


def _refuse_half_a_repeat(write: StagedWrite, logs: Sequence[Log]) -> None:
    judged = _expected_refusals(write, logs)
    refusals = [refusal for refusal in judged.values() if refusal is not None]
    missing = [log.name for log in logs if log.name not in judged]
    if refusals and missing:
        raise type(refusals[0].error)(
            f"{refusals[0].error}; and log {missing[0]} has not published it: so nothing is "
            f"written. Write these rows as another txnVersion if they are wanted"
        )


def _pass_over(write: StagedWrite, refusal: PublishRefusal) -> None:
    last = last_publication(refusal.log, write.app)
    reached = write.batch_id if last is None else last.batch_id
    told = (
        f"log {refusal.log.name}: version {write.batch_id} of txnAppId {write.app!r} is not "
        f"written: "
    )
    if isinstance(refusal.error, Duplicate) and write.logs[refusal.log.name].accepted:
        # Another run wrote a later version meanwhile. These rows were not skipped on purpose.
        raise Duplicate(
            f"{told}version {reached} was published after this write had begun. Whether another "
            f"run wrote the same rows is not known any more"
        )
    why = "with other rows" if reached == write.batch_id else "which is a later one"
    warnings.warn(f"quorate: {told}version {reached} is published, {why}", stacklevel=4)


# -- asking and publishing -------------------------------------------------------------------------


def _logs(client: Client, write: StagedWrite) -> list[Log]:
    return [client.log(name) for name in write.logs]


def _expected_refusals(write: StagedWrite, logs: Sequence[Log]) -> dict[str, PublishRefusal | None]:
    """The expected refusal of each log that has published the batch, or a later one; None for a log
    that has these very rows."""
    found = zip(logs, last_publications(logs, write.app), strict=True)
    return {
        log.name: _expected_refusal(write, log, last)
        for log, last in found
        if last is not None and last.batch_id >= write.batch_id
    }


def _expected_refusal(write: StagedWrite, log: Log, last: LastPublish) -> PublishRefusal | None:
    records = write.logs[log.name].records
    told = f"log {log.name}: app {write.app!r} has published batch {last.batch_id}"
    if last.batch_id > write.batch_id:
        return PublishRefusal(
            log, Duplicate(f"{told}; where {write.batch_id} is, is no longer known")
        )
    if (last.count, last.digest) == (records, write.digest):
        return None
    return PublishRefusal(
        log,
        ReplayMismatch(
            f"{told} with {last.count} records and digest {last.digest.hex()}; this one has "
            f"{records} and {write.digest.hex()}"
        ),
    )


def _publish_each(
    write: StagedWrite, logs: Sequence[Log], *, once: bool = False
) -> Iterator[PublishRefusal]:
    """Publish in one log after the other, and yield the refusals.

    The same batch with the same rows is answered as the first time. The caller decides at each
    refusal whether to go on.
    """
    for log in logs:
        parts = write.logs[log.name].parts
        try:
            publish_staged(log, write.app, write.batch_id, parts, write.digest, once=once)
        except REPEATED as error:
            yield PublishRefusal(log, type(error)(f"log {log.name}: {error}"))
