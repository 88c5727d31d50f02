"""Histories on file: what was written is read back, and a cut leaves what stands before it."""

from __future__ import annotations

import signal
import subprocess
import sys
from array import array
from threading import Thread
from typing import TYPE_CHECKING

import pytest
from checker_rig import LOG
from hypothesis import given
from hypothesis import strategies as st

from core_rig import FUZZ
from verification.checker import (
    AT_END,
    END_ONLY,
    LINEARIZABLE,
    BadHistory,
    FinalLog,
    History,
    Recorder,
    identity,
    identity_of,
    load_final,
    load_history,
    save_final,
    value_of,
)
from verification.checker.__main__ import main
from verification.checker.history import NEVER, AppendOutcome
from verification.checker.model import MemoryRecorder, Model
from verification.checker.speed import CLIENTS, write_run
from verification.checker.values import CLIENTS_MAX, NUMBERS_MAX

if TYPE_CHECKING:
    from pathlib import Path

LOGS = (LOG, "sales/eu")
OPERATIONS = 300


def load(*paths: Path) -> dict[str, History]:
    histories: dict[str, History] = {}
    for path in paths:
        load_history(path, histories)
    return histories


def rows(history: History) -> tuple[list[object], list[object]]:
    """The appends and the reads."""
    appends = [history.append_row(row) for row in range(len(history.appends))]
    reads = [(history.read_row(row), history.seen_by(row)) for row in range(len(history.reads))]
    return [*appends], [*reads]


# -- histories -----------------------------------------------------------------------------------


def test_a_run_on_file_is_the_run_in_memory(tmp_path: Path) -> None:
    write_run(tmp_path, OPERATIONS, LOGS)
    # The same run, one client after the other, as files are read.
    kept: dict[int, dict[str, History]] = {}
    model = Model(
        "files", OPERATIONS,
        lambda client, clock: MemoryRecorder(kept.setdefault(client, {}), client, clock),
        CLIENTS, LOGS,
    )  # fmt: skip
    model.run()
    for client, histories in kept.items():
        loaded = load(tmp_path / f"client-{client}.history")
        assert loaded.keys() == histories.keys()
        for log, history in histories.items():
            assert rows(loaded[log]) == rows(history)
    together = load(*sorted(tmp_path.glob("*.history")))
    assert len(together[LOG].reads) == sum(len(kept[client][LOG].reads) for client in kept)


def test_a_history_that_was_cut_anywhere_keeps_what_stands_before(tmp_path: Path) -> None:
    path = tmp_path / "1.history"
    ticks = iter(range(100, 200))
    with Recorder(path, 1, lambda: next(ticks)) as recorder:
        begun = recorder.begin(LOG, identity_of(1, 0), 3, session=4)
        recorder.acked(begun, 7, 3, 2)
        recorder.failed(recorder.begin(LOG, identity_of(1, 3), producer="p", sequence=5), "BUSY")
        recorder.read(LOG, 103, 7, range(3), AT_END, replica="n2")
    data = path.read_bytes()
    found = set()
    for size in range(len(data) + 1):
        path.write_bytes(data[:size])
        history = load(path).get(LOG, History())
        found.add((tuple(history.appends.outcome), len(history.reads)))
    acked, failed = AppendOutcome.ACKED, AppendOutcome.FAILED
    assert found == {
        ((), 0),
        ((AppendOutcome.UNKNOWN,), 0),
        ((acked,), 0),
        ((acked, AppendOutcome.UNKNOWN), 0),
        ((acked, failed), 0),
        ((acked, failed), 1),
    }


