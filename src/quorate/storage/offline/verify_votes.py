"""The check of the vote record: both of its copies hold the newest record and the one before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.storage.layout import (
    PAGE,
    VOTE_BYTES,
    VOTE_COPIES,
    decode_votes,
    encode_vote,
    never_opened,
    newest_vote,
    vote_place,
)

if TYPE_CHECKING:
    from quorate.storage.offline.report import Findings
    from quorate.types import VoteRecord

__all__ = ["check_votes", "read_votes"]


def read_votes(findings: Findings) -> dict[str, bytes]:
    """The copies of the vote record, by name; the newest record is noted in the report."""
    copies = {name: findings.read(name) for name in VOTE_COPIES if name in findings.sizes}
    findings.report.record = newest_vote(copies.values(), findings.identity)
    return copies


def check_votes(findings: Findings, copies: dict[str, bytes]) -> None:
    """Check the copies of the vote record."""
    report = findings.report
    seen: dict[int, VoteRecord] = {}
    for name, data in copies.items():
        _check_copy(findings, name, data, seen)
    for name in VOTE_COPIES:
        if name not in copies:
            findings.leftover(name, "this copy of the vote record is missing")
    new = never_opened(findings.sizes, copies.get(VOTE_COPIES[0], b""))
    if report.record is None and not new and not report.clean:
        findings.damage(VOTE_COPIES[0], "no copy of the vote record can be read")


def _check_copy(findings: Findings, name: str, copy: bytes, others: dict[int, VoteRecord]) -> None:
    """Check one copy of the vote record. It holds the newest record and the one before, each on its
    own page, and both copies hold the same; ``others`` are the records seen so far, by number."""
    newest = findings.report.record
    left, more = set(), False
    found = decode_votes(copy, findings.identity)
    for place, record in zip(range(0, VOTE_BYTES, PAGE), found, strict=True):
        page = copy[place : place + PAGE]
        if record is None or newest is None:
            # The first record of a log has no record before it.
            if any(page) or newest is None or newest.number > 1:
                left.add("this copy of the vote record is bad")
        elif record.number != newest.number - (place != vote_place(newest.number)):
            left.add("this copy of the vote record is older than the other")
        else:
            more = more or encode_vote(record, findings.identity) != page
            if others.setdefault(record.number, record) != record:
                left.add("this copy of the vote record is not what the other is")
    if len(copy) != VOTE_BYTES:
        left = {"this copy of the vote record is bad"}
    for what in sorted(left):
        findings.leftover(name, what)
    if more:
        findings.damage(name, "the vote record holds more than it should")
