"""A node's data directory: made once, found again by its owner, refused to everybody else."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from directory_rig import CLUSTER, INCARNATION, Writer, flip, log_path
from quorate.errors import InvalidArgument, WrongDirectory
from quorate.storage import directory as module
from quorate.storage.directory import (
    DataDirectory,
    Identity,
    hold_still,
    log_incarnation,
    log_name,
    process_at_work,
)
from quorate.storage.layout import LogId
from quorate.types import NodeId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

STORAGE = bytes(range(16))
IDENTITY = Identity(CLUSTER, NodeId("n1"), STORAGE)


def opened(path: Path, cluster: str = CLUSTER, node: str = "n1") -> DataDirectory:
    return DataDirectory.open(path, cluster, node, draw_storage=lambda: STORAGE)


def made(path: Path) -> Path:
    opened(path).close()
    return path


def names(path: Path) -> list[str]:
    return sorted(place.name for place in path.iterdir())


# -- making and finding again ------------------------------------------------------------------


def test_the_first_open_makes_a_directory_for_its_owner_alone(tmp_path: Path) -> None:
    with opened(tmp_path / "n1") as directory:
        assert directory.identity == IDENTITY
        assert directory.incarnations() == []
    assert (tmp_path / "n1").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "n1" / "logs").stat().st_mode & 0o777 == 0o700
    assert names(tmp_path / "n1") == ["identity", "lock", "logs"]
    assert (tmp_path / "n1" / "identity").stat().st_mode & 0o777 == 0o600


def test_the_identity_is_text_that_a_person_can_read(tmp_path: Path) -> None:
    assert (made(tmp_path / "n1") / "identity").read_text() == (
        "format 1\n"
        "cluster shop\n"
        "node n1\n"
        "storage 000102030405060708090a0b0c0d0e0f\n"
        "crc32c 2701cad2\n"
    )


def test_the_storage_id_is_drawn_once(tmp_path: Path) -> None:
    drawn = [
        DataDirectory.open(tmp_path / "n1", CLUSTER, "n1"),
        DataDirectory.open(tmp_path / "n2", CLUSTER, "n2"),
    ]
    for directory in drawn:
        directory.close()
    first, second = (directory.identity.storage for directory in drawn)
    assert len(first) == len(second) == 16
    assert first != second
    with DataDirectory.open(tmp_path / "n1", CLUSTER, "n1") as again:
        assert again.identity.storage == first


def test_a_log_gets_a_directory_of_its_own(tmp_path: Path) -> None:
    with opened(tmp_path / "n1") as directory:
        for incarnation in (INCARNATION, INCARNATION, 0):
            vfs = directory.log_vfs(incarnation)
            assert vfs.names() == []
            vfs.close()
        assert directory.incarnations() == [0, INCARNATION]
        assert directory.log_id(INCARNATION) == LogId(INCARNATION, STORAGE)
        path = log_path(tmp_path / "n1")
        assert path.name == "00000000000000000000000000c0ffee"
        assert path.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("incarnation", [-1, 1 << 128])
def test_an_incarnation_has_128_bits(incarnation: int) -> None:
    with pytest.raises(InvalidArgument, match="128 bits"):
        log_name(incarnation)
    assert log_incarnation(log_name((1 << 128) - 1)) == (1 << 128) - 1


@pytest.mark.parametrize("name", ["", "c0ffee", "0" * 31 + "G", "0" * 31 + "A", "0" * 33])
def test_other_names_are_no_logs(name: str) -> None:
    assert log_incarnation(name) is None


def test_what_the_file_system_itself_puts_there_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    tmp_path.chmod(0o700)
    made(tmp_path)
    made(tmp_path)


# -- who it belongs to -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cluster", "node", "wanted"),
    [
        (CLUSTER, "n2", "node n2 of cluster shop"),
        ("bank", "n1", "node n1 of cluster bank"),
    ],
)
def test_another_node_or_cluster_is_refused_with_both_names(
    cluster: str, node: str, wanted: str, tmp_path: Path
) -> None:
    made(tmp_path / "n1")
    with pytest.raises(WrongDirectory) as refused:
        opened(tmp_path / "n1", cluster, node)
    assert "belongs to node n1 of cluster shop" in str(refused.value)
    assert f"not to {wanted}; start that node here, or give this one" in str(refused.value)
    made(tmp_path / "n1")


def test_every_flipped_bit_of_the_identity_is_noticed() -> None:
    data = IDENTITY.encode()
    assert Identity.decode(data) == IDENTITY
    for bit in range(8 * len(data)):
        spoilt = bytearray(data)
        spoilt[bit // 8] ^= 1 << bit % 8
        assert Identity.decode(bytes(spoilt)) is None


@pytest.mark.parametrize("cut", [0, 1, 15, 16, 17, 80])
def test_an_identity_that_is_cut_short_is_noticed(cut: int) -> None:
    assert Identity.decode(IDENTITY.encode()[:cut]) is None
    assert Identity.decode(IDENTITY.encode() + b"\0" * (cut + 1)) is None


@pytest.mark.parametrize("text", [b"", b"format 1\n", b"format 1\nstorage xy\n", b"format x\n"])
def test_a_whole_file_with_something_else_in_it_is_noticed(text: bytes) -> None:
    assert Identity.decode(text + module.proof_line(text)) is None


def test_a_damaged_identity_is_refused_and_says_what_to_do(tmp_path: Path) -> None:
    flip(made(tmp_path / "n1") / "identity", 100)
    with pytest.raises(WrongDirectory, match=r"identity is damaged; restore it, or go on with"):
        opened(tmp_path / "n1")


def test_a_newer_format_is_refused_with_both_numbers(tmp_path: Path) -> None:
    text = b"format 2\nand whatever comes then\n"
    (made(tmp_path / "n1") / "identity").write_bytes(text + module.proof_line(text))
    with pytest.raises(WrongDirectory, match="has format 2, this release knows format 1; run the"):
        opened(tmp_path / "n1")


@pytest.mark.parametrize("name", ["", "a b", "n1\n", "é", "../n1", "n" * 65])
def test_a_name_that_no_vote_record_holds_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="1 to 64 letters"):
        opened(tmp_path / "n1", node=name)
    with pytest.raises(InvalidArgument, match="1 to 64 letters"):
        opened(tmp_path / "n1", cluster=name)
    assert not (tmp_path / "n1").exists()


# -- what is no data directory -----------------------------------------------------------------


def test_a_directory_with_other_things_in_it_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").touch()
    tmp_path.chmod(0o700)
    with pytest.raises(WrongDirectory, match=r"not empty: it holds holiday\.jpg; name an empty"):
        opened(tmp_path)
    assert names(tmp_path) == ["holiday.jpg"]


def test_logs_without_an_identity_are_not_a_new_node(tmp_path: Path) -> None:
    (made(tmp_path / "n1") / "identity").unlink()
    with pytest.raises(WrongDirectory, match="holds logs and its identity is missing; restore"):
        opened(tmp_path / "n1")


def test_parents_are_not_made(tmp_path: Path) -> None:
    """A disk that is not mounted must not look like a new node."""
    with pytest.raises(
        WrongDirectory, match=r"cannot be made: No such file or directory; see that"
    ):
        opened(tmp_path / "data" / "n1")


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "n1").touch()
    with pytest.raises(WrongDirectory, match="not a directory of its own"):
        opened(tmp_path / "n1")


@pytest.mark.parametrize("mode", [0o701, 0o710, 0o755, 0o720])
def test_a_directory_open_to_others_is_refused(mode: int, tmp_path: Path) -> None:
    made(tmp_path / "n1").chmod(mode)
    with pytest.raises(WrongDirectory, match=rf"mode {mode:o}\); run: chmod 700 .*n1$"):
        opened(tmp_path / "n1")


def test_another_users_directory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path / "n1")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may do everything
    with pytest.raises(WrongDirectory, match="closed to this user"):
        opened(tmp_path / "n1")


@pytest.mark.parametrize(
    "name", ["", "identity", "lock", "logs", f"logs/{log_name(INCARNATION)}", "a file of the log"]
)
def test_a_symbolic_link_is_refused_wherever_it_is(name: str, tmp_path: Path) -> None:
    writer = Writer.open(tmp_path / "n1")
    writer.stop()
    path = tmp_path / "n1" / name
    if name == "a file of the log":
        path = log_path(tmp_path / "n1") / "vote-a"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(WrongDirectory, match=r"symbolic link|not a directory of its own"):
        opened(tmp_path / "n1")


# -- one process at a time ---------------------------------------------------------------------

HOLD = """
import sys
from pathlib import Path
from quorate.storage.directory import DataDirectory
directory = DataDirectory.open(Path(sys.argv[1]), "shop", "n1")
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that works in ``n1``."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "n1")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process
        process.kill()


