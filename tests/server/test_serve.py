"""``quorate serve``: how one node starts, stops, and refuses."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from dev_rig import PATIENCE_S, command, free_ports, plain_environment, wait_until
from quorate import Client, OutcomeUnknown, QuorateError
from quorate.cli.main import main
from quorate.storage.manifest import MANIFEST, Manifest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def write_settings(path: Path, more: str = "") -> tuple[Path, int]:
    """A cluster of one node; its file and its port."""
    port = free_ports(1) + 1
    path.mkdir(exist_ok=True)
    file = path / "NODE.toml"
    file.write_text(
        f'[node]\nid = "n1"\ndata_dir = "n1"\n[cluster]\nid = "shop"\n'
        f'[cluster.nodes]\nn1 = "127.0.0.1:{port}"\n{more}'
    )
    return file, port


@contextmanager
def serving(file: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A node that lets clients in. What it says is in ``NODE.log`` beside its file."""
    log = file.with_suffix(".log")
    with log.open("w") as output:
        process = subprocess.Popen(
            # It must not outlive the tests, however they end.
            command("serve", file, "--parent", str(os.getpid()), *arguments),
            stdin=subprocess.PIPE, stderr=output,
            env=plain_environment(), text=True,
        )  # fmt: skip
    with process:
        try:
            wait_until(
                lambda: "node serves" in log.read_text() or process.poll() is not None,
                "the node serves or ends",
            )
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def refused(*arguments: str | Path) -> tuple[int, str]:
    """The status and the last line of a node that does not even start."""
    found = subprocess.run(
        command("serve", *arguments), capture_output=True, text=True, env=plain_environment(),
        timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert found.stdout == ""
    assert "Traceback" not in found.stderr
    return found.returncode, found.stderr.splitlines()[-1]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_in_good_order(how: signal.Signals, tmp_path: Path) -> None:
    file, port = write_settings(tmp_path)
    with serving(file) as process:
        with Client(f"127.0.0.1:{port}") as client:
            client.create_log("orders").append(b"a")
        process.send_signal(how)
        assert process.wait(PATIENCE_S) == 0
    assert list((tmp_path / "n1" / "logs").glob("*/clean"))


HANGING = """
import sys, time
from pathlib import Path
from quorate.cli.main import main
from quorate.server import manifest

def hang(vfs, data):
    Path(sys.argv[1]).touch()
    time.sleep(3600)

manifest.replace_manifest = hang
main(["serve", *sys.argv[2:]])
"""


def test_a_signal_ends_it_in_time_while_its_loop_waits_for_a_disk_that_hangs(
    tmp_path: Path,
) -> None:
    """Its first manifest must be durable before it says a word."""
    file, _ = write_settings(tmp_path)
    hangs = tmp_path / "hangs"
    with subprocess.Popen(
        [sys.executable, "-c", HANGING, hangs, file, "--parent", str(os.getpid())],
        stdin=subprocess.PIPE, env=plain_environment(),
    ) as process:  # fmt: skip
        try:
            wait_until(hangs.exists, "the disk hangs")
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 1
        finally:
            process.kill()


def test_it_ends_when_nobody_holds_its_input_any_more(tmp_path: Path) -> None:
    file, _ = write_settings(tmp_path)
    with serving(file) as process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(PATIENCE_S) == 0


def test_a_mistake_in_the_file_is_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, port = write_settings(tmp_path, "[limits]\nbatch_byte = 1\n")
    other, (good, _) = tmp_path / "other.toml", write_settings(tmp_path / "good")
    for arguments, message in (
        ([file], f"{file}: [limits] batch_byte is not known; did you mean batch_bytes?"),
        ([other], f"{other}: No such file or directory"),
        (
            [good, "--node-listen", f"0.0.0.0:{port}"],
            f"--node-listen: [node] listen = 0.0.0.0:{port}",
        ),
    ):
        assert main(["serve", *map(str, arguments)]) == 2
        *_, line = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: INVALID_ARGUMENT: {message}")


def test_a_directory_of_another_node_is_status_1(tmp_path: Path) -> None:
    file, _ = write_settings(tmp_path)
    port = free_ports(1) + 1
    with serving(file, "--node-listen", f"127.0.0.1:{port}") as process:
        with Client(f"127.0.0.1:{port}") as client:
            assert client.logs() == []
        message = f"{tmp_path / 'n1'} is in use by process {process.pid}; stop it first"
        assert refused(file) == (1, f"error: WRONG_DIRECTORY: {message}")
    status, line = refused(file, "--cluster-id", "other")
    assert status == 1
    assert "belongs to node n1 of cluster shop, not to node n1 of cluster other" in line


def test_a_disk_that_fails_ends_it_and_the_next_start_waits(tmp_path: Path) -> None:
    file, port = write_settings(tmp_path)
    with serving(file) as process:
        with Client(f"127.0.0.1:{port}", timeout=2) as client:
            log = client.create_log("orders")
            log.append(b"acked")
            # From now on no write beyond the first kilobyte succeeds.
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1024, 1024))
            with pytest.raises(QuorateError) as outcome:
                log.append(b"lost")
            assert isinstance(outcome.value, OutcomeUnknown)
        assert process.wait(PATIENCE_S) == 1
    *told, last = file.with_suffix(".log").read_text().splitlines()
    assert last.startswith("error: DISK_FAILED: n1: flush ")
    assert "File too large" in last
    assert "Traceback" not in "\n".join(told)
    manifest = Manifest.decode((tmp_path / "n1" / MANIFEST).read_bytes())
    assert manifest is not None
    assert manifest.failures == 1
    with serving(file):
        text = file.with_suffix(".log").read_text()
        assert 'event="the disk failed before: waiting" failures=1 seconds=1.0' in text
        with Client(f"127.0.0.1:{port}") as client:
            values = [record.value for record in client.log("orders").read(start=0)]
            assert values[:1] == [b"acked"]
