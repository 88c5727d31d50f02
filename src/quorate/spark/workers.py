"""Python workers of Spark: forked with all that is imported, and used for task after task."""

from __future__ import annotations

import gc

from pyspark import TaskContext

__all__ = ["begin_task"]

_begun = False


def begin_task() -> None:
    """Spark collects garbage after every task. What is imported never becomes garbage, and to go
    through all of it takes longer than many a task: so it is set aside, once in each worker."""
    global _begun
    if not _begun and TaskContext.get() is not None:
        _begun = True
        gc.collect()
        gc.freeze()
