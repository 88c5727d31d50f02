"""One simulated node: a process that can be killed or stopped, and a disk that outlives it."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from quorate.errors import DiskFailed, ReplicaHalted
from quorate.replica.engine import Engine
from quorate.replica.exchange import Effects, Flush, Flushed, FlushFailed, Input
from quorate.storage.recovery import plan_open, recover
from quorate.testing.sim.disk import Disk
from quorate.testing.sim.violation import Violation
from quorate.types import NodeId, Role

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quorate.raft.messages import Envelope
    from quorate.storage.recovery import Recovered
    from quorate.storage.steps import Step
    from quorate.testing.sim.world import World

__all__ = ["Node"]

SLOWEST_STEP_ELECTIONS = 4


class Node:
    """The process is up while ``engine`` is not None."""

    def __init__(self, world: World, name: NodeId) -> None:
        self.world = world
        self.name = name
        self.disk = Disk()
        self.engine: Engine | None = None
        # Counts processes, those that died while opening included: what one of them had
        # scheduled means nothing to the next.
        self.life = 0
        self.wanted_up = True
        self.paused = False
        self.inbox: list[Input] = []
        self._turn_due = False
        # How fast this node's clock runs, and how far its wall clock is off.
        self._clock_rate = 1.0
        self._clock_base = (0, 0)
        self.wall_offset_us = 0
        self.disk_factor = 1
        self.disk_fails = False
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
        image = self.disk.image()
        try:
            recovered = recover(image)
        except ReplicaHalted as halt:
            raise Violation("halt", f"{self.name} cannot open a sound disk: {halt}") from halt
        if None in image.votes.values():
            self.world.sometimes["torn vote copy found at open"] += 1
        if recovered.torn_from is not None:
            self.world.sometimes["torn log tail cut at open"] += 1
        self._open_step(self.life, recovered, plan_open(recovered))

    def _open_step(self, life: int, recovered: Recovered, plan: Iterator[Step]) -> None:
        if life != self.life:
            return
        step = next(plan, None)
        if step is None:
            self._run(recovered)
            return
        self.world.count_event("open", self.name)
        if self.disk_fails:
            self.disk.fail()
            self.world.halted(self, DiskFailed(f"{self.name} cannot open: EIO"), [])
            return
        self.disk.run(step)
        self.world.after(self._disk_delay(), self._open_step, life, recovered, plan)

    def _run(self, recovered: Recovered) -> None:
        world = self.world
        random = Random(f"{world.options.seed}/{self.name}/{recovered.record.boot}/{self.life}")
        self.engine = Engine(
            world.group,
            self.name,
            world.names,
            world.config,
            recovered,
            random,
            self.local_us() // 1000,
        )
        self.inbox = []
        self._turn_due = False
        world.invariants.started(self)
        world.after(world.config.timing.tick_ms * 1000, self._tick, self.life)

    def kill(self) -> None:
        """End the process; its writes stay readable, durable or not."""
        self.life += 1
        self.wanted_up = False
        self.paused = False
        self.disk_fails = False
        if self.engine is not None:
            self.world.process_died(self)
            self.engine = None

    def start_if_down(self, life: int) -> None:
        """Start again unless something else happened to the node meanwhile."""
        if self.life == life and not self.wanted_up:
            self.start()

    def heal(self) -> None:
        """Everything that was done to this node ends; a process that is down comes back."""
        self.disk_factor = 1
        self.disk_fails = False
        self.set_clock_rate(1.0)
        self.resume()
        if not self.wanted_up:
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
        self._carry_out(effects)

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
            life = self.life
            world.after(self._disk_delay(), self._flush_step, life, effects.flush, 0)

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

    def _flush_step(self, life: int, flush: Flush, position: int) -> None:
        """One step of the plan is done; a crash may come before the next."""
        if life != self.life:
            return
        self.world.count_event("disk", self.name)
        if self.disk_fails:
            self.disk_fails = False
            self.disk.fail()
            self.give(FlushFailed(flush.number, "EIO"))
            return
        self.disk.run(flush.steps[position])
        if position + 1 < len(flush.steps):
            self.world.after(self._disk_delay(), self._flush_step, life, flush, position + 1)
        else:
            self.give(Flushed(flush.number))

    @property
    def term(self) -> int:
        return self.engine.core.standing.term if self.engine is not None else 0

    @property
    def leads(self) -> bool:
        return self.engine is not None and self.engine.role is Role.LEADER
