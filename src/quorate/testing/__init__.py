"""Real clusters for tests of your own; and the tools that try to break quorate itself.

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
    # Loaded when it is first asked for: no tool beside it needs a client.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.processes"), name)
    return found
