"""The offline check: no bit can turn unnoticed, and nothing that is right is called wrong."""

from __future__ import annotations

import errno
import os
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from directory_rig import (
    CLUSTER,
    INCARNATION,
    SEGMENT_BYTES,
    Writer,
    copied,
    flip,
    log_path,
    only,
    report_of,
    sample_bits,
    spoilt,
    written,
)
from quorate.entry import make_entry
from quorate.errors import ReplicaHalted, WrongDirectory
from quorate.server.manifest import make_log
from quorate.storage.directory import DataDirectory, log_name
from quorate.storage.layout import PAGE, segment_name
from quorate.storage.manifest import MANIFEST, Manifest, Outdated
from quorate.storage.offline.verify import bytes_to_read, verify
from quorate.storage.vfs import RealFile, RealVfs
from quorate.types import EntryKind, NodeId, Term

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from quorate.storage.offline.report import LogReport

FIRST, SECOND, NEWEST = (segment_name(number) for number in (1, 2, 3))


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Closed in order; a test that changes it must undo that."""
    return written(tmp_path_factory.mktemp("clean") / "n1")


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Killed; a test that changes it must undo that."""
    return written(tmp_path_factory.mktemp("crashed") / "n1", clean=False)


# -- what is right -----------------------------------------------------------------------------


def test_a_log_that_was_closed_in_order_is_whole(clean: Path) -> None:
    report = verify([clean])
    assert report.whole
    [directory] = report.directories
    assert str(directory.identity) == "node n1 of cluster shop"
    log = report_of(clean)
    assert (log.clean, log.segments, log.sealed) == (True, 3, 1)
    assert (log.entries, log.before.index, log.last.index, log.last.term) == (64, 0, 64, 3)
    assert (log.first_offset, log.next_offset) == (0, 192)
    assert log.bytes == sum(file.stat().st_size for file in log_path(clean).iterdir())
    assert (log.damage, log.warnings) == ([], [])


def test_a_log_that_was_killed_is_whole_too(crashed: Path) -> None:
    log = report_of(crashed)
    assert (log.clean, log.entries, log.last.index) == (False, 64, 64)
    assert (log.damage, log.warnings) == ([], [])


def test_what_is_sealed_or_named_by_a_block_is_proved_committed(tmp_path: Path) -> None:
    """Also if entries that are not here are committed elsewhere."""
    writer = Writer.open(tmp_path / "n1")
    writer.flush(writer.entries(3), committed=0)
    assert report_after_crash(writer).committed == 0
    writer = Writer.open(tmp_path / "n1")
    writer.flush(writer.entries(3), committed=2)
    assert report_after_crash(writer).committed == 2
    writer = Writer.open(tmp_path / "n1")
    writer.flush(writer.entries(3), committed=99)
    assert report_after_crash(writer).committed == 9


def report_after_crash(writer: Writer) -> LogReport:
    writer.crash()
    return report_of(writer.directory.path)


def test_logs_that_hold_nothing_yet_are_whole(tmp_path: Path) -> None:
    writer = Writer.open(tmp_path / "n1")
    writer.directory.log_vfs(7).close()
    writer.stop()
    report = verify([tmp_path / "n1"])
    assert report.whole
    assert [log.segments for log in report.directories[0].logs] == [0, 0]


def test_nothing_is_written(clean: Path, tmp_path: Path) -> None:
    """Not even a lock where there is none: a copy on a disk that cannot be written will do."""
    path = tmp_path / "n1"
    copied(clean, path)
    (path / "lock").unlink()
    before = [(file, file.stat().st_mtime_ns) for file in sorted(path.rglob("*"))]
    assert verify([path]).whole
    assert [(file, file.stat().st_mtime_ns) for file in sorted(path.rglob("*"))] == before


def test_no_node_works_there_meanwhile(tmp_path: Path) -> None:
    writer = Writer.open(tmp_path / "n1")
    with pytest.raises(WrongDirectory, match=f"in use by process {os.getpid()}; stop it first"):
        verify([tmp_path / "n1"])
    writer.stop()
    refused = []

    def start(_: int) -> None:
        with pytest.raises(WrongDirectory) as error:
            Writer.open(tmp_path / "n1")
        refused.append(error)

    assert verify([tmp_path / "n1"], start).whole
    assert refused


