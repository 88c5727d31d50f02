"""How a leader feeds one peer: windows, the catch-up quota, resends and the watchdog."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from cluster_rig import append_many, assert_same, elect, led, raft_state
from core_rig import (
    HEARTBEAT_TICKS,
    RESEND_TICKS,
    WATCHDOG_TICKS,
    CoreRig,
    Sent,
    ack,
    chain,
    config,
    heartbeat_reply,
    leading,
    mismatch,
    pick,
    pre_vote,
)
from quorate.config import Limits, Timing
from quorate.errors import Busy
from quorate.raft.log import RaftLog
from quorate.raft.messages import Append, Compare, HeartbeatReply, Mismatch
from quorate.raft.output import EventKind, Refusal
from quorate.raft.progress import ProgressState
from quorate.replica.engine import Engine
from quorate.replica.engine_io import Deliver
from quorate.types import EntryKind, Term

if TYPE_CHECKING:
    from quorate.replica.engine_io import Effects
    from quorate.types import Index, Position

SECOND_TICKS = Timing().ticks(1000)
FRAME = 65  # a header and the one byte that the rig proposes


# -- windows -----------------------------------------------------------------------------------


def test_a_window_of_messages_is_filled_and_moves_with_acks() -> None:
    rig = leading(config=config(window_messages=3, append_entries=1))
    sent = [message for _ in range(5) for message in pick(rig.propose(), Append, "n2")]
    assert [message.last_index for message in sent] == [2, 3, 4]
    more = pick(rig.confirm("n2", 3), Append)
    assert [message.last_index for message in more] == [5, 6]


def test_a_window_of_bytes_is_filled_and_moves_with_acks() -> None:
    rig = leading(config=config(window_bytes=2 * FRAME, append_entries=1))
    sent = [message for _ in range(5) for message in pick(rig.propose(), Append, "n2")]
    assert [message.last_index for message in sent] == [2, 3]
    assert [message.last_index for message in pick(rig.confirm("n2", 2), Append)] == [4]


def test_of_what_is_only_on_disk_a_turn_reads_one_message_for_each_peer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A turn holds up all logs of its node. The rest follows at once, in turns of its own."""
    cluster = led(3, config(log_memory_bytes=0, append_entries=4, window_messages=5))
    cluster.isolate("n3")
    append_many(cluster, "n1", 40)
    cluster.run(3)
    turn, taken = Engine.turn, []

    def noted(self: Engine, *inputs: Any) -> Effects:
        effects = turn(self, *inputs)
        taken.append(effects)
        return effects

    monkeypatch.setattr(Engine, "turn", noted)
    cluster.heal()
    cluster.run(RESEND_TICKS + 5)
    assert raft_state(cluster, "n3").log.last_index == 41
    feeding = [effects for effects in taken if effects.fetched]
    for effects in feeding:
        (append,) = (one.message for one in effects.sends if type(one.message) is Append)
        assert effects.fetched == len(append.entries) <= 4
    # A window was filled before anything else happened.
    assert [effects.more for effects in feeding[:5]] == [True, True, True, True, False]
    assert taken.index(feeding[4]) - taken.index(feeding[0]) == 4


