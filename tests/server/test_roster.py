"""Who is refused for its disk or its start: without files, sockets and clocks."""

from __future__ import annotations

import errno
import re
from itertools import permutations

import pytest
from roster_rig import NAMES, Machine, dial, five_formed, form, hear, meet

from quorate.errors import (
    Busy,
    Damaged,
    DiskFailed,
    InvalidArgument,
    QuorateError,
    WrongCluster,
    WrongDirectory,
)
from quorate.storage.manifest import Told
from quorate.types import NodeId
from quorate.wire.frames import UNIDENTIFIED
from quorate.wire.handshake import STARTS_MAX, Hello, Seen, encode_hello

N1, N2, N3 = NAMES


def three() -> tuple[Machine, Machine, Machine]:
    return Machine(N1), Machine(N2), Machine(N3)


def formed() -> tuple[Machine, Machine, Machine]:
    machines = three()
    form(*machines)
    return machines


def refused(problem: QuorateError | None, *parts: str) -> None:
    assert type(problem) is WrongCluster
    for part in parts:
        assert part in str(problem)


# -- the first start ---------------------------------------------------------------------------


def test_a_first_start_needs_every_node_once() -> None:
    machines = n1, n2, n3 = three()

    def missing() -> list[tuple[NodeId, ...]]:
        return [machine.roster.missing for machine in machines]

    assert missing() == [(N2, N3), (N1, N3), (N1, N2)]
    meet(n1, n2)
    assert missing() == [(N3,), (N3,), (N1, N2)]
    # What n1 tells n3 of n2 does not replace what n2 has to say.
    meet(n1, n3)
    assert missing() == [(), (N3,), (N2,)]
    meet(n2, n3)
    assert missing() == [(), (), ()]


def test_a_group_of_one_node_starts_at_once() -> None:
    assert Machine(N1, (N1,)).take_part()


def test_who_was_met_before_counts_although_it_is_down_now() -> None:
    n1, n2, n3 = three()
    meet(n1, n2)
    n1.start()
    assert n1.roster.missing == (N3,)
    meet(n1, n3)
    assert n1.take_part()


def test_a_restart_needs_nobody() -> None:
    n1, _, _ = formed()
    n1.start()
    assert n1.roster.missing == ()


def test_the_disk_of_a_peer_is_durable_before_it_is_answered() -> None:
    n1, n2, _ = three()
    assert hear(n2, n1) is None
    # It crashes before it answers: nothing is forgotten, and nothing was promised to n1.
    n2.start()
    assert n2.manifest.nodes[N1].storage == n1.storage
    assert n1.roster.missing == (N2, N3)
    n1.wipe()
    refused(dial(n1, n2), "a wiped or copied disk")


def test_a_hello_alone_does_not_count_as_accepted() -> None:
    """The one who is dialled knows the disk of the other, and not that the other knows its own."""
    n1, n2, _ = three()
    assert hear(n2, n1) is None
    assert n2.manifest.nodes[N1].storage == n1.storage
    assert n2.roster.missing == (N1, N3)
    assert hear(n1, n2) is None
    assert N2 not in n1.roster.missing
    # The next HELLO of n1 says that it has written n2 down.
    assert hear(n2, n1) is None
    assert N1 not in n2.roster.missing


def test_what_a_node_tells_of_a_third_one_is_not_what_the_third_one_tells() -> None:
    n1, n2, n3 = three()
    meet(n2, n3)
    meet(n1, n2)
    assert n1.manifest.nodes[N3].storage == n3.storage
    assert n1.roster.missing == (N3,)


# -- an empty disk -----------------------------------------------------------------------------


