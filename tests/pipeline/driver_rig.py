"""A command as a process of its own, with Java and workers behind it, that can be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline_rig import Ran

from dev_rig import command, plain_environment

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

__all__ = ["Driver"]

# Generous: no test asserts how long a driver takes.
PATIENCE_S = 500.0
# Below the ports that the kernel gives to sockets that ask for none.
PORTS = {
    "spark.driver.port": 21_200,
    "spark.blockManager.port": 21_400,
    "spark.port.maxRetries": 100,
}


class Driver:
    """``quorate pipeline …``, which runs until it ends or is ended."""

    def __init__(self, endpoints: str, directory: Path, *arguments: str | Path) -> None:
        settings = [text for name, port in PORTS.items() for text in ("--conf", f"{name}={port}")]
        self._out = directory / "driver.out"
        self._err = directory / "driver.err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                command("pipeline", *arguments, *settings, "--master", "local[2]"),
                stdout=out,
                stderr=err,
                cwd=directory,
                env={**plain_environment(), "QUORATE_ENDPOINTS": endpoints},
                # Java and the workers belong to it, and are killed with it.
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def wait_for(self, condition: Callable[[], object], what: str) -> None:
        """Look again and again while it runs."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert self.process.poll() is None, f"it ended before {what}: {self.ended()}"
            assert time.monotonic() < deadline, f"it never came that {what}"
            time.sleep(0.02)

    def interrupt(self) -> None:
        """Ctrl-C, as a terminal gives it: to all of them."""
        for pid in self._pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)

    def kill(self) -> None:
        """SIGKILL for the driver, Java and the workers."""
        for pid in self._pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def ended(self) -> Ran:
        """The status and the output of the driver, when it has ended by itself."""
        status = self.process.wait(PATIENCE_S)
        return Ran(status, self._out.read_text(), self._err.read_text())

    def _pids(self) -> list[int]:
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                fields = stat.read_text(encoding="utf-8").rpartition(")")[2].split()
                if int(fields[3]) == self.process.pid:
                    found.append(int(stat.parent.name))
        return found
