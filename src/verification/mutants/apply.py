"""Makes a copy of the package with a bug planted in it, and runs the simulator there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import quorate
from verification.mutants.catalogue import MUTANTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from verification.mutants.catalogue import Mutant

__all__ = ["DoesNotApply", "environment", "mutated", "patched", "planted", "rerun_in_mutant"]

PACKAGE = Path(quorate.__file__).parent


class DoesNotApply(Exception):
    """The source no longer has the text that the mutant replaces."""


def planted(mutant: Mutant) -> str:
    """The text of the mutant's file with the bug in it."""
    text = (PACKAGE / mutant.file).read_text()
    if text.count(mutant.find) != 1:
        raise DoesNotApply(
            f"{mutant.name}: {mutant.file} has its text {text.count(mutant.find)} times, not "
            f"once; bring the catalogue in line with the source"
        )
    return text.replace(mutant.find, mutant.replace)


@contextmanager
def _copied(*changing: str) -> Iterator[Path]:
    """A folder that holds ``src/quorate`` as the project's root does; removed at the end.

    Compiled files of Python are copied, but for the files of these names: Python compares time and
    size to find a compiled file out of date, and a bug need not change either.
    """
    with tempfile.TemporaryDirectory(prefix="quorate-mutant-") as folder:
        root = Path(folder)
        names = [f"{Path(name).stem}.*.pyc" for name in changing]
        shutil.copytree(PACKAGE, root / "src" / "quorate", ignore=shutil.ignore_patterns(*names))
        yield root


@contextmanager
def mutated(mutant: Mutant) -> Iterator[Path]:
    """The copy with ``mutant`` in it."""
    text = planted(mutant)
    with _copied(mutant.file) as root:
        (root / "src" / "quorate" / mutant.file).write_text(text)
        yield root


@contextmanager
def patched(patch: Path) -> Iterator[Path]:
    """The copy with a patch from outside applied, as ``git apply -p1`` does at the root."""
    with _copied("*") as root:
        command = ["git", "apply", "-p1", str(patch.resolve())]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise DoesNotApply(f"{patch.name}: {done.stderr.strip() or 'git apply failed'}")
        yield root


def environment(source: Path) -> dict[str, str]:
    """The environment in which Python finds the package below ``source`` first."""
    return {**os.environ, "PYTHONPATH": str(source)}


def rerun_in_mutant(name: str, module: str, arguments: list[str]) -> int:
    """Run ``module`` again with the same arguments, but within the mutant ``name``."""
    known = {mutant.name: mutant for mutant in MUTANTS}
    if name not in known:
        print(f"error: no mutant {name!r}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    kept = _without_option(arguments, "--mutant")
    with mutated(known[name]) as root:
        command = [sys.executable, "-m", module, *kept]
        return subprocess.run(command, env=environment(root / "src"), check=False).returncode


def _without_option(arguments: list[str], option: str) -> list[str]:
    kept = []
    skip = False
    for argument in arguments:
        if skip:
            skip = False
        elif argument == option:
            skip = True
        elif not argument.startswith(f"{option}="):
            kept.append(argument)
    return kept
