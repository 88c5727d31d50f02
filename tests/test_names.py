"""One concept has one name: a class name is defined once below ``src/quorate``.

The names that are still defined more than once are listed. The list only shrinks.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src" / "quorate"

DEFINED_TWICE = {
    "Aborted", "Agreement", "Append", "Appends", "Archive", "Attempt", "Begun", "Block", "Call",
    "Checkpoint", "Chunk", "Clients", "Cluster", "Contents", "Done", "Ended", "Faults", "Files",
    "Findings", "Flushed", "Frame", "History", "Identity", "Kind", "Log", "Nemesis", "Node",
    "OpenProducer", "Opened", "Outcome", "Part", "Patience", "Place", "Producer", "Progress",
    "Publication", "Publish", "Published", "Read", "Reader", "Reads", "Receipt", "Record",
    "Refusal", "Replica", "ReplicaStatus", "Rows", "Run", "Sample", "Scenario", "Seen", "Session",
    "SetFence", "Settings", "Shape", "Stage", "Stamp", "Tally", "Target", "Violation", "Watcher",
    "Window", "World", "Write", "Writer", "Writers", "_Block", "_Commands", "_Found", "_Job",
    "_Node", "_Producer", "_Session", "_Table", "_Worker",
}  # fmt: skip


def class_names() -> Counter[str]:
    """How often each class name is defined."""
    return Counter(
        node.name
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    )


def test_a_class_name_is_defined_once() -> None:
    twice = {name for name, count in class_names().items() if count > 1}
    assert twice - DEFINED_TWICE == set(), "choose another name"
    assert DEFINED_TWICE - twice == set(), "take the name off the list"
