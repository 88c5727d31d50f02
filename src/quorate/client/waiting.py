"""Which thread may wait for the event loop of a client.

Code of the application may run amid a call, without the call's knowledge: a signal handler in the
main thread between two byte codes, a finalizer wherever the garbage collector runs. It may find
itself in the thread of the loop, or in one that holds a lock for which the loop waits. To wait for
the loop there would be to wait for ever, so each call that waits checks this first.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from quorate.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["check_may_wait", "lock_for_loop", "note_client_thread"]

# The locks that a loop may wait for, by their ids. Of all clients: a producer that is interrupted
# holds up the loop of its own client only, but to tell the clients apart is not worth it.
_locks: WeakValueDictionary[int, threading.RLock] = WeakValueDictionary()


class _Here(threading.local):
    """What is known of the present thread. A forked process does not take it for another one."""

    # A client runs its loop in it.
    is_client = False


_here = _Here()


def note_client_thread() -> None:
    """Note that the present thread is a client's own."""
    _here.is_client = True


def lock_for_loop() -> tuple[threading.RLock, Callable[[], bool]]:
    """A lock for which loops wait, and whether the present thread holds it. It can be taken again
    by the same thread, so that this one need not wait for itself to find out that it holds it."""
    lock = threading.RLock()
    _locks[id(lock)] = lock
    return lock, lock._is_owned  # type: ignore[attr-defined]  # Condition uses it, too


def check_may_wait() -> None:
    """Raise if the present thread would wait for a loop that waits for it."""
    if _here.is_client:
        raise InvalidArgument(
            "a call that waits was made in a client's own thread, perhaps by a finalizer: "
            "make it in another thread"
        )
    for reference in _locks.valuerefs():
        lock = reference()
        if lock is not None and lock._is_owned():  # type: ignore[attr-defined]  # as above
            raise InvalidArgument(
                "a call that waits was made amid the send of a producer, by a signal handler or a "
                "finalizer: let it set a flag, and make the call after the send"
            )