def test_a_second_process_is_refused_and_told_who_is_there(
    holder: subprocess.Popen[str], tmp_path: Path
) -> None:
    with pytest.raises(WrongDirectory, match=rf"in use by process {holder.pid}; stop it first"):
        opened(tmp_path / "n1")
    assert process_at_work(tmp_path / "n1") == holder.pid
    holder.kill()
    holder.wait()
    made(tmp_path / "n1")


def test_a_second_open_in_the_same_process_is_refused(tmp_path: Path) -> None:
    message = f"in use by process {os.getpid()};"
    with opened(tmp_path / "n1"), pytest.raises(WrongDirectory, match=message):
        opened(tmp_path / "n1")
    made(tmp_path / "n1")
    assert process_at_work(tmp_path / "n1") is None


def test_who_it_is_need_not_be_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "process_at_work", lambda _: None)
    message = "in use by another process; stop it first"
    with opened(tmp_path / "n1"), pytest.raises(WrongDirectory, match=message):
        opened(tmp_path / "n1")


def test_closing_twice_closes_nothing_else(tmp_path: Path) -> None:
    directory = opened(tmp_path / "n1")
    directory.close()
    with opened(tmp_path / "n1"):
        directory.close()
        with pytest.raises(WrongDirectory, match="in use"):
            opened(tmp_path / "n1")


