"""The documentation says what is there: names exist, tables are complete, examples run.

The checkers take a page's text, so the end of this file can try them on planted mistakes.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from dataclasses import fields
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from quorate.config import Limits, Timing
from quorate.entry import Entry, make_entry, pack_batches
from quorate.errors import QuorateError, ReplicaHalted
from quorate.raft.output import Happening, Refusal
from quorate.testing.mutants.catalogue import MUTANTS
from quorate.testing.sim.adversaries import ADVERSARIES
from quorate.testing.sim.options import FAULTS, NOISES
from quorate.types import ORIGIN, EntryKind, Term

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "quorate"
TESTS = ROOT / "tests"
SCENARIOS = TESTS / "scenarios"
MAP = DOCS / "README.md"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]

# Where a file that a page names may be.
ROOTS = (ROOT, SOURCE, TESTS, SCENARIOS)
# Made by the simulator, so not there unless something failed.
GENERATED = "sim-failures/"
# Words with hyphens that are names of other things.
FOREIGN = {"google-crc32c"}


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def page_id(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


# --- Reading a page ---------------------------------------------------------------------------


class Block(NamedTuple):
    """A fenced block, and where it begins and ends in its page's text."""

    language: str
    text: str
    start: int
    end: int


_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def blocks(text: str) -> list[Block]:
    return [Block(found[1], found[2], *found.span()) for found in _FENCE.finditer(text)]


def prose(text: str) -> str:
    return _FENCE.sub("", text)


def spans(text: str) -> list[str]:
    """Everything between backticks, outside of fenced blocks."""
    return _SPAN.findall(prose(text))


def section(text: str, heading: str) -> str:
    """From ``## heading`` to the next one."""
    begun = text.partition(f"\n## {heading}\n")
    assert begun[1], f"no section {heading!r}"
    return begun[2].partition("\n## ")[0]


def rows(text: str, columns: int) -> list[list[str]]:
    """The cells of all tables with so many columns, without heads and rulers."""
    found = []
    for before, line in pairwise(["", *text.splitlines()]):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        ruler = set(line) <= set("|-: ")
        inside = line.startswith("|") and before.startswith("|")
        if inside and not ruler and len(cells) == columns:
            found.append(cells)
    return found


def names(cell: str) -> list[str]:
    return _SPAN.findall(cell)


# --- What there is ----------------------------------------------------------------------------


