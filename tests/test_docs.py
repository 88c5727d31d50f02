"""The pages are true in their details: names exist, links lead somewhere, examples run.

The checkers take a page's text, so the end of this file can try them on planted mistakes.
"""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import pytest

from pages_rig import (
    DOCS,
    PAGES,
    ROOT,
    SCENARIOS,
    SOURCE,
    SRC,
    TESTS,
    Block,
    blocks,
    broken_rules,
    definitions,
    known_tests,
    page,
    page_id,
    prose,
    source_words,
    spans,
)
from quorate.raft.output import EventKind, Refusal
from verification.mutants.catalogue import MUTANTS

if TYPE_CHECKING:
    from pathlib import Path

MAP = DOCS / "README.md"

# Where a file that a page names may be.
ROOTS = (ROOT, SRC, SOURCE, TESTS, SCENARIOS)
# Made by the simulator, so not there unless something failed.
GENERATED = "sim-failures/"
# Words with hyphens that are names of other things.
FOREIGN = {"google-crc32c"}
# Files and folders; a folder ends with a slash.
_PLACE = re.compile(r"[\w./-]+\.(py|txt|md|toml)|[\w.-]+(/[\w.-]+)*/|(src|tests|docs)/[\w./-]+")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


@cache
def hyphenated() -> frozenset[str]:
    mutants = {mutant.name for mutant in MUTANTS}
    rules = broken_rules("sim") | broken_rules("fleet")
    return frozenset({*mutants, *Refusal, *EventKind, *rules, *FOREIGN})


# --- Names in a page --------------------------------------------------------------------------


def unknown_names(text: str) -> list[str]:
    """What a page names between backticks and does not exist."""
    return [f"`{span}`: {problem}" for span in spans(text) if (problem := _problem(span))]


def _problem(span: str) -> str | None:
    path, colons, symbol = span.partition("::")
    if span.startswith(GENERATED):
        return None
    if colons or _PLACE.fullmatch(path):
        return _path_problem(path, symbol)
    if re.fullmatch(r"test_\w+", span):
        return None if span in known_tests() else "no such test"
    if re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", span):
        return None if span in hyphenated() else "neither a mutant nor a reason, event or rule"
    if re.match(r"--[a-z]", span):
        options = re.findall(r"--[a-z-]+", span)
        return None if source_words().issuperset(options) else "no such option"
    if re.fullmatch(r"_\w+|[a-z]\w*_\w*(\.\w+)*|[A-Z]\w+[a-z]\w*(\.\w+)*", span):
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


# --- Lines of a node's log --------------------------------------------------------------------

_LINE = re.compile(r"^(?:time=\S+ )?level=\w+ node=\w+ from=(\S+) ", re.MULTILINE)


def strange_loggers(text: str) -> list[str]:
    """The loggers in the lines of a page that no module has: operators filter by them."""
    return [name for name in _LINE.findall(text) if not _logs(name)]


def _logs(name: str) -> bool:
    module = SOURCE / f"{name.replace('.', '/')}.py"
    return module.exists() and "getLogger(__name__)" in module.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", PAGES, ids=page_id)
def test_lines_of_a_log_come_from_a_module_that_logs(path: Path) -> None:
    assert strange_loggers(path.read_text(encoding="utf-8")) == []


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
        "docs/internals/micro-batch.md",
    }
    assert promised <= with_output


# --- Planted mistakes -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "span",
    [
        "raft/nothing.py",
        "raft/core.py::Nothing",
        "raft/core.py::Core.nothing",
        "tests/raft/test_nothing.py",
        "s99-nothing.txt",
        "src/quorate/nothing",
        "nothing/",
        "raft/core.py::_NOTHING",
        "_nothing",
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
    [
        *("raft/core.py", "raft/core.py::Core.step", "raft/", "server/sessions/"),
        *("double-vote", "window_bytes", "--seeds N", "2 x"),
    ],
)
def test_a_name_that_exists_is_not(span: str) -> None:
    assert unknown_names(f"Look at `{span}` there.") == []


@pytest.mark.parametrize("name", ["server.nothing", "raft.core"])
def test_a_line_of_a_module_that_does_not_log_is_reported(name: str) -> None:
    lines = (f"level=info node=n1 from={one} event=x" for one in (name, "server.node"))
    text = "\n".join(lines)
    assert strange_loggers(text) == [name]


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
