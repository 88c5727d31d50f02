"""The tables of the pages are complete: each thing in the code has its row."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from typing import TYPE_CHECKING

import click
import pytest

from pages_rig import (
    PAGES,
    SCENARIOS,
    SOURCE,
    blocks,
    broken_rules,
    known_tests,
    names,
    page,
    page_id,
    rows,
    section,
)
from quorate.cli import main
from quorate.client import results
from quorate.config import Limits, NetworkLimits, Server, Timing
from quorate.entry import Entry, make_entry
from quorate.entry_body import pack_batches
from quorate.errors import QuorateError, ReplicaHalted
from quorate.raft.output import EventKind, Refusal
from quorate.server.settings import KEYS
from quorate.types import ORIGIN, EntryKind, Term
from test_layers import LAYERS, PACKAGE
from verification.mutants.catalogue import MUTANTS
from verification.sim.adversaries import ADVERSARIES
from verification.sim.options import FAULTS, NOISES

if TYPE_CHECKING:
    from collections.abc import Iterator

# --- The rules --------------------------------------------------------------------------------

RULES = "docs/rules.md"


def rule_rows() -> list[list[str]]:
    """Rule, where from, where, tests, mutant."""
    return rows(page(RULES), 5)


def test_every_mutant_stands_once_in_the_row_of_its_rule() -> None:
    listed = [name for row in rule_rows() for name in names(row[4])]
    assert sorted(listed) == sorted(mutant.name for mutant in MUTANTS)
    places = {name: row[2] for row in rule_rows() for name in names(row[4])}
    strays = [mutant.name for mutant in MUTANTS if f"`{mutant.file}::" not in places[mutant.name]]
    assert strays == [], "the row names another file than the one that the mutant changes"


def test_every_rule_has_a_place_in_the_code() -> None:
    homeless = [row[0] for row in rule_rows() if not names(row[2])]
    assert homeless == []


def test_every_scenario_is_listed_with_its_number() -> None:
    listed = {row[0]: names(row[2]) for row in rows(section(page(RULES), "Scenarios"), 3)}
    files = {f"S{int(path.stem[1:3])}": [path.name] for path in SCENARIOS.glob("s*.txt")}
    assert listed == files


def test_ids_that_are_used_are_explained() -> None:
    text = page(RULES)
    explained = {row[0] for row in rows(text, 3)}
    used = set(re.findall(r"\b[ICF]\d+\b", "".join(page(page_id(path)) for path in PAGES)))
    in_rules = {
        found for row in rule_rows() for cell in row for found in re.findall(r"\bS\d+\b", cell)
    }
    assert used | in_rules <= explained


def test_what_the_simulator_reports_is_explained() -> None:
    text = section(page(RULES), "Invariants")
    explained = {row[0].strip("`") for columns in (2, 3) for row in rows(text, columns)}
    scenarios = {row[0] for row in rows(section(page(RULES), "Scenarios"), 3)}
    assert broken_rules("sim") <= explained | scenarios


def test_what_the_fleet_reports_is_explained() -> None:
    text = section(page("docs/internals/simulator.md"), "The fleet")
    explained = {name for row in rows(text, 2) for name in names(row[0])}
    assert explained - {"rule"} == broken_rules("fleet")


@pytest.mark.parametrize(
    ("heading", "values"),
    [("Refusal reasons", list(Refusal)), ("Reported events", list(EventKind))],
)
def test_reasons_and_events_are_all_listed(heading: str, values: list[str]) -> None:
    listed = [row[0].strip("`") for row in rows(section(page(RULES), heading), 2)]
    assert listed == [str(value) for value in values]


def test_every_simulated_fault_is_listed() -> None:
    listed = {name for row in rows(section(page(RULES), "Faults"), 3) for name in names(row[2])}
    assert listed.issuperset({*FAULTS, *NOISES})
    assert listed <= {*FAULTS, *NOISES, *ADVERSARIES}


def test_every_adversary_is_listed() -> None:
    text = section(page("docs/internals/simulator.md"), "Writing an adversary")
    assert sorted(row[0].strip("`") for row in rows(text, 2)) == sorted(ADVERSARIES)


def test_every_bug_of_dledger_and_jraft_is_listed() -> None:
    listed = names(section(page("docs/divergences.md"), "Their bugs and the tests here"))
    regressions = {name for name in known_tests() if re.match(r"test_(dledger|jraft)_\d", name)}
    assert sorted(listed) == sorted(regressions)


# --- Errors, limits, targets ------------------------------------------------------------------


def test_every_error_code_is_explained() -> None:
    listed = [tuple(row[:3]) for row in rows(page("docs/errors.md"), 5)]
    answers = [
        (error.code, f"`{error.__name__}`", "yes" if error.retriable else "no")
        for error in QuorateError.__subclasses__()
    ]
    assert listed == answers


def test_every_halt_is_explained() -> None:
    listed = [row[0] for row in rows(section(page("docs/errors.md"), "Halts"), 3)]
    assert listed == [f"`{halt.__name__}`" for halt in ReplicaHalted.__subclasses__()]


UNITS = {"KiB": 1 << 10, "MiB": 1 << 20}


@pytest.mark.parametrize(
    ("settings", "name", "heading", "columns"),
    [
        (Limits, "engine", "Limits and the answer at each", 4),
        (Timing, "engine", "Times", 3),
        (Server, "server", "Limits and the answer at each", 4),
        (NetworkLimits, "links", "Limits", 4),
    ],
)
def test_every_setting_is_listed_with_its_default(
    settings: type[Limits | NetworkLimits | Server | Timing], name: str, heading: str, columns: int
) -> None:
    text = section(page(f"docs/internals/{name}.md"), heading)
    listed = {}
    for row in rows(text, columns):
        number, _, unit = row[1].partition(" ")
        listed[row[0].strip("`")] = int(number) * UNITS.get(unit, 1)
    assert listed == {item.name: item.default for item in fields(settings)}


def test_readme_lists_the_make_targets() -> None:
    targets = re.findall(r"^([a-z-]+):.*## ", page("Makefile"), re.MULTILINE)
    text = section(page("README.md"), "Developing")
    listed = [name.removeprefix("make ") for row in rows(text, 2) for name in names(row[0])]
    assert listed == [target for target in targets if target != "help"]


# --- What users see ---------------------------------------------------------------------------

REFERENCE = "docs/reference/cli.md"


def commands(words: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """Every command in ``command``, with the words that call it. A group loads its commands only
    when they are asked for."""
    if not isinstance(command, click.Group):
        yield words, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from commands(f"{words} {name}", found)


def long_options(command: click.Command) -> set[str]:
    """The long names of all options but those that the help hides."""
    options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    return {name for one in options for name in one.opts if name.startswith("--")}


@pytest.mark.parametrize(
    ("words", "command"),
    [pytest.param(*one, id=one[0]) for one in commands("quorate", main.quorate)],
)
def test_every_command_is_listed_with_its_options(words: str, command: click.Command) -> None:
    text = page(REFERENCE)
    heading = words if f"\n## {words}\n" in text else words.rpartition(" ")[0]
    own = section(text, heading)
    assert f"`{words}" in own
    shared = section(text, "What all commands share")
    listed = set(re.findall(r"--[a-z][a-z-]*", own + shared))
    of_a_key = {key.flag for key in KEYS} if words == "quorate serve" else set()
    assert long_options(command) <= listed | of_a_key


def test_every_key_of_the_status_is_listed() -> None:
    [document] = [
        json.loads(block.text)
        for block in blocks(section(page(REFERENCE), "quorate status"))
        if block.text.startswith("{")
    ]
    [node], [log] = document["nodes"], document["logs"]
    [replica] = log["replicas"]
    assert list(document) == list(results.ClusterStatus.__annotations__)
    assert list(node) == list(results.NodeSummary.__annotations__)
    assert list(log) == list(results.LogSummary.__annotations__)
    assert list(replica) == list(results.ReplicaSummary.__annotations__)


def test_every_metric_is_listed() -> None:
    text = section(page("docs/guides/operate.md"), "Is it well?")
    listed = [name for row in rows(text, 3) for name in names(row[0])]
    source = (SOURCE / "metrics.py").read_text(encoding="utf-8")
    assert sorted(listed) == sorted(set(re.findall(r'"(quorate_\w+)"', source)))


# --- The layers -------------------------------------------------------------------------------


def test_the_picture_shows_every_layer_above_those_that_it_imports() -> None:
    picture = blocks(section(page("docs/architecture.md"), "Layers"))[0].text
    # Names are on the left, what they are is on the right.
    shown = [name for line in picture.splitlines() for name in re.findall(r"\w+", line[:29])]
    known = {*LAYERS, "cli"} - {PACKAGE}
    assert sorted(shown) == sorted(known)
    for name in known & LAYERS.keys():
        below = set(shown[shown.index(name) + 1 :])
        imported = {layer.partition(".")[0] for layer in LAYERS[name]}
        assert imported <= below, f"{name} imports {imported - below}"


# --- The format -------------------------------------------------------------------------------


def worked_example() -> Entry:
    """The second entry on the format page."""
    noop = make_entry(ORIGIN, Term(1), EntryKind.NOOP, append_time=1_000_000)
    body = pack_batches([(b"hello", 1), (b"world!", 2)])
    return make_entry(
        noop.position, Term(1), EntryKind.DATA, body,
        base_offset=0, count=3, append_time=1_000_500, runs=2,
    )  # fmt: skip


def test_the_worked_example_is_what_the_code_makes() -> None:
    entry = worked_example()
    frame = entry.header + entry.body
    text = section(page("docs/format.md"), "A worked example")
    position = 0
    for offset, shown, *_ in rows(text, 4):
        part = bytes.fromhex(shown.strip("`"))
        assert (int(offset), part) == (position, frame[position : position + len(part)])
        position += len(part)
    assert position == len(frame)


def test_the_fields_fill_the_header() -> None:
    text = page("docs/format.md")
    shown = rows(section(text, "A worked example"), 4)
    fields_ = [(row[0], row[2]) for row in rows(section(text, "Frame"), 4)]
    assert fields_ == [(row[0], row[2]) for row in shown[: len(fields_)]]
    sizes = [int(row[1]) for row in rows(section(text, "Frame"), 4)]
    assert sizes == [len(row[1].strip("`").split()) for row in shown[: len(sizes)]]
    assert sum(sizes) == len(worked_example().header)


def test_every_kind_of_entry_is_listed() -> None:
    listed = [tuple(row[:2]) for row in rows(section(page("docs/format.md"), "Kinds"), 3)]
    assert listed == [(str(kind.value), kind.name) for kind in EntryKind]
