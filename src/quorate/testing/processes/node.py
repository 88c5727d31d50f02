"""One node as a process of its own, to be killed, stopped and started again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["NodeProcess"]

STOP_S = 15


class NodeProcess:
    """A process of ``quorate serve`` with the settings in a file.

    The kernel ends it with this process, and with the thread that started it.
    """

    def __init__(
        self,
        name: str,
        settings: Path,
        environment: Mapping[str, str] | None = None,
        open_files: int | None = None,
    ) -> None:
        """``open_files`` limits the open files of the node, if this process may have more."""
        self.name = name
        self.settings = settings
        self.log = settings.with_suffix(".log")
        self._environment = {**os.environ, **(environment or {})}
        limit = ("sh", "-c", 'ulimit -n "$0" && exec "$@"', str(open_files)) if open_files else ()
        self._command = (*limit, sys.executable, "-m", "quorate", "serve", str(settings))
        self._process: subprocess.Popen[bytes] | None = None
        # Whether the node was told to end since it was started.
        self._told = False

    # -- how it is -----------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def gave_up(self) -> bool:
        """True if the node ended by itself."""
        return self._process is not None and not self.running and not self._told

    @property
    def pid(self) -> int:
        if self._process is None:
            raise LookupError(f"{self.name} was never started")
        return self._process.pid

    @property
    def said(self) -> str:
        """The log lines of the node, of all its runs."""
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    @property
    def last_words(self) -> str:
        """The last line that the node logged."""
        return (self.said.splitlines() or ["no line was logged"])[-1]

    @property
    def memory_bytes(self) -> int:
        """Bytes that the node has in memory now."""
        return self._status_bytes("VmRSS")

    @property
    def memory_peak_bytes(self) -> int:
        """The most bytes that the node had in memory."""
        return self._status_bytes("VmHWM")

    def _status_bytes(self, name: str) -> int:
        lines = Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8").splitlines()
        values = dict(line.split(":", 1) for line in lines)
        return int(values[name].split()[0]) << 10

    @property
    def cpu_s(self) -> float:
        """Seconds of a core that the node has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2]
        user, system = fields.split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    # -- actions on the node -------------------------------------------------------------------

    def start(self) -> None:
        """Start the node unless it is running."""
        if self.running:
            return
        self.wait()  # a node that ended by itself was not waited for
        self._told = False
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, "--parent", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )

    def signal(self, number: signal.Signals) -> None:
        if self.running and self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the node, as a power cut does, except that the kernel keeps its written pages."""
        self._told = True
        self.signal(signal.SIGKILL)
        self.wait()

    def stop(self) -> int:
        """Stop the node in good order, and return its exit status."""
        self._told = True
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)
        try:
            return self.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def wait(self, seconds: float | None = None) -> int:
        """Wait until the node has ended, and return its exit status."""
        if self._process is None:
            return 0
        status = self._process.wait(seconds)
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        return status