@pytest.mark.parametrize("held", [0, 20], ids=["on disk", "partly in memory"])
def test_what_a_peer_says_of_an_old_entry_costs_one_read(
    monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    """That of the question which follows. Each may load the index of another segment."""
    cluster = led(3, config(log_memory_bytes=0))
    cluster.isolate("n1")
    append_many(cluster, "n1", 40)
    elect(cluster, "n2")
    cluster.table.clear()
    append_many(cluster, "n2", 40 - held)
    cluster.run(3)
    cluster.config = replace(cluster.config, limits=Limits())
    monkeypatch.setattr(cluster.engine("n2"), "config", cluster.config)
    append_many(cluster, "n2", held)
    cluster.run(3)
    log = raft_state(cluster, "n2").log
    assert log.last_index == log.first_in_memory + held - 1
    read, turn, reads, worst = RaftLog._stored_position, Engine.turn, [], []

    def noted_read(self: RaftLog, index: Index) -> Position:
        reads.append(index)
        return read(self, index)

    def noted_turn(self: Engine, inputs: Any, *times: int) -> Effects:
        inputs = list(inputs)
        reads.clear()
        effects = turn(self, inputs, *times)
        if any(type(one) is Deliver and type(one.envelope.message) is Mismatch for one in inputs):
            worst.append(len(reads))
        return effects

    monkeypatch.setattr(RaftLog, "_stored_position", noted_read)
    monkeypatch.setattr(Engine, "turn", noted_turn)
    cluster.crash("n1")
    cluster.restart("n1")
    cluster.heal()
    cluster.run(RESEND_TICKS + 5)
    assert_same(cluster)
    assert worst
    assert max(worst) == 1


@pytest.mark.parametrize("call", ["position", "slice"])
def test_what_cannot_be_read_right_now_is_sent_later(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """No file could be opened for it. Nothing is wrong with the entry, nor with this leader."""

    def busy(*_: object) -> NoReturn:
        raise Busy("too many open files")

    rig = leading(config=config(append_entries=1))
    with monkeypatch.context() as patch:
        patch.setattr(RaftLog, call, busy)
        rig.leader.append(EntryKind.DATA, b"x", 1)
        rig.leader.feeder.feed()
    assert [message.last_index for message in pick(rig.tick(), Append, "n2")] == [2]


def test_a_peer_without_room_gets_one_message_at_a_time() -> None:
    """It drops them: the rest of the window would travel for nothing, again and again."""
    rig = leading(config=config(append_entries=1))
    rig.hear("n2", HeartbeatReply(Term(1), 0, full=True))
    sent = [message for _ in range(5) for message in pick(rig.propose(), Append, "n2")]
    assert [message.last_index for message in sent] == [2]
    sent = pick(rig.hear("n2", HeartbeatReply(Term(1), 0, full=False)), Append, "n2")
    assert [message.last_index for message in sent] == [3, 4, 5, 6]


@pytest.mark.parametrize(
    ("limits", "sizes"),
    [
        ({"append_entries": 4}, [4, 4, 2]),
        ({"append_bytes": 3 * FRAME}, [3, 3, 3, 1]),
        ({"append_bytes": 1}, [1] * 10),
        ({}, [10]),
    ],
)
def test_a_message_takes_as_many_entries_as_fit(limits: dict[str, int], sizes: list[int]) -> None:
    rig = leading(config=config(**limits), settled=False)
    for _ in range(9):
        rig.propose()
    sent = pick(rig.confirm("n2", 0), Append)
    assert [len(message.entries) for message in sent] == sizes


# -- questions and resends ---------------------------------------------------------------------


def test_one_question_is_out_at_a_time() -> None:
    rig = leading(settled=False)
    assert pick(rig.propose(), Compare) == []
    assert pick(rig.tick(RESEND_TICKS - 1), Compare) == []
    assert len(pick(rig.tick(), Compare)) == 2


def test_a_beat_that_is_answered_brings_a_lost_question_back_sooner() -> None:
    rig = leading(settled=False)
    rig.tick(HEARTBEAT_TICKS - 1)
    assert pick(rig.hear("n2", heartbeat_reply(1)), Compare) == []
    rig.tick()
    assert len(pick(rig.hear("n2", heartbeat_reply(1)), Compare)) == 1


def test_an_answer_that_is_slower_than_the_repetition_of_its_question_counts() -> None:
    rig = leading(settled=False)
    first = rig.progress("n2").number
    (again,) = pick(rig.tick(RESEND_TICKS), Compare, "n2")
    assert again.number == first
    rig.tick(RESEND_TICKS)
    rig.hear("n2", ack(1, 0, number=first))
    assert rig.progress("n2").state is ProgressState.APPEND


def test_an_unanswered_append_is_asked_about_before_it_is_sent_again() -> None:
    rig = leading()
    rig.propose()
    sent = rig.tick(RESEND_TICKS)
    (question,) = pick(sent, Compare, "n2")
    assert (question.prev.index, pick(sent, Append)) == (2, [])
    assert rig.progress("n2").state is ProgressState.COMPARE
    (again,) = pick(rig.hear("n2", mismatch(1, 2, 2, number=question.number)), Compare)
    (resent,) = pick(rig.hear("n2", ack(1, 1, number=again.number)), Append)
    assert resent.last_index == 2
    assert {event.peer for event in rig.happened(EventKind.PEER_RESENT)} == {"n2", "n3"}


def test_acks_of_a_stream_that_was_given_up_still_count() -> None:
    """What a peer has on disk it has, whichever question brought it to say so."""
    rig = leading()
    old = rig.progress("n2").number
    rig.propose()
    rig.persist()
    rig.tick(RESEND_TICKS)
    rig.hear("n2", ack(1, 2, number=old))
    assert rig.raft.committed == 2
    assert rig.progress("n2").state is ProgressState.COMPARE  # the question is still open


def test_a_mismatch_of_a_stream_that_was_given_up_is_put_aside() -> None:
    rig = leading()
    old = rig.progress("n2").number
    rig.propose()
    rig.tick(RESEND_TICKS)
    rig.hear("n2", mismatch(1, 2, 1, number=old))
    assert (rig.refused(Refusal.NOT_ASKED), rig.progress("n2").next) == (1, 3)


HINTS = [
    # leader's log, (prev, hint index, hint term), where the leader looks next
    ((1, 1, 1, 1), (4, 3, 0), 2),
    ((1, 1, 3, 3), (4, 3, 2), 2),
    ((1, 1, 2, 3, 3), (5, 3, 2), 3),
    ((1, 1, 2, 3, 3), (5, 2, 2), 3),
    ((1, 1, 2, 3, 3), (5, 4, 2), 3),
    ((2, 2, 2, 2), (4, 2, 3), 1),
    ((2, 2, 2, 2), (4, 1, 2), 0),
    ((1, 4, 4, 4), (4, 1, 3), 0),
    ((1, 4, 4, 4), (4, 4, 3), 1),
]


@pytest.mark.parametrize(("own", "hint", "looks_at"), HINTS)
def test_a_hint_skips_whole_terms(
    own: tuple[int, ...], hint: tuple[int, int, int], looks_at: int
) -> None:
    rig = leading(log=chain(*own), term=5, settled=False)
    (question,) = pick(rig.hear("n2", mismatch(6, *hint)), Compare)
    assert question.prev.index == looks_at


# -- the catch-up quota ------------------------------------------------------------------------


def catching_up() -> CoreRig:
    """n2 lacks a hundred entries and may have ten frames a second once it lacks twenty."""
    limits = {"catchup_lag_entries": 20, "catchup_bytes_per_s": 10 * FRAME, "append_entries": 1}
    rig = leading(config=config(watchdog_ms=500, **limits), settled=False)
    rig.tick()  # the first second begins
    for _ in range(100):
        rig.propose()
    rig.confirm("n3")
    rig.persist()
    assert rig.raft.committed == 101
    return rig


def obey(rig: CoreRig, sent: Sent) -> int:
    """n2 acks what it is sent, and what that brings, at once; how many appends that were."""
    count = 0
    while got := pick(sent, Append, "n2"):
        count += len(got)
        sent = rig.confirm("n2", got[-1].last_index)
    return count


def test_a_peer_far_behind_gets_its_share_of_a_second() -> None:
    rig = catching_up()
    seconds = [obey(rig, rig.confirm("n2", 0))]
    while rig.progress("n2").match < rig.raft.log.last_index:
        got = 0
        for _ in range(SECOND_TICKS):
            sent = rig.tick()
            got += obey(rig, sent) + obey(rig, rig.hear("n2", heartbeat_reply(1)))
            rig.hear("n3", heartbeat_reply(1))
        seconds.append(got)
    assert sum(seconds) == 101
    assert len(seconds) >= 8
    assert all(10 <= got <= 11 for got in seconds[:-1])
    assert seconds[-1] >= 20  # no longer far behind: the rest goes at once
    assert len(rig.happened(EventKind.PEER_THROTTLED)) == len(seconds) - 1


def test_a_peer_that_restarts_has_what_is_left_of_its_share() -> None:
    rig = catching_up()
    for boot, appends in ((2, 11), (3, 0)):  # the noop is smaller than a frame of data
        rig.hear("n2", heartbeat_reply(1), boot=boot)
        number = rig.progress("n2").number
        rig.hear("n2", mismatch(1, 101, 1, number=number), boot=boot)
        sent = rig.hear("n2", ack(1, 0, number=number + 1), boot=boot)
        assert len(pick(sent, Append, "n2")) == appends


def test_a_throttled_peer_is_not_taken_for_a_stalled_one() -> None:
    rig = catching_up()
    obey(rig, rig.confirm("n2", 0))
    assert rig.progress("n2").throttled
    for _ in range(SECOND_TICKS - 1):
        rig.tick()
        rig.hear("n2", heartbeat_reply(1))
    assert rig.happened(EventKind.PEER_STALLED) == []


def test_what_is_not_committed_is_not_held_back() -> None:
    """Entries above the commit may need this very peer for theirs."""
    rig = catching_up()
    rig.confirm("n2", 101)
    for _ in range(100):
        rig.propose()
    assert rig.progress("n2").next == rig.raft.log.last_index + 1
    assert rig.happened(EventKind.PEER_THROTTLED) == []


def test_what_is_not_committed_is_not_held_back_behind_a_full_window() -> None:
    """The entries that could not be sent yet are many, and the share of the second is used up."""
    rig = catching_up()
    rig.confirm("n2", 101)
    window = rig.raft.config.limits.window_messages
    for _ in range(window + 30):
        rig.propose()
    assert rig.progress("n2").next == 102 + window <= rig.raft.log.last_index - 20
    obey(rig, rig.confirm("n2", 101 + window))
    assert rig.progress("n2").match == rig.raft.log.last_index
    assert rig.happened(EventKind.PEER_THROTTLED) == []


def test_a_peer_that_keeps_up_is_never_throttled() -> None:
    rig = catching_up()
    assert obey(rig, rig.confirm("n2", 90)) == 11
    assert rig.happened(EventKind.PEER_THROTTLED) == []


# -- the watchdog ------------------------------------------------------------------------------


def hear_beats(rig: CoreRig, ticks: int) -> None:
    """Let time pass while both peers answer beats and nothing else."""
    for _ in range(ticks):
        rig.tick()
        for peer in rig.peers:
            rig.hear(peer, heartbeat_reply(1))


def test_a_peer_that_answers_and_does_not_move_is_reported() -> None:
    rig = leading()
    rig.propose()
    hear_beats(rig, WATCHDOG_TICKS - 1)
    assert rig.happened(EventKind.PEER_STALLED) == []
    rig.tick()
    stalled = rig.happened(EventKind.PEER_STALLED)
    assert [(event.peer, event.index) for event in stalled] == [("n2", 1), ("n3", 1)]


def test_the_watchdog_takes_no_question_back() -> None:
    """Its answer may be long on its way, and the entries before it as well: it still counts."""
    rig = leading()
    rig.propose()
    numbers = {rig.progress("n2").number + 1}
    for _ in range(3 * WATCHDOG_TICKS):
        for question in pick(rig.tick(), Compare, "n2"):
            assert (question.prev.index, {question.number}) == (2, numbers)
        rig.hear("n2", heartbeat_reply(1))
    assert len(rig.happened(EventKind.PEER_STALLED)) == 3
    assert pick(rig.hear("n2", ack(1, 2, number=numbers.pop())), Append) == []
    assert rig.progress("n2").state is ProgressState.APPEND


def test_a_peer_without_a_question_is_asked_by_the_watchdog(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is out to be answered: what follows is on the disk, and that is busy."""
    rig = leading()

    def busy(*_: object) -> NoReturn:
        raise Busy("the disk is")

    with monkeypatch.context() as patched:
        patched.setattr(RaftLog, "slice", busy)
        rig.propose()
        hear_beats(rig, WATCHDOG_TICKS - 1)
        assert rig.progress("n2").sent_at is None
        (question,) = pick(rig.tick(), Compare, "n2")
    assert question.prev.index == 1


def test_a_peer_that_moves_is_not_reported_however_far_behind() -> None:
    rig = leading()
    for _ in range(10):
        rig.propose()
    for match in range(2, 8):
        hear_beats(rig, WATCHDOG_TICKS - 1)
        for peer in rig.peers:
            rig.hear(peer, ack(1, match))
    assert rig.happened(EventKind.PEER_STALLED) == []


def test_a_peer_that_is_silent_is_down_and_not_stalled() -> None:
    rig = leading()
    rig.propose()
    for _ in range(2 * WATCHDOG_TICKS):
        rig.tick()
        rig.confirm("n3")
    assert rig.happened(EventKind.PEER_STALLED) == []


def test_an_idle_peer_is_not_stalled() -> None:
    rig = leading()
    hear_beats(rig, 3 * WATCHDOG_TICKS)
    rig.propose()
    hear_beats(rig, 1)
    assert rig.happened(EventKind.PEER_STALLED) == []


# -- another boot of a peer --------------------------------------------------------------------


def test_another_boot_starts_over_in_a_new_stream() -> None:
    rig = leading()
    number = rig.progress("n2").number
    (question,) = pick(rig.hear("n2", heartbeat_reply(1), boot=2), Compare)
    assert (question.number, question.prev.index) == (number + 1, 1)
    assert (rig.progress("n2").match, rig.progress("n2").state) == (0, ProgressState.COMPARE)
    assert [event.peer for event in rig.happened(EventKind.PEER_RESTARTED)] == ["n2"]


def test_the_first_boot_that_is_heard_is_no_restart() -> None:
    rig = leading()
    rig.hear("n3", ack(1, 1), boot=1)
    assert rig.happened(EventKind.PEER_RESTARTED) == []


def test_a_node_that_is_no_voter_has_no_progress_to_lose() -> None:
    rig = leading()
    rig.hear("n9", pre_vote(1), boot=1)
    rig.hear("n9", pre_vote(1), boot=2)
    assert rig.happened(EventKind.PEER_RESTARTED) == []
