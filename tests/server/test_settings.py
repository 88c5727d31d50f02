"""NODE.toml, variables and flags: what each may say, which wins, and how a mistake is named."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from quorate.config import Config, Limits, NetworkLimits, Server, Storage, Timing
from quorate.errors import InvalidArgument
from quorate.server.settings import KEYS, RECORD_BYTES, RECORD_BYTES_MAX, Key, load_settings

if TYPE_CHECKING:
    from quorate.server.settings import Settings

LEAST = '[node]\nid = "n1"\ndata_dir = "data"\n[cluster]\nid = "shop"\n'
NODES = '[cluster.nodes]\nn1 = "127.0.0.1:7401"\nn2 = "127.0.0.1:7402"\n'
FULL = """\
[node]
id = "n1"
data_dir = "/var/lib/quorate"
listen = "0.0.0.0:7401"
advertise = "n1.example:7401"
http = "127.0.0.1:7501"
insecure = true

[cluster]
id = "shop"

[cluster.nodes]
n1 = "n1.example:7401"
n2 = "n2.example:7401"

[dial]
n2 = "127.0.0.1:9402"

[limits]
record_bytes = 1000
batch_bytes = 2000
pending_appends = 3000
pending_bytes = 4000
connections = 5

[timing]
heartbeat_ms = 50
election_ms = 500

