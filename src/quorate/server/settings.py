"""The settings of a node: NODE.toml, the environment, and flags.

Each key has one name: ``[node] listen`` in the file, ``QUORATE_NODE_LISTEN`` in the environment,
``--node-listen`` on the command line. A flag wins over the environment, which wins over the file.
An unknown key is refused: its author believes that it has an effect.
"""

from __future__ import annotations

import ipaddress
import re
import tomllib
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from quorate.config import MIB, Config, Limits, NetworkLimits, Server, Storage, Timing
from quorate.config.node import CONNECTIONS_MAX
from quorate.config.section import check_range
from quorate.errors import InvalidArgument
from quorate.membership import VOTERS_MAX
from quorate.net.dialling import parse_address
from quorate.storage.layout import VOTE_NAME_MAX
from quorate.types import NodeId

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["KEYS", "Key", "Settings", "check_loopback", "load_settings"]

RECORD_BYTES = 4 * MIB
RECORD_BYTES_MAX = 64 * MIB
# The names that the data directory accepts.
_NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{VOTE_NAME_MAX}}}")


# -- keys --------------------------------------------------------------------------------------


class Kind(NamedTuple):
    """The type of a key's value: how to parse the text of a flag, and which values a file may
    have."""

    noun: str
    # Parses the text of a flag or variable; raises ValueError.
    parse: Callable[[str], Any]
    # True if a value of a file is of this kind.
    fits: Callable[[Any], bool]


