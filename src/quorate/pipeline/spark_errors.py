"""The errors of Spark in one line: each carries the error that matters somewhere inside.

A task's error comes back as text, wrapped by the worker, the task, the stage, the job and the
query, with a trace at each step. Errors of this package are recognised by their class and code.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from quorate.errors import InvalidArgument, QuorateError, SparkFailed, error_for

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["plain_errors"]

# The condition of which only the first sentence is about the query; the rest is about catalogs.
NO_TABLE = "TABLE_OR_VIEW_NOT_FOUND"
# The most characters of an error that was not written to be read in one line.
TEXT_MAX = 500

_OURS = re.compile(r"quorate\.errors\.\w+: ([A-Z][A-Z_]+): (.+)")
# An error that an expression raised: it begins with a code of this package.
_RAISED = re.compile(r"\[USER_RAISED_EXCEPTION\] ([A-Z][A-Z_]+): (.+)")
_TRACEBACK = "Traceback (most recent call last):"
# The end of a Python traceback: the class of the error, and its message.
_PYTHON = re.compile(r"^((?:[A-Za-z_]\w*\.)*[A-Z]\w*)(?:: (.*))?$", re.MULTILINE)
# The lines of a traceback, of which the last is the nearest to the error.
_LINE = re.compile(r'^  File "([^"]+)", line (\d+)', re.MULTILINE)
# Spark's own name of an error, and the end of the sentence that follows it.
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_.]+)\] ")
_SENTENCE_END = re.compile(r"\s*SQLSTATE: \w+|\n\n|\n\tat ")
# The exceptions of Java: the first has wrapped those below it.
_JAVA = re.compile(
    r"^(?:: |Caused by: )?(?:[a-z]\w*\.)+([A-Z][\w$]*(?:Exception|Error))(?:: (.+))?$", re.MULTILINE
)
_CALLED = re.compile(r"An error occurred while calling \S+\.")
# A wrong header of a CSV file, which is somewhere below an error that does not mention it.
_HEADER = re.compile(
    r"Expected: (?P<meant>.*) but found: (?P<found>.*)\s+CSV file: (?P<file>\S+)|"
    r"Header length: (?P<length>\d+), schema size: (?P<size>\d+)\s+CSV file: (?P<other>\S+)"
)
# Names that were perhaps meant: names that are internal to this package are no help.
_MEANT = re.compile(r" Did you mean one of the following\? \[([^\]]*)\]\.")
_INTERNAL = re.compile(r"`_(?!source`)")
# Conditions that only tell of a failure; the reason comes later in the text.
_WRAPPERS = ("STREAM_FAILED", "FAILED_EXECUTE_UDF", "PYTHON_DATA_SOURCE_ERROR", "PYTHON_EXCEPTION")


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn an error that Spark raises inside into an error of this package, with its own code."""
    try:
        yield
    except Exception as error:
        if not _of_spark(error):
            raise
        raise _plain(_whole_text(error)) from error


def _of_spark(error: Exception) -> bool:
    """True if Spark raised ``error``, judged by the names of its classes: the classes themselves
    cannot be loaded where there is no Spark."""
    packages = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return not packages.isdisjoint({"py4j", "pyspark"})


def _whole_text(error: Exception) -> str:
    """The text of ``error``, with the causes that Spark leaves out of it."""
    told = [str(error)]
    trace = getattr(error, "_stackTrace", None)
    if isinstance(trace, str):
        told.append(trace)
    return "\n".join(told)


def _plain(text: str) -> QuorateError:
    if ours := _OURS.findall(text):
        return error_for(*_trimmed(*ours[-1]))
    if raised := _RAISED.search(text):
        return error_for(*_trimmed(*raised.groups()))
    if _TRACEBACK in text:
        return SparkFailed(_from_traceback(text.rpartition(_TRACEBACK)[2]))
    if header := _HEADER.search(text):
        return InvalidArgument(_of_header(header.groupdict()))
    for found in _CONDITION.finditer(text):
        if found[1] not in _WRAPPERS:
            sentence = _SENTENCE_END.split(text[found.end() :], maxsplit=1)[0]
            if found[1] == NO_TABLE:
                sentence = f"{sentence.partition('. ')[0]}."
            return SparkFailed(_shortened(f"{found[1]}: {_MEANT.sub(_meant, sentence)}"))
    first = text.strip().partition("\n")[0]
    if _CALLED.match(first) and (causes := _JAVA.findall(text)):
        first = ": ".join(filter(None, causes[-1]))
    return SparkFailed(_shortened(first))


def _of_header(found: dict[str, str | None]) -> str:
    """The message about a file whose header differs from that of the first file, or from the
    schema."""
    if found["file"] is not None:
        return f"{found['file']}: the header has {found['found']} in place of {found['meant']}"
    return f"{found['other']}: the header has {found['length']} columns in place of {found['size']}"


def _meant(found: re.Match[str]) -> str:
    names = [name for name in found[1].split(", ") if not _INTERNAL.match(name)]
    return f" Did you mean one of the following? [{', '.join(names)}]." if names else ""


def _trimmed(code: str, message: str) -> tuple[str, str]:
    return code, re.sub(r"\s*SQLSTATE: \w+\s*$", "", message).strip()


def _from_traceback(text: str) -> str:
    """The error of a Python traceback, and the line that raised it."""
    raised = _PYTHON.search(text)
    if raised is None:
        return _shortened(text.strip().partition("\n")[0])
    kind, said = raised.groups()
    message = f"{kind.rpartition('.')[2]}: {said}" if said else kind
    lines = _LINE.findall(text[: raised.start()])
    if lines:
        file, number = lines[-1]
        message = f"{message} ({file}, line {number})"
    return _shortened(message)


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= TEXT_MAX else f"{line[:TEXT_MAX]}…"
