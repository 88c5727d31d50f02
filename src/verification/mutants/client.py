"""Bugs planted in the client where a signal, a second caller or a lagging node comes between.

No simulated run gets to them: the tests of their files catch them.
"""

from __future__ import annotations

from verification.mutants.mutant import Mutant

__all__ = ["CLIENT"]

CLIENT = (
    # -- a caller of a producer is interrupted -------------------------------------------------
    Mutant(
        "batch-complete-before-it-is-encoded",
        "a batch whose encoding is interrupted is open as before",
        "client/produce/accumulator.py",
        "        self.trim()\n        count = len(self.values)\n",
        "        self.complete = True\n        self.trim()\n        count = len(self.values)\n",
    ),
    Mutant(
        "batch-queued-before-its-wake-is-due",
        "a batch for which the taker was not woken is known to need it",
        "client/produce/accumulator.py",
        "        self._wakes_due += 1\n        self._batches.append(batch)\n",
        "        self._batches.append(batch)\n        self._wakes_due += 1\n",
    ),
    Mutant(
        "columns-of-an-interrupted-record-kept",
        "a record has its own key, even after an append that was interrupted",
        "client/produce/accumulator.py",
        "            if len(batch.keys) > place:\n                batch.trim()\n",
        "",
    ),
    Mutant(
        "wake-counted-before-it-is-made",
        "an interrupted wake is left to the next caller",
        "client/produce/accumulator.py",
        "        self._wake()\n        self._wakes_made = due\n",
        "        self._wakes_made = due\n        self._wake()\n",
    ),
    Mutant(
        "loop-believed-called",
        "a call to the loop that was interrupted is made again",
        "client/produce/sender.py",
        "            self._wake_requested = False\n            with suppress(RuntimeError):\n",
        "            with suppress(RuntimeError):\n",
    ),
    Mutant(
        "thread-relies-on-an-interrupted-wake",
        "an interrupted call to the loop is made, as other threads rely on it",
        "client/produce/sender.py",
        "                self._loop.call_soon_threadsafe(self._on_wake)\n            raise\n",
        "                pass\n            raise\n",
    ),
    Mutant(
        "second-close-succeeds",
        "no later call succeeds after a close that dropped records",
        "client/produce/sender.py",
        "            self.window.refuse(closed)\n            raise\n",
        "            raise\n",
    ),
    Mutant(
        "interrupted-task-begins-again",
        "a producer whose task was interrupted ends",
        "client/produce/sender.py",
        "        except BaseException as bug:\n",
        "        except Exception as bug:\n",
    ),
    Mutant(
        "flush-relies-on-a-wake",
        "a flush sends all records that were taken, even if the loop was not called for them",
        "client/produce/sender.py",
        "        if self.records.due is not None:\n",
        "        if False:\n",
    ),
    Mutant(
        "wait-at-a-lock-of-python",
        "an interrupted wait for a delivery keeps no lock that the loop needs",
        "client/produce/tickets.py",
        "        call = partial(known.put, None)\n",
        "        import threading\n"
        "        event = threading.Event()\n"
        "        self.when_known(event.set)\n"
        "        event.wait(timeout)\n"
        "        call = partial(known.put, None)\n",
    ),
    # -- a client that does not read -----------------------------------------------------------
    Mutant(
        "long-answers-without-a-limit",
        "all long answers that are not read have a common limit in memory",
        "server/sessions/client_session.py",
        "        if isinstance(found, Logs | NodeStatus):\n",
        "        if isinstance(found, Logs):\n",
    ),
    # -- a node that lags ----------------------------------------------------------------------
    Mutant(
        "life-named-by-a-node-that-lags",
        "a log is deleted in its present life, not in one that a lagging node knows",
        "client/administration.py",
        "    incarnation = await _living(session, name, deadline) if life is None else "
        "_incarnation(life)\n",
        "    life = life or f'{(await find_log(session, name)).incarnation:032x}'\n"
        "    incarnation = _incarnation(life)\n",
    ),
    # -- a caller of a client is interrupted ---------------------------------------------------
    Mutant(
        "handler-error-taken-for-a-timeout",
        "an exception that a signal handler raises during a call ends the call",
        "client/worker.py",
        "            while (task := call.wait(LOOK_S)) is None and self._thread.is_alive():\n"
        "                pass\n",
        "            task = None\n"
        "            with suppress(TimeoutError):\n"
        "                while (task := call.wait(LOOK_S)) is None and self._thread.is_alive():\n"
        "                    pass\n",
    ),
    Mutant(
        "interrupted-call-goes-on",
        "a call that was interrupted is cancelled",
        "client/worker.py",
        "        except BaseException:\n            self.call_soon(call.cancel)\n",
        "        except BaseException:\n",
    ),
    Mutant(
        "worker-forgotten-before-it-has-ended",
        "a close that was interrupted can be repeated",
        "client/blocking.py",
        "            worker.close()\n"
        "            # Not before: a call that was interrupted can be repeated.\n"
        "            self._workers.pop(os.getpid(), None)\n",
        "            self._workers.pop(os.getpid(), None)\n            worker.close()\n",
    ),
    Mutant(
        "records-taken-amid-a-close",
        "a producer that closes takes no record, as it would cancel the answer",
        "client/produce/sender.py",
        "        self.records.refuse(closed)\n",
        "",
    ),
    # -- operations with several steps ---------------------------------------------------------
    Mutant(
        "timeout-taken-for-each-step",
        "all steps of an operation share one timeout",
        "client/session.py",
        "        return None if deadline is None else deadline - self.clock()\n",
        "        return None\n",
    ),
    # -- a write that fails --------------------------------------------------------------------
    Mutant(
        "appends-of-a-failed-write-forgotten",
        "every append of a write that failed has an outcome",
        "client/node_connection.py",
        "                if submission not in known:\n",
        "                if submission in known:\n",
    ),
    Mutant(
        "connection-kept-after-a-failed-write",
        "a connection ends whose write failed, as its other requests get no answer",
        "client/node_connection.py",
        '        self._connection.abort(Lost(f"a request could not be sent: {error!r}"))\n',
        "",
    ),
    # -- a call amid another one of the same thread --------------------------------------------
    Mutant(
        "own-thread-waits-for-itself",
        "a call in a client's own thread is refused",
        "client/waiting.py",
        "    if _here.is_client:\n",
        "    if False:\n",
    ),
    Mutant(
        "call-waits-amid-a-send",
        "a call amid the send of a producer does not wait for a loop that waits for the send",
        "client/waiting.py",
        "        if lock is not None and lock._is_owned():",
        "        if False:",
    ),
    Mutant(
        "record-added-amid-a-record",
        "a record that is sent amid a send of the same thread is refused",
        "client/produce/accumulator.py",
        "            _check_timestamp(timestamp)\n        if self._held_here():\n",
        "            _check_timestamp(timestamp)\n        if False:\n",
    ),
    Mutant(
        "handler-relies-on-its-own-thread",
        "a send amid the wake of another one wakes the loop itself",
        "client/produce/sender.py",
        "        if self._wake_requested and self._waking != here:\n",
        "        if self._wake_requested:\n",
    ),
    Mutant(
        "close-amid-a-close-waits",
        "a client can be closed amid its close",
        "client/worker.py",
        "        self._closing = threading.RLock()\n",
        "        self._closing = threading.Lock()\n",
    ),
    Mutant(
        "producer-opened-after-the-end",
        "a client that closes leaves no producer open",
        "client/produce/sender.py",
        "    if session.closed:\n",
        "    if False:\n",
    ),
)
