"""One simulated node: a process that can be killed or stopped, and a disk that outlives it."""

from __future__ import annotations

import errno
from itertools import chain
from random import Random
from typing import TYPE_CHECKING

from quorate.errors import Corrupt, DiskFailed, QuorateError, ReplicaHalted
from quorate.raft.messages import Append, StateHash
from quorate.replica.engine import Engine
from quorate.replica.exchange import Effects, Flushed, FlushFailed, Input, Room
from quorate.storage.layout import VOTE_COPIES, decode_vote
from quorate.testing.disk.simulated import UNLIMITED
from quorate.testing.disk.store import Store
from quorate.testing.sim.violation import Violation
from quorate.types import Index, NodeId, Role

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from quorate.config import Config
    from quorate.raft.messages import Envelope
    from quorate.storage.checkpoint import Checkpoint
    from quorate.storage.flusher import Flush, Flusher
    from quorate.storage.recovered import Recovered
    from quorate.testing.sim.world import World

__all__ = ["LOOK_FOR_ROOM_US", "Node"]

SLOWEST_STEP_ELECTIONS = 4
PROVE_US = 10_000
LOOK_FOR_ROOM_US = 500_000


class Node:
    """The process is up while ``engine`` is not None."""

    def __init__(self, world: World, name: NodeId, config: Config) -> None:
        self.world = world
        self.name = name
        self.config = config
        self.store = Store(
            name,
            world.options.segment_bytes,
            world.options.least_bytes,
            config.storage.reserve_bytes,
        )
        self.engine: Engine | None = None
        # Counts processes, those that died while opening included: what one of them had
        # scheduled means nothing to the next.
        self.life = 0
        self.wanted_up = True
        # Its disk lost more than it can start with, or its state strayed: it stays down for good.
        self.dead = False
        # An adversary changed its state behind its back.
        self.strayed = False
        self.paused = False
        self.inbox: list[Input] = []
        self._turn_due = False
        # How fast this node's clock runs, and how far its wall clock is off.
        self._clock_rate = 1.0
        self._clock_base = (0, 0)
        self.wall_offset_us = 0
        self.disk_factor = 1
        # The plan under way, the flush that waits for it, and how many there were.
        self._disk_plan: Iterator[str] | None = None
        self._next_flush: Flush | None = None
        self._flushes = 0
        # Chores that are under way, or stopped for a flush and go on after it.
        self._chores: Iterator[str] | None = None
        # The step under way is done by then, however slow the disk.
        self.disk_busy_until = 0
        # A message that an adversary forged: whoever takes it may stop rather than believe it.
        self.lie: Envelope | None = None
        self._disk_choices = world.decisions.stream(f"disk {name}")

    # -- life ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the disk, step by step; the engine runs once everything found is durable."""
        self.life += 1
        self.wanted_up = True
        if any(decode_vote(data) is None for data in self._vote_copies()):
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
        self.world.after(self._disk_delay(), self._open_step, life, plan)

    def _run(self, recovered: Recovered) -> None:
        world = self.world
        random = Random(f"{world.options.seed}/{self.name}/{recovered.record.boot}/{self.life}")
        now_ms = self.local_us() // 1000
        if recovered.checkpoint is not None:
            world.sometimes["started from a checkpoint"] += 1
        try:
            self.engine = Engine(
                world.group, self.name, world.names, self.config, recovered, random, now_ms
            )
        except ReplicaHalted as halt:
            self._refused_to_open(halt)
            return
        self.inbox = []
        self._turn_due = False
        self._disk_plan = None
        self._next_flush = None
        self._chores = None
        self._judge_damage()
        world.invariants.started(self)
        self.inbox.append(self._room())
        world.after(world.config.timing.tick_ms * 1000, self._tick, self.life)
        world.after(LOOK_FOR_ROOM_US, self._look_for_room, self.life)

    def _refused_to_open(self, halt: ReplicaHalted) -> None:
        if self not in self.world.rotten:
            raise Violation("halt", f"{self.name} cannot open a sound disk: {halt}") from halt
        self.world.sometimes["stayed down with a damaged disk"] += 1
        self.world.halts.append(str(halt))
        self.dead = True

    def _judge_damage(self) -> None:
        log = self.store.log
        if log is None or not (log.damage or log.record.unsure):
            return
        if self not in self.world.rotten:
            raise Violation("damage", f"{self.name} opened a sound disk and found {log.damage}")
        self.world.sometimes["damage found at open"] += 1
        if any(segment.hollow for segment in log.segments):
            self.world.sometimes["went on without the body of an entry"] += 1

    def kill(self) -> None:
        """End the process; its writes stay readable, durable or not."""
        self.life += 1
        self.wanted_up = False
        self.paused = False
        self.store.disk.error = 0
        if self.engine is not None:
            self.world.process_died(self)
            self.engine = None

    def start_if_down(self, life: int) -> None:
        """Start again unless something else happened to the node meanwhile."""
        if self.life == life and not self.wanted_up and not self.dead:
            self.start()

    def heal(self) -> None:
        """Everything that was done to this node ends; a process that is down comes back."""
        self.disk_factor = 1
        self.store.disk.error = 0
        self.store.disk.capacity = UNLIMITED
        self.set_clock_rate(1.0)
        self.resume()
        if self.strayed and not self.dead:
            self.dead = True  # nothing was compared yet: whoever runs it would replace it
            self.kill()
        if not self.wanted_up and not self.dead:
            self.start()

    def local_us(self) -> int:
        """This node's monotonic clock."""
        world_base, local_base = self._clock_base
        return local_base + int((self.world.now - world_base) * self._clock_rate)

    def set_clock_rate(self, rate: float) -> None:
        self._clock_base = (self.world.now, self.local_us())
        self._clock_rate = rate

    # -- turns ---------------------------------------------------------------------------------

    def give(self, item: Input) -> None:
        """An input has arrived: taken now, with others, or when the process goes on."""
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
        in_memory = self.engine.core.standing.log.first_in_memory
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
            world.sometimes[f"event {event.happening}"] += 1
        if effects.events:
            world.invariants.check_events(self, effects.events)
        if effects.answers:
            world.clients.answered(self, effects.answers)
        if effects.flush is not None:
            self._next_flush = effects.flush
            self._feed_disk()

    # -- the disk ------------------------------------------------------------------------------

    def _disk_delay(self) -> int:
        usual = self.world.options.disk_us
        if self.world.network.calm:
            return usual
        drawn = self._disk_choices.choose(usual, lambda random: usual + random.randrange(usual))
        slowest = SLOWEST_STEP_ELECTIONS * self.world.config.timing.election_ms * 1000
        delay = min(drawn * self.disk_factor, slowest)
        self.disk_busy_until = self.world.now + delay
        return delay

    def _feed_disk(self) -> None:
        """Begin the next flush, if there is one and the disk is free."""
        flush = self._next_flush
        if flush is not None and self._disk_plan is None:
            self._next_flush = None
            self._run_plan(self.store.plan(flush), flush.number)

    def _run_plan(self, plan: Iterator[str], number: int | None) -> None:
        self._disk_plan = plan
        self.world.after(self._disk_delay(), self._disk_step, self.life, plan, number)

    def _disk_step(self, life: int, plan: Iterator[str], number: int | None) -> None:
        """One step of the plan is done; a crash may come before the next."""
        if life != self.life:
            return
        self.world.count_event("disk", self.name)
        try:
            step = next(plan, None)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise Violation("space", f"{self.name} ran out of room in a flush") from error
            self.give(FlushFailed(number or 0, str(error)))
            return
        except Corrupt as error:
            # A truncation looks up where the log will end: on a spoiled disk that may be bad.
            if self not in self.world.rotten:
                raise Violation("damage", f"{self.name} writes: {error}") from error
            self.give(FlushFailed(number or 0, str(error)))
            return
        except Exception as error:
            raise Violation("crash", f"{self.name} writes: {error!r}") from error
        if step is not None and not self._parks(plan, step):
            self.world.after(self._disk_delay(), self._disk_step, life, plan, number)
        elif number is None:
            self._leave_disk(plan, parked=step is not None)
        else:
            self.give(Flushed(number, self._room().room))
            if life == self.life:
                self._tend_disk()

    def _parks(self, plan: Iterator[str], step: str) -> bool:
        """Whether ``plan`` stops here for a flush. The spare may be what the flush needs."""
        waited_for = plan is self._chores and self._next_flush is not None
        return self.world.options.parks and waited_for and not step.endswith("spare")

    def _leave_disk(self, plan: Iterator[str], *, parked: bool) -> None:
        """Nobody waits for ``plan``, and it is done or stops: a flush that waits comes next."""
        self._disk_plan = None
        if parked:
            self.world.sometimes["chores stopped for a flush"] += 1
        elif plan is self._chores:
            self._chores = None
        self.give(self._room())
        self._feed_disk()
        self._keep_state()

    def _tend_disk(self) -> None:
        """A flush has ended: do the chores, then take the next; prove the last one if none comes.

        What is written after it proves it, too.
        """
        engine, flusher = self.engine, self.store.flusher
        if engine is None or flusher is None:
            return
        self._do_chores(engine, flusher)
        self._flushes += 1
        self.world.after(PROVE_US, self._prove, self.life, self._flushes)

    def _do_chores(self, engine: Engine, flusher: Flusher) -> None:
        """Go on with those that stopped; the spare comes first in any case."""
        chores = self._chores or flusher.chores(engine.settled)
        self._chores = chain(flusher.allocate_ahead(), chores)
        self._run_plan(self._chores, None)

    def _keep_state(self) -> None:
        """A segment may have been sealed: then the state is put beside the log."""
        engine, log, flusher = self.engine, self.store.log, self.store.flusher
        if self._disk_plan is not None or engine is None or log is None or flusher is None:
            return
        checkpoint = engine.checkpoint(log.sealed)
        if checkpoint is not None:
            self._judge_checkpoint(checkpoint)
            self.world.sometimes["checkpoint written"] += 1
            self._chores = flusher.keep(checkpoint)
            self._run_plan(self._chores, None)

    def _judge_checkpoint(self, checkpoint: Checkpoint) -> None:
        """It must know nothing that a power cut could take from the log beside it."""
        position = checkpoint.position
        if self.store.durable.position(position.index) != position and (
            self not in self.world.rotten
        ):
            raise Violation("checkpoint", f"{self.name} keeps the state at {position}, lacks it")

    def _room(self) -> Room:
        flusher = self.store.flusher
        return Room(None) if flusher is None else Room(flusher.room, flusher.shortage)

    def _look_for_room(self, life: int) -> None:
        """A disk that was full may have room again; nobody appends until it is looked for."""
        engine, flusher = self.engine, self.store.flusher
        if life != self.life or engine is None or flusher is None:
            return
        if self._disk_plan is None and engine.core.standing.full:
            self._do_chores(engine, flusher)
        self.world.after(LOOK_FOR_ROOM_US, self._look_for_room, life)

    def _prove(self, life: int, flushes: int) -> None:
        engine, flusher = self.engine, self.store.flusher
        if life != self.life or flushes != self._flushes or engine is None or flusher is None:
            return
        if self._disk_plan is None and flusher.wants_proof(engine.settled):
            self._run_plan(flusher.prove(engine.settled), None)

    @property
    def term(self) -> int:
        return self.engine.core.standing.term if self.engine is not None else 0

    @property
    def leads(self) -> bool:
        return self.engine is not None and self.engine.role is Role.LEADER