def test_something_else_is_no_data_directory(tmp_path: Path) -> None:
    with pytest.raises(WrongDirectory, match="is not a data directory; name one that a node made"):
        verify([tmp_path])


def test_a_large_segment_is_not_held_in_memory(tmp_path: Path) -> None:
    writer = Writer.open(tmp_path / "n1", segment_bytes=24 << 20)
    for _ in range(16):
        writer.flush(writer.entries(4, size=256 << 10))
    writer.stop()
    told: list[int] = []
    tracemalloc.start()
    report = verify([tmp_path / "n1"], told.append)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert report.whole
    assert peak < 6 << 20
    # Progress is told of everything, bit by bit.
    assert sum(told) == bytes_to_read([tmp_path / "n1"])
    assert max(told) <= 2 << 20


# -- every bit ---------------------------------------------------------------------------------


def test_any_flipped_bit_of_a_closed_directory_is_noticed(clean: Path) -> None:
    for file, bit in sample_bits(clean, 60):
        flip(file, bit)
        report = verify([clean])
        flip(file, bit)
        assert not report.whole, f"bit {bit} of {file.name}"
    assert verify([clean]).whole


@pytest.mark.parametrize("name", ["vote-a", "vote-b", "clean", FIRST, "0000000000000001.index"])
def test_every_flipped_bit_of_every_structure_is_noticed(name: str, clean: Path) -> None:
    """Heads, headers, the beginning of frames: their fields, reserved bytes and padding."""
    file = log_path(clean) / name
    for bit in range(3, 8 * min(file.stat().st_size, 250), 5):
        flip(file, bit)
        log = report_of(clean)
        flip(file, bit)
        assert log.damage, f"bit {bit}"
        assert {damage.file for damage in log.damage} == {name}


def test_what_opening_finds_is_never_missed(clean: Path, crashed: Path, tmp_path: Path) -> None:
    """And what is called whole opens without a complaint."""
    for path in (clean, crashed):
        for number, (file, bit) in enumerate(sample_bits(path, 12, files="*segment")):
            flip(file, bit)
            whole = verify([path]).whole
            twin = tmp_path / f"{path.parent.name} {number}"
            copied(path, twin)
            flip(file, bit)
            try:
                writer = Writer.open(twin)
            except ReplicaHalted:
                assert not whole
                continue
            assert not (whole and writer.log.damage), f"bit {bit} of {file.name}"
            writer.crash()


# -- what damage is called ---------------------------------------------------------------------


def test_damage_names_the_file_the_bytes_and_the_entries(clean: Path, tmp_path: Path) -> None:
    body = spoilt(clean, tmp_path / "body", FIRST, PAGE + 64 + 100)
    assert str(only(body.damage)) == f"{FIRST}, bytes 4160 to 4932: the body is bad (entry 1)"
    assert (body.entries, body.last.index) == (63, 64)
    header = spoilt(clean, tmp_path / "header", FIRST, PAGE + 64 + 772 + 20)
    assert list(map(str, header.damage)) == [
        f"{FIRST}, bytes 4160 to 4932: nothing confirms these entries (entry 1)",
        f"{FIRST}, bytes 4932 to 8192: entries are lost (entries 2 to 5)",
    ]
    assert (header.entries, header.last.index, header.next_offset) == (59, 64, 192)
    head = spoilt(clean, tmp_path / "head", FIRST, 2 * PAGE + 20)
    assert str(only(head.damage)) == f"{FIRST}, bytes 8192 to 8256: the head of a block is bad"
    assert head.entries == 64