@cache
def definitions(path: Path) -> frozenset[str]:
    """Names at the top of a file, and ``Class.name`` for what a class defines."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        found |= _defined(node)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{name}" for item in node.body for name in _defined(item)}
    return frozenset(found)


def _defined(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Assign):
        return {target.id for target in node.targets if isinstance(target, ast.Name)}
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return {node.target.id}
    return set()


@cache
def known_tests() -> frozenset[str]:
    return frozenset(
        name
        for path in TESTS.rglob("test_*.py")
        for name in definitions(path)
        if name.startswith("test_")
    )


@cache
def source_words() -> frozenset[str]:
    texts = [path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")]
    return frozenset(re.findall(r"--[a-z-]+|\w+", "\n".join(texts)))


@cache
def broken_rules(simulator: str) -> frozenset[str]:
    """The names under which a simulator reports violations."""
    folder = SOURCE / "testing" / simulator
    texts = [path.read_text(encoding="utf-8") for path in folder.rglob("*.py")]
    return frozenset(re.findall(r'Violation\(\s*"([\w-]+)"', "\n".join(texts)))


@cache
def hyphenated() -> frozenset[str]:
    mutants = {mutant.name for mutant in MUTANTS}
    rules = broken_rules("sim") | broken_rules("fleet")
    return frozenset({*mutants, *Refusal, *Happening, *rules, *FOREIGN})


# --- Names in a page --------------------------------------------------------------------------


def unknown_names(text: str) -> list[str]:
    """What a page names between backticks and does not exist."""
    return [f"`{span}`: {problem}" for span in spans(text) if (problem := _problem(span))]


def _problem(span: str) -> str | None:
    path, colons, symbol = span.partition("::")
    if span.startswith(GENERATED):
        return None
    if colons or re.fullmatch(r"[\w./-]+\.(py|txt|md|toml)|(src|tests|docs)/[\w./-]+", path):
        return _path_problem(path, symbol)
    if re.fullmatch(r"test_\w+", span):
        return None if span in known_tests() else "no such test"
    if re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", span):
        return None if span in hyphenated() else "neither a mutant nor a reason, event or rule"
    if re.match(r"--[a-z]", span):
        options = re.findall(r"--[a-z-]+", span)
        return None if source_words().issuperset(options) else "no such option"
    if re.fullmatch(r"[a-z]\w*_\w*(\.\w+)*|[A-Z]\w+[a-z]\w*(\.\w+)*", span):
        return None if source_words().issuperset(span.split(".")) else "not in the source"
    return None


def _path_problem(path: str, symbol: str) -> str | None:
    places = [root / path for root in ROOTS if (root / path).exists()]
    if not places:
        return "no such file"
    if symbol and not any(symbol in definitions(place) for place in places):
        return "no such name in that file"
    return None


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_names_exist(path: Path) -> None:
    problems = unknown_names(path.read_text(encoding="utf-8"))
    assert not problems, "\n" + "\n".join(problems)


# --- Links ------------------------------------------------------------------------------------


def broken_links(path: Path, text: str) -> list[str]:
    """Relative links that lead nowhere."""
    broken = []
    for target in _LINK.findall(prose(text)):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        place = (path.parent / file).resolve() if file else path
        if not place.is_relative_to(ROOT) or not place.exists():
            broken.append(f"{target}: no such file")
        elif anchor and anchor not in anchors(text if place == path else page(page_id(place))):
            broken.append(f"{target}: no such heading")
    return broken


def anchors(text: str) -> set[str]:
    """Headings as links name them."""
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in _HEADING.findall(prose(text)))
    return {heading.replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_links_lead_somewhere(path: Path) -> None:
    assert broken_links(path, path.read_text(encoding="utf-8")) == []


def test_every_page_is_on_the_map() -> None:
    targets = _LINK.findall(MAP.read_text(encoding="utf-8"))
    linked = {(DOCS / target.partition("#")[0]).resolve() for target in targets}
    assert linked.issuperset({path for path in PAGES if path.is_relative_to(DOCS)} - {MAP})


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_no_page_names_a_place_on_somebodys_machine(path: Path) -> None:
    assert re.findall(r"(?<![\w.])/(?:home|root|tmp|work|Users)/\S*", page(page_id(path))) == []


# --- Examples ---------------------------------------------------------------------------------


class Example(NamedTuple):
    """Python code of a page, and the output that stands right below it."""

    name: str
    code: str
    output: str | None


def examples(name: str, text: str) -> list[Example]:
    found = []
    sequence = [*blocks(text), Block("", "", len(text), len(text))]
    for number, (block, following) in enumerate(pairwise(sequence)):
        if block.language == "python":
            below = following.language == "text" and not text[block.end : following.start].strip()
            output = following.text if below else None
            found.append(Example(f"{name} block {number + 1}", block.text, output))
    return found


EXAMPLES = [found for path in PAGES for found in examples(page_id(path), page(page_id(path)))]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_example_prints_what_the_page_says(example: Example, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", example.code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if example.output is not None:
        assert done.stdout == example.output


def test_the_pages_that_promise_an_example_have_one() -> None:
    with_output = {example.name.partition(" ")[0] for example in EXAMPLES if example.output}
    promised = {
        "docs/format.md",
        "docs/format-batch.md",
        "docs/format-storage.md",
        "docs/format-wire.md",
        "docs/internals/append.md",
    }
    assert promised <= with_output


# --- The rules --------------------------------------------------------------------------------

RULES = "docs/rules.md"


def rule_rows() -> list[list[str]]:
    """Rule, where from, where, tests, mutant."""
    return rows(page(RULES), 5)


def test_every_mutant_stands_once_beside_its_rule() -> None:
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
    [("Refusal reasons", list(Refusal)), ("Reported happenings", list(Happening))],
)
def test_reasons_and_happenings_are_all_listed(heading: str, values: list[str]) -> None:
    listed = [row[0].strip("`") for row in rows(section(page(RULES), heading), 2)]
    assert listed == [str(value) for value in values]


def test_every_simulated_fault_is_listed() -> None:
    listed = {name for row in rows(section(page(RULES), "Faults"), 3) for name in names(row[2])}
    assert listed.issuperset({*FAULTS, *NOISES})
    assert listed <= {*FAULTS, *NOISES, *ADVERSARIES}


def test_every_adversary_is_listed() -> None:
    text = section(page("docs/internals/simulator.md"), "Writing an adversary")
    assert sorted(row[0].strip("`") for row in rows(text, 2)) == sorted(ADVERSARIES)


def test_every_bug_of_the_parents_is_listed() -> None:
    listed = names(section(page("docs/divergences.md"), "Bugs of theirs that are tests of ours"))
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
    ("settings", "heading", "columns"),
    [(Limits, "Limits and the answer at each", 4), (Timing, "Times", 3)],
)
def test_every_setting_is_listed_with_its_default(
    settings: type[Limits] | type[Timing], heading: str, columns: int
) -> None:
    text = section(page("docs/internals/engine.md"), heading)
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


# --- Planted mistakes -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "span",
    [
        "raft/nothing.py",
        "raft/core.py::Nothing",
        "raft/core.py::Core.nothing",
        "tests/unit/test_nothing.py",
        "s99-nothing.txt",
        "src/quorate/nothing",
        "test_nothing_of_that_name",
        "no-such-mutant",
        "--no-such-option",
        "no_such_setting",
        "NoSuchClass",
    ],
)
def test_a_name_that_does_not_exist_is_reported(span: str) -> None:
    assert len(unknown_names(f"Look at `{span}` there.")) == 1
    assert unknown_names(f"```text\n`{span}`\n```\n") == []


@pytest.mark.parametrize(
    "span",
    ["raft/core.py", "raft/core.py::Core.step", "double-vote", "window_bytes", "--seeds N", "2 x"],
)
def test_a_name_that_exists_is_not(span: str) -> None:
    assert unknown_names(f"Look at `{span}` there.") == []


@pytest.mark.parametrize("link", ["nowhere.md", "#no-such-heading", "rules.md#nor-this"])
def test_a_link_that_leads_nowhere_is_reported(link: str) -> None:
    text = f"# A heading\n\n[x]({link}) [y](#a-heading) [z](https://raft.github.io/)\n"
    assert len(broken_links(MAP, text)) == 1


def test_an_output_belongs_to_the_code_above_it() -> None:
    text = "```python\na\n```\n\n```text\nb\n```\n\n```python\nc\n```\nand\n```text\nd\n```\n"
    assert [(one.code, one.output) for one in examples("x", text)] == [
        ("a\n", "b\n"),
        ("c\n", None),
    ]