[storage]
segment_bytes = 1000000
disk_usage_max = 90
"""


def key(place: str) -> Key:
    [found] = [one for one in KEYS if one.place == place]
    return found


def load(
    tmp_path: Path,
    text: str,
    flags: dict[str, str] | None = None,
    environment: dict[str, str] | None = None,
) -> Settings:
    path = tmp_path / "NODE.toml"
    path.write_text(text, encoding="utf-8")
    given = {key(place): value for place, value in (flags or {}).items()}
    return load_settings(path, given, environment or {})


def test_everything_can_be_said_in_the_file(tmp_path: Path) -> None:
    settings = load(tmp_path, FULL)
    assert (settings.node, settings.cluster) == ("n1", "shop")
    assert str(settings.data_dir) == "/var/lib/quorate"
    assert (settings.listen, settings.http) == ("0.0.0.0:7401", "127.0.0.1:7501")
    assert settings.advertise == "n1.example:7401"
    assert settings.nodes == {"n1": "n1.example:7401", "n2": "n2.example:7401"}
    assert settings.dial == {"n2": "127.0.0.1:9402"}
    limits = settings.config.limits
    assert (settings.record_bytes, limits.batch_bytes) == (1000, 2000)
    assert (limits.pending_appends, limits.pending_bytes) == (3000, 4000)
    server = settings.server
    assert (server.client_appends, server.client_append_bytes) == (3000, 4000)
    assert settings.network.connections == 5
    assert (settings.config.timing.heartbeat_ms, settings.config.timing.election_ms) == (50, 500)
    storage = settings.config.storage
    assert (storage.segment_bytes, storage.disk_usage_max) == (1_000_000, 90)


def test_the_least_that_must_be_said(tmp_path: Path) -> None:
    settings = load(tmp_path, LEAST)
    assert settings.config == Config()
    assert settings.network == NetworkLimits()
    assert settings.server == Server()
    assert settings.record_bytes == RECORD_BYTES
    assert (settings.nodes, settings.dial) == ({}, {})
    assert (settings.listen, settings.http, settings.insecure) == (None, None, False)


def test_data_is_found_beside_the_file(tmp_path: Path) -> None:
    assert load(tmp_path, LEAST).data_dir == tmp_path / "data"


def test_a_node_listens_at_its_address_unless_told_otherwise(tmp_path: Path) -> None:
    assert load(tmp_path, LEAST + NODES).listen == "127.0.0.1:7401"


def test_names_follow_from_the_place_in_the_file() -> None:
    listen = key("[node] listen")
    assert (listen.flag, listen.variable) == ("--node-listen", "QUORATE_NODE_LISTEN")
    segment = key("[storage] segment_bytes")
    assert (segment.flag, segment.variable) == (
        "--storage-segment-bytes",
        "QUORATE_STORAGE_SEGMENT_BYTES",
    )
    nodes = key("[cluster.nodes]")
    assert (nodes.flag, nodes.variable) == ("--cluster-nodes", "QUORATE_CLUSTER_NODES")
    assert len({one.flag for one in KEYS}) == len({one.variable for one in KEYS}) == len(KEYS)


def test_a_flag_wins_over_a_variable_which_wins_over_the_file(tmp_path: Path) -> None:
    text = LEAST + "[timing]\nheartbeat_ms = 1\nelection_ms = 1000\n"
    variable = {"QUORATE_TIMING_HEARTBEAT_MS": "2"}
    assert load(tmp_path, text).config.timing.heartbeat_ms == 1
    assert load(tmp_path, text, None, variable).config.timing.heartbeat_ms == 2
    flag = {"[timing] heartbeat_ms": "3"}
    assert load(tmp_path, text, flag, variable).config.timing.heartbeat_ms == 3


@pytest.mark.parametrize("one", KEYS, ids=lambda one: one.flag)
def test_every_key_is_a_variable_and_a_flag(one: Key, tmp_path: Path) -> None:
    values = {
        "[node] insecure": "true",
        "[cluster.nodes]": "n1=127.0.0.1:1,n2=127.0.0.1:2",
        "[dial]": "n2=127.0.0.1:3",
        "[timing] election_ms": "777",
        "[storage] segment_bytes": "33554432",
        "[limits] batch_bytes": "77777",
        "[limits] pending_bytes": "77777777",
    }
    text = values.get(one.place, "127.0.0.1:77" if one.kind.noun == "a text" else "77")
    if one.place.endswith(" id"):
        text = "n77"
    if one.name.endswith(("_expiry_ms", "_idle_ms")):
        text = "7777"
    for flags, environment in (({one.place: text}, {}), ({}, {one.variable: text})):
        changed = load(tmp_path, LEAST, flags, environment)
        assert changed != load(tmp_path, LEAST)


MISTAKES = [
    ("[nodes]\n", "[nodes] is not known; did you mean node?"),
    ("[colours]\n", "[colours] is not known; there are cluster, dial, limits, node, storage, tim"),
    (LEAST + 'listn = "x"\n', "[cluster] listn is not known; there are id"),
    ('[node]\nlistn = "x"\n', "[node] listn is not known; did you mean listen?"),
    ("[limits]\nbatch_byte = 1\n", "[limits] batch_byte is not known; did you mean batch_bytes?"),
    ("node = 1\n", "[node] is not a table"),
    ("[cluster]\nnodes = 1\n", "[cluster.nodes] = 1 is not a list of ID=HOST:PORT"),
    ("[dial]\nn2 = 1\n", "[dial] = {'n2': 1} is not a list of ID=HOST:PORT"),
    ('[node]\ninsecure = "yes"\n', "[node] insecure = 'yes' is not true or false"),
    ("[limits]\nconnections = true\n", "[limits] connections = True is not a whole number"),
    ("[node]\nid = 1\n", "[node] id = 1 is not a text"),
    ("[node\n", "Expected ']'"),
    ('[node]\nid = "n1"\n[cluster]\nid = "c"\n', "[node] data_dir is missing"),
    ('[node]\ndata_dir = "d"\n[cluster]\nid = "c"\n', "[node] id is missing"),
    ('[node]\ndata_dir = "d"\nid = "n1"\n', "[cluster] id is missing"),
    (LEAST.replace("n1", "n9") + NODES, "[node] id names n9, and [cluster.nodes] does not"),
    (LEAST + NODES + '[dial]\nn7 = "h:1"\n', "[dial] names n7, and [cluster.nodes] does not"),
    ('[node]\ndata_dir = ""\nid = "n1"\n[cluster]\nid = "c"\n', "[node] data_dir is missing"),
    (LEAST.replace('"data"', r'"a\u0000b"'), "[node] data_dir has a NUL in it"),
    (LEAST.replace("shop", "our shop"), "[cluster] id 'our shop' must be 1 to 64 letters, digits"),
    (LEAST.replace("n1", r"\n"), r"[node] id '\n' must be 1 to 64 letters, digits"),
    ("[node]\nid = " + "[" * 2000 + "]" * 2000, "a value is nested too deeply"),
    (LEAST + f"[limits]\nconnections = {'9' * 5000}\n", "Exceeds the limit"),
    (
        LEAST + "[limits]\nconnections = 0\n",
        "limits.connections = 0 is not a whole number between 1",
    ),
    (LEAST + f'[dial]\nn2 = "h:{"1" * 5000}"\n', "[dial] n2: address 'h:111"),
    (LEAST + '[dial]\n"a b" = "h:1"\n', "[dial] 'a b' must be 1 to 64 letters, digits"),
    (LEAST + '[dial]\nn2 = "a b:1"\n', "[dial] n2: address 'a b:1' is not HOST:PORT"),
    (LEAST + '[dial]\nn2 = "host"\n', "[dial] n2: address 'host' is not HOST:PORT"),
    (
        LEAST + "[cluster.nodes]\n" + "".join(f'n{one} = "h:{one}"\n' for one in range(1, 9)),
        "[cluster.nodes] has 8 nodes, limit 7",
    ),
    (LEAST + "[limits]\nrecord_bytes = 0\n", "limits.record_bytes = 0 is not a whole number betw"),
    (LEAST + "[timing]\nelection_ms = 5\n", "timing.election_ms = 5 is not a whole number betw"),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES)
def test_a_mistake_is_named_with_its_place(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument) as refused:
        load(tmp_path, text)
    assert str(refused.value).startswith(f"{tmp_path / 'NODE.toml'}: {message}")


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"other\.toml: No such file"):
        load_settings(tmp_path / "other.toml", {}, {})


@pytest.mark.parametrize(
    ("place", "text", "message"),
    [
        ("[limits] connections", "many", "--limits-connections=many is not a whole number"),
        ("[node] insecure", "maybe", "--node-insecure=maybe is not true or false"),
        ("[dial]", "127.0.0.1:7401", "--dial=127.0.0.1:7401 is not a list of ID=HOST:PORT"),
    ],
)
def test_a_flag_that_cannot_be_read_is_named(
    place: str, text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        load(tmp_path, LEAST, {place: text})
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("place", "text", "what"),
    [
        ("[node] listen", "nowhere", "[node] listen: address"),
        ("[timing] heartbeat_ms", "0", "timing.heartbeat_ms = 0"),
        ("[node] id", "n9", "[node] id names n9"),
    ],
)
def test_a_flag_is_blamed_for_itself_and_not_on_the_file(
    place: str, text: str, what: str, tmp_path: Path
) -> None:
    others = {"[limits] connections": "7"}
    with pytest.raises(InvalidArgument) as refused:
        load(tmp_path, LEAST + NODES, others | {place: text})
    assert str(refused.value).startswith(f"{key(place).flag}: {what}")
    with pytest.raises(InvalidArgument) as refused:
        load(tmp_path, LEAST + "[limits]\nbatch_bytes = 0\n", others)
    assert ".toml: limits.batch_bytes = 0 " in str(refused.value)


def test_as_many_clients_as_are_said_may_come_from_one_address(tmp_path: Path) -> None:
    assert load(tmp_path, LEAST).network == NetworkLimits()
    network = load(tmp_path, LEAST + "[limits]\nconnections = 9000\n").network
    assert (network.connections, network.connections_per_address) == (9000, 9000)


@pytest.mark.parametrize("name", ["listen", "http"])
@pytest.mark.parametrize("address", ["0.0.0.0:7401", "192.168.0.1:7401", "[::]:7401", "host:7401"])
def test_other_machines_are_listened_to_only_if_that_is_said(
    name: str, address: str, tmp_path: Path
) -> None:
    place = f"[node] {name}"
    with pytest.raises(InvalidArgument, match="insecure = true"):
        load(tmp_path, LEAST, {place: address})
    said = {place: address, "[node] insecure": "true"}
    assert getattr(load(tmp_path, LEAST, said), name) == address


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1"])
def test_this_machine_may_always_be_listened_to(address: str, tmp_path: Path) -> None:
    assert load(tmp_path, LEAST, {"[node] listen": address}).listen == address


def test_an_address_from_the_list_of_nodes_is_no_way_around(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="insecure = true"):
        load(tmp_path, LEAST + '[cluster.nodes]\nn1 = "10.0.0.1:7401"\n')


# -- the page ----------------------------------------------------------------------------------

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "node-toml.md"


def described(section: str) -> dict[str, list[str]]:
    """Key -> default, range and meaning, as the page says."""
    text = PAGE.read_text(encoding="utf-8").partition(f"\n## {section}\n")[2]
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", text.partition("\n## ")[0], re.MULTILINE)
    return {name: [cell.strip() for cell in rest.split("|")] for name, rest in rows}


def test_every_key_is_on_its_page() -> None:
    for section in {key.section for key in KEYS}:
        assert f"\n## {section}\n" in PAGE.read_text(encoding="utf-8")
        names = [key.name for key in KEYS if key.section == section and key.name]
        assert list(described(section)) == names


def test_the_page_tells_defaults_and_ranges_as_they_are() -> None:
    sections: list[tuple[str, Any]] = [
        ("limits", Limits()),
        ("limits", NetworkLimits()),
        ("timing", Timing()),
        ("storage", Storage()),
    ]
    found = {"record_bytes": (str(RECORD_BYTES), f"1 to {RECORD_BYTES_MAX}")}
    for section, values in sections:
        for item in fields(values):
            if item.name in described(section):
                low, high = item.metadata["range"]
                found[item.name] = (str(getattr(values, item.name)), f"{low} to {high}")
    told = {
        name: (default, bounds)
        for section in ("limits", "timing", "storage")
        for name, (default, bounds, _) in described(section).items()
    }
    assert told == found
