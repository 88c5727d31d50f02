"""A run with one planted anomaly is blamed for it, by the right name."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

import pytest
from checker_rig import Run, valid_run

from verification.checker import AT_END, END_ONLY, LINEARIZABLE, ViolationKind, identity_of
from verification.checker.history import AppendOutcome

SEEDS = range(8)

Damage = Callable[[Run, Random], None]


class Planted(NamedTuple):
    kind: ViolationKind
    damage: Damage
    # What the same damage may break as well.
    besides: tuple[ViolationKind, ...]


PLANTED: list[Planted] = []


def plant(kind: ViolationKind, *besides: ViolationKind) -> Callable[[Damage], Damage]:
    def register(damage: Damage) -> Damage:
        PLANTED.append(Planted(kind, damage, besides))
        return damage

    return register


# -- finding something to damage -----------------------------------------------------------------


def appends(run: Run, outcome: AppendOutcome, count: int = 0, *, landed: bool = True) -> list[int]:
    """Appends of no producer that are in the log or not, with so many values or any number."""
    columns, log = run.history.appends, set(run.log)
    return [
        row
        for row, told in enumerate(columns.outcome)
        if told == outcome
        and not columns.producer[row]
        and columns.count[row] == (count or columns.count[row])
        and (columns.value[row] in log) == landed
    ]


def produced(run: Run) -> list[int]:
    """Appends of one producer in the order of their sequences, each sent once and in the log."""
    columns, log = run.history.appends, set(run.log)
    sent = list(columns.value)
    return [
        row
        for row, producer in enumerate(columns.producer)
        if producer == max(columns.producer)
        and sent.count(columns.value[row]) == 1
        and columns.value[row] in log
    ]


def reads(run: Run, way: int, count: int = 0) -> list[int]:
    """Reads of exactly this way that show at least so many records, in the order of their ends."""
    columns = run.history.reads
    rows = [row for row, found in enumerate(columns.way) if found == way]
    rows = [row for row in rows if columns.count[row] >= count]
    return sorted(rows, key=columns.end.__getitem__)


def from_replicas(run: Run) -> list[int]:
    return reads(run, 0) + reads(run, AT_END)


def see_end(run: Run, row: int, end: int) -> None:
    """Make a read one that was told this end and shown nothing."""
    columns = run.history.reads
    columns.first[row] = columns.low[row] = columns.high[row] = end
    columns.count[row] = 0
    columns.way[row] |= AT_END | END_ONLY


def overwrite(run: Run, row: int) -> None:
    """Let the values of an append of unknown outcome stand where those of ``row`` stood."""
    columns = run.history.appends
    offset, count = run.log.index(columns.value[row]), columns.count[row]
    run.history.begin(9, columns.start[row], identity_of(9, 0), count)
    for final in run.finals:
        for number in range(count):
            final.values[offset + number] = identity_of(9, number)


# -- what is planted -----------------------------------------------------------------------------


@plant(ViolationKind.LOST_ACK, ViolationKind.VANISHED)
def drop_the_end(run: Run, random: Random) -> None:
    for final in run.finals:
        del final.values[max(run.history.appends.offset) :]


@plant(ViolationKind.LOST_ACK, ViolationKind.DIFFERENT_READ)
def overwrite_an_acked_value(run: Run, random: Random) -> None:
    overwrite(run, random.choice(appends(run, AppendOutcome.ACKED)))


@plant(ViolationKind.THIN_ACK)
def count_one_disk(run: Run, random: Random) -> None:
    run.history.appends.synced[random.choice(appends(run, AppendOutcome.ACKED))] = 1


@plant(ViolationKind.PHANTOM)
def hold_what_nobody_sent(run: Run, random: Random) -> None:
    run.add_everywhere(identity_of(9, 0))


@plant(ViolationKind.PHANTOM)
def read_what_nobody_sent(run: Run, random: Random) -> None:
    row = random.choice(reads(run, LINEARIZABLE, 1))
    run.history.values[run.history.reads.seen[row]] = identity_of(9, 0)


@plant(ViolationKind.DUPLICATE)
def repeat_an_acked_value(run: Run, random: Random) -> None:
    run.add_everywhere(run.history.appends.value[random.choice(appends(run, AppendOutcome.ACKED))])


@plant(ViolationKind.DUPLICATE, ViolationKind.PRODUCER_GAP)
def use_a_sequence_twice(run: Run, random: Random) -> None:
    *earlier, last = produced(run)
    sequences = run.history.appends.sequence
    sequences[last] = sequences[random.choice(earlier)]


@plant(ViolationKind.MISPLACED_ACK)
def name_another_offset(run: Run, random: Random) -> None:
    run.history.appends.offset[random.choice(appends(run, AppendOutcome.ACKED))] += 1


@plant(ViolationKind.PRODUCER_ORDER)
def swap_two_sequences(run: Run, random: Random) -> None:
    columns, rows = run.history.appends, produced(run)
    pairs = [(a, b) for a in rows for b in rows if a < b and columns.count[a] == columns.count[b]]
    one, other = random.choice(pairs)
    sequences = columns.sequence
    sequences[one], sequences[other] = sequences[other], sequences[one]


@plant(ViolationKind.PRODUCER_GAP)
def skip_a_sequence(run: Run, random: Random) -> None:
    columns = run.history.appends
    left_out = columns.sequence[random.choice(produced(run)[1:])]
    for row, producer in enumerate(columns.producer):
        if producer == max(columns.producer) and columns.sequence[row] >= left_out:
            columns.sequence[row] += 1


@plant(ViolationKind.PRODUCER_GAP, ViolationKind.DIFFERENT_READ)
def lose_a_producers_batch(run: Run, random: Random) -> None:
    row = random.choice(produced(run)[:-1])
    run.history.appends.outcome[row] = AppendOutcome.UNKNOWN
    overwrite(run, row)


@plant(ViolationKind.FAILED_APPEARED)
def fail_what_is_there(run: Run, random: Random) -> None:
    row = random.choice(appends(run, AppendOutcome.UNKNOWN))
    run.history.failed(row, run.history.appends.start[row] + 1, "BUSY")


@plant(ViolationKind.FAILED_APPEARED)
def read_what_failed(run: Run, random: Random) -> None:
    failed = random.choice(appends(run, AppendOutcome.FAILED, landed=False))
    read = random.choice(reads(run, LINEARIZABLE, 1))
    run.history.values[run.history.reads.seen[read]] = run.history.appends.value[failed]


@plant(ViolationKind.UNKNOWN_TWICE)
def repeat_an_unknown_value(run: Run, random: Random) -> None:
    run.add_everywhere(
        run.history.appends.value[random.choice(appends(run, AppendOutcome.UNKNOWN))]
    )


@plant(
    ViolationKind.ORDER_INVERSION,
    *(
        ViolationKind.STALE_READ,
        ViolationKind.FUTURE_READ,
        ViolationKind.DIFFERENT_READ,
        ViolationKind.OWN_WRITE_MISSING,
    ),
)
def swap_two_offsets(run: Run, random: Random) -> None:
    columns, rows = run.history.appends, appends(run, AppendOutcome.ACKED, 1)
    pairs = [(a, b) for a in rows for b in rows if columns.end[a] < columns.start[b]]
    one, other = random.choice(pairs)
    offsets = columns.offset
    run.swap_everywhere(offsets[one], offsets[other])
    offsets[one], offsets[other] = offsets[other], offsets[one]


@plant(ViolationKind.ORDER_INVERSION, ViolationKind.FUTURE_READ)
def begin_too_late(run: Run, random: Random) -> None:
    columns, log = run.history.appends, run.log
    acked = appends(run, AppendOutcome.ACKED)
    pairs = [
        (late, early)
        for late in appends(run, AppendOutcome.UNKNOWN)
        for early in acked
        if columns.offset[early] > log.index(columns.value[late])
    ]
    late, early = random.choice(pairs)
    columns.start[late] = columns.end[early] + 1


@plant(ViolationKind.STALE_READ, ViolationKind.SESSION_WENT_BACK, ViolationKind.OWN_WRITE_MISSING)
def forget_what_was_acked(run: Run, random: Random) -> None:
    row = random.choice(reads(run, LINEARIZABLE | AT_END | END_ONLY)[5:])
    columns, start = run.history.appends, run.history.reads.start[row]
    acked = [one for one in appends(run, AppendOutcome.ACKED) if columns.end[one] < start]
    see_end(run, row, columns.offset[random.choice(acked)])


@plant(ViolationKind.FUTURE_READ, ViolationKind.SESSION_WENT_BACK)
def read_too_early(run: Run, random: Random) -> None:
    columns, row = run.history.reads, random.choice(reads(run, LINEARIZABLE, 1))
    columns.start[row] = columns.end[row] = min(run.history.appends.start) - 1


@plant(ViolationKind.DIFFERENT_READ)
def mix_up_a_read(run: Run, random: Random) -> None:
    values, place = run.history.values, run.history.reads.seen[random.choice(reads(run, 0, 2))]
    values[place], values[place + 1] = values[place + 1], values[place]


@plant(
    ViolationKind.VANISHED,
    ViolationKind.STALE_READ,
    ViolationKind.FUTURE_READ,
    ViolationKind.SESSION_WENT_BACK,
)
def see_more_than_there_is(run: Run, random: Random) -> None:
    row = random.choice(reads(run, LINEARIZABLE | AT_END | END_ONLY)[-5:])
    see_end(run, row, len(run.log) + 3)


@plant(ViolationKind.SESSION_WENT_BACK, ViolationKind.OWN_WRITE_MISSING)
def go_back_in_a_session(run: Run, random: Random) -> None:
    columns = run.history.reads
    knew = [
        row
        for row in from_replicas(run)
        if any(
            columns.client[one] == columns.client[row]
            and columns.session[one] == columns.session[row]
            and columns.end[one] < columns.start[row]
            and columns.low[one]
            for one in range(len(columns))
        )
    ]
    see_end(run, random.choice(knew), 0)


@plant(ViolationKind.OWN_WRITE_MISSING, ViolationKind.SESSION_WENT_BACK)
def miss_an_own_write(run: Run, random: Random) -> None:
    columns, acks = run.history.reads, run.history.appends
    wrote = [
        row
        for row in from_replicas(run)
        if any(
            acks.client[one] == columns.client[row]
            and acks.session[one] == columns.session[row]
            and acks.end[one] < columns.start[row]
            for one in appends(run, AppendOutcome.ACKED)
        )
    ]
    see_end(run, random.choice(wrote), 0)


@plant(ViolationKind.TORN_BATCH, *(kind for kind in ViolationKind if kind.rule in {"C6", "C7"}))
def see_an_end_inside_a_batch(run: Run, random: Random) -> None:
    batch = random.choice(appends(run, AppendOutcome.ACKED, 4))
    offset = run.history.appends.offset[batch] + random.randint(1, 3)
    see_end(run, random.choice(from_replicas(run)), offset)


@plant(
    ViolationKind.TORN_BATCH,
    *(kind for kind in ViolationKind if kind.rule in {"C3", "C4", "C6", "C7"}),
)
def split_a_batch(run: Run, random: Random) -> None:
    values, log = run.history.appends.value, run.log
    starts = [log.index(values[row]) for row in appends(run, AppendOutcome.ACKED, 4)]
    start = random.choice([start for start in starts if start + 4 < len(log)])
    run.swap_everywhere(start + 3, start + 4)


@plant(ViolationKind.TORN_BATCH)
def acknowledge_half_a_batch(run: Run, random: Random) -> None:
    run.history.appends.taken[random.choice(appends(run, AppendOutcome.ACKED, 4))] = 2


@plant(ViolationKind.REPLICAS_DIFFER)
def swap_two_values_of_one_replica(run: Run, random: Random) -> None:
    values = random.choice(run.finals).values
    place = random.randrange(len(values) - 1)
    values[place], values[place + 1] = values[place + 1], values[place]


@plant(ViolationKind.REPLICAS_DIFFER)
def leave_one_replica_behind(run: Run, random: Random) -> None:
    random.choice(run.finals).values.pop()


# -- the test ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.damage.__name__)
def test_what_is_planted_is_found(planted: Planted, seed: int) -> None:
    run = valid_run(f"planted/{seed}")
    assert not run.judge().counts
    planted.damage(run, Random(seed))
    verdict = run.judge()
    assert planted.kind in verdict.counts, verdict.counts
    assert set(verdict.counts) <= {planted.kind, *planted.besides}, verdict.violations
    for violation in verdict.violations:
        assert str(violation).startswith(f"{violation.rule} {violation.kind}: log orders: ")
        if violation.rule in {"C6", "C7"} and violation.kind not in ONE_WITNESS:
            assert len(violation.witnesses) == 2


# These are proved by the final log and one operation.
ONE_WITNESS = {ViolationKind.DIFFERENT_READ, ViolationKind.VANISHED}


def test_every_kind_is_planted() -> None:
    assert {planted.kind for planted in PLANTED} == set(ViolationKind)