def test_an_empty_disk_is_refused_by_every_node_that_takes_part() -> None:
    n1, n2, n3 = formed()
    old = n3.storage
    n3.wipe()
    for peer in (n1, n2):
        refused(dial(n3, peer), n3.storage.hex(), old.hex(), "put the newest data directory of n3")
        refused(dial(peer, n3), n3.storage.hex(), old.hex(), "put the newest data directory of n3")
    assert n3.roster.missing == (N1, N2)
    # The cluster was ready: nobody is told to remove the other directories.
    for problem in (dial(n3, n1), hear(n3, n1)):
        assert "remove the data directory" not in str(problem)
    assert n3.roster.refusal.startswith(f"n1 and n2 refuse this node: n1 knows node {N3} with")


def test_an_empty_disk_is_refused_by_a_node_that_never_met_the_old_one() -> None:
    n1, n2, n3 = three()
    meet(n2, n3)
    old = n3.storage
    n3.wipe()
    # n2 tells n1 which disk n3 has, before n3 is there to say another.
    meet(n1, n2)
    refused(
        dial(n3, n1),
        f"node n3 has storage id {n3.storage.hex()}, n1 and n2 know it with {old.hex()}",
        "if no node of this cluster was ever ready, stop all of them, remove the data directory",
    )
    # n2 has met both of the others; without one of them it is no majority.
    assert [machine.take_part() for machine in (n1, n2, n3)] == [False, True, False]


def test_a_first_start_with_two_disks_of_one_node_does_not_go_on() -> None:
    n1, n2, n3 = three()
    meet(n2, n3)
    old = n3.storage
    n3.wipe()
    meet(n1, n3)
    for problem in (dial(n1, n2), dial(n2, n1)):
        refused(problem, "n3 with storage id", n3.storage.hex(), old.hex(), "ever ready")
    assert not any(machine.take_part() for machine in (n1, n2, n3))


def test_a_node_that_takes_part_goes_on_with_one_that_knows_another_disk_of_a_third() -> None:
    """The third one is lost and never opens. The two are a majority of disks that are not lost."""
    n1, n2, n3 = three()
    meet(n1, n2)
    n3.start()
    meet(n2, n3)
    assert n2.take_part()
    n3.wipe()
    meet(n1, n3)
    assert n1.take_part()
    assert dial(n1, n2) is None
    assert n1.manifest.nodes[N3].storage == n3.storage
    refused(dial(n3, n2), "a wiped or copied disk")
    assert not n3.take_part()


@pytest.mark.parametrize("wiped", [{N3}, {N2, N3}, {N1, N2}])
def test_no_second_disk_of_a_node_opens_while_one_old_disk_is_left(wiped: set[NodeId]) -> None:
    machines = formed()
    for machine in machines:
        if machine.name in wiped:
            machine.wipe()
    for source, target in [*permutations(machines, 2)] * 2:
        dial(source, target)
    assert {machine.name for machine in machines if machine.take_part()} == set(NAMES) - wiped


def test_empty_disks_of_all_nodes_are_a_new_cluster() -> None:
    machines = formed()
    for machine in machines:
        machine.wipe()
    meet(*machines)
    assert all(machine.take_part() for machine in machines)


def test_a_copy_of_the_own_disk_is_refused() -> None:
    n1, n2, _ = three()
    n2.storage = n1.storage
    n2.start()
    refused(dial(n2, n1), f"which is that of {N1}: one of the two is a copy")


def test_a_node_that_takes_part_without_knowing_all_disks_is_damaged() -> None:
    for change in ({"storage": None}, {"confirmed": 0}):
        n1, _, _ = formed()
        nodes = n1.manifest.nodes
        nodes[N2] = nodes[N2]._replace(**change)
        n1.save()
        with pytest.raises(
            Damaged, match="does not know the disk of n2; put the newest copy of the whole"
        ):
            n1.start()


# -- an older copy -----------------------------------------------------------------------------


def test_every_start_is_counted_before_a_word_is_said() -> None:
    n1 = Machine(N1)
    assert n1.roster.introduce().start == 1
    n1.failure = OSError(errno.EIO, "broken")
    with pytest.raises(OSError, match="broken"):
        n1.start()
    n1.start()
    assert n1.roster.introduce().start == 2


