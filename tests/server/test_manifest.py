"""The manifest: every bit of it is proved, it is replaced whole, and what it says must be there."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from typing import TYPE_CHECKING, NoReturn

import pytest
from crc32c import crc32c

from quorate.errors import Damaged, InvalidArgument, WrongDirectory
from quorate.server import manifest as manifests
from quorate.server.manifest import ManifestFile, check_log, make_log, remove_log
from quorate.storage.directory import LOGS, DataDirectory, log_name
from quorate.storage.layout import PAGE, encode_vote, vote_place
from quorate.storage.manifest import MANIFEST, LogLife, LogState, Manifest, Member, Outdated, Told
from quorate.storage.vfs import RealVfs
from quorate.types import NodeId, Term, VoteRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from quorate.storage.layout import LogId
    from quorate.storage.vfs import Vfs

N1, N2 = NodeId("n1"), NodeId("n2")
NODES = {N1: "127.0.0.1:7401", N2: "127.0.0.1:7402"}
ORDERS = LogLife(LogState.MADE, 1_700_000_000_000_000, (N1, N2), "orders", 5)

SHOWN = ((6, 0), (8, 0xABBA))
TOLD = (Told(NodeId("n3"), 11, 7), Told(NodeId("n4"), 12, 0))


def sample() -> Manifest:
    peer = Member(NODES[N2], bytes(range(16)), 9, 0xBEEF, 4, SHOWN, TOLD)
    members = {N1: Member(NODES[N1]), N2: peer}
    logs = {0xC0FFEE: ORDERS, 7: ORDERS._replace(state=LogState.DELETING, name="old")}
    outdated = Outdated(N2, 6, 0xFEED)
    starts = {4: 0xF00D, 5: 0}
    return Manifest(members, logs, 12, 3, starts, outdated)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[DataDirectory]:
    with DataDirectory.open(tmp_path / "n1", "shop", "n1") as found:
        yield found


@pytest.fixture
def file(directory: DataDirectory) -> Iterator[ManifestFile]:
    found = ManifestFile(directory)
    yield found
    found.close()


def reopened(directory: DataDirectory) -> Manifest:
    again = ManifestFile(directory)
    try:
        again.open({})
        return again.manifest
    finally:
        again.close()


# -- bytes -------------------------------------------------------------------------------------


def test_what_was_written_is_read() -> None:
    assert Manifest.decode(sample().encode()) == sample()
    assert Manifest.decode(Manifest({}).encode()) == Manifest({})


def test_no_flipped_bit_is_believed() -> None:
    data = sample().encode()
    for bit in range(8 * len(data)):
        spoilt = bytearray(data)
        spoilt[bit // 8] ^= 1 << bit % 8
        assert Manifest.decode(bytes(spoilt)) is None


def test_no_part_is_believed() -> None:
    data = sample().encode()
    for length in range(len(data)):
        assert Manifest.decode(data[:length]) is None
    assert Manifest.decode(data + b"\n") is None


def test_a_newer_format_is_not_guessed_at(directory: DataDirectory, file: ManifestFile) -> None:
    file.open(NODES)
    text = b"format 2\napplied 0\nfailures 0\n"
    data = text + f"crc32c {crc32c(text):08x}\n".encode()
    (directory.path / MANIFEST).write_bytes(data)
    with pytest.raises(WrongDirectory, match="format 2, this release knows format 1"):
        reopened(directory)


# -- the file ----------------------------------------------------------------------------------


def test_a_first_start_needs_to_know_the_nodes(file: ManifestFile) -> None:
    with pytest.raises(InvalidArgument, match=r"\[cluster.nodes\] is missing"):
        file.open({})


def test_a_first_start_writes_them_down(directory: DataDirectory, file: ManifestFile) -> None:
    file.open(NODES)
    assert reopened(directory).nodes == {node: Member(NODES[node]) for node in NODES}


N9 = NodeId("n9")
LISTS = [{N1: "a:1"}, {N1: "a:1", N9: "a:9"}, {**NODES, N9: "a:9"}]


def test_later_starts_may_bring_addresses(directory: DataDirectory, file: ManifestFile) -> None:
    file.open(NODES)
    file.manifest.logs[1] = LogLife(LogState.MADE, 0, (N1, N2), "/catalog")
    file.save_now()
    for nodes in ({N1: "a:1", N2: "a:2"}, {N2: "a:2", N1: "a:1"}):
        again = ManifestFile(directory)
        again.open(nodes)
        assert again.manifest.nodes == {N1: Member("a:1"), N2: Member("a:2")}
        again.close()
    again = ManifestFile(directory)
    again.open({})
    assert {*again.manifest.nodes} == {*NODES}
    again.close()


@pytest.mark.parametrize("nodes", LISTS)
def test_a_cluster_that_is_formed_keeps_its_nodes(
    directory: DataDirectory, file: ManifestFile, nodes: dict[NodeId, str]
) -> None:
    file.open(NODES)
    file.manifest.logs[1] = LogLife(LogState.MADE, 0, (N1, N2), "/catalog")
    file.save_now()
    again = ManifestFile(directory)
    with pytest.raises(InvalidArgument, match=r"made for a cluster of n1, n2: put that list back"):
        again.open(nodes)
    again.close()


@pytest.mark.parametrize("nodes", LISTS)
def test_the_list_may_be_mended_before_the_first_start_is_complete(
    directory: DataDirectory, file: ManifestFile, nodes: dict[NodeId, str]
) -> None:
    file.open(NODES)
    again = ManifestFile(directory)
    again.open(nodes)
    assert again.manifest.nodes == {node: Member(nodes[node]) for node in nodes}
    again.close()


def test_a_node_that_was_met_stays_in_the_list(
    directory: DataDirectory, file: ManifestFile
) -> None:
    file.open({**NODES, NodeId("n8"): "a:8"})
    met = Member(NODES[N2], bytes(range(16)), 1, 7, 1)
    file.manifest.nodes[N2] = met
    file.save_now()
    again = ManifestFile(directory)
    with pytest.raises(InvalidArgument, match=r"has n1, n9; this node has met n2, which the list"):
        again.open({N1: "a:1", N9: "a:9"})
    again.open({**NODES, N9: "a:9"})
    # It has to confirm the disk of this node again: it did so to a node of another list.
    assert again.manifest.nodes[N2] == met._replace(confirmed=0)
    again.close()


def test_what_is_saved_outlives_the_process(directory: DataDirectory, file: ManifestFile) -> None:
    file.open(NODES)
    make_log(directory, 0xC0FFEE)
    file.manifest.logs[0xC0FFEE] = ORDERS
    asyncio.run(file.save())
    file.manifest.applied = 5
    file.save_now()
    assert reopened(directory) == file.manifest


def test_a_save_that_was_cut_off_leaves_the_one_before(
    directory: DataDirectory, file: ManifestFile
) -> None:
    file.open(NODES)
    (directory.path / "manifest.new").write_bytes(b"half a")
    assert reopened(directory) == file.manifest
    file.manifest.applied = 1
    file.save_now()
    assert reopened(directory).applied == 1


def test_a_save_finds_room_on_a_full_disk(
    directory: DataDirectory, file: ManifestFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node counts its start before it says a word, also on a disk without room for a new file."""
    file.open(NODES)
    assert (directory.path / "manifest.new").stat().st_blocks * 512 >= 2 * 4096

    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RealVfs, "create", full)
    file.manifest.starts[1] = 7
    file.save_now()
    assert reopened(directory).starts == {1: 7}


