"""A Spark cluster of a master and two workers, each on an address of its own.

Spark never runs a task a second time on the host of the first: the second worker is another host
of loopback.
"""

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
from urllib.error import URLError
from urllib.request import urlopen

import pyspark

from quorate.spark.java import java_home
from quorate.testing.processes.ports import Ports
from verification.spark_chaos.driver import processes_of

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = ["Standalone"]

PATIENCE_S = 180
HOSTS = ("127.0.0.1", "127.0.0.2")
DAEMON = "org.apache.spark.deploy"
EXECUTOR = b"CoarseGrainedExecutorBackend"


class Standalone:
    """Each worker has one core."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        free = Ports()
        self._port, self._page, *self._others = map(str, free.take(6))
        free.close()
        self.master = f"spark://{HOSTS[0]}:{self._port}"
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            self._start(
                HOSTS[0], f"{DAEMON}.master.Master", "--port", self._port,
                "--webui-port", self._page,
            )  # fmt: skip
            for number, host in enumerate(HOSTS):
                port, page = self._others[2 * number :][:2]
                self._start(
                    host, f"{DAEMON}.worker.Worker", "--port", port, "--webui-port", page,
                    "--cores", "1", "--memory", "1g",
                    "--work-dir", str(self._directory / f"work-{number}"), self.master,
                )  # fmt: skip
            self._wait()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def _start(self, host: str, program: str, *arguments: str) -> None:
        home = java_home(os.environ)
        environment = os.environ | {"SPARK_LOCAL_IP": host, "PYSPARK_PYTHON": sys.executable}
        if home is not None:
            environment["JAVA_HOME"] = str(home)
        spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
        with (self._directory / "daemons.log").open("ab") as output:
            self._processes.append(
                subprocess.Popen(
                    [spark_class, program, "--host", host, *arguments],
                    stdout=output,
                    stderr=output,
                    env=environment,
                    start_new_session=True,
                )
            )

    def _wait(self) -> None:
        """Until the master knows both workers."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            # Only loopback is ever asked. A master that just begins answers with its page
            # for people: that is no JSON, a ValueError.
            with (
                suppress(URLError, ConnectionError, TimeoutError, ValueError),
                urlopen(f"http://{HOSTS[0]}:{self._page}/json/", timeout=5) as page,
            ):
                if json.load(page)["aliveworkers"] == len(HOSTS):
                    return
            time.sleep(0.2)
        raise TimeoutError((self._directory / "daemons.log").read_text(encoding="utf-8")[-4000:])

    def _end(self) -> None:
        for process in self._processes:
            for pid in processes_of(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()

    def kill_executor(self) -> None:
        """Kill one of the two; processes that it started may live on. Its worker starts another."""
        for process in self._processes[1:]:
            for pid in processes_of(process.pid):
                with suppress(OSError):
                    if EXECUTOR in Path(f"/proc/{pid}/cmdline").read_bytes():
                        os.kill(pid, signal.SIGKILL)
                        return
        raise ProcessLookupError("no executor runs")