def test_an_older_copy_is_refused_by_each_that_knows_a_later_start() -> None:
    n1, n2, n3 = formed()
    backup = n3.backup
    n3.start()
    n3.start()
    meet(n1, n2, n3)
    n3.restore(backup)
    for peer in (n1, n2):
        peer.start()  # it is not forgotten
        refused(dial(n3, peer), "n3 is at start 2", "start 3", "rolled back to an older copy")
        refused(dial(n3, peer), "put the newest data directory of n3 back")


def test_an_older_copy_is_refused_however_often_it_is_started() -> None:
    n1, n2, n3 = formed()
    backup = n3.backup
    for _ in range(3):
        n3.start()
    meet(n1, n2, n3)
    n3.restore(backup)
    for _ in range(3 * STARTS_MAX):
        refused(dial(n3, n1), "data directory of ", " back", "leave n3 stopped: this release")
        n3.start()
    assert len(n3.manifest.starts) == STARTS_MAX
    refused(dial(n3, n1), "does not remember its start 4, which n1 knows", "Restart n1: it lets")


def test_a_node_that_is_told_of_a_start_it_does_not_know_halts_for_good() -> None:
    n1, n2, n3 = formed()
    backup = n3.backup
    for _ in range(3):
        n3.start()
    meet(n1, n2, n3)
    n3.restore(backup)
    text = (
        "the data directory of n3 is an older copy: n1 knows its start 4, this directory knows up "
        "to 2. It was rolled back, or a copy of it was started elsewhere. Nothing may be served "
        "from it, and n3 must not vote; put the newest data directory of n3 back, or leave n3 "
        "stopped"
    )
    with pytest.raises(WrongDirectory, match=re.escape(text)):
        dial(n1, n3)
    # A later start neither counts nor speaks.
    saved = n3.saved
    for _ in range(2):
        with pytest.raises(WrongDirectory, match=re.escape(text)):
            n3.start()
    assert n3.saved == saved


def test_an_older_copy_halts_also_when_its_own_dial_is_refused() -> None:
    n1, n2, n3 = formed()
    backup = n3.backup
    for _ in range(3):
        n3.start()
    meet(n1, n2, n3)
    n3.restore(backup)
    refused(hear(n1, n3), "n3 is at start 2, n1 knows of its start 4")
    with pytest.raises(WrongDirectory, match="n1 knows its start 4, this directory knows up to 2"):
        n3.roster.hear_refusal(N1, n1.roster.seen(N3))
    with pytest.raises(WrongDirectory, match="n1 knows its start 4"):
        n3.start()


def test_a_refusal_that_proves_nothing_halts_no_node() -> None:
    n1, n2, n3 = formed()
    n3.roster.hear_refusal(N1, n1.roster.seen(N3))
    n3.roster.hear_refusal(N1, None)
    # The peer knows another disk: this one is refused, and may be the right one.
    n2.wipe()
    n2.roster.hear_refusal(N1, n1.roster.seen(N2))
    assert n2.manifest.outdated is None


# -- copies beside a node that runs ------------------------------------------------------------


def test_a_copy_is_refused_while_the_process_before_it_has_a_link() -> None:
    n1, n2, n3 = formed()
    copy = Machine(N3)
    copy.restore(n3.backup)
    saved = n1.saved
    problem = hear(n1, copy, linked=True)
    assert type(problem) is Busy
    assert "n1 has a link to start 1 of n3, and this is start 2: a copy of the data" in str(problem)
    assert n1.saved == saved
    assert n1.roster.is_second(N3, copy.roster.introduce())
    # The node itself goes on, with as many links as it likes.
    assert not n1.roster.is_second(N3, n3.roster.introduce())
    assert hear(n1, n3, linked=True) is None
    meet(n1, n2, n3)


def test_a_restart_is_let_in_as_soon_as_the_link_before_has_ended() -> None:
    n1, _, n3 = formed()
    n3.start()
    assert type(hear(n1, n3, linked=True)) is Busy
    assert hear(n1, n3, linked=False) is None
    # From now on it is the process that is known.
    assert hear(n1, n3, linked=True) is None