@pytest.mark.parametrize(
    ("name", "position", "what"),
    [
        (FIRST, 10, "the segment's header is bad"),
        (FIRST, 2000, "the header page holds more than it should"),
        (FIRST, 8 * PAGE + 20, "the footer is bad"),
        (FIRST, 8 * PAGE + 2000, "the footer page holds more than it should"),
        (FIRST, 2 * PAGE - 50, "the page is not zero after its last frame"),
        (SECOND, SEGMENT_BYTES - 1, "unused space is not zero"),
        (SECOND, 8 * PAGE, "unused space is not zero"),
        (NEWEST, SEGMENT_BYTES - 1, "unused space is not zero"),
        (NEWEST, 2 * PAGE + 20, "no block can be read"),
        ("spare", 5, "the spare segment is not zero"),
        ("vote-a", 123, "this copy of the vote record is bad"),
        ("vote-b", 30, "this copy of the vote record is bad"),
        ("vote-b", PAGE + 30, "this copy of the vote record is bad"),
        ("vote-a", PAGE - 1, "the vote record holds more than it should"),
        ("vote-a", 2 * PAGE - 1, "the vote record holds more than it should"),
        ("clean", 30, "the mark of a clean stop is bad"),
        (FIRST, SEGMENT_BYTES, "the footer is bad"),
        (NEWEST, SEGMENT_BYTES, f"the file is {SEGMENT_BYTES + 1} bytes long and was made with"),
        ("clean", 60, "the mark of a clean stop is bad"),
        ("vote-a", 2 * PAGE, "this copy of the vote record is bad"),
    ],
)
def test_each_kind_of_damage_is_called_by_its_name(
    name: str, position: int, what: str, clean: Path, tmp_path: Path
) -> None:
    log = spoilt(clean, tmp_path / "n1", name, position)
    assert {damage.file for damage in log.damage} == {name}
    assert any(damage.what.startswith(what) for damage in log.damage)


def test_a_segment_without_its_header_still_holds_its_entries(clean: Path, tmp_path: Path) -> None:
    log = spoilt(clean, tmp_path / "n1", SECOND, 10)
    assert only(log.damage).what == "the segment's header is bad"
    assert (log.entries, log.last.index, log.next_offset) == (64, 64, 192)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        (FIRST, "the segment is missing (entries 1 to 35)"),
        (SECOND, "the segment is missing (entries 36 to 62)"),
        (NEWEST, "the segment is missing"),
        ("vote-a", "this copy of the vote record is missing"),
    ],
)
def test_a_missing_file_is_damage(name: str, what: str, clean: Path, tmp_path: Path) -> None:
    copied(clean, tmp_path / "n1")
    (log_path(tmp_path / "n1") / name).unlink()
    log = report_of(tmp_path / "n1")
    assert any(str(damage) == f"{name}, bytes 0 to 0: {what}" for damage in log.damage)


def test_an_index_file_can_be_made_again(clean: Path, tmp_path: Path) -> None:
    copied(clean, tmp_path / "n1")
    (log_path(tmp_path / "n1") / "0000000000000001.index").unlink()
    log = report_of(tmp_path / "n1")
    assert log.damage == []
    assert only(log.warnings).what == "the index file is missing"


def test_a_page_that_a_disk_lost_is_damage(clean: Path, tmp_path: Path) -> None:
    """Zeros are no excuse: below the end of a segment there are none."""
    for page in range(9):
        log = spoilt(clean, tmp_path / str(page), FIRST, page * PAGE, bytes(PAGE))
        assert log.damage, f"page {page}"


def test_a_segment_of_another_disk_is_damage(clean: Path, tmp_path: Path) -> None:
    other = written(tmp_path / "n2", "n2")
    copied(clean, tmp_path / "n1")
    for name in (SECOND, "vote-a"):
        (log_path(other) / name).replace(log_path(tmp_path / "n1") / name)
    log = report_of(tmp_path / "n1")
    assert "the segment belongs to another log or another node's disk" in {
        damage.what for damage in log.damage
    }


def test_an_older_copy_of_a_segment_is_damage(tmp_path: Path) -> None:
    """Every block of it is right; what came after it says that there was more."""
    writer = Writer.open(tmp_path / "n1")
    writer.flush(writer.entries(3))
    writer.crash()
    old = (log_path(tmp_path / "n1") / FIRST).read_bytes()
    writer = Writer.open(tmp_path / "n1")
    writer.flush(writer.entries(3))
    writer.stop()
    (log_path(tmp_path / "n1") / FIRST).write_bytes(old)
    log = report_of(tmp_path / "n1")
    assert only(log.damage).what == "entries are lost"
    assert (only(log.damage).first, only(log.damage).last) == (4, 6)


def test_offsets_without_gaps_and_times_that_never_fall(tmp_path: Path) -> None:
    writer = Writer.open(tmp_path / "n1")
    first = writer.entries(1)[0]
    gap = make_entry(first.position, Term(2), EntryKind.NOOP, base_offset=9, append_time=1)
    writer.flush([first, gap])
    writer.stop()
    log = report_of(tmp_path / "n1")
    assert [damage.what for damage in log.damage] == [
        "entry 2 begins at offset 9, not 3",
        "the append time of entry 2 is before that of the entry before it",
    ]


