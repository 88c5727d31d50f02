"""The page on the wire format shows the bytes that the code sends, and lists all that there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from quorate.commands import Receipt
from quorate.raft.messages import MessageKind
from quorate.wire import calls
from quorate.wire.calls import LogCall
from quorate.wire.frames import FRAME_BYTES, FrameKind
from quorate.wire.handshake import HandshakeRefusal, Hello, Introduction, Welcome
from verification.wire_samples import MESSAGES, RESULTS, samples

PAGE = Path(__file__).resolve().parents[2] / "docs" / "format-wire.md"
TEXT = PAGE.read_text(encoding="utf-8")

# Kinds whose control part is packed by hand: a table shows every byte of it.
PACKED = ["PEER", "APPEND", "RECEIPTS", "FETCH", "RECORDS", "FAILURE"]


def section(heading: str) -> str:
    begun = TEXT.partition(f"\n## {heading}\n")
    assert begun[1], f"no section {heading!r}"
    return begun[2].partition("\n## ")[0]


def rows(heading: str, columns: int) -> list[list[str]]:
    """The cells of the tables with so many columns, without heads and rulers."""
    lines = [line for line in section(heading).splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    rulers = [place for place, line in enumerate(lines) if set(line) <= set("|-: ")]
    heads = {place for ruler in rulers for place in (ruler - 1, ruler)}
    return [row for place, row in enumerate(cells) if place not in heads and len(row) == columns]


def example() -> dict[str, bytes]:
    """The frames that the example prints; that it does is checked where all examples are run."""
    frames: dict[str, bytes] = {}
    name = ""
    for line in TEXT.partition("```text\n")[2].partition("```")[0].splitlines():
        if found := re.fullmatch(r"([A-Z]+), \d+ bytes", line):
            name = found[1]
            frames[name] = b""
        else:
            frames[name] += bytes.fromhex(line.strip().partition("  ")[2])
    return frames


def test_the_example_has_a_frame_of_every_kind() -> None:
    assert list(example()) == [kind.name for kind in FrameKind]


@pytest.mark.parametrize("heading", ["Frame", *PACKED])
def test_the_tables_show_the_bytes_of_every_kind(heading: str) -> None:
    frame = example()["APPEND" if heading == "Frame" else heading]
    control = int.from_bytes(frame[4:8], "little")
    part = frame[FRAME_BYTES : FRAME_BYTES + control]
    data = frame[:FRAME_BYTES] if heading == "Frame" else part
    position = 0
    for offset, size, _, shown, _ in rows(heading, 5):
        assert int(offset) == position
        expected = b"" if shown == "0" else bytes.fromhex(shown.strip("`"))
        stop = position + int(size)
        assert expected.ljust(int(size), b"\0") == data[position:stop], f"{heading} at {offset}"
        position = stop
    assert position == len(data)


def test_every_kind_of_frame_is_listed() -> None:
    listed = [(int(row[0]), row[1]) for row in rows("Kinds", 5)]
    assert listed == [(kind.value, kind.name) for kind in FrameKind]
    with_bulk = {row[1] for row in rows("Kinds", 5) if row[4]}
    assert with_bulk == {sample.kind.name for sample in samples() if sample.bulk}


def test_every_kind_of_message_is_listed_with_its_size() -> None:
    sizes: dict[int, int] = {}
    for sample in samples():
        if sample.kind is FrameKind.PEER and sample.control[0] == 1:
            body = sample.control[44:]
            assert len(body) == int.from_bytes(sample.control[40:44], "little")
            sizes[sample.control[36]] = len(body)
    listed = rows("PEER", 3)
    assert [(int(row[0]), row[1]) for row in listed] == [
        (one.value, one.name) for one in MessageKind
    ]
    for number, name, body_shown in listed:
        if body_shown == "reserved":
            assert int(number) not in sizes
            continue
        fixed, _, each = body_shown.partition(", then for each entry")
        entries = len(MESSAGES[5].entries) if name == "APPEND" else 0  # type: ignore[union-attr]
        size = sum(map(int, re.findall(r" (\d+)(?:,|$| \()", fixed)))
        assert size + entries * int(each[-1:] or 0) == sizes[int(number)], name


@pytest.mark.parametrize(
    ("title", "shape"),
    [
        ("HELLO", Hello),
        ("WELCOME", Welcome),
        ("Introduction", Introduction),
        ("REFUSAL", HandshakeRefusal),
    ],
)
def test_every_field_of_every_shape_is_listed(title: str, shape: Any) -> None:
    listed = [row[0].strip("`") for row in rows(title, 3)]
    assert listed == list(shape.__struct_fields__)


def test_every_call_is_listed_with_its_fields_and_its_result() -> None:
    listed = {row[0]: row[1:] for row in rows("CALL", 3)}
    assert len(listed) == len(RESULTS)
    for call, found in RESULTS:
        shape = calls._MAPS[type(call.command)] if isinstance(call, LogCall) else type(call)
        fields, result = listed[str(shape.__struct_config__.tag)]
        assert field_names(fields) == list(shape.__struct_fields__)
        assert result == type(found).__name__


def test_every_result_is_listed_with_its_fields() -> None:
    listed = {row[0]: row[1] for row in rows("RESULT", 2)}
    shapes: dict[str, Any] = {type(found).__name__: type(found) for _, found in RESULTS}
    shapes |= {shape.__name__: shape for shape in (calls.LogStatus, calls.PeerStatus)}
    assert listed.keys() == shapes.keys()
    for name, fields in listed.items():
        shape = shapes[name]
        known = shape._fields if shape is Receipt else shape.__struct_fields__
        assert field_names(fields) == list(known)


def field_names(cell: str) -> list[str]:
    return [part.split()[0] for part in cell.split(", ") if part]
