"""Real clusters for tests of your own.

::

    with quorate.testing.cluster(nodes=3, logs=["orders"]) as cluster:
        cluster.client().log("orders").append(b"hello")
        cluster.kill(cluster.leader("orders"))
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quorate.testing.processes import Cluster, cluster

__all__ = ["Cluster", "cluster"]


def __getattr__(name: str) -> object:
    # Loaded on first use: `import quorate` needs no processes.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.processes"), name)
    return found
