"""The contents that the pages of a disk had, and the ways to spoil some of the pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from quorate.storage.layout import BLOCK_BYTES, PAGE

if TYPE_CHECKING:
    from random import Random

    from verification.disk.simulated import SimulatedDisk

    # A file and the start of one of its pages.
    Page = tuple[str, int]

__all__ = ["PageHistory", "Spoilable"]

GARBAGE = b"\xa5" * PAGE
# Old contents are the most: they are whole, each by itself.
KINDS = ("old", "old", "old", "zero", "garbage", "head", "flip")
# How often several pages fall back to their contents at one moment.
TOGETHER = 0.25
# How often the head of the last block rots and the page behind that block falls back.
AT_THE_END = 0.2


class Spoilable(NamedTuple):
    """The pages that a disk may spoil at the end of a life, so that other pages reveal the loss."""

    pages: list[Page]
    votes: list[Page]
    # The pages of the last entry that must be there: few, and the pages behind them may be gone.
    last: tuple[Page, ...] = ()


class PageHistory:
    """The pages of one disk: what they held, and what a rot makes of them."""

    def __init__(self, disk: SimulatedDisk, random: Random) -> None:
        self._disk = disk
        self._random = random
        # The earlier contents of each page, and all pages at each moment.
        self._older: dict[Page, list[bytes]] = {}
        self._moments: list[dict[Page, bytes]] = []

    def remember(self) -> None:
        """Remember the durable content of every page at this moment."""
        moment = {}
        for name, data in self._disk.durable.items():
            for place in range(0, len(data), PAGE):
                page = bytes(data[place : place + PAGE])
                held = self._older.setdefault((name, place), [])
                if any(page):
                    moment[name, place] = page
                    if page not in held:
                        held.append(page)
        self._moments.append(moment)

    def spoil(self, spoilable: Spoilable) -> str:
        """Spoil one page or two of the log, and now and then one of the vote record; return a
        description."""
        if spoilable.votes and self._random.random() < TOGETHER:
            return self._fall_back(spoilable.pages)
        if spoilable.votes and self._random.random() < AT_THE_END:
            return self._rot_at_the_end(spoilable)
        changed = [page for page in spoilable.pages if self._others(*page)]
        # Few pages are headers, and each tells of a whole segment.
        headers = [page for page in changed if page[1] == 0 and page[0].endswith(".segment")]
        drawn = self._random.random()
        pages = changed if changed and drawn < 0.6 else spoilable.pages
        if headers and drawn < 0.2:
            pages = headers
        elif set(spoilable.last) & set(changed) and drawn < 0.5:
            pages = [page for page in spoilable.last if page in changed]
        chosen = self._random.choices(pages, k=self._random.choice((1, 1, 2)))
        if not spoilable.votes:
            del chosen[1:]
        elif self._random.random() < 0.2:
            chosen.append(self._random.choice(spoilable.votes))
        return ", ".join(self._spoil(*page) for page in chosen)

    def _fall_back(self, pages: list[Page]) -> str:
        """Let two or three pages fall back to their contents at one moment, most of them pages of
        headers and of the ends of segments: these describe one another."""
        moment = self._random.choice(self._moments)
        changed = [page for page in pages if moment.get(page, b"") in self._others(*page)]
        count = min(len(changed), self._random.choice((2, 2, 3)))
        edges = [page for page in changed if page[1] == 0 or (page[0], page[1] + PAGE) not in pages]
        chosen = self._random.sample(changed, count)
        if edges and self._random.random() < 0.7:
            chosen[0] = self._random.choice(edges)
        for name, place in chosen:
            self._disk.spoil(name, place, moment[name, place])
        return ", ".join(f"fell back at {place} of {name}" for name, place in chosen)

    def _rot_at_the_end(self, spoilable: Spoilable) -> str:
        """Let the head of the last block rot, and the page behind that block fall back: a page that
        is no part of the log must not prove that block."""
        (name, first), (_, last) = spoilable.last[0], spoilable.last[-1]
        self._disk.spoil(name, first, GARBAGE[:BLOCK_BYTES])
        done, behind = f"head at {first} of {name}", (name, last + PAGE)
        others = self._others(*behind) if behind in spoilable.pages else ()
        if not others:
            return done
        self._disk.spoil(*behind, self._random.choice(others))
        return f"{done}, old at {behind[1]} of {name}"

    def _others(self, name: str, place: int) -> list[bytes]:
        """The earlier contents of the page that differ from the present one."""
        now = bytes(self._disk.files[name].content[place : place + PAGE])
        return [page for page in self._older.get((name, place), ()) if page != now]

    def _spoil(self, name: str, place: int) -> str:
        content = self._disk.files[name].content
        kind, other = self._random.choice(KINDS), self._others(name, place)
        if kind == "old" and other:
            data = self._random.choice(other)
        elif kind in ("old", "zero"):
            data = bytes(PAGE)
        elif kind == "flip":
            place += self._random.randrange(min(PAGE, len(content) - place))
            data = bytes([content[place] ^ 1 << self._random.randrange(8)])
        else:
            data = GARBAGE if kind == "garbage" else GARBAGE[:BLOCK_BYTES]
        self._disk.spoil(name, place, data[: len(content) - place])
        return f"{kind} at {place} of {name}"