KILLED = """
import os, signal, sys
from pathlib import Path
from verification.checker import Recorder, identity_of

recorder = Recorder(Path(sys.argv[1]), 5)
recorder.acked(recorder.begin("orders", identity_of(5, 0)), 0, 1, 2)
recorder.begin("orders", identity_of(5, 1))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_has_said_what_it_knew(tmp_path: Path) -> None:
    path = tmp_path / "5.history"
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    appends = load(path)[LOG].appends
    assert list(appends.value) == [identity_of(5, 0), identity_of(5, 1)]
    assert list(appends.outcome) == [AppendOutcome.ACKED, AppendOutcome.UNKNOWN]
    assert appends.start[0] <= appends.end[0] <= appends.start[1] < appends.end[1] == NEVER


def test_threads_share_a_recorder(tmp_path: Path) -> None:
    path = tmp_path / "2.history"

    def use(session: int) -> None:
        for _ in range(100):
            number = recorder.numbers(2)
            begun = recorder.begin(LOG, identity_of(2, number), 2, session=session)
            recorder.acked(begun, number, 2, session)

    with Recorder(path, 2) as recorder:
        threads = [Thread(target=use, args=(session,)) for session in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    appends = load(path)[LOG].appends
    assert sorted(appends.value) == [identity_of(2, number) for number in range(0, 800, 2)]
    assert [identity_of(2, offset) for offset in appends.offset] == list(appends.value)
    assert appends.synced.tolist() == appends.session.tolist()


def test_a_clients_number_is_used_once(tmp_path: Path) -> None:
    Recorder(tmp_path / "1.history", 1).close()
    with pytest.raises(FileExistsError):
        Recorder(tmp_path / "1.history", 1)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"QRBA" + bytes(20), "not a history of version 1"),
        (b"QRHI\x02\0\0\0" + bytes(4), "not a history of version 1"),
        (b"QRHI\x01\0\0\0" + bytes(4) + b"\x09", "no row begins at byte 12"),
    ],
)
def test_what_is_no_history_is_refused(data: bytes, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "x.history"
    path.write_bytes(data)
    with pytest.raises(BadHistory, match=f"x.history: {problem}"):
        load(path)


numbers = st.integers(0, 2**32 - 1)
times = st.integers(-(2**63), 2**63 - 1)
identities = st.integers(0, 2**64 - 1)


@FUZZ
@given(st.text(max_size=9), numbers, times, st.lists(identities, max_size=9), st.integers(0, 7))
def test_any_read_comes_back(
    tmp_path_factory: pytest.TempPathFactory,
    name: str, session: int, time: int, seen: list[int], way: int,
) -> None:  # fmt: skip
    path = tmp_path_factory.mktemp("reads") / "1.history"
    with Recorder(path, 1, lambda: time) as recorder:
        recorder.read(name, time, 5, seen, way, session=session, replica=name)
    history = load(path)[name]
    read = history.read_row(0)
    assert history.seen_by(0).tolist() == seen
    assert (read.session, read.start, read.end, read.way) == (session, time, time, way)
    assert read.replica == name
    assert read.high == (5 + len(seen) if way & AT_END else NEVER)
    assert read.low == (5 + len(seen) if seen or way & END_ONLY else 0)


# -- final logs ----------------------------------------------------------------------------------


def test_a_dump_is_whole_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "final-1.log"
    final = FinalLog("n1", 4, array("Q", [7, 2**64 - 1]))
    save_final(path, "sales/eu", final)
    assert load_final(path) == ("sales/eu", final)
    data = path.read_bytes()
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(BadHistory, match="dump"):
            load_final(path)


# -- values --------------------------------------------------------------------------------------

clients = st.integers(0, CLIENTS_MAX - 1)
values = st.integers(0, NUMBERS_MAX - 1)


@FUZZ
@given(clients, values, st.integers(8, 200))
def test_a_value_says_who_sent_it(client: int, number: int, size: int) -> None:
    value = value_of(client, number, size)
    assert len(value) == size
    assert identity(value) == identity_of(client, number)


@FUZZ
@given(clients, values, st.integers(24, 100), st.data())
def test_a_value_that_changed_on_the_way_is_of_nobody(
    client: int, number: int, size: int, data: st.DataObject
) -> None:
    value = value_of(client, number, size)
    flipped = bytearray(value)
    flipped[data.draw(st.integers(0, size - 1))] ^= 1 << data.draw(st.integers(0, 7))
    for damaged in (bytes(flipped), value[:-1], value + b"\0", value[8:], b""):
        assert identity(damaged) >= 2**63


@pytest.mark.parametrize(("client", "number"), [(-1, 0), (CLIENTS_MAX, 0), (0, NUMBERS_MAX)])
def test_an_identity_out_of_range_is_refused(client: int, number: int) -> None:
    with pytest.raises(ValueError, match="out of range"):
        identity_of(client, number)


def test_a_value_has_room_for_its_identity() -> None:
    with pytest.raises(ValueError, match="no room"):
        value_of(0, 0, 7)


# -- the command ---------------------------------------------------------------------------------


def test_the_command_counts_and_succeeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path, OPERATIONS, LOGS)
    assert main([str(tmp_path), "--voters", "3"]) == 0
    histories = load(*tmp_path.glob("*.history")).values()
    appends = sum(len(history.appends) for history in histories)
    reads = sum(len(history.reads) for history in histories)
    unknown = sum(history.appends.outcome.count(AppendOutcome.UNKNOWN) for history in histories)
    assert capsys.readouterr().out == (
        f"checker: operations={appends + reads} appends={appends} reads={reads} "
        f"unknown={unknown} violations=0\n"
    )


def test_the_command_fails_on_a_violation_and_shows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path, OPERATIONS, LOGS)
    with Recorder(tmp_path / "late.history", 9, lambda: 1 << 60) as recorder:
        recorder.read(LOG, 1 << 60, 0, (), LINEARIZABLE | AT_END)
    assert main([str(tmp_path)]) == 1
    *_, shown, summary, last = capsys.readouterr().out.splitlines()
    assert shown.startswith("C6 stale read: log orders: offset ")
    assert summary.strip().startswith("1  stale read (C6): ")
    assert last.endswith(" violations=1")


def test_the_command_refuses_what_it_cannot_judge(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path)]) == 2
    write_run(tmp_path, OPERATIONS, LOGS)
    for path in tmp_path.glob("final-0-*.log"):
        path.unlink()
    assert main([str(tmp_path)]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith(": no history")
    assert second == "error: log orders: no replica has a final log"
