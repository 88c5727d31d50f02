"""The tree of errors is whole: exported, coded and drawn."""

from __future__ import annotations

import inspect
import re

import pytest

from quorate import errors
from quorate.errors import InvariantBroken, QuorateError, ReplicaHalted, check

DEFINED = {
    name: item
    for name, item in vars(errors).items()
    if inspect.isclass(item) and item.__module__ == errors.__name__
}
ANSWERS = [item for item in DEFINED.values() if issubclass(item, QuorateError)]
HALTS = [item for item in DEFINED.values() if issubclass(item, ReplicaHalted)]
RETRIABLE = {"NOT_LEADER", "NO_QUORUM", "BUSY", "DISK_FULL"}


def test_everything_is_exported_in_order() -> None:
    assert errors.__all__ == sorted(errors.__all__)
    assert set(errors.__all__) == {*DEFINED, "check"}


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
