"""Every example runs, does what it says, and is short enough to be read at once."""

from __future__ import annotations

import json
import runpy
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from quorate.cli.main import main

if TYPE_CHECKING:
    import quorate
    from quorate.testing import Cluster

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
LINES_MAX = 60
# The suite of tests among them is run by the tests of the test kit.
SCRIPTS = [path for path in sorted(EXAMPLES.glob("*.py")) if not path.name.startswith("test_")]
ORDERS = [
    b'{"id": 1, "amount": 2.5, "currency": "EUR"}',
    b'{"id": 2, "amount": 3.5, "currency": "USD"}',
    b'{"id": 3, "amount": -1.0, "currency": "EUR"}',
    b"no order",
    b'{"id": 4, "amount": 4.5, "currency": "EUR"}',
]

# Whoever is first waits until a Java process is warm.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def cluster(spark_cluster: Cluster) -> Cluster:
    """Every test here has logs of its own."""
    return spark_cluster


@pytest.fixture
def here(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A directory of one's own, and the cluster where every command looks for it."""
    monkeypatch.setenv("QUORATE_ENDPOINTS", cluster.endpoints)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def script(name: str, *arguments: str) -> str:
    """What an example prints, run as its first lines say."""
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def values(log: quorate.Log) -> list[bytes]:
    return [record.value for record in log.read(linearizable=True)]


@pytest.mark.usefixtures("here")
def test_the_outbox_copies_each_row_once(cluster: Cluster) -> None:
    assert script("outbox.py", "shop.db", "example-outbox") == "0 rows copied\n"
    add_rows(b"a", b"b")
    assert script("outbox.py", "shop.db", "example-outbox") == "2 rows copied\n"
    add_rows(b"c")
    assert script("outbox.py", "shop.db", "example-outbox") == "1 rows copied\n"
    assert script("outbox.py", "shop.db", "example-outbox") == "0 rows copied\n"
    assert values(cluster.client().log("example-outbox")) == [b"a", b"b", b"c"]


def add_rows(*payloads: bytes) -> None:
    with closing(sqlite3.connect("shop.db")) as database, database:
        rows = [(payload,) for payload in payloads]
        database.executemany("insert into outbox (payload) values (?)", rows)


@pytest.mark.usefixtures("here")
def test_following_goes_on_where_it_was(cluster: Cluster) -> None:
    log = cluster.client().create_log("example-follow")
    log.append_batch([b"a", b"b", b"c"])
    assert script("follow.py", log.name, "position", "2") == "0 a\n1 b\n"
    assert Path("position").read_text() == "2"
    assert script("follow.py", log.name, "position", "1") == "2 c\n"


@pytest.mark.usefixtures("spark")
def test_the_spark_job_writes_each_row_once(
    cluster: Cluster,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In this process, whose Spark is warm."""
    source = cluster.client().create_log("example-source")
    target = cluster.client().create_log("example-target")
    source.append_batch(ORDERS)
    arguments = ["exactly_once.py", source.name, target.name, str(here / "checkpoint")]
    monkeypatch.setattr(sys, "argv", arguments)
    for _ in range(2):
        runpy.run_path(str(EXAMPLES / "exactly_once.py"), run_name="__main__")
    assert capsys.readouterr().out == "5 records read\n0 records read\n"
    assert [json.loads(value)["id"] for value in values(target)] == [1, 3, 4]


@pytest.mark.usefixtures("spark", "here")
def test_the_pipeline_runs(cluster: Cluster, tmp_path: Path) -> None:
    client = cluster.client()
    logs = {name: client.log(name, create=True) for name in ("orders", "paid", "orders.dlq")}
    logs["orders"].append_batch(ORDERS)
    before = {name: log.end_offset() for name, log in logs.items()}
    command = ["pipeline", "run", str(EXAMPLES / "paid_orders.py"), "--json"]
    for _ in range(2):
        assert main([*command, "--checkpoint", str(tmp_path / "checkpoint")]) == 0
    assert logs["paid"].end_offset() - before["paid"] == 2
    assert logs["orders.dlq"].end_offset() - before["orders.dlq"] == 2
    assert sorted(json.loads(value)["id"] for value in values(logs["paid"])) == [1, 4]


@pytest.mark.usefixtures("spark")
def test_the_notebook_runs() -> None:
    """Cell by cell, as from its menu."""
    book = json.loads((EXAMPLES / "orders.ipynb").read_text(encoding="utf-8"))
    names: dict[str, object] = {}
    for cell in book["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [], "what a run leaves in it is not kept"
            exec("".join(cell["source"]), names)
    assert names["written"] == {b"north": b"159903", b"south": b"159833", b"web": b"159868"}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_examples_are_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LINES_MAX