def test_several_may_look_while_nobody_works(tmp_path: Path) -> None:
    path = made(tmp_path / "n1")
    with hold_still(path), hold_still(path), pytest.raises(WrongDirectory, match="in use"):
        opened(path)
    with opened(path), pytest.raises(WrongDirectory, match="in use"), hold_still(path):
        pass
    (path / "lock").unlink()
    with hold_still(path):  # a copy, for example
        assert not (path / "lock").exists()


# -- crashes while it is made ------------------------------------------------------------------


class Killed(BaseException):
    """The process ends here, in the middle of something."""


CALLS = ("mkdir", "open", "rename", "fsync", "fdatasync", "pwritev")


def killed_after(calls: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let so many calls to the system through, then no more; the names of those that were made."""
    made: list[str] = []

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any, **named: Any) -> Any:
            if len(made) == calls:
                raise Killed
            made.append(name)
            return call(*arguments, **named)

        return counting

    for name in CALLS:
        monkeypatch.setattr(os, name, counted(name, getattr(os, name)))
    return made


def test_a_kill_at_any_moment_of_the_making_leaves_a_directory_that_opens(
    tmp_path: Path,
) -> None:
    calls = 0
    while True:
        path = tmp_path / str(calls)
        with pytest.MonkeyPatch.context() as patch:
            killed_after(calls, patch)
            try:
                opened(path).close()
            except Killed:
                finished = False
            else:
                finished = True
        with DataDirectory.open(path, CLUSTER, "n1") as directory:
            assert names(path) == ["identity", "lock", "logs"]
        assert Identity.decode((path / "identity").read_bytes()) == directory.identity
        if finished:
            break
        calls += 1
    assert calls > 10


def test_a_torn_identity_has_not_its_name_yet(tmp_path: Path) -> None:
    (tmp_path / "n1").mkdir(0o700)
    (tmp_path / "n1" / "identity.new").write_bytes(IDENTITY.encode()[:40])
    with opened(tmp_path / "n1") as directory:
        assert directory.identity == IDENTITY
    assert names(tmp_path / "n1") == ["identity", "lock", "logs"]


def test_every_step_is_durable_before_the_next_relies_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory in its parent, the identity's bytes, its name, the place for logs."""
    calls = killed_after(1000, monkeypatch)
    opened(tmp_path / "n1").close()
    assert [call for call in calls if call != "open"] == [
        *("mkdir", "fsync"),
        *("pwritev", "fdatasync", "rename", "fsync"),
        *("mkdir", "fsync"),
    ]
    calls.clear()
    with opened(tmp_path / "n1") as directory:
        directory.log_vfs(INCARNATION).close()
    # Also what was there already: whoever made it may have been killed before it was durable.
    assert [call for call in calls if call in ("fsync", "rename")] == ["fsync", "fsync"]
