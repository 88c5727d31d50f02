"""The tree of errors is whole: exported, coded and drawn."""

from __future__ import annotations

import inspect
import pickle
import re
from copy import copy, deepcopy

import pytest

from quorate import errors
from quorate.errors import (
    InvariantBroken,
    NotLeader,
    QuorateError,
    ReplicaHalted,
    check,
    error_for,
)
from quorate.types import NodeId

DEFINED = {
    name: item
    for name, item in vars(errors).items()
    if inspect.isclass(item) and item.__module__ == errors.__name__
}
ANSWERS = [item for item in DEFINED.values() if issubclass(item, QuorateError)]
HALTS = [item for item in DEFINED.values() if issubclass(item, ReplicaHalted)]
RETRIABLE = {
    *("NOT_LEADER", "NO_QUORUM", "BUSY", "TRANSFERRING", "DISK_FULL", "BEHIND"),
    *("OUT_OF_SEQUENCE", "TIMEOUT", "CATCHING_UP"),
}
# What programs outside rely on: codes are added, never renamed.
FINAL = {
    *("OUTCOME_UNKNOWN", "TOO_LARGE", "EMPTY_BATCH", "LOG_NOT_FOUND", "LOG_EXISTS"),
    *("LOG_RECREATED", "OFFSET_OUT_OF_RANGE", "TRIMMED", "OFFSET_MISMATCH", "FENCED"),
    *("DUPLICATE", "UNKNOWN_PRODUCER", "TOO_MANY_PRODUCERS", "STAGE_FULL", "STAGE_EXPIRED"),
    *("REPLAY_MISMATCH", "CORRUPT", "WRONG_CLUSTER", "UNAUTHORIZED", "VERSION_MISMATCH"),
    *("INVALID_ARGUMENT", "DECODE_FAILED", "CHECK_FAILED", "SPARK_FAILED"),
}


def test_everything_is_exported_in_order() -> None:
    assert errors.__all__ == sorted(errors.__all__)
    assert set(errors.__all__) == {*DEFINED, "check", "code_of", "error_for"}


def test_every_code_of_the_contract_is_there() -> None:
    assert {error.code for error in ANSWERS} == {"ERROR", *RETRIABLE, *FINAL}


def test_every_error_answers_or_halts() -> None:
    assert len(ANSWERS) + len(HALTS) == len(DEFINED)
    assert not issubclass(ReplicaHalted, QuorateError)


@pytest.mark.parametrize("error", [item for item in ANSWERS if item is not QuorateError])
def test_a_code_is_the_name_of_its_class(error: type[QuorateError]) -> None:
    spelled = re.sub(r"(?<!^)(?=[A-Z])", "_", error.__name__).upper()
    assert error.code == spelled
    assert error.retriable is (error.code in RETRIABLE)


@pytest.mark.parametrize("error", [item for item in DEFINED.values() if item is not QuorateError])
def test_the_tree_names_every_error_with_its_code(error: type[Exception]) -> None:
    tree = inspect.getdoc(errors) or ""
    line = next(line for line in tree.splitlines() if re.search(rf"\b{error.__name__}\b", line))
    if issubclass(error, QuorateError):
        star = "*" if error.retriable else ""
        assert re.search(rf"{error.__name__}\s+{re.escape(error.code + star)}\s", line)


def test_the_tree_names_nothing_else() -> None:
    tree = inspect.getdoc(errors) or ""
    drawn = re.findall(r"[├└]── (\w+)", tree)
    assert sorted(drawn) == sorted(
        name for name in DEFINED if name not in ("QuorateError", "ReplicaHalted")
    )


def test_a_check_stops_the_replica_with_its_rule() -> None:
    check(True, "never seen")
    with pytest.raises(InvariantBroken, match="the rule"):
        check(False, "the rule")


@pytest.mark.parametrize("error", ANSWERS)
def test_a_code_from_the_wire_gives_its_error(error: type[QuorateError]) -> None:
    made = error_for(error.code, "what happened")
    assert type(made) is error
    assert (made.code, str(made)) == (error.code, "what happened")


def test_a_code_that_is_not_known_is_kept_and_final() -> None:
    made = error_for("OF_A_LATER_RELEASE", "what happened")
    assert type(made) is QuorateError
    assert (made.code, made.retriable, str(made)) == ("OF_A_LATER_RELEASE", False, "what happened")
    assert QuorateError.code == "ERROR"
    with pytest.raises(QuorateError) as caught:
        raise made
    assert caught.value.code == "OF_A_LATER_RELEASE"


@pytest.mark.parametrize("error", [error_for("NO_QUORUM", "x"), error_for("LATER", "y")])
def test_an_error_survives_the_way_between_processes(error: QuorateError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.code, str(again)) == (type(error), error.code, str(error))


def test_the_leader_goes_along_with_its_error() -> None:
    error = NotLeader("n1 does not lead", leader=NodeId("n2"))
    for again in (copy(error), deepcopy(error), pickle.loads(pickle.dumps(error))):
        assert (type(again), str(again), again.leader) == (NotLeader, "n1 does not lead", "n2")
    assert NotLeader("n1 is stopping").leader is None
    assert error_for("BUSY", "wait", NodeId("n2")).args == ("wait",)