# -- lists of nodes ----------------------------------------------------------------------------


def test_nodes_with_different_lists_refuse_each_other_and_bind_nothing() -> None:
    n1, n3 = Machine(N1, (N1, N3)), Machine(N3)
    text = "[cluster.nodes] of n3 has n1, n2, n3, that of n1 has n1, n3; give all nodes the same"
    refused(hear(n1, n3), text)
    refused(hear(n3, n1), "[cluster.nodes] of n1 has n1, n3, that of n3 has n1, n2, n3")
    for machine in (n1, n3):
        assert all(member.storage is None for member in machine.manifest.nodes.values())
        assert machine.roster.missing
    assert n1.roster.refusal.startswith("n3 refuses this node: [cluster.nodes] of n3 has")
    # Also a node that is not in the own list is told both.
    refused(hear(n1, Machine(N2)), "[cluster.nodes] of n2 has n1, n2, n3, that of n1 has n1, n3")


def test_a_stranger_with_another_list_is_not_named_as_one_that_refuses() -> None:
    n1, stranger = Machine(N1, (N1, N3)), Machine(NodeId("x1"), (N1, NodeId("x1")))
    refused(hear(n1, stranger), "[cluster.nodes] of x1 has n1, x1, that of n1 has n1, n3")
    assert n1.roster.refusal == ""


def test_what_was_confirmed_to_another_list_does_not_complete_a_first_start() -> None:
    """n1 meets n2 in a group of three, then its list is cut down to those two."""
    n1, n2, n3 = three()
    meet(n1, n2)
    n1.relist(N1, N2)
    assert n1.roster.missing == (N2,)
    refused(dial(n1, n2), "that of n2 has n1, n2, n3")
    # The others form without it; it is one of them as soon as its list is theirs.
    n1.relist(*NAMES)
    meet(n1, n2, n3)
    assert all(machine.take_part() for machine in (n1, n2, n3))


def test_a_list_to_which_all_peers_have_confirmed_is_not_mended_any_more() -> None:
    """The others may be complete with it, although this node has not made its catalog yet."""
    n1, n2, n3 = three()
    meet(n1, n2, n3)
    n4 = NodeId("n4")
    with pytest.raises(InvalidArgument, match="was made for a cluster of n1, n2, n3"):
        n1.relist(*NAMES, n4)
    n1.relist(*NAMES)
    assert all(machine.take_part() for machine in (n1, n2, n3))
    meet(n1, n2, n3)
    # As long as one of the list was never met it can be that one that is wrong.
    m1, m2 = Machine(N1), Machine(N2)
    meet(m1, m2)
    m1.relist(N1, N2)
    # Who is alone counts on itself only.
    alone = Machine(N1, (N1,))
    alone.relist(*NAMES)


def test_the_second_of_two_copies_halts_for_good() -> None:
    n1, n2, n3 = formed()
    backup = n3.backup
    n3.start()
    meet(n1, n2, n3)
    n3.restore(backup)
    with pytest.raises(WrongDirectory, match="n1 knows its start 2 as another process"):
        dial(n1, n3)
    with pytest.raises(WrongDirectory, match="n1 knows its start 2 as another process"):
        n3.start()


def test_of_two_copies_that_were_let_in_neither_is_called_the_newest() -> None:
    """n3 was stopped and copied, and both directories were started: all peers must know the same
    one, and here they do not."""
    n1, n2, n3 = formed()
    twin = Machine(N3)
    twin.restore(n3.backup)
    n3.start()
    assert dial(n3, n1) is None
    assert dial(twin, n2) is None
    text = "put the data directory of that process back, unless it is refused, too; otherwise leave"
    refused(hear(n2, n3), "two copies of its data directory were started", text)
    for machine, peer in ((n3, n2), (twin, n1)):
        with pytest.raises(WrongDirectory, match=text) as caught:
            hear(machine, peer)
        assert "the newest" not in str(caught.value)
        with pytest.raises(WrongDirectory, match=text):
            machine.start()


