"""Clients that append and read, and the record of what they were told.

Checks what a client may rely on: an acknowledged append stays where the receipt says, a refused
one never appears, an unknown one appears at most once, and a read shows everything that was
acknowledged or read before it began.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from quorate.entry import unpack_batches
from quorate.errors import OutcomeUnknown, QuorateError
from quorate.replica.exchange import Propose, Read, ReadAnswer, Receipt
from quorate.testing.sim.violation import Violation
from quorate.types import EntryKind, Index, Term

if TYPE_CHECKING:
    from random import Random

    from quorate.entry import Entry
    from quorate.replica.exchange import Answer
    from quorate.testing.sim.node import Node
    from quorate.testing.sim.world import World

__all__ = ["Clients"]

PAYLOAD_MARK = b"|"


class Clients:
    """All clients of a run: they share one view of what was promised."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._choices = world.decisions.stream("clients")
        self._token = 0
        self._running = True
        # Open operations by token: the node asked, and for reads the least they must show and
        # the node's clock when it was asked.
        self._appends: dict[int, Node] = {}
        self._reads: dict[int, tuple[Node, Index, int]] = {}
        # The appends that reached a node: how many records, and the term they asked for.
        self._sent: dict[int, tuple[int, Term | None]] = {}
        # Those that stand in some log, applied or not.
        self._logged: set[int] = set()
        # (index, offset) of every append that was applied anywhere, by token.
        self._placed: dict[int, tuple[Index, int]] = {}
        self._refused: set[int] = set()
        # The highest index that was acknowledged or seen by a finished read.
        self._shown = Index(0)
        # The end of the records after each index that was applied anywhere.
        self._ends: list[int] = [0]
        self._append_time = 0
        self.acked = 0
        self.read = 0

    # -- operations ----------------------------------------------------------------------------

    def start(self) -> None:
        self._world.after(1, self._next)

    def stop(self) -> None:
        self._running = False

    def _next(self) -> None:
        if not self._running:
            return
        options = self._world.options
        usual: list[Any] = [options.client_gap_us, "append", -1, 1]
        gap, kind, where, count = self._choices.choose(usual, self._draw)
        node = self._target(where)
        self._world.count_event("client", node.name)
        if kind == "append":
            self.append(node, count, self._expected_term(node))
        else:
            self.ask(node)
        self._world.after(gap, self._next)

    def _draw(self, random: Random) -> list[Any]:
        options = self._world.options
        gap = 1 + int(random.expovariate(1 / options.client_gap_us))
        kind = "read" if random.random() < options.reads else "append"
        # Most go to whoever leads, by what the node itself believes; some anywhere.
        where = -1 if random.random() < 0.8 else random.randrange(options.nodes)
        return [gap, kind, where, random.choice((1, 1, 3))]

    def _target(self, where: int) -> Node:
        nodes = list(self._world.nodes.values())
        if where >= 0:
            return nodes[where]
        leaders = [node for node in nodes if node.leads]
        return leaders[self._token % len(leaders)] if leaders else nodes[0]

    def _expected_term(self, node: Node) -> Term | None:
        """Some ask for the term that the node is in, a few for the one before."""
        if self._token % 5:
            return None
        return Term(node.term - (self._token % 3 == 0))

    def append(self, node: Node, count: int = 1, expected_term: Term | None = None) -> int:
        """Append ``count`` records at ``node``; the token comes back."""
        self._token += 1
        token = self._token
        mark = str(token).encode() + PAYLOAD_MARK
        if node.engine is not None:  # nobody listens otherwise: nothing was asked
            self._appends[token] = node
            self._sent[token] = (count, expected_term)
        batch = mark + bytes(max(0, self._world.options.batch_bytes - len(mark)))
        node.give(Propose(token, batch, count, expected_term))
        return token

    def ask(self, node: Node) -> int:
        """A linearizable read at ``node``."""
        self._token += 1
        token = self._token
        if node.engine is not None:
            self._reads[token] = (node, self._shown, node.engine.core.standing.clock)
        node.give(Read(token))
        return token

    def open(self, token: int) -> bool:
        """Whether the operation has no answer yet."""
        return token in self._appends or token in self._reads

    @property
    def idle(self) -> bool:
        """Whether every operation has its answer, or will never get one."""
        return not self._appends and not self._reads

    def process_died(self, node: Node) -> None:
        """Whoever waited for this process learns nothing."""
        self._appends = {token: one for token, one in self._appends.items() if one is not node}
        self._reads = {token: one for token, one in self._reads.items() if one[0] is not node}

    # -- answers -------------------------------------------------------------------------------

    def answered(self, node: Node, answers: list[Answer]) -> None:
        for token, result in answers:
            if token in self._appends:
                del self._appends[token]
                self._append_answered(token, result)
            elif token in self._reads:
                _, least, asked_at = self._reads.pop(token)
                self._check_in_time(node, asked_at)
                self._read_answered(node, result, least)
            else:
                raise Violation("one-answer", f"{node.name} answered token {token} twice")

    def _append_answered(self, token: int, result: Receipt | ReadAnswer | QuorateError) -> None:
        if isinstance(result, Receipt):
            placed = self._placed.get(token)
            if placed != (result.index, result.offset):
                raise Violation("C1", f"token {token} acked at {result}, applied at {placed}")
            self._check_receipt(token, result)
            self.acked += 1
            self._shown = max(self._shown, result.index)
            return
        if not isinstance(result, QuorateError):
            raise Violation("one-answer", f"token {token} is no read and got {result}")
        self._world.sometimes[f"answer {result.code}"] += 1
        if isinstance(result, OutcomeUnknown):
            if token not in self._logged:
                raise Violation(
                    "C5", f"token {token} was never logged and its fate is said unknown"
                )
            return
        if token in self._logged:
            raise Violation("C5", f"token {token} refused with {result.code}, yet logged")
        self._refused.add(token)

    def _check_receipt(self, token: int, receipt: Receipt) -> None:
        world = self._world
        count, expected_term = self._sent[token]
        entry = world.invariants.committed[receipt.index - 1]
        if receipt.count != count or receipt.term != entry.term:
            raise Violation("C1", f"{receipt} for {count} records in an entry of {entry.term}")
        if expected_term not in (None, receipt.term):
            raise Violation("C5", f"token {token} asked for term {expected_term}, got {receipt}")
        copies = world.durable_copies(entry.position)
        if not world.quorum <= receipt.synced <= copies:
            raise Violation("C1", f"{receipt} with {copies} copies on disk")

    def _check_in_time(self, node: Node, asked_at: int) -> None:
        """Every read ends at its deadline, by the clock of the node that was asked."""
        config = self._world.config
        clock = node.engine.core.standing.clock if node.engine is not None else asked_at
        if clock - asked_at > config.timing.ticks(config.timing.read_ms):
            raise Violation("C11", f"{node.name} answered a read {clock - asked_at} ticks later")

    def _read_answered(
        self, node: Node, result: Receipt | ReadAnswer | QuorateError, least: Index
    ) -> None:
        if isinstance(result, QuorateError):
            self._world.sometimes[f"read answer {result.code}"] += 1
            return
        if not isinstance(result, ReadAnswer):
            raise Violation("one-answer", f"a read got {result}")
        if result.index < least:
            raise Violation(
                "C6", f"{node.name} answered a read at {result.index}, {least} was shown before"
            )
        if result.end_offset != self._ends[result.index]:
            raise Violation("C6", f"end {result.end_offset} at index {result.index}")
        self.read += 1
        self._shown = max(self._shown, result.index)
        if not node.leads:
            self._world.sometimes["read answered by a follower"] += 1

    def applied(self, entry: Entry) -> None:
        """``entry`` was applied for the first time anywhere."""
        offset = self._ends[-1]
        if entry.base_offset != offset:
            raise Violation("dense-offsets", f"entry {entry.index} at {entry.base_offset}")
        if entry.kind is EntryKind.DATA:
            for batch, count in unpack_batches(entry):
                token = _token(batch)
                if token not in self._sent:
                    raise Violation("C2", f"token {token} was never sent")
                if token in self._placed:
                    raise Violation("C3", f"token {token} applied twice")
                if token in self._refused:
                    raise Violation("C5", f"token {token} was refused, now applied")
                self._placed[token] = (entry.index, offset)
                offset += count
        self._ends.append(offset)
        if entry.append_time < self._append_time:
            raise Violation("append-time", f"entry {entry.index}: append time went back")
        self._append_time = entry.append_time

    def logged(self, entry: Entry) -> None:
        """``entry`` is new in a log, for the first time anywhere."""
        if entry.kind is EntryKind.DATA:
            for batch, _ in unpack_batches(entry):
                self._logged.add(_token(batch))


def _token(batch: bytes) -> int:
    return int(batch.partition(PAYLOAD_MARK)[0])