def _parse_switch(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _parse_addresses(text: str) -> dict[str, str]:
    pairs = [item.partition("=") for item in text.split(",") if item]
    if not all(node and sign for node, sign, _ in pairs):
        raise ValueError(text)
    return {node: address for node, _, address in pairs}


TEXT = Kind("a text", str, lambda value: isinstance(value, str))
PATH = Kind("a text", str, lambda value: isinstance(value, str))
NUMBER = Kind("a whole number", int, lambda value: type(value) is int)
SWITCH = Kind("true or false", _parse_switch, lambda value: isinstance(value, bool))
ADDRESSES = Kind(
    "a list of ID=HOST:PORT",
    _parse_addresses,
    lambda value: isinstance(value, dict) and all(isinstance(one, str) for one in value.values()),
)


class Key(NamedTuple):
    """One setting of a node."""

    # The table of the key. For a table whose keys are node names, ``name`` is empty.
    section: str
    name: str
    kind: Kind
    meaning: str

    @property
    def place(self) -> str:
        """The place of the key in the file."""
        return f"[{self.section}] {self.name}".rstrip()

    @property
    def flag(self) -> str:
        return "--" + "-".join(self._words)

    @property
    def variable(self) -> str:
        return "_".join(("quorate", *self._words)).upper()

    @property
    def _words(self) -> list[str]:
        return f"{self.section}.{self.name}".replace("_", ".").strip(".").split(".")


KEYS = (
    Key("node", "id", TEXT, "The name of this node."),
    Key("node", "data_dir", PATH, "Directory of the node's data; made on the first start."),
    Key("node", "listen", TEXT, "HOST:PORT to listen at. Default: as in [cluster.nodes]."),
    Key("node", "advertise", TEXT, "HOST:PORT told to clients. Default: as in [cluster.nodes]."),
    Key("node", "http", TEXT, "HOST:PORT of /livez, /readyz and /metrics. Default: no pages."),
    Key("node", "insecure", SWITCH, "Listen to other machines without TLS. Default: false."),
    Key("cluster", "id", TEXT, "The name of the cluster, the same on every node."),
    Key("cluster.nodes", "", ADDRESSES, "ID=HOST:PORT of every node of the cluster."),
    Key("dial", "", ADDRESSES, "ID=HOST:PORT to reach a peer by another address."),
    Key("limits", "record_bytes", NUMBER, "Maximum bytes of a record; more is TOO_LARGE."),
    Key("limits", "batch_bytes", NUMBER, "Maximum bytes of a batch; more is TOO_LARGE."),
    Key("limits", "pending_appends", NUMBER, "Maximum appends without an answer; more is BUSY."),
    Key("limits", "pending_bytes", NUMBER, "Maximum bytes of such appends; more is BUSY."),
    Key("limits", "staged_bytes", NUMBER, "Maximum bytes staged in a log; more is STAGE_FULL."),
    Key("limits", "connections", NUMBER, "Maximum connections of clients; more is BUSY."),
    Key("timing", "heartbeat_ms", NUMBER, "Maximum ms between two heartbeats of a leader."),
    Key(
        "timing",
        "election_ms",
        NUMBER,
        "A node starts an election after one to two times this many ms without a leader.",
    ),
    Key(
        "timing",
        "handover_ms",
        NUMBER,
        "A node that stops gives its leaderships to other nodes for up to this many ms.",
    ),
    Key(
        "timing",
        "settle_ms",
        NUMBER,
        "A node of a higher priority leads once it has kept up for this many ms.",
    ),
    Key(
        "timing",
        "staged_expiry_ms",
        NUMBER,
        "Staged data is dropped after this many ms without additions.",
    ),
    Key(
        "timing",
        "staged_idle_ms",
        NUMBER,
        "At limits.staged_bytes, staged data that is idle for this many ms makes room.",
    ),
    Key(
        "timing",
        "app_expiry_ms",
        NUMBER,
        "An app is forgotten after this many ms without a publish.",
    ),
    Key(
        "timing",
        "once_expiry_ms",
        NUMBER,
        "An app that publishes only once is forgotten after this many ms.",
    ),
    Key("storage", "segment_bytes", NUMBER, "Bytes of one segment file of a log."),
    Key("storage", "disk_usage_max", NUMBER, "Disk usage (%) above which no space is allocated."),
)
_BY_PLACE = {(key.section, key.name): key for key in KEYS}
_SECTIONS = sorted({key.section.partition(".")[0] for key in KEYS})


# -- settings ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a node, checked as far as possible without its data directory."""

    node: NodeId
    data_dir: Path
    cluster: str
    # Empty if the settings name no nodes: after the first start the directory knows them.
    nodes: dict[NodeId, str]
    dial: dict[NodeId, str]
    # None: the node's own address, which the directory knows.
    listen: str | None
    advertise: str | None
    http: str | None
    insecure: bool
    record_bytes: int
    config: Config
    network: NetworkLimits
    server: Server


def load_settings(path: Path, flags: Mapping[Key, str], environment: Mapping[str, str]) -> Settings:
    """Load the settings. Raises InvalidArgument that names the error and its place."""
    given = _read(path)
    settled = dict(given)
    # The values that win over the file, each with its source.
    sources: dict[Key, str] = {}
    for key in KEYS:
        said = ((key.variable, environment.get(key.variable)), (key.flag, flags.get(key)))
        for source, text in said:
            if text is not None:
                settled[key] = _parse(key, text, source)
                sources[key] = source
    why = _objection(settled)
    if why is None:
        return _settle(_placed(settled))
    for key, source in sources.items():
        # Blame a source without which the error differs: a user must not search the file for a
        # value that is not in it.
        others = {one: value for one, value in settled.items() if one != key}
        if _objection(others | {key: given[key]} if key in given else others) != why:
            raise InvalidArgument(f"{source}: {why}")
    raise InvalidArgument(f"{path}: {why}")


def _placed(given: Mapping[Key, Any]) -> dict[tuple[str, str], Any]:
    return {(key.section, key.name): value for key, value in given.items()}


def _objection(given: Mapping[Key, Any]) -> str | None:
    try:
        _settle(_placed(given))
    except InvalidArgument as error:
        return str(error)
    return None


def _parse(key: Key, text: str, source: str) -> Any:
    try:
        return key.kind.parse(text)
    except ValueError:
        raise InvalidArgument(f"{source}={text} is not {key.kind.noun}") from None


def _read(path: Path) -> dict[Key, Any]:
    try:
        with path.open("rb") as file:
            tables = tomllib.load(file)
    except OSError as error:
        raise InvalidArgument(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise InvalidArgument(f"{path}: {error}") from None
    except RecursionError:
        raise InvalidArgument(f"{path}: a value is nested too deeply") from None
    given: dict[Key, Any] = {}
    for section, table in tables.items():
        if section not in _SECTIONS:
            raise InvalidArgument(f"{path}: {_unknown(f'[{section}]', section, _SECTIONS)}")
        if not isinstance(table, dict):
            raise InvalidArgument(f"{path}: [{section}] is not a table")
        for key, value in _entries(path, section, table):
            if not key.kind.fits(value):
                raise InvalidArgument(f"{path}: {key.place} = {value!r} is not {key.kind.noun}")
            if key.kind is PATH and value:
                # A relative path starts at the file: a node finds its data from each working
                # directory.
                value = str(path.absolute().parent / value)
            given[key] = value
    return given


def _entries(path: Path, section: str, table: dict[str, Any]) -> list[tuple[Key, Any]]:
    whole = _BY_PLACE.get((section, ""))
    if whole is not None:
        return [(whole, table)]
    found = []
    for name, value in table.items():
        key = _BY_PLACE.get((section, name), _BY_PLACE.get((f"{section}.{name}", "")))
        if key is None:
            known = [one.name for one in KEYS if one.section == section]
            raise InvalidArgument(f"{path}: {_unknown(f'[{section}] {name}', name, known)}")
        found.append((key, value))
    return found


def _unknown(place: str, name: str, known: list[str]) -> str:
    close = get_close_matches(name, known, 1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
    return f"{place} is not known; {hint}"


# -- checks ------------------------------------------------------------------------------------


def _settle(given: Mapping[tuple[str, str], Any]) -> Settings:
    for section, name in (("node", "id"), ("node", "data_dir"), ("cluster", "id")):
        if not given.get((section, name)):
            raise InvalidArgument(f"[{section}] {name} is missing")
    for section in ("node", "cluster"):
        _check_name(f"[{section}] id", given[section, "id"])
    if "\0" in given["node", "data_dir"]:
        raise InvalidArgument("[node] data_dir has a NUL in it, which no path can have")
    node = NodeId(given["node", "id"])
    insecure = given.get(("node", "insecure"), False)
    nodes = _addresses(given, "cluster.nodes")
    if len(nodes) > VOTERS_MAX:
        raise InvalidArgument(f"[cluster.nodes] has {len(nodes)} nodes, limit {VOTERS_MAX}")
    listen = _address(given, "listen") or nodes.get(node)
    http = _address(given, "http")
    for name, address in (("listen", listen), ("http", http)):
        if address is not None and not insecure:
            check_loopback(name, address)
    dial = _addresses(given, "dial")
    for place, named in [("[node] id", node), *(("[dial]", one) for one in dial)]:
        if nodes and named not in nodes:
            raise InvalidArgument(f"{place} names {named}, and [cluster.nodes] does not")
    limits = _numbers(given, "limits")
    config = Config(
        timing=Timing(**_numbers(given, "timing")),
        limits=Limits(**{name: limits[name] for name in limits if name not in _NOT_OF_A_LOG}),
        storage=Storage(**_numbers(given, "storage")),
    )
    return Settings(
        node,
        Path(given["node", "data_dir"]),
        given["cluster", "id"],
        nodes,
        dial,
        listen,
        _address(given, "advertise"),
        http,
        insecure,
        _record_bytes(limits.get("record_bytes"), config),
        config,
        _network(limits.get("connections")),
        _server(config),
    )


_NOT_OF_A_LOG = ("record_bytes", "connections")


def _numbers(given: Mapping[tuple[str, str], Any], section: str) -> dict[str, int]:
    return {name: value for (where, name), value in given.items() if where == section}


def _network(connections: int | None) -> NetworkLimits:
    """The network limits. A given number of connections holds for one address, too: the user means
    it wherever the clients come from."""
    if connections is None:
        return NetworkLimits()
    # Checked here under the name of the key: users do not know the section network.
    check_range("limits.connections", connections, 1, CONNECTIONS_MAX)
    return NetworkLimits(connections=connections, connections_per_address=connections)


def _server(config: Config) -> Server:
    """The limits of the server. The appends that may wait at one log may wait at the node, too."""
    limits = config.limits
    return Server(client_appends=limits.pending_appends, client_append_bytes=limits.pending_bytes)


def _record_bytes(value: int | None, config: Config) -> int:
    if value is None:
        return min(RECORD_BYTES, config.limits.batch_bytes)
    check_range("limits.record_bytes", value, 1, RECORD_BYTES_MAX)
    return value


def _address(given: Mapping[tuple[str, str], Any], name: str) -> str | None:
    address: str | None = given.get(("node", name))
    if address is not None:
        _check_address(f"[node] {name}", address)
    return address


def _addresses(given: Mapping[tuple[str, str], Any], section: str) -> dict[NodeId, str]:
    found = {NodeId(node): address for node, address in given.get((section, ""), {}).items()}
    for node, address in found.items():
        _check_name(f"[{section}]", node)
        _check_address(f"[{section}] {node}", address)
    return found


def _check_name(place: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"{place} {name!r} must be 1 to {VOTE_NAME_MAX} letters, digits, dots, underscores or "
            f"hyphens"
        )


def _check_address(place: str, address: str) -> None:
    if not address.isprintable() or " " in address:
        raise InvalidArgument(f"{place}: address {address!r} is not HOST:PORT")
    try:
        parse_address(address)
    except InvalidArgument as error:
        raise InvalidArgument(f"{place}: {error}") from None


def check_loopback(name: str, address: str) -> None:
    """Raises InvalidArgument if other machines can reach a listener at ``address``."""
    host, _ = parse_address(address)
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    if not loopback:
        raise InvalidArgument(
            f"[node] {name} = {address} is open to other machines, and this release has no TLS; "
            f"say [node] insecure = true if the network can be trusted"
        )
