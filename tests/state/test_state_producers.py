"""The table of producers: what is kept of each, for how long, and the digest of it all."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from state_rig import SECOND, Scribe, Sent, instance, replayed

from quorate.state.operations import EPOCHS_MAX, ExpireProducers
from quorate.state.producers import UNHASHED_MAX, Producers, ProducerState
from quorate.state.runs import Run, Runs
from quorate.types import Index, Term

if TYPE_CHECKING:
    from collections.abc import Iterable

# -- opening -----------------------------------------------------------------------------------


def test_a_new_name_begins_with_nothing() -> None:
    scribe = Scribe(time=8)
    scribe.send(Sent())
    producer = scribe.open("p", 3, window=7, expiry_s=9)
    assert producer == ProducerState("p", 2, instance(3), 0, Runs.of(), 7, 9 * SECOND, 8)


def test_opening_again_gives_a_new_epoch_and_keeps_what_was_sent() -> None:
    scribe = Scribe()
    first = scribe.open("p", 1, window=3)
    scribe.send(Sent(2, first.epoch, 1), Sent(1, first.epoch, 3))
    sent = scribe.producer("p")
    scribe.time = 5
    again = scribe.open("p", 2, window=8, expiry_s=7)
    assert again == ProducerState("p", 3, instance(2), 3, sent.runs, 8, 7 * SECOND, 5)
    assert len(scribe.state.producers) == 1
    scribe.send(Sent(1, again.epoch, 4))
    assert [run.sequence for run in scribe.producer("p").runs] == [1, 3, 4]


def test_opening_with_a_smaller_window_drops_the_oldest() -> None:
    scribe = Scribe()
    epoch = scribe.open("p", 1, window=4).epoch
    scribe.send(*(Sent(1, epoch, sequence) for sequence in range(1, 5)))
    assert [run.sequence for run in scribe.open("p", 2, window=2).runs] == [3, 4]
    assert [run.sequence for run in scribe.open("p", 3, window=4).runs] == [3, 4]


# -- the window --------------------------------------------------------------------------------


@pytest.mark.parametrize("together", [1, 2, 3, 7])
@pytest.mark.parametrize("window", [1, 2, 3, 5])
def test_the_newest_runs_are_kept(window: int, together: int) -> None:
    """However many of them come in one entry."""
    scribe = Scribe()
    epoch = scribe.open("p", window=window).epoch
    sequences = list(range(1, 15))
    for start in range(0, len(sequences), together):
        scribe.send(*(Sent(1, epoch, sequence) for sequence in sequences[start:][:together]))
        done = min(start + together, len(sequences))
        kept = [run.sequence for run in scribe.producer("p").runs]
        assert kept == sequences[max(0, done - window) : done]
    assert scribe.producer("p").last_sequence == 14


# -- expiry ------------------------------------------------------------------------------------


def test_who_is_idle_for_its_expiry_expires() -> None:
    scribe = Scribe()
    one, two = scribe.open("one", expiry_s=2).epoch, scribe.open("two", expiry_s=4).epoch
    expired = scribe.state.expired
    assert expired(2 * SECOND - 1) == ()
    assert expired(2 * SECOND) == (one,)
    assert expired(4 * SECOND) == (one, two)
    scribe.time = SECOND
    scribe.send(Sent(1, one, 1))
    assert expired(3 * SECOND - 1) == ()
    assert expired(3 * SECOND) == (one,)
    again = scribe.open("two", 2, expiry_s=1).epoch
    assert expired(2 * SECOND) == (again,)


def test_who_expired_begins_anew() -> None:
    scribe = Scribe()
    epoch = scribe.open("p", expiry_s=1).epoch
    scribe.send(Sent(5, epoch, 1))
    scribe.time = SECOND
    scribe.operate(ExpireProducers((epoch,)))
    assert scribe.state.producers.get("p") is None
    assert scribe.open("p").last_sequence == 0


def test_one_entry_expires_so_many() -> None:
    scribe = Scribe()
    for number in range(EPOCHS_MAX + 3):
        scribe.open(f"p{number}", expiry_s=1)
    scribe.time = SECOND
    oldest = scribe.state.expired(SECOND)
    assert oldest == tuple(range(1, EPOCHS_MAX + 1))
    scribe.operate(ExpireProducers(oldest))
    assert [producer.epoch for producer in scribe.state.producers] == [
        EPOCHS_MAX + 1, EPOCHS_MAX + 2, EPOCHS_MAX + 3,
    ]  # fmt: skip


# -- the digest --------------------------------------------------------------------------------


def table(producers: Iterable[ProducerState]) -> Producers:
    made = Producers()
    for producer in producers:
        made.add(producer)
    return made


RUN = Run(3, 2, 40, Index(9), Term(2))
PRODUCER = ProducerState("p", 7, instance(1), 4, Runs.of([RUN]), 4, SECOND, 5)


def variants() -> list[ProducerState]:
    """The same producer with one thing changed."""
    runs = [
        RUN._replace(sequence=4), RUN._replace(count=3), RUN._replace(offset=41),
        RUN._replace(index=Index(10)), RUN._replace(term=Term(3)),
    ]  # fmt: skip
    return [
        PRODUCER._replace(name="q"),
        PRODUCER._replace(name="p\0"),
        PRODUCER._replace(epoch=8),
        PRODUCER._replace(instance=instance(2)),
        PRODUCER._replace(last_sequence=5),
        PRODUCER._replace(window=5),
        PRODUCER._replace(expiry_us=SECOND + 1),
        PRODUCER._replace(active_us=6),
        PRODUCER._replace(runs=Runs.of()),
        PRODUCER._replace(runs=Runs.of([RUN, RUN])),
        *(PRODUCER._replace(runs=Runs.of([run])) for run in runs),
    ]


def test_everything_about_a_producer_is_in_the_digest() -> None:
    tables = [table([]), table([PRODUCER]), *(table([variant]) for variant in variants())]
    assert len({made.digest() for made in tables}) == len(tables)
    assert table([PRODUCER]).digest() == table([PRODUCER]).digest()


def test_runs_belong_to_their_producer() -> None:
    """Two producers that swap their runs are others than before."""
    other = PRODUCER._replace(name="q", epoch=8, runs=Runs.of([RUN._replace(offset=50)]))
    swapped = [PRODUCER._replace(runs=other.runs), other._replace(runs=PRODUCER.runs)]
    assert table([PRODUCER, other]).digest() != table(swapped).digest()


@pytest.mark.parametrize("asked_every", [1, 2, 7, 10_000])
def test_the_digest_does_not_depend_on_when_it_is_asked_for(asked_every: int) -> None:
    """Changes are hashed late and many at once: never more than so many, and none is lost."""
    scribe, chance = Scribe(), random.Random(asked_every)
    for step in range(4 * UNHASHED_MAX):
        scribe.time += SECOND // 4
        name = f"p{chance.randrange(2 * UNHASHED_MAX)}"
        producer = scribe.state.producers.get(name)
        if producer is None or chance.random() < 0.1:
            scribe.open(name, step, window=chance.randint(1, 4), expiry_s=chance.choice([5, 900]))
        else:
            first = producer.last_sequence + 1
            scribe.send(*(Sent(1, producer.epoch, first + n) for n in range(chance.randint(1, 6))))
        if step % 50 == 49 and (idle := scribe.state.expired(scribe.time)):
            scribe.operate(ExpireProducers(idle))
        if step % asked_every == 0:
            scribe.state.digest()
    assert len(scribe.state.producers) > UNHASHED_MAX // 2
    fresh = table(scribe.state.producers)
    assert scribe.state.producers == fresh
    assert scribe.state.producers.digest() == fresh.digest()
    assert replayed(scribe.entries).digest() == scribe.state.digest()


def test_producers_stand_in_rising_order_of_epoch() -> None:
    scribe = Scribe()
    for number, name in enumerate("abcab"):
        scribe.open(name, number)
    scribe.send(Sent(1, scribe.producer("c").epoch, 1))
    assert [producer.name for producer in scribe.state.producers] == ["c", "a", "b"]
    assert [producer.epoch for producer in scribe.state.producers] == [3, 4, 5]