def test_an_older_copy_halts_although_its_directory_cannot_be_marked() -> None:
    n1, n2, n3 = formed()
    backup = n3.backup
    n3.start()
    meet(n1, n2, n3)
    n3.restore(backup)
    n3.failure = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(WrongDirectory, match=r"could not be marked: No space left on device"):
        dial(n1, n3)
    # The next start is told again.
    n3.start()
    with pytest.raises(WrongDirectory, match="n1 knows its start 2 as another process"):
        dial(n1, n3)


def test_two_copies_at_the_same_start_are_told_apart() -> None:
    n1, n2, n3 = formed()
    backup = n3.backup
    n3.start()
    meet(n1, n2, n3)
    n3.restore(backup)
    refused(dial(n3, n1), "two copies of its data directory were started")


def test_what_one_node_knows_of_a_start_binds_those_it_tells() -> None:
    n1, n2, n3 = formed()
    backup = n3.backup
    n3.start()
    n3.start()
    assert dial(n3, n2) is None
    n3.restore(backup)
    # n1 was away and lets it in, until n2 tells.
    assert dial(n3, n1) is None
    assert n1.roster.take_outdated() == []
    assert dial(n2, n1) is None
    assert n1.roster.take_outdated() == [N3]
    assert n1.roster.take_outdated() == []
    refused(dial(n3, n1), "rolled back to an older copy")


def test_a_node_may_restart_often_while_a_peer_is_away() -> None:
    n1, n2, n3 = formed()
    for _ in range(3 * STARTS_MAX):
        n3.start()
        assert dial(n3, n2) is None
    # What n1 has written down is among them.
    assert len(n3.manifest.starts) == STARTS_MAX
    assert 1 in n3.manifest.starts
    assert dial(n3, n1) is None
    n3.start()
    # Nobody remembers an earlier one now.
    assert len(n3.manifest.starts) <= 3
    meet(n1, n2, n3)


def test_a_lost_manifest_is_not_a_first_start() -> None:
    """The identity is still there, and with it the storage id."""
    n1, n2, n3 = formed()
    n3.start()
    meet(n1, n2, n3)
    storage = n3.storage
    n3.wipe()
    n3.storage = storage
    n3.start()
    refused(dial(n3, n1), "two copies")
    with pytest.raises(WrongDirectory, match="n1 knows its start 2 as another process"):
        dial(n1, n3)


def test_a_start_that_a_node_does_not_remember_is_replaced_by_a_later_one_that_is_told() -> None:
    n1, n2, n3 = formed()
    n3.start()
    assert dial(n3, n2) is None
    # n1 learns start 2 from n2 only, and n3 cannot know that.
    assert dial(n1, n2) is None
    for _ in range(3 * STARTS_MAX):
        n3.start()
        meet(n3, n2)
    assert 2 not in n3.manifest.starts
    refused(dial(n3, n1), "does not remember its start 2, which n1 knows", "Restart n1: it lets")
    n1.start()
    meet(n1, n2)
    meet(n1, n2, n3)


def test_a_node_that_has_forgotten_a_start_that_a_peer_knows_does_not_halt() -> None:
    n1, _, n3 = formed()
    del n3.manifest.starts[1]
    n3.save()
    for _ in range(2):
        n3.start()
    n3.manifest.starts.pop(1, None)
    refused(dial(n1, n3), "n1 knows a start 1 of node n3 that n3 does not remember any more; r")
    assert n3.manifest.outdated is None


# -- what a third node tells -------------------------------------------------------------------


def copied() -> tuple[Machine, Machine, Machine]:
    """n3 showed n2 one process as its start 2, and n1 those of an older copy as 2 and 3."""
    n1, n2, n3 = formed()
    backup = n3.backup
    n3.start()
    assert dial(n3, n2) is None
    n3.restore(backup)
    assert dial(n3, n1) is None
    return n1, n2, n3


