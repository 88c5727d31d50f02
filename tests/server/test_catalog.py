"""The catalog as a table: what its records do, and what may be asked of it."""

from __future__ import annotations

import msgspec
import pytest

from quorate.errors import (
    InvalidArgument,
    InvariantBroken,
    LogExists,
    LogNotFound,
    LogRecreated,
    OffsetMismatch,
    QuorateError,
)
from quorate.server.logs import catalog as catalogs
from quorate.server.logs.catalog import (
    Catalog,
    Change,
    LogFacts,
    Placement,
    catalog_incarnation,
    encode_change,
    encode_placement,
    judge_create,
    judge_delete,
    judge_found,
)
from quorate.types import NodeId
from quorate.wire.shapes import check_log_name

NODES = (NodeId("n1"), NodeId("n2"))


def facts(name: str, incarnation: int) -> LogFacts:
    return LogFacts(name, incarnation, NODES, 1_700_000_000_000_000 + incarnation)


def made(name: str, incarnation: int) -> Change:
    return Change(made=True, log=facts(name, incarnation))


def deleted(name: str, incarnation: int) -> Change:
    return Change(made=False, log=facts(name, incarnation))


def catalog(*changes: Change) -> Catalog:
    found = Catalog()
    for change in changes:
        found.apply(encode_change(change))
    return found


def test_a_log_is_found_by_name_and_by_incarnation() -> None:
    found = catalog(made("b", 2), made("a", 1))
    assert found.logs == [facts("a", 1), facts("b", 2)]
    assert found.named("a") == found.find(1) == facts("a", 1)
    assert found.named("c") is found.find(3) is None
    assert found.applied == 2


def test_a_deleted_log_is_gone_for_good_and_its_name_is_free() -> None:
    found = catalog(made("a", 1), deleted("a", 1), made("a", 2))
    assert found.logs == [facts("a", 2)]
    assert found.find(1) is None
    assert found.is_gone(1)
    assert not found.is_gone(2)


def test_a_change_says_what_it_did() -> None:
    found = Catalog()
    assert found.apply(encode_change(made("a", 1))) == made("a", 1)
    assert found.apply(encode_change(deleted("a", 1))) == deleted("a", 1)


@pytest.mark.parametrize(
    "repeat", [made("a", 1), made("a", 9), deleted("b", 2), deleted("z", 3), made("b", 2)]
)
def test_what_was_done_or_cannot_be_done_changes_nothing(repeat: Change) -> None:
    found = catalog(made("a", 1), made("b", 2), deleted("b", 2))
    assert found.apply(encode_change(repeat)) is None
    assert found.logs == [facts("a", 1)]
    assert found.applied == 4


@pytest.mark.parametrize(
    "value",
    [b"", b"\xc1", msgspec.msgpack.encode({"op": "rename"}), encode_change(made("a", 1))[:-1]],
)
def test_a_record_that_this_release_does_not_know_stops_the_node(value: bytes) -> None:
    with pytest.raises(InvariantBroken, match="a record of the catalog cannot be read"):
        Catalog().apply(value)


def test_every_cluster_has_its_own_catalog() -> None:
    # Fixed for ever: a node of another release must find the same one.
    assert catalog_incarnation("shop") == 0xD84085B9ADC57FC56D7609BAE24E83CA
    assert catalog_incarnation("shop") != catalog_incarnation("shop2")


# -- judging -----------------------------------------------------------------------------------

AGED = catalog(
    made("a", 1), made("b", 2), deleted("b", 2), made("c", 3), deleted("c", 3), made("c", 4)
)


@pytest.mark.parametrize(
    ("name", "incarnation", "verdict"),
    [
        ("new", 9, None),
        ("b", 9, None),
        ("a", 1, facts("a", 1)),
        ("a", 9, LogExists),
        ("c", 3, LogNotFound),
        ("b", 2, LogNotFound),
        ("new", 1, InvalidArgument),
    ],
)
def test_create(name: str, incarnation: int, verdict: object) -> None:
    _same(judge_create(AGED, name, incarnation, 0), verdict)


@pytest.mark.parametrize(
    ("name", "incarnation", "verdict"),
    [
        ("a", 1, facts("a", 1)),
        ("b", 2, None),
        ("c", 3, None),
        ("new", 9, LogNotFound),
        ("b", 9, LogNotFound),
        ("a", 9, LogRecreated),
    ],
)
def test_delete(name: str, incarnation: int, verdict: object) -> None:
    _same(judge_delete(AGED, name, incarnation), verdict)


def _same(found: LogFacts | QuorateError | None, verdict: object) -> None:
    if isinstance(verdict, type):
        assert isinstance(found, verdict)
    else:
        assert found == verdict


# -- what is forgotten -------------------------------------------------------------------------


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> Catalog:
    """One that remembers two deletions, after four: those of 1 and 2 are forgotten."""
    monkeypatch.setattr(catalogs, "GONE_MAX", 2)
    changes = [
        change for number in range(1, 5) for change in (made("a", number), deleted("a", number))
    ]
    return catalog(*changes)


def test_only_the_newest_deletions_are_remembered(forgetful: Catalog) -> None:
    assert [number for number in range(1, 5) if forgetful.is_gone(number)] == [3, 4]
    # The deletion of 2 was the fourth record.
    assert forgetful.horizon == 4


@pytest.mark.parametrize("incarnation", [1, 2])
@pytest.mark.parametrize("drawn_at", [0, 1, 2, 3])
def test_an_incarnation_whose_deletion_is_forgotten_does_not_come_back(
    forgetful: Catalog, incarnation: int, drawn_at: int
) -> None:
    """Whenever it was drawn: that was before it was deleted."""
    _same(judge_create(forgetful, "a", incarnation, drawn_at), OffsetMismatch)


