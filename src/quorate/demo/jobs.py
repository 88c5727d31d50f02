"""A Spark job as processes of one session: Python, its Java, and the workers of both.

A driver that dies does not end the others at once, so a kill that is to look like a lost machine
has to find all processes. The kernel knows them by the session that they were started in.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from quorate.demo.findings import DemoFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Job"]

LOOK_S = 0.02
# Seconds until a kill counts as failed: a process that is killed is gone in far less.
GONE_S = 20.0


class Job:
    """A run of ``python -m COMMAND…`` that ends with this process, in a session of its own."""

    def __init__(self, name: str, command: Sequence[str], place: Path) -> None:
        """``place`` gets the output of the job, and the temporary files of Python and Java."""
        self.name = name
        self._out = place / f"{name}.out"
        self._log = place / f"{name}.log"
        scratch = place / "scratch"
        scratch.mkdir(exist_ok=True)
        environment = {
            **os.environ,
            "TMPDIR": str(scratch),
            "SPARK_LOCAL_DIRS": str(scratch),
            # Files that a killed Java leaves are removed with the directory.
            "JDK_JAVA_OPTIONS": f"-Djava.io.tmpdir={scratch}",
            # No other machine is to reach Spark, and no user looks at its pages.
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_SUBMIT_ARGS": "--conf spark.ui.enabled=false pyspark-shell",
        }
        bound = (sys.executable, "-m", "quorate.demo.parent_death", str(os.getpid()))
        with self._out.open("wb") as out, self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*bound, sys.executable, "-m", *command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                cwd=place,
                env=environment,
                start_new_session=True,
            )

    @property
    def status(self) -> int | None:
        """The exit status of the job; None while it runs."""
        return self._process.poll()

    @property
    def said(self) -> str:
        """The standard output of the job."""
        return self._out.read_text(encoding="utf-8", errors="replace")

    def failure(self) -> DemoFailed:
        """An error with the last line that the job logged."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").split("\n")
        words = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
        return DemoFailed(f"{self.name} ended with status {self.status}: {words}")

    # -- what is done to it --------------------------------------------------------------------

    def freeze(self) -> None:
        """Stop all processes of the job, so that its work can be looked at."""
        self._signal(signal.SIGSTOP)
        # Stop the processes that were started meanwhile.
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """``kill -9`` the driver, its Java and all their workers, and wait until they are gone."""
        deadline = time.monotonic() + GONE_S
        while self._signal(signal.SIGKILL):
            self._process.poll()
            if time.monotonic() > deadline:
                raise DemoFailed(f"{self.name} does not end: processes {self._members()}")
            time.sleep(LOOK_S)
        self._process.wait()

    def _signal(self, number: signal.Signals) -> int:
        """Send a signal to all processes of the job, and return their number."""
        members = self._members()
        for pid in members:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return len(members)

    def _members(self) -> list[int]:
        """The processes of the session that have not ended."""
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                text = path.read_text(encoding="utf-8", errors="replace")
            except OSError:  # the process has ended
                continue
            state, _, __, session = text.rpartition(")")[2].split()[:4]
            if int(session) == self._process.pid and state not in "ZX":
                found.append(int(path.parent.name))
        return found
