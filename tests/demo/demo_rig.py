"""The demo as a process, and everybody that works for it."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dev_rig import plain_environment

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["DOCUMENT", "demo_process", "workers"]

EVENTS = "20000"


@contextmanager
def demo_process(place: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """``quorate demo`` that keeps everything in ``place``. Nobody is left, whatever it did."""
    command = [sys.executable, "-m", "quorate", "demo", "--events", EVENTS, *options]
    process = subprocess.Popen(
        command,
        cwd=place,
        env={**plain_environment(), "TMPDIR": str(place)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
        for pid in workers(place):
            os.kill(pid, 9)


def workers(place: Path) -> dict[int, str]:
    """Processes that were started in ``place`` or with a path in it, and what they are."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            here = str((path / "cwd").readlink())
        except OSError:  # it has ended, or is not ours to look at
            continue
        if command and (str(place) in command or here.startswith(str(place))):
            found[int(path.name)] = command
    return found


def _document() -> dict[str, Any]:
    """A run in which everything went well, as ``Findings.document`` gives it."""
    samples = [
        {
            "at": second / 2,
            "read": {"quorate": 500 * second, "naive": 400 * max(0, second - 4)},
            "lags": {"n1": 0, "n2": None if 6 <= second < 10 else second % 3, "n3": 1},
        }
        for second in range(1, 30)
    ]
    return {
        "orders": 20_000,
        "seconds": 61.5,
        "failover_ms": 412,
        "letters": 60,
        "archived": 13_960,
        "replicas": 3,
        "sinks": {
            "naive": {"records": 14_650, "lost": 0, "duplicates": 690, "strangers": 0},
            "quorate": {"records": 13_960, "lost": 0, "duplicates": 0, "strangers": 0},
        },
        "checks": [
            {"what": "lost by quorate", "expected": 0, "found": 0, "kept": True},
            {"what": "records <in> paid", "expected": 13_960, "found": 13_960, "kept": True},
        ],
        "steps": [{"title": "three nodes ready", "detail": "n1 & n2 & n3", "seconds": 1.4}],
        "kills": [{"at": 3.0, "what": "leader n2"}, {"at": 3.1, "what": "quorate driver"}],
        "samples": samples,
        "versions": {"quorate": "1", "Spark": "4"},
    }


DOCUMENT = _document()