@pytest.mark.parametrize("starts", [0, 1, 2])
def test_links_of_an_older_copy_end_when_another_node_contradicts_it(starts: int) -> None:
    n1, n2, n3 = copied()
    for _ in range(starts):
        n3.start()
        assert dial(n3, n1) is None
    assert dial(n2, n1) is None
    assert n1.roster.take_outdated() == [N3]
    n1.start()  # it is not forgotten
    refused(dial(n3, n1), "two copies of its data directory were started")


def test_a_contradiction_is_not_settled_by_a_later_start_of_the_older_copy() -> None:
    n1, n2, n3, n4, _ = five_formed()
    backup = n3.backup
    n3.start()
    assert dial(n3, n2) is None
    n3.restore(backup)
    assert dial(n3, n1) is None
    assert hear(n1, n2) is None
    assert n1.roster.take_outdated() == [N3]
    n3.start()
    assert dial(n3, n4) is None
    assert hear(n1, n4) is None
    n1.start()
    refused(dial(n3, n1), "its start 2 was another process than the one that n1 knows")


def test_a_contradiction_is_not_settled_by_a_later_start_of_the_same_witness() -> None:
    """n4 has let in an older copy of n1 and is told an earlier start by n2, then a later one. The
    copy is started so often that it has forgotten both."""
    n1, n2, _, n4, n5 = five_formed()
    copy = Machine(N1)
    copy.restore(n1.backup)
    copy.start()
    n1.start()
    assert dial(n1, n2) is None
    assert dial(copy, n4) is None
    assert hear(n4, n2) is None
    while n1.roster.introduce().start < 7:
        n1.start()
    assert dial(n1, n2) is None
    assert hear(n4, n2) is None
    while copy.roster.introduce().start < 9:
        copy.start()
    assert dial(copy, n5) is None
    assert hear(n4, n5) is None
    for _ in range(2 * STARTS_MAX):
        copy.start()
    assert not {2, 7} & {*copy.manifest.starts}
    refused(hear(n4, copy), "does not remember its start 2, which n4 knows")


def test_an_older_copy_is_refused_by_a_node_that_was_told_of_a_later_start_of_it() -> None:
    """What n1 tells n2 is later than what n2 was shown, and does not take its place."""
    n1, n2, n3 = copied()
    n3.start()
    assert dial(n3, n1) is None
    assert hear(n2, n1) is None
    n2.start()
    refused(dial(n3, n2), "its start 2 was another process than the one that n2 knows")


def test_an_older_copy_is_refused_by_a_node_that_heard_the_contradiction_before() -> None:
    n1, n2, n3 = copied()
    n3.start()
    assert dial(n3, n1) is None
    n1.start()  # it has not heard n3 in this process
    n3.start()
    assert hear(n1, n2) is None
    refused(dial(n3, n1), "its start 2 was another process than the one that n1 knows")


def five_with_a_told_start() -> tuple[list[Machine], tuple[bytes, bytes]]:
    """n2 knows start 2 of n3 only because n1 told it, n4 and n5 do not know it. With a copy of the
    directory of n3 from before that start."""
    n1, n2, n3, *_ = machines = five_formed()
    backup = n3.backup
    n3.start()
    assert dial(n3, n1) is None
    assert dial(n1, n2) is None
    return machines, backup


def test_a_told_start_is_told_to_others() -> None:
    """n1, which was shown it, is down, and the group would have a majority with the older copy."""
    (_, n2, n3, n4, n5), backup = five_with_a_told_start()
    for machine in (n4, n5):
        machine.start()
        assert dial(machine, n2) is None
        machine.start()  # it is not forgotten
    n3.restore(backup)
    for machine in (n4, n5):
        refused(dial(n3, machine), "its start 2 was another process than the one that")


