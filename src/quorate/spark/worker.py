"""Python workers of Spark: forked with all imported modules, and used for task after task."""

from __future__ import annotations

import gc

from pyspark import TaskContext

__all__ = ["begin_task"]

_begun = False


def begin_task() -> None:
    """Exclude all imported modules from garbage collection, once in each worker.

    Spark collects garbage after every task. Imported modules never become garbage, and to go
    through all of them takes longer than many a task.
    """
    global _begun
    if not _begun and TaskContext.get() is not None:
        _begun = True
        gc.collect()
        gc.freeze()
