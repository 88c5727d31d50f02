"""Every limit has a range and says so; what no cluster could run with is refused."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest

from quorate.config import KIB, MIB, Config, Limits, NetworkLimits, Server, Storage, Timing
from quorate.errors import InvalidArgument

Sections = Timing | Limits | Storage | Server | NetworkLimits
Section = type[Timing] | type[Limits] | type[Storage] | type[Server] | type[NetworkLimits]
SECTIONS: tuple[Section, ...] = (Timing, Limits, Storage, Server, NetworkLimits)
FIELDS = [(section, item.name) for section in SECTIONS for item in fields(section)]
# What keeps the rules between fields out of the way of a bound.
COMPANIONS: dict[tuple[str, int], dict[str, int]] = {
    ("heartbeat_ms", 60_000): {"election_ms": 120_000},
    ("election_ms", 10): {"heartbeat_ms": 5},
    ("hint_min_ms", 60_000): {"hint_max_ms": 60_000},
    ("hint_max_ms", 1): {"hint_min_ms": 1},
    ("batch_bytes", 64 * MIB): {"pending_bytes": 64 * MIB, "uncommitted_bytes": 64 * MIB},
    ("pending_bytes", 1): {"batch_bytes": 1},
    ("uncommitted_bytes", 1): {"batch_bytes": 1},
    ("control_bytes", 64 * MIB): {"call_bytes": 128 * MIB},
    ("call_bytes", 8 * KIB): {"control_bytes": 4 * KIB},
    ("unsent_busy_bytes", 64 * 1024 * MIB): {"unsent_close_bytes": 64 * 1024 * MIB},
    ("unsent_close_bytes", 1): {"unsent_busy_bytes": 1},
    ("write_pause_bytes", 1024 * MIB): {"write_buffer_bytes": 1024 * MIB},
    ("write_buffer_bytes", 64 * KIB): {"write_pause_bytes": 1, "peer_buffer_bytes": 64 * KIB},
    ("peer_buffer_bytes", 64 * 1024 * MIB): {"write_buffer_bytes": 64 * 1024 * MIB},
    ("redial_min_ms", 600_000): {"redial_max_ms": 600_000},
    ("redial_max_ms", 1): {"redial_min_ms": 1},
}


def bounds(section: Section, name: str) -> tuple[int, int]:
    low, high = next(item for item in fields(section) if item.name == name).metadata["range"]
    return low, high


def make(section: Section, name: str, value: Any) -> Sections:
    return section(**{name: value, **COMPANIONS.get((name, value), {})})


@pytest.mark.parametrize(("section", "name"), FIELDS)
def test_a_field_takes_its_bounds_and_nothing_beyond(section: Section, name: str) -> None:
    low, high = bounds(section, name)
    for value in (low, high):
        assert getattr(make(section, name, value), name) == value
    for value in (low - 1, high + 1):
        with pytest.raises(InvalidArgument) as refused:
            make(section, name, value)
        assert str(refused.value) == (
            f"{section.section}.{name} = {value} is not a whole number between {low} and {high}"
        )


@pytest.mark.parametrize(("section", "name"), FIELDS)
@pytest.mark.parametrize("value", [True, False, 100.0, "100", None, b"100"])
def test_only_whole_numbers_are_taken(section: Section, name: str, value: object) -> None:
    with pytest.raises(InvalidArgument, match=f"{name} = "):
        make(section, name, value)


@pytest.mark.parametrize(("section", "name"), FIELDS)
def test_a_default_is_within_its_range(section: Section, name: str) -> None:
    low, high = bounds(section, name)
    assert low <= getattr(section(), name) <= high


def test_heartbeats_come_at_least_twice_in_an_election_timeout() -> None:
    assert Timing(heartbeat_ms=500, election_ms=1000).heartbeat_ms == 500
    with pytest.raises(InvalidArgument, match=r"heartbeat_ms = 501 .*election_ms = 1000"):
        Timing(heartbeat_ms=501, election_ms=1000)


def test_the_shortest_hint_is_no_longer_than_the_longest() -> None:
    assert Timing(hint_min_ms=40, hint_max_ms=40).hint_max_ms == 40
    with pytest.raises(InvalidArgument, match=r"hint_min_ms = 41 .*hint_max_ms = 40"):
        Timing(hint_min_ms=41, hint_max_ms=40)


@pytest.mark.parametrize("name", ["pending_bytes", "uncommitted_bytes"])
def test_the_largest_batch_fits_where_it_must_wait(name: str) -> None:
    assert getattr(Limits(**{"batch_bytes": 100, name: 100}), name) == 100
    with pytest.raises(InvalidArgument, match=rf"limits\.{name} = 99 .*batch_bytes = 100"):
        Limits(**{"batch_bytes": 100, name: 99})


def test_the_longest_call_is_not_busy_for_ever() -> None:
    assert Server(control_bytes=5000, call_bytes=10_000).call_bytes == 10_000
    with pytest.raises(InvalidArgument, match=r"call_bytes = 9999 .*control_bytes = 5000"):
        Server(control_bytes=5000, call_bytes=9999)


def test_reads_are_busy_before_a_connection_is_closed() -> None:
    assert Server(unsent_busy_bytes=10, unsent_close_bytes=10).unsent_close_bytes == 10
    with pytest.raises(InvalidArgument, match=r"unsent_busy_bytes = 11 .*close_bytes = 10"):
        Server(unsent_busy_bytes=11, unsent_close_bytes=10)


def test_a_limit_has_a_name_of_its_own() -> None:
    names = [item.name for section in SECTIONS for item in fields(section)]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize(
    ("tick_ms", "milliseconds", "ticks"),
    [(10, 1, 1), (10, 10, 1), (10, 11, 2), (10, 1000, 100), (1, 7, 7), (1000, 30, 1), (10, 0, 1)],
)
def test_ticks_are_rounded_up(tick_ms: int, milliseconds: int, ticks: int) -> None:
    assert Timing(tick_ms=tick_ms).ticks(milliseconds) == ticks


def test_a_configuration_is_never_changed_once_made() -> None:
    config = Config()
    with pytest.raises(FrozenInstanceError):
        config.timing.tick_ms = 5  # type: ignore[misc]  # that is the point
    assert replace(config, limits=Limits(window_messages=3)).limits.window_messages == 3
    assert config == Config()