@pytest.mark.parametrize("name", ["notes.txt", "clean.new", "0000000000000009.index", "1.segment"])
def test_a_file_that_has_no_place_there_is_reported(name: str, clean: Path, tmp_path: Path) -> None:
    copied(clean, tmp_path / "n1")
    (log_path(tmp_path / "n1") / name).touch()
    assert only(report_of(tmp_path / "n1").damage).file == name


def test_strange_things_in_the_data_directory_are_reported(clean: Path, tmp_path: Path) -> None:
    path = tmp_path / "n1"
    copied(clean, path)
    (path / "notes.txt").touch()
    (path / "logs" / "old").mkdir()
    [directory] = verify([path]).directories
    assert [damage.file for damage in directory.damage] == ["notes.txt", "logs/old"]
    (path / "identity").unlink()
    [directory] = verify([path]).directories
    assert "the identity is missing" in {damage.what for damage in directory.damage}
    assert directory.logs[0].damage == []


def with_manifest(clean: Path, twin: Path, change: Callable[[Manifest], None]) -> list[str]:
    """The damage of a copy whose manifest was changed."""
    copied(clean, twin)
    manifest = Manifest.decode((twin / MANIFEST).read_bytes())
    assert manifest is not None
    change(manifest)
    (twin / MANIFEST).write_bytes(manifest.encode())
    [report] = verify([twin]).directories
    return [f"{one.file}: {one.what}" for one in report.damage]


def test_logs_without_a_manifest_are_damage(clean: Path, tmp_path: Path) -> None:
    """Their node refuses to start."""
    copied(clean, tmp_path / "n1")
    (tmp_path / "n1" / MANIFEST).unlink()
    [report] = verify([tmp_path / "n1"]).directories
    assert [str(one.what) for one in report.damage] == [
        "the manifest is missing, and there are logs"
    ]


def test_a_manifest_that_is_older_than_a_log_is_damage(clean: Path, tmp_path: Path) -> None:
    told = with_manifest(clean, tmp_path / "n1", lambda manifest: manifest.logs.clear())
    what = "it holds a log that the manifest does not know: the manifest is an older one"
    assert told == [f"logs/{log_name(INCARNATION)}: {what}"]


def test_a_log_that_was_about_to_be_made_is_no_damage(tmp_path: Path) -> None:
    Writer.open(tmp_path / "n1").stop()
    with DataDirectory.open(tmp_path / "n1", CLUSTER, "n1") as directory:
        make_log(directory, 0xBEEF)  # and the node was killed
    assert verify([tmp_path / "n1"]).whole


def test_a_directory_that_is_marked_as_an_older_copy_is_damage(clean: Path, tmp_path: Path) -> None:
    def mark(manifest: Manifest) -> None:
        manifest.outdated = Outdated(NodeId("n2"), 9, 77)

    told = with_manifest(clean, tmp_path / "n1", mark)
    assert told == ["manifest: the directory is an older copy: n2 knows start 9 of its node"]


def test_what_is_no_plain_file_is_not_opened(clean: Path, tmp_path: Path) -> None:
    copied(clean, tmp_path / "n1")
    for name in (SECOND, "vote-a"):
        (log_path(tmp_path / "n1") / name).unlink()
    os.mkfifo(log_path(tmp_path / "n1") / SECOND)
    (log_path(tmp_path / "n1") / "vote-a").symlink_to(log_path(clean) / "vote-a")
    log = report_of(tmp_path / "n1")
    strange = [damage.file for damage in log.damage if damage.what == "it is not a plain file"]
    assert strange == [SECOND, "vote-a"]


def test_a_file_that_the_disk_cannot_read_is_damage(
    clean: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = RealFile.read

    def failing(self: RealFile, position: int, length: int) -> bytes:
        if position >= 2 * PAGE:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(self, position, length)

    monkeypatch.setattr(RealFile, "read", failing)
    log = report_of(clean)
    assert {damage.file for damage in log.damage} == {FIRST, SECOND, NEWEST}
    assert {damage.what for damage in log.damage} == {"it cannot be read: Input/output error"}


def test_a_real_vfs_that_is_read_only_cannot_write(clean: Path) -> None:
    vfs = RealVfs(log_path(clean), read_only=True)
    file = vfs.open("vote-a")
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.write(0, [b"x"])
    file.close()
    vfs.close()