def test_damage_is_told_from_a_first_start(directory: DataDirectory, file: ManifestFile) -> None:
    file.open(NODES)
    place = directory.path / MANIFEST
    place.write_bytes(place.read_bytes()[:-1])
    with pytest.raises(Damaged, match="manifest is damaged"):
        reopened(directory)
    directory.log_vfs(1).close()
    place.unlink()
    with pytest.raises(Damaged, match="manifest is missing and there are logs"):
        reopened(directory)


def test_boots_that_are_noted_together_share_a_save(
    directory: DataDirectory, file: ManifestFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.open(NODES)
    file.manifest.logs.update(dict.fromkeys(range(250), ORDERS))
    saves, replace_file = list[bytes](), manifests.replace_manifest

    def counted(vfs: Vfs, data: bytes) -> None:
        saves.append(data)
        replace_file(vfs, data)

    monkeypatch.setattr(manifests, "replace_manifest", counted)

    async def note(log: int) -> int:
        await file.note_boot(log, 6)
        return reopened(directory).logs[log].boot

    async def note_all() -> list[int]:
        return await asyncio.gather(*map(note, range(250)))

    # Durable for each when it goes on.
    assert asyncio.run(note_all()) == [6] * 250
    assert len(saves) == 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.EIO])
def test_a_boot_is_noted_later_if_there_is_no_room(
    directory: DataDirectory, file: ManifestFile, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    file.open(NODES)
    file.manifest.logs[7] = ORDERS

    def failing(vfs: Vfs, data: bytes) -> NoReturn:
        raise OSError(number, "as told")

    with monkeypatch.context() as patched:
        patched.setattr(manifests, "replace_manifest", failing)
        if number in (errno.EIO, errno.EMFILE):
            with pytest.raises(OSError, match="as told"):
                asyncio.run(file.note_boot(7, 6))
            return
        asyncio.run(file.note_boot(7, 6))
    asyncio.run(file.save())
    assert reopened(directory).logs[7].boot == 6


def test_a_log_that_was_made_and_is_gone_is_damage(directory: DataDirectory) -> None:
    with pytest.raises(Damaged, match=r"log orders was made here and .*c0ffee is missing; never"):
        check_log(directory, 0xC0FFEE, "orders")
    make_log(directory, 0xC0FFEE)
    check_log(directory, 0xC0FFEE, "orders")
    # Its directory alone says nothing: what it had voted is gone.
    for vote in (directory.path / LOGS / log_name(0xC0FFEE)).iterdir():
        vote.unlink()
    with pytest.raises(Damaged, match=r"log orders was made here and .*vote-a is missing"):
        check_log(directory, 0xC0FFEE, "orders")


def test_an_older_manifest_has_no_log_deleted(directory: DataDirectory, file: ManifestFile) -> None:
    """A directory that the manifest does not know is left by a crash before the log was made, or
    the manifest was put back from a copy."""
    file.open(NODES)
    make_log(directory, 7)
    reopened(directory)  # nothing but vote copies that never voted: the log was about to be made
    vote = directory.path / LOGS / log_name(7) / "vote-a"
    before = vote.read_bytes()
    record = VoteRecord(3, Term(2), N2, 1)
    vote.write_bytes(bytes(vote_place(3)) + encode_vote(record, directory.log_id(7)))
    with pytest.raises(Damaged, match=f"{log_name(7)} holds a log that the manifest does not know"):
        reopened(directory)
    # Its record was spoilt, or is that of another log: it voted all the same.
    for page in (b"\xa5" * PAGE, encode_vote(record, directory.log_id(8))):
        vote.write_bytes(bytes(vote_place(3)) + page)
        with pytest.raises(Damaged, match="holds a log that the manifest does not know"):
            reopened(directory)
    vote.write_bytes(before)
    (vote.parent / "spare").touch()
    with pytest.raises(Damaged, match="the manifest is older than the logs beside it"):
        reopened(directory)


def put_file(place: Path) -> None:
    shutil.rmtree(place)
    place.touch()


def put_pipe(place: Path) -> None:
    (place / "vote-a").unlink()
    os.mkfifo(place / "vote-a")


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (put_file, "is not known to the manifest and cannot be read: .*Not a directory"),
        (put_pipe, "holds a log that the manifest does not know"),
    ],
)
def test_what_is_no_log_and_not_known_is_named(
    directory: DataDirectory, file: ManifestFile, spoil: Callable[[Path], None], told: str
) -> None:
    """A pipe is not opened: that would wait for its other end."""
    file.open(NODES)
    make_log(directory, 7)
    spoil(directory.path / LOGS / log_name(7))
    with pytest.raises(Damaged, match=f"{log_name(7)} {told}"):
        reopened(directory)


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EMFILE])
def test_an_unknown_log_that_cannot_be_read_is_named(
    directory: DataDirectory, file: ManifestFile, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    file.open(NODES)
    make_log(directory, 7)

    def fail(path: Path, identity: LogId) -> bool:
        raise OSError(number, "as told")

    monkeypatch.setattr(manifests, "is_used", fail)
    # What passes is no damage: the start can be repeated.
    kind = OSError if number == errno.EMFILE else Damaged
    with pytest.raises(kind, match="as told"):
        reopened(directory)


def test_removing_a_log_leaves_nothing_and_may_be_repeated(directory: DataDirectory) -> None:
    for name in ("segment", "vote"):
        vfs = directory.log_vfs(7)
        vfs.create(name).close()
        vfs.close()
    directory.log_vfs(8).close()
    for _ in range(2):
        remove_log(directory, 7)
        assert [path.name for path in (directory.path / LOGS).iterdir()] == [log_name(8)]
