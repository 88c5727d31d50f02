"""Bytes that prove themselves and are not what a node writes: a CRC finds accidents, not lies."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from crc32c import crc32c

from directory_rig import SEGMENT_BYTES, copied, log_path, report_of, spoilt, written
from quorate.storage.layout import (
    PAGE,
    Block,
    Footer,
    SegmentHeader,
    block_seed,
    segment_name,
)

if TYPE_CHECKING:
    from pathlib import Path

FIRST, SECOND, NEWEST = (segment_name(number) for number in (1, 2, 3))
FOOTER = 8 * PAGE


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Closed in order; nobody changes it."""
    return written(tmp_path_factory.mktemp("clean") / "n1")


def header_of(path: Path, name: str) -> SegmentHeader:
    header = SegmentHeader.decode((log_path(path) / name).read_bytes()[:PAGE])
    assert header is not None
    return header


# Where a structure stands, how long it is without its CRC, and a byte that means nothing in it.
STRUCTURES = [
    (FIRST, 0, 112, 6, "the header page holds more than it should"),
    (FIRST, 0, 112, 92, "the header page holds more than it should"),
    (FIRST, PAGE, 60, 6, "the head holds more than it should"),
    (FIRST, PAGE, 60, 56, "the head holds more than it should"),
    (FIRST, FOOTER, 80, 6, "the footer page holds more than it should"),
    (FIRST, FOOTER, 80, 40, "the footer page holds more than it should"),
    ("vote-a", 0, 152, 7, "the vote record holds more than it should"),
    ("clean", 0, 56, 52, "the mark of a clean stop is bad"),
    ("0000000000000001.index", 0, 44, 6, "the index file is not what the segment's frames make it"),
]


@pytest.mark.parametrize(("name", "position", "length", "byte", "what"), STRUCTURES)
def test_a_reserved_byte_that_is_not_zero_is_reported(
    name: str, position: int, length: int, byte: int, what: str, clean: Path, tmp_path: Path
) -> None:
    data = bytearray((log_path(clean) / name).read_bytes()[position : position + length])
    data[byte] = 0x80
    seeded = name == FIRST and position
    header = header_of(clean, FIRST)
    seed = block_seed(header.nonce, position) if seeded else 0
    if name in ("vote-a", "clean"):
        seed = header.log.seed
    proved = bytes(data) + crc32c(bytes(data), seed).to_bytes(4, "little")
    log = spoilt(clean, tmp_path / "n1", name, position, proved)
    assert what in {damage.what for damage in log.damage}


@pytest.mark.parametrize(
    "change", [{"base_offset": 9}, {"append_time": 9}, {"previous_end": 7 * PAGE}]
)
def test_a_segment_must_follow_the_one_before(
    change: dict[str, int], clean: Path, tmp_path: Path
) -> None:
    header = replace(header_of(clean, SECOND), **change)  # type: ignore[arg-type]  # numbers all
    log = spoilt(clean, tmp_path / "n1", SECOND, 0, header.encode())
    assert "the segment does not follow the one before" in {damage.what for damage in log.damage}


@pytest.mark.parametrize("change", [{"write_number": 1}, {"next_offset": 9}, {"append_time": 9}])
def test_a_footer_must_say_what_the_blocks_hold(
    change: dict[str, int], clean: Path, tmp_path: Path
) -> None:
    header = header_of(clean, FIRST)
    page = (log_path(clean) / FIRST).read_bytes()[FOOTER:]
    footer = Footer.decode(page, header.nonce, FOOTER)
    assert footer is not None
    lie = replace(footer, **change)  # type: ignore[arg-type]  # numbers all
    log = spoilt(clean, tmp_path / "n1", FIRST, FOOTER, lie.encode(1, header.nonce))
    assert "the footer contradicts the blocks" in {damage.what for damage in log.damage}


@pytest.mark.parametrize("change", [{"write_number": 1}, {"durable_end": 3 * PAGE}])
def test_a_block_that_cannot_have_been_written_there_is_reported(
    change: dict[str, int], clean: Path, tmp_path: Path
) -> None:
    nonce = header_of(clean, FIRST).nonce
    data = (log_path(clean) / FIRST).read_bytes()[2 * PAGE :]
    block = Block.decode(data, block_seed(nonce, 2 * PAGE))
    assert block is not None
    lie = replace(block, **change)  # type: ignore[arg-type]  # numbers all
    head = lie.encode(block_seed(nonce, 2 * PAGE))
    assert spoilt(clean, tmp_path / "n1", FIRST, 2 * PAGE, head).damage


def test_a_block_that_was_copied_to_another_place_is_none(clean: Path, tmp_path: Path) -> None:
    page = (log_path(clean) / NEWEST).read_bytes()[2 * PAGE : 3 * PAGE]
    log = spoilt(clean, tmp_path / "n1", NEWEST, 4 * PAGE, 2 * page)
    [damage] = log.damage
    assert (damage.start, damage.stop) == (4 * PAGE, 6 * PAGE)
    assert damage.what == "unused space is not zero"


def test_a_mark_of_another_time_is_reported(clean: Path, tmp_path: Path) -> None:
    """The newest segment was lost, the vote record too, and the mark is still there."""
    copied(clean, tmp_path / "n1")
    path = log_path(tmp_path / "n1")
    (path / NEWEST).write_bytes(bytes(SEGMENT_BYTES))
    for name in ("vote-a", "vote-b"):
        (path / name).write_bytes(b"")
    log = report_of(tmp_path / "n1")
    assert "it names segment 3, the newest is 2" in {damage.what for damage in log.damage}
