"""One real cluster for all commands that speak to one; each test uses logs of its own."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

import pytest
from cli_rig import Ran

from dev_rig import DevCluster, dev_cluster
from quorate.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cli_rig import Run


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    with dev_cluster(tmp_path_factory.mktemp("dev")) as running:
        yield running


@pytest.fixture
def quorate(
    cluster: DevCluster,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> Run:
    """Run one command against the cluster, with ``given`` as its standard input."""
    monkeypatch.setenv("QUORATE_ENDPOINTS", cluster.endpoints)

    def run(*arguments: str, given: bytes = b"") -> Ran:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
        capsysbinary.readouterr()
        status = main(arguments)
        out, err = capsysbinary.readouterr()
        return Ran(status, out, err.decode())

    return run


@pytest.fixture
def log(quorate: Run, cluster: DevCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a log of the test's own."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    assert quorate("log", "create", name).status == 0
    yield name
    # Every log costs its nodes some time, for as long as the cluster runs: in all other folders.
    with cluster.client() as client:
        if name in client.logs():
            client.delete_log(name)
