"""The pages about the client say what is there, and their examples run."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

import quorate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dev_rig import DevCluster

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
QUICKSTART = "quickstart.md"
GUIDES = ("guides/client.md", "guides/producer.md", "guides/reading.md")

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# The nodes as the pages name them.
_ADDRESS = re.compile(r"127\.0\.0\.1:740(\d)")


class Block(NamedTuple):
    language: str
    text: str


def blocks(page: str) -> list[Block]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return [Block(found[1], found[2]) for found in _FENCE.finditer(text)]


def as_here(text: str, cluster: DevCluster) -> str:
    """With the addresses of ``cluster``, for those that stand in the pages."""
    addresses = cluster.endpoints.split(",")
    return _ADDRESS.sub(lambda found: addresses[int(found[1]) - 1], text)


def matches(expected: str, found: str) -> bool:
    """Whether they are the same but for blanks; an ellipsis stands for anything."""
    parts = [re.escape(" ".join(part.split())) for part in expected.split("…")]
    return re.fullmatch(".*".join(parts), " ".join(found.split())) is not None


# -- examples ------------------------------------------------------------------------------------


def run_commands(block: Block, cluster: DevCluster) -> None:
    """Every command of a console block, and what stands below it."""
    here = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"QUORATE_ENDPOINTS": cluster.endpoints, "PATH": here}
    for part in block.text.split("$ ")[1:]:
        command, _, expected = part.partition("\n")
        done = subprocess.run(
            command, shell=True, capture_output=True, text=True, env=environment, check=True
        )
        assert matches(as_here(expected, cluster), done.stdout), f"{command}\n{done.stdout}"


@pytest.fixture
def orders(cluster: DevCluster) -> Iterator[None]:
    """The log of the pages, new for each of them."""
    with cluster.client() as client:
        client.create_log("orders")
        yield
        client.delete_log("orders")


@pytest.mark.usefixtures("orders")
def test_the_quickstart_runs(cluster: DevCluster) -> None:
    first, *rest = blocks(QUICKSTART)
    assert first.text.startswith("$ quorate dev --log orders\nready "), "that is running already"
    run_page(rest, cluster)


@pytest.mark.usefixtures("orders")
def test_the_quickstart_of_the_readme_runs(cluster: DevCluster) -> None:
    page = blocks("../README.md")
    running = "$ quorate dev --log orders\nready "
    begin = next(number for number, one in enumerate(page) if one.text.startswith(running))
    run_page(page[begin + 1 : begin + 4], cluster)


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize("page", GUIDES)
def test_the_guides_run(cluster: DevCluster, page: str) -> None:
    run_page(blocks(page), cluster)


def run_page(page: list[Block], cluster: DevCluster) -> None:
    """One block after the other: Python shares its names; text is what Python printed."""
    names: dict[str, object] = {}
    printed = ""
    ran = 0
    for block in page:
        if block.language == "console":
            run_commands(block, cluster)
        elif block.language == "py":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(as_here(block.text, cluster), names)
            printed = out.getvalue()
        elif block.language == "text":
            assert printed == block.text
        ran += 1
    assert ran >= 3


@pytest.mark.parametrize(
    ("expected", "found", "same"),
    [("a …\nb", "a 1 2\nb", True), ("a", "b", False), ("a  b", "a b\n", True), ("", "a", False)],
)
def test_the_checker_can_fail(expected: str, found: str, same: bool) -> None:
    assert matches(expected, found) is same


# -- reference -----------------------------------------------------------------------------------


def test_every_public_name_is_in_the_reference() -> None:
    text = (DOCS / "reference/python.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"`(?:quorate\.)?(\w+)", text))
    assert listed.issuperset(set(quorate.__all__) - {"__version__"})
    for kind in (quorate.Client, quorate.Log, quorate.Producer, quorate.Delivery):
        methods = {name for name in vars(kind) if not name.startswith("_")}
        assert listed >= methods, kind.__name__


@pytest.mark.parametrize("pair", ["Client", "Log", "Producer"])
def test_both_clients_have_the_same_methods(pair: str) -> None:
    def public(kind: type) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")}

    # A thread that does not want to wait for its appends has a producer.
    only_async = {"submit"} if pair == "Log" else set()
    assert public(getattr(quorate, pair)) | only_async == public(getattr(quorate, f"Async{pair}"))


def test_the_package_lists_its_names() -> None:
    assert sorted(quorate.__all__) == sorted({*quorate.__all__})
    for name in quorate.__all__:
        assert getattr(quorate, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Kafka'"):
        getattr(quorate, "Kafka")  # noqa: B009  # an attribute would not pass the type checker
