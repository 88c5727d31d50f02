"""Bugs planted in the client's producer: what is sent again, and what it reports."""

from __future__ import annotations

from quorate.testing.mutants.mutant import Mutant

__all__ = ["PRODUCER"]

PRODUCER = (
    # -- what is on its way --------------------------------------------------------------------
    Mutant(
        "resent-out-of-order",
        "what is sent again goes from the lowest batch on",
        "client/window.py",
        "        self._round += 1\n        self._passed = 0\n",
        "        self._round += 1\n        self._passed = 0\n        self._unacked.reverse()\n",
    ),
    Mutant(
        "resent-from-the-refused-batch-on",
        "a refusal may have left batches before the refused one without a receipt",
        "client/window.py",
        "        self.begin_again()\n        return True\n",
        "        self._round += 1\n"
        "        self._passed = self._unacked.index(ticket)\n"
        "        return True\n",
    ),
    Mutant(
        "resent-with-a-new-sequence",
        "a batch keeps its sequence in every attempt",
        "client/window.py",
        "                ticket.attempts += 1\n",
        "                if ticket.doubt is not None:\n"
        "                    ticket.sequence = self._next_sequence\n"
        "                    self._next_sequence += ticket.count\n"
        "                ticket.attempts += 1\n",
    ),
    Mutant(
        "resent-with-other-boundaries",
        "a batch keeps its records in every attempt",
        "client/window.py",
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
        "client/window.py",
        "        ticket.resolve(outcome)\n        self._refusal = None\n",
        "        for one in self._unacked:\n"
        "            if one.sequence <= ticket.sequence + ticket.count:\n"
        "                one.resolve(outcome)\n"
        "        self._refusal = None\n",
    ),
    Mutant(
        "doubt-forgotten-at-a-refusal",
        "what may be in the log is never reported as failed",
        "client/window.py",
        "            ticket.doubt = result\n",
        "            ticket.doubt = None\n",
    ),
    Mutant(
        "open-attempt-taken-for-refused",
        "an attempt that nobody has answered may have been carried out",
        "client/window.py",
        "    return ticket.doubt is None and not ticket.attempts\n",
        "    return ticket.doubt is None\n",
    ),
    Mutant(
        "window-wider-than-the-log-remembers",
        "as many batches are on their way as the log remembers",
        "client/window.py",
        "        return self.error is None and len(self._unacked) < self._size\n",
        "        return self.error is None and len(self._unacked) < self._size + 2\n",
    ),
    Mutant(
        "taken-after-a-failure",
        "what follows a batch that failed could have no sequence",
        "client/window.py",
        "        return self.error is None and len(self._unacked) < self._size\n",
        "        return len(self._unacked) < self._size\n",
    ),
    # -- before and after ----------------------------------------------------------------------
    Mutant(
        "batch-overtakes-records",
        "records are in the log in the order in which they were sent",
        "client/accumulator.py",
        "            self._seal()\n            self._held += size\n",
        "            self._held += size\n",
    ),
    Mutant(
        "memory-without-a-limit",
        "what waits and is on its way takes no more memory than allowed",
        "client/accumulator.py",
        "            if self._held + size > self._memory_bytes and self._held:\n",
        "            if self._held + size > 2 * self._memory_bytes and self._held:\n",
    ),
    Mutant(
        "one-receipt-for-all-records",
        "a receipt names the place of its own record",
        "client/tickets.py",
        "        return Receipt(offset + place, 1, index, term, synced)\n",
        "        return Receipt(offset, 1, index, term, synced)\n",
    ),
    Mutant(
        "delivery-error-swallowed",
        "what was not delivered is raised by flush, and by leaving",
        "client/sender.py",
        "        if self.window.error is not None:\n            raise anew(self.window.error)\n",
        "",
    ),
)
