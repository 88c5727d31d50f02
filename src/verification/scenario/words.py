"""The words of a command line: nodes, links, message kinds, options, times and ranges."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from quorate.raft.messages import Message
from verification.scenario.parser import ScenarioError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from quorate.raft.messages import Envelope

__all__ = [
    "Selection",
    "duration_ms",
    "expand",
    "kind_of",
    "links",
    "options",
    "selection",
    "whole",
]

ANY = "*"
_DURATION = re.compile(r"(\d+)(ms|s)")
_RANGE = re.compile(r"(\D*)(\d+)\.\.(\D*)(\d+)")
_LINK = re.compile(r"(\w+|\*)(->|--)(\w+|\*)")


def _kebab(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower()


KINDS: dict[str, type] = {_kebab(kind.__name__): kind for kind in get_args(Message)}
_KIND_NAMES = {kind: name for name, kind in KINDS.items()}


def kind_of(envelope: Envelope) -> str:
    """The name of a message in scenario files: ``pre-vote-reply`` for PreVoteReply."""
    return _KIND_NAMES[type(envelope.message)]


def whole(word: str) -> int:
    if not word.isdecimal():
        raise ScenarioError(f"{word!r} is not a whole number")
    return int(word)


def duration_ms(word: str) -> int:
    """``300ms`` or ``2s``."""
    found = _DURATION.fullmatch(word)
    if found is None:
        raise ScenarioError(f"{word!r} is not a time such as 300ms or 2s")
    return int(found[1]) * (1000 if found[2] == "s" else 1)


def expand(words: Iterable[str]) -> list[str]:
    """``a1..a3`` stands for ``a1 a2 a3``."""
    expanded: list[str] = []
    for word in words:
        found = _RANGE.fullmatch(word)
        if found is not None and found[1] == found[3]:
            numbers = range(int(found[2]), int(found[4]) + 1)
            expanded.extend(f"{found[1]}{number}" for number in numbers)
        else:
            expanded.append(word)
    return expanded


def options(words: Sequence[str], allowed: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """Split ``key=value`` words off; a key that is not ``allowed`` is an error."""
    known = set(allowed)
    plain: list[str] = []
    found: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            plain.append(word)
        elif key in known:
            found[key] = value
        else:
            raise ScenarioError(f"unknown option {key}=; known: {', '.join(sorted(known))}")
    return plain, found


def links(words: Iterable[str], nodes: Sequence[str]) -> list[tuple[str, str]]:
    """``n1->n2`` is one direction, ``n1--n2`` both; ``*`` stands for every other node."""
    found: list[tuple[str, str]] = []
    for word in words:
        match = _LINK.fullmatch(word)
        if match is None:
            raise ScenarioError(f"{word!r} is not a link such as n1->n2 or n1--n2")
        for source in nodes if match[1] == ANY else [match[1]]:
            for target in nodes if match[3] == ANY else [match[3]]:
                if source != target:
                    found.append((source, target))
                    if match[2] == "--":
                        found.append((target, source))
    unknown = {name for link in found for name in link} - set(nodes)
    if unknown:
        raise ScenarioError(f"unknown node {', '.join(sorted(unknown))}")
    return found


@dataclass(frozen=True, slots=True)
class Selection:
    """The messages that a command selects. A field that is empty or None selects every message."""

    links: frozenset[tuple[str, str]]
    kinds: frozenset[str]
    term: int | None

    def __call__(self, envelope: Envelope) -> bool:
        if self.links and (envelope.source, envelope.target) not in self.links:
            return False
        if self.kinds and kind_of(envelope) not in self.kinds:
            return False
        return self.term is None or envelope.message.term == self.term


def selection(words: Sequence[str], nodes: Sequence[str], term: str | None = None) -> Selection:
    """``n1->n2 append ack``: messages of these kinds on these links."""
    kinds = [word for word in words if word in KINDS]
    others = [word for word in words if word not in KINDS]
    strange = [word for word in others if _LINK.fullmatch(word) is None]
    if strange:
        raise ScenarioError(
            f"{strange[0]!r} is neither a link such as n1->n2 nor one of: {', '.join(KINDS)}"
        )
    chosen = links(others, nodes)
    return Selection(frozenset(chosen), frozenset(kinds), None if term is None else whole(term))