def test_an_older_copy_halts_for_a_start_that_its_peer_was_only_told() -> None:
    (_, n2, n3, *_), backup = five_with_a_told_start()
    n3.restore(backup)
    refused(hear(n2, n3), "its start 2 was another process than the one that n2 knows")
    with pytest.raises(WrongDirectory, match="n2 knows its start 2 as another process"):
        n3.roster.hear_refusal(N2, n2.roster.seen(N3))
    # The same when n2 dials.
    n3.restore(backup)
    with pytest.raises(WrongDirectory, match="n2 knows its start 2 as another process"):
        hear(n3, n2)


def test_an_older_copy_halts_for_what_its_peer_heard_from_another() -> None:
    """n1 was shown a later start than the one that n2 tells it."""
    n1, n2, n3 = copied()
    n3.start()
    assert dial(n3, n1) is None
    n1.start()
    n3.start()
    assert hear(n1, n2) is None
    refused(dial(n3, n1), "its start 2 was another process than the one that n1 knows")
    with pytest.raises(WrongDirectory, match="n1 knows its start 2 as another process"):
        n3.roster.hear_refusal(N1, n1.roster.seen(N3))


def test_a_node_that_is_what_was_told_of_it_goes_on() -> None:
    (n1, n2, n3, n4, n5), _ = five_with_a_told_start()
    assert dial(n4, n2) is None
    n3.start()
    for source, target in permutations((n1, n2, n3, n4, n5), 2):
        assert dial(source, target) is None
    # It was shown to be its own: no node keeps it any more.
    assert not any(machine.manifest.nodes[N3].told for machine in (n1, n2, n4, n5))
    assert n3.manifest.outdated is None


def test_a_node_that_was_shown_a_start_and_told_a_later_one_tells_both() -> None:
    """The later one is of an older copy that was started often: whoever hears only of that lets the
    copy in."""
    n1, n2, n3, n4, n5 = five_formed()
    backup = n3.backup
    n3.start()
    assert dial(n3, n1) is None
    n3.restore(backup)
    n3.start()
    n3.start()
    assert dial(n3, n4) is None
    assert hear(n1, n4) is None
    assert [told.start for told in n1.manifest.nodes[N3].told] == [4]
    assert hear(n5, n1) is None
    refused(hear(n5, n3), "its start 2 was another process than the one that n5 knows")
    # Also where the copy was let in before.
    assert dial(n3, n2) is None
    assert hear(n2, n1) is None
    assert n2.roster.take_outdated() == [N3]
    n2.start()
    refused(hear(n2, n3), "its start 2 was another process than the one that n2 knows")


def five_with_an_older_copy(starts: int) -> list[Machine]:
    """n1 showed n2 and n3 one process as its start 2. Now it runs on a copy from before that, which
    was started so many times. n4 and n5 were away."""
    n1, n2, n3, *_ = machines = five_formed()
    backup = n1.backup
    n1.start()
    meet(n1, n2, n3)
    n1.restore(backup)
    for _ in range(starts - 1):
        n1.start()
    return machines


def test_a_told_start_before_the_one_that_was_shown_is_held_against_all_that_was_shown() -> None:
    """n4 was shown start 3 of the older copy and is told start 2 of the node, each in a process of
    its own. The third process must know that the two contradict each other."""
    n1, n2, _, n4, n5 = five_with_an_older_copy(starts=2)
    assert dial(n1, n4) is None
    n4.start()
    assert dial(n2, n4) is None
    n4.start()
    refused(hear(n4, n1), "its start 2 was another process than the one that n4 knows")
    # n5 hears it from n4, before it meets the copy or after.
    assert dial(n4, n5) is None
    refused(hear(n5, n1), "its start 2 was another process than the one that n5 knows")
    with pytest.raises(WrongDirectory, match="n4 knows its start 2 as another process"):
        hear(n1, n4)


