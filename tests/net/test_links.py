"""The links between nodes: kept up, sorted by urgency, honest about what they lose."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest
from net_rig import (
    PEER,
    QUICK,
    RELUCTANT,
    Door,
    Events,
    both_up,
    free_address,
    linked,
    listening,
)

from quorate.config import NetworkLimits
from quorate.entry import make_entry
from quorate.errors import Busy, InvariantBroken, QuorateError, WrongCluster
from quorate.net.links import MESSAGES_PER_FRAME
from quorate.net.listener import Listener
from quorate.raft.messages import Append, Compare, Envelope, Heartbeat, Message
from quorate.types import ORIGIN, BootId, EntryKind, GroupId, Index, NodeId, Term
from quorate.wire.messages import decode_envelopes

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from quorate.net.connection import Connection
    from quorate.wire.frames import Frame
    from quorate.wire.handshake import Hello, Welcome

    Run = Callable[[Coroutine[Any, Any, None]], None]

MIB = 1 << 20


def envelope(message: Message, target: NodeId = PEER) -> Envelope:
    return Envelope(GroupId("c1", 7), NodeId("n1"), target, BootId(1, 2), message)


def heartbeat(number: int) -> Envelope:
    return envelope(Heartbeat(Term(1), number, ORIGIN))


def append(number: int, size: int = 10) -> Envelope:
    entry = make_entry(ORIGIN, Term(1), EntryKind.DATA, bytes(size))
    return envelope(Append(Term(1), number, ORIGIN, (entry,), Index(0)))


def numbers(frames: list[Frame]) -> list[int]:
    """What the messages were numbered with, in order."""
    return [
        found.message.number if isinstance(found.message, Append) else found.message.round
        for frame in frames
        for found in decode_envelopes(frame, "c1", NodeId("n1"), PEER)
        if isinstance(found.message, Append | Heartbeat)
    ]


def messages(frames: list[Frame]) -> list[type[Message]]:
    return [
        type(found.message)
        for frame in frames
        for found in decode_envelopes(frame, "c1", NodeId("n1"), PEER)
    ]


# -- sending -----------------------------------------------------------------------------------


def test_entries_go_over_one_link_and_all_else_over_the_other(run: Run) -> None:
    async def main() -> None:
        door, events = Door("n2"), Events()
        async with listening(door) as listener, linked(listener.address, events) as links:
            control, bulk = await both_up(door, events)
            for hello in door.hellos:
                assert (hello.cluster, hello.node, hello.target) == ("c1", "n1", "n2")
            for number in range(100):
                links.send([append(number), heartbeat(number), append(number + 1000)])
            # One frame for each call, though it holds two messages.
            assert numbers(await bulk.received(100)) == [
                number + more for number in range(100) for more in (0, 1000)
            ]
            assert numbers(await control.received(100)) == list(range(100))
            assert links.dropped == 0
            assert events.opened == [PEER], "the bulk link carries no heartbeat"

    run(main())


def test_the_question_whether_entries_arrived_stays_behind_them(run: Run) -> None:
    async def main() -> None:
        door, events = Door("n2"), Events()
        async with listening(door) as listener, linked(listener.address, events) as links:
            control, bulk = await both_up(door, events)
            first, later = (envelope(Compare(Term(1), number, ORIGIN)) for number in (1, 2))
            links.send([append(1), heartbeat(1), later, append(2)])
            links.send([first])
            assert messages(await bulk.received(1)) == [Append, Compare, Append]
            assert messages(await control.received(2)) == [Heartbeat, Compare]

    run(main())


def test_what_is_large_or_many_is_divided_into_frames(run: Run) -> None:
    async def main() -> None:
        door, events = Door("n2"), Events()
        network = NetworkLimits(peer_frame_bytes=2 * MIB)
        async with listening(door) as listener, linked(listener.address, events, network) as links:
            control, bulk = await both_up(door, events)
            sizes = [MIB // 2, MIB // 2, MIB, MIB, 3 * MIB, 10, 10]
            links.send([append(number, size) for number, size in enumerate(sizes)])
            links.send([heartbeat(number) for number in range(MESSAGES_PER_FRAME + 1)])
            frames = await bulk.received(5)
            # The header of an entry counts: two of 1 MiB are more than 2 MiB.
            assert [numbers([frame]) for frame in frames] == [[0, 1], [2], [3], [4], [5, 6]]
            frames = await control.received(2)
            assert [len(numbers([frame])) for frame in frames] == [MESSAGES_PER_FRAME, 1]

    run(main())


def test_what_cannot_be_sent_is_dropped_and_counted(run: Run) -> None:
    async def main() -> None:
        events = Events()
        async with linked(free_address(), events) as links:
            links.send([heartbeat(1), append(2), append(3)])
            links.send([envelope(Heartbeat(Term(1), 1, ORIGIN), NodeId("n9"))])
            assert links.dropped == 4
            assert not links.connected(PEER)
            await events.until(lambda: events.unreached)
        assert events.seen == []  # it was never up
        assert {*events.unreached} == {PEER}

    run(main())


def test_a_link_that_is_full_drops_what_comes_and_stays(run: Run) -> None:
    async def main() -> None:
        door, events = Door("n2"), Events()
        network = NetworkLimits(peer_buffer_bytes=MIB)
        async with listening(door) as listener, linked(listener.address, events, network) as links:
            control, bulk = await both_up(door, events)
            bulk.connection.pause_reading()
            number = 0
            while not links.dropped:
                links.send([append(number, MIB)])
                number += 1
                await asyncio.sleep(0)
            links.send([heartbeat(7)])  # the other link does not care
            assert numbers(await control.received(1)) == [7]
            bulk.connection.resume_reading()
            assert numbers(await bulk.received(number - 1)) == list(range(number - 1))
            assert events.seen == []

    run(main())


# -- staying up --------------------------------------------------------------------------------


def test_a_lost_link_is_reported_and_dialled_again(run: Run) -> None:
    """Nobody is said to have gone: the peer still listens."""

    async def main() -> None:
        door, events = Door("n2"), Events()
        async with listening(door) as listener, linked(listener.address, events) as links:
            for number in range(5):
                control, bulk = await both_up(door, events)
                links.send([heartbeat(number), append(number)])
                assert numbers(await control.received(1)) == [number]
                assert numbers(await bulk.received(1)) == [number]
                control.connection.abort()
                bulk.connection.abort()
            await both_up(door, events)
            assert events.seen == ["closed n2"] * 5
        assert events.seen == ["closed n2"] * 5  # the last time it was this node that went

    run(main())


def test_the_end_of_the_bulk_link_is_no_news(run: Run) -> None:
    async def main() -> None:
        door, events = Door("n2"), Events()
        async with listening(door) as listener, linked(listener.address, events) as links:
            control, bulk = await both_up(door, events)
            bulk.connection.abort()
            await events.until(lambda: events.welcomes == 1)
            links.send([heartbeat(7), append(8)])
            assert numbers(await control.received(1)) == [7]
            assert numbers(await door.inside["bulk"].received(1)) == [8]
            assert events.seen == []

    run(main())


def test_a_peer_that_went_is_reported_as_refused_once_and_comes_back(run: Run) -> None:
    async def main() -> None:
        events, address = Events(), free_address()
        async with linked(address, events) as links:
            for _ in range(3):
                door, events.seen = Door("n2"), []
                listener = Listener(door)
                await listener.start(address)
                await both_up(door, events)
                assert links.connected(PEER)
                await listener.close()
                await events.until(lambda: len(events.seen) == 2)
                assert not links.connected(PEER)
                await asyncio.sleep(0.02)  # for some more tries
                assert events.seen == ["closed n2", "refused n2"]

    run(main())


def test_a_peer_that_vanished_without_a_word_is_noticed(run: Run) -> None:
    """Half open: the link stands, and nothing comes back, not even to a PING."""

    class Mute(Door):
        def serve(self, hello: Hello, welcome: Welcome, connection: Connection) -> None:
            super().serve(hello, welcome, connection)
            connection.pause_reading()

    async def main() -> None:
        events = Events()
        async with listening(Mute("n2")) as listener, linked(listener.address, events, QUICK):
            await events.until(lambda: events.seen)
            assert events.seen == ["closed n2"]

    run(main())


def test_redial_ends_the_wait(run: Run) -> None:
    async def main() -> None:
        door, events, address = Door("n2"), Events(), free_address()
        async with linked(address, events, RELUCTANT) as links:
            listener = Listener(door)
            await listener.start(address)
            while events.welcomes < 2:  # to redial while it is being dialled changes nothing
                links.redial(PEER)
                await asyncio.sleep(0.001)
            await both_up(door, events)
            await listener.close()

    run(main())


# -- who is not the peer -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "verdict", "text"),
    [
        ("n3", None, "WrongCluster: node n2 was dialled, n3 answers"),
        ("n2", WrongCluster("another disk"), "WrongCluster: another disk"),
    ],
    ids=["another node", "the node says so"],
)
def test_a_link_to_somebody_else_is_never_used(
    run: Run, node: str, verdict: QuorateError | None, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        door, events = Door(node), Events()
        events.verdict = verdict
        async with listening(door) as listener, linked(listener.address, events) as links:
            await door.until(lambda: len(door.guests) >= 10)  # tried again and again
            links.send([heartbeat(1)])
            assert links.dropped == 1
        for guest in door.guests:
            await guest.end()
            assert guest.frames == []
        assert events.seen == []

    caplog.set_level(logging.WARNING)
    run(main())
    said = [record.getMessage() for record in caplog.records]
    assert sorted(said) == [
        f"link down peer=n2 purpose={purpose} error={text}" for purpose in ("bulk", "control")
    ]


def test_who_is_refused_tries_later(run: Run) -> None:
    """Soon because of a crowd, much later for good reasons."""

    async def main() -> None:
        door, events = Door("n2", refusal=Busy("a crowd")), Events()
        network = NetworkLimits(redial_min_ms=1, redial_max_ms=1, redial_refused_ms=600_000)
        async with listening(door) as listener, linked(listener.address, events, network):
            await door.until(lambda: len(door.hellos) >= 6)
            door.refusal, before = WrongCluster("not one of us"), len(door.hellos)
            await door.until(lambda: len(door.hellos) == before + 2)
            door.refusal, others = None, Events()
            async with linked(listener.address, others):
                await both_up(door, others)
            assert len(door.hellos) == before + 4
            assert events.welcomes == 0

    run(main())


# -- bugs of the node --------------------------------------------------------------------------


def test_a_bug_in_an_event_does_not_end_the_link_for_good(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    class Clumsy(Events):
        def welcomed(self, peer: NodeId, welcome: Welcome) -> QuorateError | None:
            super().welcomed(peer, welcome)
            if self.welcomes <= 3:
                raise ZeroDivisionError("a bug")
            return None

    async def main() -> None:
        door, events = Door("n2"), Clumsy()
        async with listening(door) as listener, linked(listener.address, events) as links:
            await events.until(lambda: events.welcomes == 5)
            links.send([heartbeat(7), append(8)])
            assert links.dropped == 0
            await door.until(lambda: len(door.guests) == 5)
            ends = asyncio.as_completed([guest.end() for guest in door.guests])
            for _ in range(3):  # closed by this node, not replaced when it dialled again
                assert not isinstance(await next(ends), ConnectionAbortedError)
        for end in ends:
            await end

    run(main())
    found = [str(record.exc_text) for record in caplog.records if record.exc_info]
    assert len(found) == 3
    assert all("ZeroDivisionError: a bug" in text for text in found)


def test_a_halt_in_an_event_is_handed_to_whoever_runs_the_loop(run: Run) -> None:
    class Halts(Events):
        def welcomed(self, peer: NodeId, welcome: Welcome) -> QuorateError | None:
            super().welcomed(peer, welcome)
            raise InvariantBroken("a rule")

    async def main() -> None:
        events, seen = Halts(), []

        def handle(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            seen.append(context["exception"])
            events.change()

        asyncio.get_running_loop().set_exception_handler(handle)
        async with listening(Door("n2")) as listener, linked(listener.address, events):
            await events.until(lambda: len(seen) == 2)
            assert all(isinstance(error, InvariantBroken) for error in seen)

    run(main())