def test_what_is_drawn_at_the_end_is_made(forgetful: Catalog) -> None:
    found = judge_create(forgetful, "a", 9, 0)
    assert str(found).endswith("remembers deletions from 4 on; draw another one at 8")
    for drawn_at in range(4, 9):
        assert judge_create(forgetful, "a", 9, drawn_at) is None


def test_nothing_is_drawn_in_the_future(forgetful: Catalog) -> None:
    """The horizon would never get there: once deleted and forgotten, it could come back."""
    _same(judge_create(forgetful, "a", 9, 9), OffsetMismatch)


def test_a_repeat_is_a_success_however_early_it_was_drawn(forgetful: Catalog) -> None:
    forgetful.apply(encode_change(made("b", 9)))
    assert judge_create(forgetful, "b", 9, 0) == facts("b", 9)


# -- on disk -----------------------------------------------------------------------------------


def test_a_table_goes_on_where_it_was_written_down(forgetful: Catalog) -> None:
    forgetful.apply(encode_change(made("b", 9)))
    again = Catalog.decode(forgetful.encode())
    assert again is not None
    assert again.horizon == 4
    for table in (forgetful, again):
        table.apply(encode_change(made("a", 5)))
        table.apply(encode_change(deleted("b", 9)))
    assert again.logs == forgetful.logs == [facts("a", 5)]
    assert again.find(5) == facts("a", 5)
    assert (again.applied, again.horizon) == (forgetful.applied, forgetful.horizon) == (11, 6)
    assert [number for number in range(1, 10) if again.is_gone(number)] == [4, 9]
    assert again.encode() == forgetful.encode()


def test_a_table_that_this_release_cannot_read_is_none() -> None:
    for data in (b"", b"\xc1", catalog(made("a", 1)).encode()[:-1]):
        assert Catalog.decode(data) is None


# -- names -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "A-z_0.9", "x" * 249, "..."])
def test_a_name_that_every_file_and_shell_takes(name: str) -> None:
    check_log_name(name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a b", "a/b", "a,b", "ä", "a\n", "*", "x" * 250, "/catalog"]
)
def test_a_name_that_is_none(name: str) -> None:
    with pytest.raises(InvalidArgument, match="the name of a log is 1 to 249 letters"):
        check_log_name(name)


# -- placements --------------------------------------------------------------------------------


def placed(found: Catalog, incarnation: int, **priorities: int) -> Placement:
    """Apply a record with these priorities; the placement that the table has then."""
    facts, before = found.find(incarnation), found.placement(incarnation)
    assert facts is not None
    assert before is not None
    wanted = before.with_priorities(facts.name, priorities)
    assert found.apply(encode_placement(facts, wanted)) is None
    after = found.placement(incarnation)
    assert after is not None
    return after


def test_a_log_has_the_members_with_which_it_was_made_until_a_record_says_others() -> None:
    found = catalog(made("a", 1), made("b", 2))
    assert found.placement(1) == Placement(NODES)
    assert found.placement(3) is None
    assert placed(found, 1, n2=200) == Placement(NODES, (), ((NODES[1], 200),), record=2)
    assert placed(found, 1, n1=0) == Placement(
        NODES, (), ((NODES[0], 0), (NODES[1], 200)), record=3
    )
    assert found.placement(2) == Placement(NODES)
    assert found.logs == [facts("a", 1), facts("b", 2)]


def test_a_priority_of_100_is_that_of_a_node_for_which_none_was_set() -> None:
    found = catalog(made("a", 1))
    placed(found, 1, n1=7, n2=8)
    assert placed(found, 1, n1=100).priorities == ((NODES[1], 8),)
    assert found.placement(1) == Placement(NODES).with_priorities("a", {"n2": 8})._replace(record=2)


@pytest.mark.parametrize(
    ("priorities", "problem"),
    [
        ({"n9": 1, "n8": 1}, "n8, n9 has no replica of log a: its nodes are n1, n2"),
        ({"n1": 256}, "priority 256 of n1 is not 0 to 255"),
        ({"n1": 0, "n2": 0}, "every voter has priority 0"),
    ],
)
def test_priorities_that_no_log_can_have_are_refused(
    priorities: dict[str, int], problem: str
) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        Placement(NODES).with_priorities("a", priorities)


def test_the_membership_of_a_placement_names_its_record() -> None:
    found = catalog(made("a", 1))
    membership = placed(found, 1, n2=200).membership
    assert (membership.voters, membership.priority(NODES[1]), membership.intent) == (NODES, 200, 1)


def test_the_table_keeps_placements() -> None:
    found = catalog(made("a", 1), made("b", 2))
    wanted = placed(found, 2, n1=3)
    again = Catalog.decode(found.encode())
    assert again is not None
    assert (again.placement(2), again.placement(1)) == (wanted, Placement(NODES))
    assert again.encode() == found.encode()


def test_a_placement_goes_with_its_log() -> None:
    found = catalog(made("a", 1))
    wanted = placed(found, 1, n1=3)
    found.apply(encode_change(deleted("a", 1)))
    assert found.placement(1) is None
    # Two leaders of the catalog may append one after the other.
    assert found.apply(encode_placement(facts("a", 1), wanted)) is None
    assert found.placement(1) is None
    found.apply(encode_change(made("a", 2)))
    assert found.placement(2) == Placement(NODES)
    again = Catalog.decode(found.encode())
    assert again is not None
    assert again.encode() == found.encode()


def test_a_log_is_found_by_its_name_and_incarnation_together() -> None:
    found = catalog(made("a", 1))
    assert judge_found(found, "a", 1) == facts("a", 1)
    assert isinstance(judge_found(found, "b", 1), LogNotFound)
    assert isinstance(judge_found(found, "a", 2), LogRecreated)
