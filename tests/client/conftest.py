"""One real cluster for all tests of the client; each uses logs of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dev_rig import DevCluster, dev_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    with dev_cluster(tmp_path_factory.mktemp("dev")) as running:
        yield running