@pytest.mark.parametrize("answered", [True, False])
def test_two_told_starts_that_contradict_each_other_are_both_kept(answered: bool) -> None:
    """n4 is told start 2 of the node by n2, and start 3 of the older copy by n5. The answer to n5
    may be lost: then n5 does not know either."""
    n1, n2, _, n4, n5 = five_with_an_older_copy(starts=2)
    assert dial(n2, n4) is None
    assert dial(n1, n5) is None
    n5.start()
    assert hear(n4, n5) is None
    if answered:
        assert hear(n5, n4) is None
    for machine in (n4, n5):
        machine.start()
    refused(hear(n4, n1), "its start 2 was another process than the one that n4 knows")
    assert (hear(n5, n1) is None) is not answered


def test_an_earlier_told_start_that_a_node_does_not_remember_proves_nothing() -> None:
    """n4 is told start 2 of n1 by n2 and a much later one by n3. n1 was both, and has forgotten the
    first: n2 has confirmed a later one since."""
    n1, n2, n3, n4, n5 = five_formed()
    n1.start()
    meet(n1, n2)
    assert dial(n2, n4) is None
    for _ in range(2 * STARTS_MAX):
        n1.start()
        meet(n1, n2, n3, n5)
    assert 2 not in n1.manifest.starts
    refused(hear(n4, n1), "does not remember its start 2, which n4 knows", "Restart n4: it lets n1")
    assert dial(n3, n4) is None
    meet(n1, n4)
    assert n4.manifest.nodes[N1].told == ()


def test_a_table_with_nonsense_binds_no_node() -> None:
    n1, n2, n3 = formed()
    said = n2.roster.introduce()
    said.known["n3"] = Seen(n3.storage, 0, 0, {0: (9, 9), 2: (9, 9), 77: (9, 9)})
    assert n1.roster.judge(N2, said, linked=False) is None
    assert n1.manifest.nodes[N3].told == ()
    said.known["n1"] = Seen(n1.storage, 0, 0)
    assert n1.roster.judge(N2, said, linked=False) is None


# -- what is written ---------------------------------------------------------------------------


def test_a_link_between_nodes_that_know_each_other_writes_nothing() -> None:
    machines = formed()
    meet(*machines)
    saves = [machine.saves for machine in machines]
    meet(*machines)
    assert [machine.saves for machine in machines] == saves


def test_without_room_a_peer_is_refused_for_now() -> None:
    n1, n2, _ = three()
    n1.failure = OSError(errno.ENOSPC, "No space left on device")
    problem = hear(n1, n2)
    assert type(problem) is Busy
    assert "n1 cannot write down who n2 is: No space left" in str(problem)
    assert n1.manifest.nodes[N2].storage is None
    assert n1.roster.introduce().known == {}
    assert dial(n1, n2) is None


def test_a_disk_that_fails_ends_the_node() -> None:
    n1, n2, _ = three()
    n1.failure = OSError(errno.EIO, "Input/output error")
    with pytest.raises(DiskFailed, match="n1: the manifest"):
        hear(n1, n2)


def test_nodes_that_are_not_of_the_cluster_are_not_written_down() -> None:
    n1, n2, _ = formed()
    said = n2.roster.introduce()
    said.known["n9"] = said.known["n3"]
    assert n1.roster.judge(N2, said, linked=False) is None
    assert set(n1.manifest.nodes) == set(NAMES)


def test_the_longest_hello_is_one_that_a_stranger_may_send() -> None:
    names = tuple(NodeId(f"{number}" * 64) for number in range(7))
    machines = [Machine(name, names) for name in names]
    meet(*machines)
    first, most = machines[0], (1 << 63) - 1
    first.manifest.starts = {most - number: most for number in reversed(range(STARTS_MAX))}
    for name in names:
        known = first.manifest.nodes[name]
        told = tuple(Told(other, most, most) for other in names[1:] if other != name)
        first.manifest.nodes[name] = known._replace(start=most, boot=most, told=told)
    introduction = first.roster.introduce()
    assert len(introduction.earlier) == STARTS_MAX - 1
    assert len(introduction.known) == 6
    hello = Hello(
        "control", cluster="c" * 64, node=names[0], target=names[1], introduction=introduction
    )
    assert len(encode_hello(hello)) <= UNIDENTIFIED.control
