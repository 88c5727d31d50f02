"""One picture from what each node knows."""

from __future__ import annotations

from quorate.client.results import ReplicaSummary
from quorate.client.status import merge_status
from quorate.wire.calls import LogStatus, NodeStatus, PeerStatus

PLACES = {"n1": "h:1", "n2": "h:2", "n3": "h:3"}
INCARNATION = (7).to_bytes(16, "little")


def view(
    role: str, leader: str | None, term: int, committed: int, *peers: PeerStatus, end: int = 0
) -> LogStatus:
    return LogStatus(
        "orders", INCARNATION, role, leader, term, 0, end, committed, committed + 1, 0, list(peers)
    )


def node(name: str, *logs: LogStatus) -> NodeStatus:
    return NodeStatus(name, PLACES[name], PLACES, list(logs))


def replica(
    node: str, role: str, match: int | None, lag: int | None, state: str, *, full: bool = False
) -> ReplicaSummary:
    return ReplicaSummary(
        node=node, role=role, priority=100, match=match, lag=lag, state=state, full=full,
        halted=None,
    )  # fmt: skip


def test_a_healthy_cluster() -> None:
    peers = [PeerStatus("n2", 10, "append"), PeerStatus("n3", 4, "append")]
    status = merge_status(
        [
            node("n1", view("leader", "n1", 3, 9, *peers, end=20)),
            node("n2", view("follower", "n1", 3, 9, end=20)),
            node("n3", view("follower", "n1", 3, 4, end=8)),
        ],
        {},
        {},
    )
    assert status == {
        "nodes": [
            {
                "id": one,
                "address": PLACES[one],
                "up": True,
                "disk_used": None,
                "full": None,
                "why": None,
            }
            for one in PLACES
        ],
        "logs": [
            {
                "name": "orders",
                "incarnation": "00000000000000000000000000000007",
                "leader": "n1",
                "term": 3,
                "first_offset": 0,
                "end_offset": 20,
                "committed": 9,
                "staged_bytes": 0,
                "replicas": [
                    replica("n1", "leader", 10, 0, "self"),
                    replica("n2", "follower", 10, 0, "append"),
                    replica("n3", "follower", 4, 5, "append"),
                ],
            }
        ],
    }


def test_a_node_that_does_not_answer_is_down() -> None:
    peers = [PeerStatus("n2", 10, "append"), PeerStatus("n3", None, "compare")]
    status = merge_status(
        [
            node("n1", view("leader", "n1", 3, 9, *peers)),
            node("n2", view("follower", "n1", 3, 9)),
        ],
        {},
        {},
    )
    assert [one["up"] for one in status["nodes"]] == [True, True, False]
    down = status["logs"][0]["replicas"][2]
    assert down == replica("n3", "follower", None, None, "down")


def test_without_a_leader_one_answer_is_enough() -> None:
    status = merge_status([node("n3", view("candidate", None, 5, 9, end=20))], {}, {})
    log = status["logs"][0]
    assert (log["leader"], log["term"], log["end_offset"]) == (None, 5, 20)
    assert [(one["node"], one["role"], one["state"]) for one in log["replicas"]] == [
        ("n1", "follower", "down"),
        ("n2", "follower", "down"),
        ("n3", "candidate", "compare"),
    ]
    assert all(one["match"] is None and one["lag"] is None for one in log["replicas"])


def test_the_newest_term_decides_who_leads() -> None:
    old = view("leader", "n1", 3, 7, PeerStatus("n2", 7, "append"))
    new = view("leader", "n2", 4, 9, PeerStatus("n1", 7, "compare"))
    for answers in ([node("n1", old), node("n2", new)], [node("n2", new), node("n1", old)]):
        log = merge_status(answers, {}, {})["logs"][0]
        assert (log["leader"], log["term"], log["committed"]) == ("n2", 4, 9)


def test_a_leader_that_only_others_hear_is_named() -> None:
    status = merge_status([node("n2", view("follower", "n1", 3, 9))], {}, {})
    assert status["logs"][0]["leader"] == "n1"
    assert (status["nodes"][0]["address"], status["nodes"][0]["up"]) == ("h:1", False)


def test_two_lives_of_a_name_are_two_logs() -> None:
    other = view("follower", None, 1, 0)
    other.incarnation = (8).to_bytes(16, "little")
    logs = merge_status([node("n1", view("leader", "n1", 3, 9), other)], {}, {})["logs"]
    assert [log["incarnation"][-1] for log in logs] == ["7", "8"]


def test_nodes_that_the_client_knew_are_listed_as_well() -> None:
    status = merge_status(
        [NodeStatus("n1", "h:1", {"n1": "h:1"}, [])], {"n2": "h:2"}, {"h:2": "BUSY: n2 waits"}
    )
    assert [(one["id"], one["up"]) for one in status["nodes"]] == [("n1", True), ("n2", False)]
    assert [one["why"] for one in status["nodes"]] == [None, "BUSY: n2 waits"]


def test_a_replica_that_is_unsure_says_so() -> None:
    peers = [PeerStatus("n2", 9, "append"), PeerStatus("n3", 9, "append")]
    unsure = view("follower", "n1", 3, 9)
    unsure.unsure = True
    status = merge_status(
        [node("n1", view("leader", "n1", 3, 9, *peers)), node("n2", unsure)], PLACES, {}
    )
    states = [one["state"] for one in status["logs"][0]["replicas"]]
    assert states == ["self", "unsure", "down"]


def test_who_has_no_room_is_told_by_itself_or_by_the_leader() -> None:
    peers = [PeerStatus("n2", 10, "append"), PeerStatus("n3", 4, "append", full=True)]
    leads = node("n1", view("leader", "n1", 3, 9, *peers))
    leads.disk_used, leads.full = 40, False
    follows = node("n2", view("follower", "n1", 3, 9))
    follows.logs[0].full = True
    follows.disk_used, follows.full = 97, True
    status = merge_status([leads, follows], {}, {})
    assert [(one["disk_used"], one["full"]) for one in status["nodes"]] == [
        (40, False),
        (97, True),
        (None, None),
    ]
    assert [one["full"] for one in status["logs"][0]["replicas"]] == [False, True, True]


def test_a_replica_that_its_node_stopped_is_down_with_the_reason() -> None:
    """Whatever its leader still believes of it, and although its own numbers are all 0."""
    peers = [PeerStatus("n2", 9, "append"), PeerStatus("n3", 9, "append")]
    stopped = view("follower", None, 0, 0, end=0)
    stopped.halted = "DAMAGED: entry 7 is lost"
    status = merge_status(
        [
            node("n1", view("leader", "n1", 3, 9, *peers, end=20)),
            node("n2", stopped),
            node("n3", view("follower", "n1", 3, 9, end=20)),
        ],
        {},
        {},
    )
    (log,) = status["logs"]
    assert (log["leader"], log["term"], log["end_offset"]) == ("n1", 3, 20)
    told = [(one["state"], one["halted"]) for one in log["replicas"]]
    assert told == [("self", None), ("down", "DAMAGED: entry 7 is lost"), ("append", None)]
