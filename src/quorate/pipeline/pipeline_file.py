"""The loader of a pipeline from its file: Python with ``@pipeline``, or TOML with SQL."""

from __future__ import annotations

import importlib.util
import sys
import tomllib
import traceback
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING

from quorate.errors import InvalidArgument, QuorateError
from quorate.pipeline.definition import Pipeline, from_table

if TYPE_CHECKING:
    from types import CodeType, ModuleType

__all__ = ["NeedsSession", "load"]


class NeedsSession(Exception):
    """The file calls Spark while it is loaded, as ``@udf("string")`` does, and needs a session."""


def load(file: Path) -> Pipeline:
    """The one pipeline of ``file``. Raises InvalidArgument that names the line at fault, or
    NeedsSession: then the file can be loaded once there is a session."""
    if not file.is_file():
        what = "is a directory" if file.is_dir() else "does not exist"
        raise InvalidArgument(
            f"{file} {what}; `quorate pipeline init NAME` writes a file to begin with"
        )
    if file.suffix == ".toml":
        return _from_toml(file)
    if file.suffix == ".py":
        return _from_python(file)
    raise InvalidArgument(f"{file} is neither .py nor .toml")


def _from_toml(file: Path) -> Pipeline:
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
        return from_table(file.stem, table)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{file}: {error}") from None
    except InvalidArgument as error:
        raise InvalidArgument(f"{file}: {error}") from None


def _from_python(file: Path) -> Pipeline:
    module = _run(file)
    found = {id(item): item for item in vars(module).values() if isinstance(item, Pipeline)}
    if len(found) == 1:
        [only] = found.values()
        return only
    if not found:
        raise InvalidArgument(f"{file} has no function with @pipeline(…) before it")
    names = ", ".join(sorted(item.name for item in found.values()))
    raise InvalidArgument(f"{file} has {len(found)} pipelines: {names}; a file has one")


class _AsItStands(SourceFileLoader):
    """A loader that reads the file each time. Python takes its compiled copy for current if the
    size of the file and the second of its last change are the same: after a fast edit the old code
    would run."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _run(file: Path) -> ModuleType:
    # A name that no other module has; functions of the module travel to workers by value.
    name = f"_pipeline_{file.stem}"
    loader = _AsItStands(name, str(file))
    spec = importlib.util.spec_from_file_location(name, file, loader=loader)
    assert spec is not None and spec.loader is not None  # for the type checker: it ends in .py
    module = importlib.util.module_from_spec(spec)
    # As if Python ran the file: modules beside it can be imported.
    beside = str(file.absolute().parent)
    if beside not in sys.path:
        sys.path.insert(0, beside)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise InvalidArgument(f"{error.filename}, line {error.lineno}: {error.msg}") from error
    except QuorateError as error:
        raise type(error)(f"{file}, line {_line(error, file)}: {error}") from error
    except Exception as error:
        if "SESSION_OR_CONTEXT_NOT_EXISTS" in str(error):
            raise NeedsSession from error
        told = f"{type(error).__name__}: {error}"
        raise InvalidArgument(f"{file}, line {_line(error, file)}: {told}") from error
    return module


def _line(error: BaseException, file: Path) -> int:
    """The line of ``file`` that was being run when ``error`` was raised; 1 if none was."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [one.lineno for one in frames if Path(one.filename) == file and one.lineno is not None]
    return lines[-1] if lines else 1
