"""A cluster that lost most of its nodes says which, and goes on when they are back."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from faults_rig import SMALL, lag_free, until

from quorate.errors import NoQuorum
from quorate.testing.processes import cluster

if TYPE_CHECKING:
    from pathlib import Path

# A machine may be busy with other things.
pytestmark = pytest.mark.timeout(240)

LOG = "orders"


def test_a_lost_majority_is_named_with_how_long_it_is_away(tmp_path: Path) -> None:
    with cluster(logs=[LOG], directory=tmp_path, settings=SMALL) as nodes:
        survivor = nodes.wait_leader(LOG)
        before = nodes.client().log(LOG).append(b"before")
        away = nodes.others(survivor)
        for name in away:
            nodes.kill(name)
        until(lambda: nodes.leader(LOG) is None, "the leader knows that it leads nobody")
        client = nodes.client(timeout=4.0)
        log = nodes.client(timeout=4.0).log(LOG)
        for act in (lambda: log.append(b"x"), lambda: log.end_offset(), client.logs):
            with pytest.raises(NoQuorum) as refused:
                act()
            told = re.findall(r"(n\d) for \d+ s", str(refused.value))
            assert sorted(told) == away, refused.value
            assert "2 of 3 nodes do not answer this one" in str(refused.value)
        for name in away:
            nodes.begin(name)
        until(lambda: lag_free(nodes, LOG), "all nodes have everything")
        # What was refused is not there.
        assert nodes.client().log(LOG).append(b"after").offset == before.offset + 1
