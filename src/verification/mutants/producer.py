"""Bugs planted in the client's producer: in the batches that it repeats and in its reports."""

from __future__ import annotations

from verification.mutants.mutant import Mutant

__all__ = ["PRODUCER"]

PRODUCER = (
    # -- batches on their way ------------------------------------------------------------------
    Mutant(
        "resent-out-of-order",
        "repeated batches are sent from the lowest one on",
        "client/produce/window.py",
        "        self._round += 1\n        self._passed = 0\n",
        "        self._round += 1\n        self._passed = 0\n        self._unacked.reverse()\n",
    ),
    Mutant(
        "resent-from-the-refused-batch-on",
        "a refusal may have left batches before the refused one without a receipt",
        "client/produce/window.py",
        "        self.begin_again()\n        return True\n",
        "        self._round += 1\n"
        "        self._passed = self._unacked.index(ticket)\n"
        "        return True\n",
    ),
    Mutant(
        "resent-with-a-new-sequence",
        "a batch keeps its sequence in every attempt",
        "client/produce/window.py",
        "                ticket.attempts += 1\n",
        "                if ticket.unknown is not None:\n"
        "                    ticket.sequence = self._next_sequence\n"
        "                    self._next_sequence += ticket.count\n"
        "                ticket.attempts += 1\n",
    ),
    Mutant(
        "resent-with-other-boundaries",
        "a batch keeps its records in every attempt",
        "client/produce/window.py",
        "        self._round += 1\n        self._passed = 0\n",
        "        self._round += 1\n"
        "        self._passed = 0\n"
        "        if len(self._unacked) > 1 and self._unacked[0].count > 1:\n"
        "            self._unacked[0].count -= 1\n"
        "            self._unacked[1].count += 1\n"
        "            self._unacked[1].sequence -= 1\n",
    ),
    Mutant(
        "receipt-for-a-batch-that-failed",
        "only a receipt of its own delivers a batch",
        "client/produce/window.py",
        "        ticket.resolve(outcome)\n        self._refusal = None\n",
        "        for one in self._unacked:\n"
        "            if one.sequence <= ticket.sequence + ticket.count:\n"
        "                one.resolve(outcome)\n"
        "        self._refusal = None\n",
    ),
    Mutant(
        "unknown-outcome-forgotten-at-a-refusal",
        "a batch that may be in the log is never reported as failed",
        "client/produce/window.py",
        "            ticket.unknown = result\n",
        "            ticket.unknown = None\n",
    ),
    Mutant(
        "open-attempt-taken-for-refused",
        "an attempt without an answer may have been carried out",
        "client/produce/window.py",
        "    return ticket.unknown is None and not ticket.attempts\n",
        "    return ticket.unknown is None\n",
    ),
    Mutant(
        "window-wider-than-the-log-remembers",
        "as many batches are on their way as the log remembers",
        "client/produce/window.py",
        "        return self.error is None and len(self._unacked) < self._size\n",
        "        return self.error is None and len(self._unacked) < self._size + 2\n",
    ),
    Mutant(
        "taken-after-a-failure",
        "the batches behind one that failed could have no sequence",
        "client/produce/window.py",
        "        return self.error is None and len(self._unacked) < self._size\n",
        "        return len(self._unacked) < self._size\n",
    ),
    # -- before and after ----------------------------------------------------------------------
    Mutant(
        "batch-overtakes-records",
        "records are in the log in the order in which they were sent",
        "client/produce/accumulator.py",
        "            self._queue(batch)\n            due = self._wakes_due\n",
        "            self._queue(batch)\n"
        "            self._batches.rotate(1)\n"
        "            due = self._wakes_due\n",
    ),
    Mutant(
        "memory-without-a-limit",
        "batches that wait or are on their way take no more memory than allowed",
        "client/produce/accumulator.py",
        "            if held + size > self._memory_bytes and held:\n",
        "            if held + size > 2 * self._memory_bytes and held:\n",
    ),
    Mutant(
        "one-receipt-for-all-records",
        "a receipt names the place of its own record",
        "client/produce/tickets.py",
        "        return Receipt(offset + place, 1, index, term, synced)\n",
        "        return Receipt(offset, 1, index, term, synced)\n",
    ),
    Mutant(
        "delivery-error-swallowed",
        "an undelivered batch is raised by flush, and by leaving",
        "client/produce/sender.py",
        "        if self.window.error is not None:\n            raise anew(self.window.error)\n",
        "",
    ),
    Mutant(
        "opening-replaces-any-instance",
        "a client names the epoch of the instance that it replaces",
        "client/produce/sender.py",
        "OpenProducer(name, instance, WINDOW, EXPIRY_US, known)",
        "OpenProducer(name, instance, WINDOW, EXPIRY_US)",
    ),
)
