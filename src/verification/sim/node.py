"""One simulated node: a process that can be killed or stopped, and a disk that outlives it."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING

from quorate.errors import DiskFailed, QuorateError, ReplicaHalted
from quorate.membership import Membership
from quorate.raft.messages import Append, StateHash
from quorate.replica.engine import Engine
from quorate.storage.layout import CLEAN, PAGE, VOTE_BYTES, VOTE_COPIES, decode_votes
from quorate.types import Index, NodeId, Role
from verification.disk.simulated import UNLIMITED
from verification.disk.store import Store
from verification.sim.plans import Plans
from verification.sim.readers import reader_of
from verification.sim.resends import Resends
from verification.sim.rot import tear
from verification.sim.violation import Violation
from verification.sim.work import check_work

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from quorate.config import Config
    from quorate.raft.messages import Envelope
    from quorate.replica.engine_io import Effects, Input
    from quorate.replica.reader import LogReader
    from quorate.storage.layout import LogId
    from quorate.storage.recovery.result import Recovered
    from verification.sim.world import World

__all__ = ["SimulatedNode"]

SLOWEST_STEP_ELECTIONS = 4
# Microseconds between two looks whether a stopping node has stopped.
LOOK_WHETHER_STOPPED_US = 1000


class SimulatedNode:
    """The process is up while ``engine`` is not None."""

    def __init__(self, world: World, name: NodeId, config: Config, *, first: bool = True) -> None:
        self.world = world
        self.name = name
        self.config = config
        options = world.options
        segment_bytes = config.storage.segment_bytes
        least_bytes = min(options.least_bytes, segment_bytes)
        # R7: only the first voters know that they have acknowledged nothing.
        self._first = first
        self.store = Store(
            name, segment_bytes, least_bytes, options.reserve_bytes, begins_unsure=not first
        )
        if options.torn_pages:
            self.store.disk.spoils_page = partial(tear, self)
        self.engine: Engine | None = None
        # Counts processes, those that died while opening included: calls that one of them scheduled
        # have no effect on the next.
        self.life = 0
        self.wanted_up = True
        # It is not among the first voters, and was never sure of its entries before this process.
        self.newcomer = False
        # The disk lost more than the node can start with, or its state strayed: it stays down for
        # good.
        self.dead = False
        # An adversary changed the node's state without its knowledge.
        self.strayed = False
        self.paused = False
        self.inbox: list[Input] = []
        self._turn_due = False
        # The number of failed calls of the disk when the process started.
        self._errors_before = 0
        # The rate of this node's clock, and the error of its wall clock.
        self._clock_rate = 1.0
        self._clock_base = (0, 0)
        self.wall_offset_us = 0
        self.disk_factor = 1
        # Reads the log of the engine for clients. None until one asks.
        self._reader: LogReader | None = None
        # Runs the plans of the engine. None until the first one runs.
        self._plans: Plans | None = None
        # The process is stopping in order: it has no engine any more, and its disk is not at rest
        # yet.
        self.stopping = False
        # The time by which the step under way is done, however slow the disk.
        self.disk_busy_until = 0
        # A message that an adversary forged: a node that takes it may stop rather than believe it.
        self.lie: Envelope | None = None
        self._resends = Resends(self)
        self._disk_choices = world.decisions.stream(f"disk {name}")

    # -- life ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the disk, step by step; the engine runs once all contents found are durable."""
        self.life += 1
        self.wanted_up = True
        self.stopping = False
        record = self.store.durable.vote
        self.newcomer = not self._first and (record is None or record.unsure)
        self._errors_before = self.store.disk.errors_met
        if CLEAN in self.store.disk.files:
            self.world.sometimes["mark of a clean stop found at open"] += 1
        if any(_is_torn(copy, self.store.identity) for copy in self._vote_copies()):
            self.world.sometimes["torn vote copy found at open"] += 1
        self._open_step(self.life, self.store.opening())

    def _vote_copies(self) -> list[bytearray]:
        files = self.store.disk.files
        return [files[name].content for name in VOTE_COPIES if name in files]

    def _open_step(self, life: int, plan: Generator[str, None, Recovered]) -> None:
        if life != self.life:
            return
        self.world.count_event("open", self.name)
        try:
            step = next(plan)
        except StopIteration as end:
            self._run(end.value)
            return
        except OSError as error:
            self.world.halted(self, DiskFailed(f"{self.name} cannot open: {error}"), [])
            return
        except (QuorateError, ValueError, LookupError, TypeError) as error:
            raise Violation("crash", f"{self.name} opens: {error!r}") from error
        except ReplicaHalted as halt:
            self._refused_to_open(halt)
            return
        if step.startswith("truncate"):
            self.world.sometimes["torn log tail cut at open"] += 1
        self.world.after(self.disk_delay(), self._open_step, life, plan)

    def _run(self, recovered: Recovered) -> None:
        world = self.world
        random = Random(f"{world.options.seed}/{self.name}/{recovered.record.boot}/{self.life}")
        now_ms = self.local_us() // 1000
        if recovered.checkpoint is not None:
            world.sometimes["started from a checkpoint"] += 1
        try:
            membership = Membership(world.first_voters)
            self.engine = Engine(
                world.group, self.name, membership, self.config, recovered, random, now_ms
            )
        except ReplicaHalted as halt:
            self._refused_to_open(halt)
            return
        self.store.note_memberships(self.engine)
        self.inbox = []
        self._turn_due = False
        self._plans = Plans(self)
        self._reader = None
        self._judge_damage()
        world.invariants.started(self)
        self.inbox.append(self._plans.room)
        world.after(world.config.timing.tick_ms * 1000, self._tick, self.life)

    def _refused_to_open(self, halt: ReplicaHalted) -> None:
        world = self.world
        if not world.losses.explain_halt(self, halt):
            what = f"{self.name} cannot open its disk: {type(halt).__name__}: {halt}"
            raise Violation("halt", what) from halt
        self.world.sometimes["stayed down with a damaged disk"] += 1
        self.world.halts.append(str(halt))
        self.dead = True

    def _judge_damage(self) -> None:
        log = self.store.log
        if log is None or not (log.damage or (log.record.unsure and not self.newcomer)):
            return
        if not self.world.losses.explain_damage(self, log):
            found = [*map(str, log.damage), "unsure"] if log.record.unsure else log.damage
            raise Violation("damage", f"{self.name} opened a sound disk and found {found}")
        self.world.sometimes["damage found at open"] += 1
        if any(segment.without_body for segment in log.segments):
            self.world.sometimes["went on without the body of an entry"] += 1

    def kill(self) -> None:
        """End the process; its writes stay readable, durable or not."""
        self.life += 1
        self.wanted_up = False
        self.paused = False
        self.store.disk.error = 0
        if self.stopping:
            self.stopping = False
            self.world.sometimes["died while it stopped in order"] += 1
        if self.engine is not None:
            self.world.process_died(self)
            self.engine = None

    def stop(self, then: Callable[[], None] = lambda: None) -> None:
        """Stop the process in order: no more turns, then its disk comes to rest, step by step.

        ``then`` is called once the mark of the stop is on disk."""
        if self.engine is None or self._plans is None:
            return
        settled = self.engine.settled
        self.wanted_up = False
        self.paused = False
        self.stopping = True
        self.world.process_died(self)
        self.engine = None
        self._plans.close(settled, then)

    def start_if_down(self, life: int) -> None:
        """Start again unless the node was started or stopped meanwhile."""
        if self.life != life or self.wanted_up or self.dead:
            return
        if self.stopping:
            self.world.after(LOOK_WHETHER_STOPPED_US, self.start_if_down, life)
        else:
            self.start()

    def heal(self) -> None:
        """End every fault of this node; a process that is down comes back."""
        self.disk_factor = 1
        self.store.disk.error = 0
        if not self.world.options.stays_full:
            self.store.disk.capacity = UNLIMITED
        self.set_clock_rate(1.0)
        self.resume()
        if self.strayed and not self.dead:
            # No peer has compared the state yet: an operator would replace this node.
            self.dead = True
            self.kill()
        if not self.wanted_up and not self.dead:
            self.start()

    @property
    def disk_failed(self) -> bool:
        """Whether a call of the disk failed in the life of this process, or found bytes that rot
        had spoiled."""
        return self.store.disk.errors_met > self._errors_before or self in self.world.losses

    def local_us(self) -> int:
        """This node's monotonic clock."""
        world_base, local_base = self._clock_base
        return local_base + int((self.world.now - world_base) * self._clock_rate)

    def set_clock_rate(self, rate: float) -> None:
        self._clock_base = (self.world.now, self.local_us())
        self._clock_rate = rate

    # -- turns ---------------------------------------------------------------------------------

    def give(self, item: Input) -> None:
        """Take an input that has arrived: now, with others, or when the process goes on."""
        if self.engine is None:
            return
        self.inbox.append(item)
        if self.paused or self._turn_due:
            return
        gather = self.world.options.gather_us
        if gather:
            self._turn_due = True
            self.world.after(gather, self._gathered, self.life)
        else:
            self.turn()

    def _gathered(self, life: int) -> None:
        if life == self.life and not self.paused:
            self.turn()

    def _tick(self, life: int) -> None:
        if life != self.life:
            return
        tick_us = int(self.world.config.timing.tick_ms * 1000 / self._clock_rate) + 1
        self.world.after(tick_us, self._tick, life)
        if not self.paused:
            self.turn()

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        if self.paused:
            self.paused = False
            self.turn()

    def turn(self) -> None:
        if self.engine is None:
            return
        self._turn_due = False
        inputs, self.inbox = self.inbox, []
        in_memory, applied = self.engine.core.raft.log.first_in_memory, self.engine.applied
        # Proposals that waited for the first entry of a leader are judged in the turn that applies
        # it, or in the first one if there is no such entry.
        taken = len(inputs) + self.engine.pending_appends
        try:
            effects = self.engine.turn(
                inputs, self.local_us() // 1000, max(0, self.world.now + self.wall_offset_us)
            )
        except ReplicaHalted as halt:
            self.world.halted(self, halt, inputs)
            return
        except Exception as error:
            raise Violation("crash", f"{self.name}: {error!r}") from error
        self.world.invariants.after_turn(self, inputs, effects)
        check_work(self, taken, effects, Index(self.engine.applied - applied))
        self._resends.check(effects)
        self._count(effects, in_memory)
        self._carry_out(effects)

    def _count(self, effects: Effects, in_memory: Index) -> None:
        """``in_memory``: where the window of the log began before the turn."""
        for envelope in effects.sends:
            message = envelope.message
            if type(message) is Append and message.entries[0].index < in_memory:
                self.world.sometimes["fed from disk"] += 1
            elif type(message) is StateHash:
                self.world.sometimes["states compared"] += 1

    def _carry_out(self, effects: Effects) -> None:
        world = self.world
        for envelope in effects.sends:
            world.send(envelope)
        for event in effects.events:
            world.sometimes[f"event {event.kind}"] += 1
        if effects.events:
            world.invariants.check_events(self, effects.events)
        if effects.answers:
            world.clients.answered(self, effects.answers)
        if effects.more:
            world.after(1, self._gathered, self.life)
        if effects.flush is not None and self._plans is not None:
            self._plans.flush(effects.flush)

    def disk_delay(self) -> int:
        """The time of the next step of the disk."""
        usual = self.world.options.disk_us
        if self.world.network.calm:
            return usual
        drawn = self._disk_choices.choose(usual, lambda random: usual + random.randrange(usual))
        slowest = SLOWEST_STEP_ELECTIONS * self.world.config.timing.election_ms * 1000
        delay = min(drawn * self.disk_factor, slowest)
        self.disk_busy_until = self.world.now + delay
        return delay

    @property
    def reader(self) -> LogReader | None:
        """The reader for clients; None while the process is down, or stopped for a while."""
        if self.engine is None or self.paused:
            return None
        if self._reader is None:
            self._reader = reader_of(self)
        return self._reader

    @property
    def term(self) -> int:
        return self.engine.core.raft.term if self.engine is not None else 0

    @property
    def leads(self) -> bool:
        return self.engine is not None and self.engine.role is Role.LEADER


def _is_torn(copy: bytearray, identity: LogId) -> bool:
    """Whether a copy of the vote record holds bytes that are no record."""
    records = zip(range(0, VOTE_BYTES, PAGE), decode_votes(copy, identity), strict=True)
    return any(record is None and any(copy[place : place + PAGE]) for place, record in records)
