"""The format of a node's log: one line of ``key=value`` per event, on the standard error.

A call passes words and keys, such as ``"leader changed log=%s term=%d"``. A value with blanks,
quotes or characters that cannot be printed is quoted here: no value begins a line of its own.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time

__all__ = ["LineFormatter", "log_to_stderr"]

_PLAIN = re.compile(r"[^\s\"'=]+")
_SLOT = re.compile(r"=%\w")
# The words of a message, then its keys.
_SHAPE = re.compile(r"(.*?)((?: \w+=%\w)*)", re.DOTALL)


class LineFormatter(logging.Formatter):
    """``time=… level=info node=n1 from=server.node event="…" …``, then a traceback if any."""

    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = (
            f"time={moment}.{int(record.msecs):03d}Z level={record.levelname.lower()} "
            f"node={self._node} from={record.name.removeprefix('quorate.')} {_event(record)}"
        )
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def _event(record: logging.LogRecord) -> str:
    shape = _SHAPE.fullmatch(str(record.msg))
    words, keys = shape.groups() if shape else ("", "")
    if not isinstance(record.args, tuple) or keys.count("%") != len(record.args):
        return f"event={_quoted(record.getMessage())}"
    slots = _SLOT.findall(keys)
    values = tuple(
        _quoted(slot.removeprefix("=") % value)
        for slot, value in zip(slots, record.args, strict=True)
    )
    return f"event={_quoted(words)}{_SLOT.sub('=%s', keys) % values}"


def _quoted(text: str) -> str:
    if text.isprintable():
        return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)
    # Some characters that cannot be printed end a line or control a terminal.
    return json.dumps(text)


def log_to_stderr(node: str, level: int = logging.INFO) -> None:
    """Write all log messages of this process to its standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(node))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)
