"""Both copies of the vote record are old: a block of a later boot shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from quorate.errors import Damaged
from quorate.storage.flusher import Flush
from quorate.storage.layout import VOTE_COPIES, segment_name
from quorate.storage.offline.verify_log import audit_log
from quorate.storage.recovery.inventory import LATER_BLOCK
from quorate.types import ORIGIN
from verification.disk.simulated import SimulatedDisk
from verification.disk.small import grow, open_disk, run

if TYPE_CHECKING:
    from pathlib import Path

LOG = grow(ORIGIN, 100, 100, 100)


def later(entries: int, lost: tuple[str, ...]) -> SimulatedDisk:
    """A disk that lost the vote records of the second boot, in which these entries were logged."""
    disk = SimulatedDisk()
    _, flusher = open_disk(disk)
    run(flusher.plan(Flush(1, entries=LOG[:1])))
    old = {name: bytes(disk.files[name].content) for name in lost}
    _, flusher = open_disk(disk)
    for entry in LOG[1 : 1 + entries]:
        run(flusher.plan(Flush(2, entries=(entry,))))
    for name, content in old.items():
        disk.spoil(name, 0, content)
    return disk


@pytest.mark.parametrize("entries", [1, 2])
def test_a_block_of_a_later_boot_than_the_vote_record_stops_the_log(entries: int) -> None:
    disk = later(entries, VOTE_COPIES)
    with pytest.raises(Damaged, match="a block is of a later boot than the vote record"):
        open_disk(disk)


def test_one_copy_of_the_newest_record_is_enough() -> None:
    for lost in VOTE_COPIES:
        log, _ = open_disk(later(2, (lost,)))
        assert (log.last, log.damage, log.record.unsure) == (LOG[2].position, [], False)


def test_an_old_record_is_believed_if_nothing_was_logged_since() -> None:
    """Only the manifest, which names the boot of the log, shows such a loss."""
    log, _ = open_disk(later(0, VOTE_COPIES))
    assert (log.last, log.record.boot) == (LOG[0].position, 2)


def test_verify_names_a_block_of_a_later_boot(tmp_path: Path) -> None:
    for name, inode in later(1, VOTE_COPIES).files.items():
        (tmp_path / name).write_bytes(bytes(inode.content))
    report = audit_log(tmp_path, 1, None, lambda _: None)
    assert [(one.file, one.what) for one in report.damage] == [(segment_name(1), LATER_BLOCK)]
