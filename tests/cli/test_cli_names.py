"""Logs have names for people: verify and inspect show them beside the directories."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from directory_rig import CLUSTER, Writer
from quorate.cli.main import main
from quorate.storage.manifest import MANIFEST

if TYPE_CHECKING:
    from pathlib import Path

LOG = "00000000000000000000000000c0ffee"


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two copies of a log; the second directory lost the manifest, which has the log's name."""
    place = tmp_path_factory.mktemp(CLUSTER)
    for node in ("n1", "n2"):
        writer = Writer.open(place / node, node)
        writer.flush(writer.entries(2))
        writer.stop()
    (place / "n2" / MANIFEST).unlink()
    return [place / "n1", place / "n2"]


def shown(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> str:
    assert main([*map(str, arguments)]) == status
    captured = capsys.readouterr()
    assert (captured.err != "") == (status != 0)
    return captured.out


def document(
    capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0
) -> dict[str, Any]:
    # After an error another document with it follows.
    text, *_ = shown(capsys, *arguments, "--json", status=status).splitlines()
    found: dict[str, Any] = json.loads(text)
    return found


def test_verify_names_what_the_manifest_names(
    directories: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(capsys, "verify", *directories, status=1).splitlines()
    assert f"  log orders {LOG}, closed in order" in lines
    assert f"  log {LOG}, closed in order" in lines
    assert f"log orders {LOG}: 2 copies, the same up to entry 2" in lines
    report = document(capsys, "verify", *directories, status=1)
    assert [one["logs"][0]["name"] for one in report["directories"]] == ["orders", None]
    assert report["agreements"][0]["name"] == "orders"


def test_inspect_names_it_and_finds_it_by_its_name(
    directories: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    known, unknown = directories
    for given in ([], ["--log", "orders"], ["--log", "0000"]):
        lines = shown(capsys, "inspect", known, *given).splitlines()
        assert f"log orders {LOG}, closed in order at entry 2" in lines
    assert f"log {LOG}, closed in order at entry 2" in shown(capsys, "inspect", unknown)
    assert document(capsys, "inspect", known)["logs"][0]["name"] == "orders"
    assert document(capsys, "inspect", unknown)["logs"][0]["name"] is None
    assert main(["inspect", str(unknown), "--log", "orders"]) == 2
    assert "has the name orders, or an id that begins with it" in capsys.readouterr().err


def test_inspect_shows_a_log_whose_manifest_is_bad(
    directories: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = Writer.open(tmp_path / "n1")
    writer.stop()
    (tmp_path / "n1" / MANIFEST).write_bytes((directories[0] / MANIFEST).read_bytes()[:-1])
    assert f"log {LOG}, closed in order at entry 0" in shown(capsys, "inspect", tmp_path / "n1")
