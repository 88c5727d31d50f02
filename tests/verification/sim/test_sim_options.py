"""What a seed turns on besides faults: messages as bytes, chores that stop, uneven nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quorate.entry import make_entry
from quorate.raft.messages import Append, Envelope
from quorate.types import ORIGIN, BootId, EntryKind, GroupId, Index, NodeId, Term
from verification.sim.options import swarm
from verification.sim.run import options_of, run
from verification.sim.violation import Violation
from verification.sim.wire import over_the_wire

EVENTS = 2_000


def carrying(*, body: bytes) -> Envelope:
    """An append with one entry that says it has the body ``x``."""
    entry = replace(make_entry(ORIGIN, Term(1), EntryKind.DATA, b"x"), body=body)
    message = Append(Term(1), 1, ORIGIN, (entry,), Index(0))
    return Envelope(GroupId("c", 7), NodeId("n1"), NodeId("n2"), BootId(3, 4), message)


def test_a_message_survives_the_wire() -> None:
    envelope = carrying(body=b"x")
    assert over_the_wire(envelope, 1) == envelope


def test_an_entry_without_its_body_does_not() -> None:
    with pytest.raises(Violation, match="wire: n1 sent"):
        over_the_wire(carrying(body=b""), 1)


def test_a_message_larger_than_what_a_node_takes_does_not() -> None:
    """What nodes take is as small here as what they send: 68 MiB of the legal 64 MiB."""
    entry = make_entry(ORIGIN, Term(1), EntryKind.DATA, bytes(3000))
    message = Append(Term(1), 1, ORIGIN, (entry,), Index(0))
    envelope = replace(carrying(body=b"x"), message=message)
    assert over_the_wire(envelope, 3000) == envelope
    with pytest.raises(Violation, match="wire: n1 sent an unreadable message"):
        over_the_wire(envelope, 2000)


@pytest.mark.sim
@pytest.mark.parametrize("chosen", [False, True])
def test_an_option_shows(chosen: bool) -> None:
    plain = replace(swarm(8, EVENTS), nodes=3, faults=(), noise={}, limits={}, disk_us=200)
    outcome = run(replace(plain, wire=chosen, parks=chosen))
    assert outcome.violation is None
    assert (outcome.sometimes["message as bytes"] > 0) == chosen
    assert (outcome.sometimes["chores stopped for a flush"] > 0) == chosen


def test_uneven_nodes_differ_in_what_no_other_node_may_notice() -> None:
    options = replace(swarm(8, EVENTS), uneven=True)
    common = options.config()
    configs = [options.config_of(number) for number in range(3)]
    assert len({config.limits for config in configs}) == 3
    for config in configs:
        assert (config.timing, config.storage) == (common.timing, common.storage)
        own = ("producers", "log_memory_bytes", "apps", "staged_bytes", "staged_chunks")
        same = {name: getattr(common.limits, name) for name in own}
        assert replace(config.limits, **same) == common.limits


def test_nodes_of_uneven_sizes_differ_in_what_they_take() -> None:
    options = replace(swarm(8, EVENTS), uneven_sizes=True)
    configs = [options.config_of(number) for number in range(3)]
    assert len({config.limits.batch_bytes for config in configs}) == 3
    assert len({config.storage.segment_bytes for config in configs}) == 3


def test_seeds_turn_them_on_in_their_share() -> None:
    seeds = [options_of(seed, EVENTS) for seed in range(400)]
    assert 50 <= sum(options.wire for options in seeds) <= 110
    assert 150 <= sum(options.parks for options in seeds) <= 250
    assert 80 <= sum(options.uneven for options in seeds) <= 160
    assert 20 <= sum(options.uneven_sizes for options in seeds) <= 60
