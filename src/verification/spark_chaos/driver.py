"""The driver as a process: Python, Java and the workers; started again whenever it has ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

    from verification.spark_chaos.job import Plan

__all__ = ["Driver", "processes_of"]

# Seconds to wait for a driver: Java starts slowly, and so does a machine with other work.
PATIENCE_S = 600.0
LOOK_S = 0.1
# The module that runs Python for Java, as its command line shows it.
WORKER = b"pyspark"


class Driver:
    """Starts one driver at a time, with the same plan each time."""

    def __init__(self, plan: Plan, output: Path) -> None:
        self._plan = plan
        # The file that takes the output of every driver.
        self._output = output
        self._process: subprocess.Popen[bytes] | None = None
        # The number of drivers started, and the number of drivers that ended although no kill was
        # aimed at them: the kills may have hit all attempts of a task, or the process that plans a
        # query.
        self.starts = 0
        self.gave_up = 0

    def begin(self, *, finish: bool = False) -> None:
        """Start it unless it runs."""
        if self._process is not None:
            if self._process.poll() is None:
                return
            self.gave_up += 1
            self.kill()
        self._plan.at_work.unlink(missing_ok=True)
        self.starts += 1
        job = [sys.executable, "-m", "verification.spark_chaos.job", json.dumps(self._plan)]
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                job + ["--finish"] * finish,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def wait_at_work(self) -> None:
        """Wait until the driver has processes to be killed."""
        deadline = time.monotonic() + PATIENCE_S
        while not self._plan.at_work.exists():
            self.begin()
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"no driver came to work in {PATIENCE_S:g} s; see {self._output}"
                )
            time.sleep(LOOK_S)

    def kill(self) -> None:
        """Kill all processes of the driver at once."""
        if self._process is None:
            return
        for pid in processes_of(self._process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def kill_worker(self, random: Random) -> bool:
        """Kill one of the processes that run Python for Java. False if there is none."""
        if self._process is None:
            return False
        found = [
            pid
            for pid in processes_of(self._process.pid)
            if pid != self._process.pid and WORKER in _command(pid)
        ]
        with suppress(ProcessLookupError):
            if found:
                os.kill(random.choice(sorted(found)), signal.SIGKILL)
        return bool(found)

    def finish(self) -> bool:
        """Start the driver a last time, and wait until it ends. False if it fails."""
        self.kill()
        self.begin(finish=True)
        assert self._process is not None
        try:
            return self._process.wait(PATIENCE_S) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            self.kill()


def processes_of(session: int) -> list[int]:
    """All processes of the session that this process began with ``start_new_session``."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text(encoding="utf-8").rpartition(")")[2].split()
            if int(fields[3]) == session:
                found.append(int(stat.parent.name))
    return found


def _command(pid: int) -> bytes:
    """The command of a process. Java's arguments name the worker module, too, but Java is no
    worker."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return b""
    return b" ".join(words[1:]) if b"python" in words[0] else b""
