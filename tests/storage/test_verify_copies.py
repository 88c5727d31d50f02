"""The offline check of several copies of a log: what is committed must be the same in all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from directory_rig import INCARNATION, Writer, flip, log_path, run
from quorate.storage.layout import PAGE, segment_name
from quorate.storage.offline.verify import verify
from quorate.types import Index

if TYPE_CHECKING:
    from pathlib import Path

FIRST = segment_name(1)


def group(place: Path, stamps: dict[str, int], committed: int = 30) -> list[Path]:
    """One log on several nodes; what comes after entry 20 depends on the node's stamp."""
    paths = []
    for node, stamp in stamps.items():
        writer = Writer.open(place / node, node)
        writer.flush(writer.entries(20), committed=0)
        for _ in range(4):
            writer.flush(writer.entries(5, stamp=stamp), committed=committed)
        writer.stop(committed=committed)
        paths.append(place / node)
    return paths


def test_copies_of_a_log_are_the_same(tmp_path: Path) -> None:
    report = verify(group(tmp_path, {"n1": 0, "n2": 0, "n3": 0}))
    [agreement] = report.agreements
    assert report.whole
    assert (agreement.incarnation, agreement.through, agreement.positions) == (INCARNATION, 30, ())
    assert agreement.paths == (tmp_path / "n1", tmp_path / "n2", tmp_path / "n3")


def test_the_first_entry_that_differs_is_named(tmp_path: Path) -> None:
    report = verify(group(tmp_path, {"n1": 0, "n2": 0, "n3": 1}))
    [agreement] = report.agreements
    assert not report.whole
    assert all(directory.whole for directory in report.directories)
    first, second, third = agreement.positions
    assert {first.index, second.index, third.index} == {21}
    assert first == second
    assert third.chain != first.chain


def test_what_not_every_copy_proves_committed_may_differ(tmp_path: Path) -> None:
    paths = group(tmp_path, {"n1": 0, "n2": 0})
    paths += group(tmp_path, {"n3": 1}, committed=20)
    report = verify(paths)
    [agreement] = report.agreements
    assert (report.whole, agreement.through) == (True, 20)


def test_a_lost_entry_is_damage_and_no_difference(tmp_path: Path) -> None:
    """Not even if it is the last one that could be compared."""
    paths = group(tmp_path, {"n1": 0, "n2": 0, "n3": 0})
    [log] = verify(paths[2:]).directories[0].logs
    for number in range(1, log.segments + 1):
        position = PAGE + 64 + 20
        with (log_path(paths[2]) / segment_name(number)).open("r+b") as file:
            file.seek(position)
            file.write(b"\xa5")
    report = verify(paths)
    assert [directory.whole for directory in report.directories] == [True, True, False]
    assert report.agreements[0].positions == ()


def test_a_difference_is_found_beside_damage(tmp_path: Path) -> None:
    paths = group(tmp_path, {"n1": 0, "n2": 1})
    flip(log_path(paths[0]) / FIRST, 8 * (PAGE + 64 + 20))
    report = verify(paths)
    assert not report.directories[0].whole
    assert report.agreements[0].positions[0].index == 21


def test_logs_that_are_there_once_are_compared_with_nothing(tmp_path: Path) -> None:
    paths = []
    for node, incarnation in (("n1", 1), ("n2", 2)):
        writer = Writer.open(tmp_path / node, node, incarnation)
        writer.flush(writer.entries(2))
        writer.stop()
        paths.append(tmp_path / node)
    report = verify(paths)
    assert (report.whole, report.agreements) == (True, [])


def test_trimmed_copies_are_compared_where_they_overlap(tmp_path: Path) -> None:
    paths = []
    for node, stamp in (("n1", 0), ("n2", 1)):
        writer = Writer.open(tmp_path / node, node)
        writer.flush(writer.entries(30, stamp=7))
        writer.flush(writer.entries(30, stamp=stamp))
        if node == "n2":
            sealed = [segment for segment in writer.log.segments if segment.footer is not None]
            run(writer.flusher.trim(Index(sealed[0].last.index + 1)))
        writer.stop()
        paths.append(tmp_path / node)
    report = verify(paths)
    assert [directory.whole for directory in report.directories] == [True, True]
    before = report.directories[1].logs[0].before.index
    assert before > 31
    assert report.agreements[0].positions[0].index == before + 1
