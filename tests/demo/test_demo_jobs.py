"""Jobs as processes: frozen, killed with all that they started, and gone with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from demo_rig import workers

from dev_rig import alive, wait_until
from quorate.demo.findings import DemoFailed
from quorate.demo.jobs import Job
from quorate.demo.queries import FAILURES_MAX, Caught, Query, Trap

# Two processes; the second one has left the group of the first, as workers of Spark do.
FAMILY = """
import os, sys, time
if os.fork() == 0:
    os.setpgid(0, 0)
open(f"member-{os.getpid()}", "w").close()
while True:
    with open(f"beat-{os.getpid()}", "a") as file:
        file.write("x")
    time.sleep(0.01)
"""
FAILS = "import sys\nsys.exit('too bad')\n"
# Starts a job and waits to be killed.
PARENT = """
import sys, time
from pathlib import Path
from quorate.demo.jobs import Job
Job("family", ["family"], Path(sys.argv[1]))
time.sleep(600)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with modules that jobs can run."""
    (tmp_path / "family.py").write_text(FAMILY)
    (tmp_path / "fails.py").write_text(FAILS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def members(place: Path) -> list[int]:
    return [int(path.name.removeprefix("member-")) for path in place.glob("member-*")]


def beats(place: Path) -> int:
    return sum(path.stat().st_size for path in place.glob("beat-*"))


def test_all_of_a_job_stands_still_goes_on_and_is_killed(place: Path) -> None:
    job = Job("family", ["family"], place)
    try:
        wait_until(lambda: len(members(place)) == 2, "both processes run")
        job.freeze()
        wait_until(lambda: set(map(state, members(place))) == {"T"}, "both stand still")
        before = beats(place)
        job.thaw()
        wait_until(lambda: beats(place) > before, "they go on")
    finally:
        job.kill()
    assert not any(map(alive, members(place)))
    assert job.status == -signal.SIGKILL


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_job_ends_with_its_parent(place: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(place)])
    try:
        wait_until(lambda: len(members(place)) == 2, "both processes run")
        [first] = [pid for pid in members(place) if os.getsid(pid) == pid]
        parent.kill()
        # Its child is no matter of the kernel: workers of Spark watch their parents themselves.
        wait_until(lambda: not alive(first), "the job has ended")
    finally:
        parent.kill()
        parent.wait()
        for pid in workers(place):
            os.kill(pid, signal.SIGKILL)


def test_a_job_that_fails_is_quoted(place: Path) -> None:
    job = Job("fails", ["fails"], place)
    wait_until(lambda: job.status is not None, "it has ended")
    assert str(job.failure()) == "fails ended with status 1: too bad"


# -- queries -----------------------------------------------------------------------------------

# Of one batch.
WORK = 10
# Opens a batch, works on it for a while, commits it; again and again.
BATCHES = """
import pathlib, sys, time
place = pathlib.Path(sys.argv[1])
for folder in ("offsets", "commits"):
    (place / folder).mkdir(parents=True)
for batch in range(int(sys.argv[2])):
    (place / "offsets" / str(batch)).write_text('v1\\n{}\\n{"orders": {"offset": %d}}' % batch)
    for _ in range(10):
        with open(place / "work", "a") as file:
            file.write("x")
        time.sleep(0.01)
    (place / "commits" / str(batch)).touch()
    time.sleep(0.02)
"""


def started(place: Path, batches: int) -> Query:
    (place / "batches.py").write_text(BATCHES)
    checkpoint = place / "checkpoint"
    query = Query("query", ["batches", str(checkpoint), str(batches)], checkpoint, place, "orders")
    assert (query.committed, query.open_batch, query.read) == (-1, None, 0)
    query.start()
    return query


def work(place: Path) -> int:
    path = place / "checkpoint" / "work"
    return path.stat().st_size if path.exists() else 0


def test_a_query_is_killed_inside_a_batch(place: Path) -> None:
    query = started(place, 1000)
    trap = Trap(query, lambda: work(place))
    caught: list[Caught] = []

    def look() -> bool:
        caught.extend(filter(None, [trap.look()]))
        return bool(caught)

    wait_until(look, "it is caught")
    # The batch is open for ever: nobody goes on with it.
    assert caught[0].batch == query.open_batch
    assert 0 < caught[0].grown <= WORK
    assert query.job.status == -signal.SIGKILL


def test_a_query_that_ends_too_early_is_told(place: Path) -> None:
    query = started(place, 2)
    wait_until(query.ended, "it has ended")
    assert (query.committed, query.open_batch, query.read) == (1, None, 1)
    with pytest.raises(DemoFailed, match="query came to its end before it could be killed"):
        Trap(query, lambda: work(place)).look()


def test_a_query_that_fails_is_started_again_and_then_told(place: Path) -> None:
    query = Query("query", ["fails"], place / "checkpoint", place, "orders")
    query.start()
    trap = Trap(query, lambda: 0)
    with pytest.raises(DemoFailed, match="query ended with status 1: too bad"):
        wait_until(trap.look, "it is caught")
    assert query.failures == ["query ended with status 1: too bad"] * (FAILURES_MAX + 1)
