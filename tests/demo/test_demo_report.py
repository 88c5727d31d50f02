"""The page about a run: whole, alone, and the same for the same run."""

from __future__ import annotations

import copy
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

from demo_rig import DOCUMENT

from quorate.demo.charts import Line, Mark, chart
from quorate.demo.report import render

VOID = {"meta"}


class Outline(HTMLParser):
    """Notes which elements are open, and all text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_the_same_run_gives_the_same_page() -> None:
    page = render(copy.deepcopy(DOCUMENT))
    assert page == render(copy.deepcopy(DOCUMENT))
    outline = Outline()
    outline.feed(page)
    outline.close()
    assert outline.open == []
    text = " ".join(outline.text)
    for shown in ("690", "412 ms", "20,000", "60", "records <in> paid", "n1 & n2 & n3", "Spark 4"):
        assert shown in text, shown
    assert "all 2 checks passed" in text


def test_the_page_needs_nothing_else() -> None:
    page = render(DOCUMENT)
    assert re.findall(r"(?:src|href|url)\s*[=(]|@import|https?://|<script", page) == []


def test_what_differs_is_on_the_page() -> None:
    document = copy.deepcopy(DOCUMENT)
    document["checks"][0] |= {"found": 3, "kept": False}
    page = render(document)
    assert "1 of 2 checks failed" in page
    assert page.count("✗") == 1


def test_kills_and_gaps_are_drawn() -> None:
    points = [(0.0, 5.0), (1.0, None), (2.0, 7.0), (3.0, 7.0), (4.0, 7.0)]
    marks = [Mark(1.0, "kill a"), Mark(1.1, "kill b")]
    drawn = ElementTree.fromstring(
        chart("a title", [Line("n1", "node1", points)], marks, width=400, height=200)
    )
    lines = [one for one in drawn.iter("path") if one.get("class") == "line node1"]
    assert [str(one.get("d")).count("L") for one in lines] == [0, 1]
    labels = [one for one in drawn.iter("text") if one.get("class") == "label"]
    assert [one.text for one in labels] == ["kill a", "kill b"]
    # They would run into each other side by side.
    assert labels[0].get("y") != labels[1].get("y")


def test_a_run_without_samples_has_a_page() -> None:
    assert "Orders per second" in render({**DOCUMENT, "samples": [], "kills": []})
