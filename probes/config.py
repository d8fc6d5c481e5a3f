"""The agent's one small configuration file; a problem is one sentence: file, line, field, value, bound, next step.

cluster: eu-1
region: eu-west
listen: 0.0.0.0:8620
http: 0.0.0.0:8621
targets_file: /etc/rebalancer-probe/targets.yaml
interval_s: 1
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from probes.rate import MAX_PPS
from probes.targets import split_address

_SERVICE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?/[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class ConfigProblem(ValueError):
    """The configuration can't be used; the message is the sentence for the user."""


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """What an agent is told.

    Attributes:
        cluster: own cluster's name, the label `src_cluster`.
        region: own region.
        listen: UDP address of the reflector (and TCP for the fallback).
        http: TCP address of /metrics, /healthz and /debug/peers.
        targets_file: who is probed.
        interval_s: mean time between two probes of one path, 0.05 to 60 s.
        timeout_s: an answer after it is late, 0.1 to 30 s.
        flows: source ports per address family, 1 to 64.
        keys_file: keys of the authenticated mode, None for the unauthenticated one.
        allow: networks that may be answered without keys, besides the targets' own addresses.
        advertise: address (host:port) at which the others reach this agent, None where it is `listen`.
        source_pps: answers per second to one source network, 1 to 100 000.
        state_file: where counters survive a restart, None to begin at 0.
        tcp_fallback: whether a path that gives no answer over UDP is tried over TCP.
        max_pps: probes per second to all peers together, whatever happens, 10 to 10 000.
        election: headless Service (namespace/name) of the cluster's agents, two of which probe; None: this one does.
    """

    cluster: str
    region: str
    listen: tuple[str, int]
    http: tuple[str, int]
    targets_file: Path
    interval_s: float = 1.0
    timeout_s: float = 2.0
    flows: int = 13
    keys_file: Path | None = None
    allow: tuple[Network, ...] = ()
    advertise: tuple[str, int] | None = None
    source_pps: float = 2_000.0
    state_file: Path | None = None
    tcp_fallback: bool = True
    max_pps: float = 2_000.0
    election: str | None = None


PRIVATE_NETWORKS: tuple[Network, ...] = tuple(
    ipaddress.ip_network(text)
    for text in ("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "::1/128", "fc00::/7")
)
"""Default of `allow`: networks that are not reached from the internet."""


def _name(value: Any) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError("1 to 63 letters, digits, dots, dashes or underscores; put it in quotes")
    return value


def _address(value: Any) -> tuple[str, int]:
    address = split_address(value) if isinstance(value, str) else None
    if address is None:
        raise ValueError("`host:port` with a port of 1 to 65535, such as 0.0.0.0:8620; write IPv6 in brackets")
    return address


def _number(low: float, high: float, unit: str) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise ValueError(f"a number from {low:g} to {high:g}{unit}, without a unit")
        return float(value)

    return read


def _whole(low: int, high: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"a whole number from {low} to {high}")
        return value

    return read


def _path(value: Any) -> Path:
    if not isinstance(value, str) or not value:
        raise ValueError("a path")
    return Path(value)


def _service(value: Any) -> str:
    if not isinstance(value, str) or not _SERVICE.fullmatch(value):
        raise ValueError("`namespace/name` of a headless Service, such as monitoring/rebalancer-probe")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _networks(value: Any) -> tuple[Network, ...]:
    if not isinstance(value, list):
        raise ValueError("a list of networks, such as [10.0.0.0/8]")
    try:
        return tuple(ipaddress.ip_network(str(text)) for text in value)
    except ValueError as error:
        raise ValueError(f"a list of networks, such as [10.0.0.0/8] ({error})") from None


_FIELDS: dict[str, Callable[[Any], Any]] = {
    "cluster": _name,
    "region": _name,
    "listen": _address,
    "http": _address,
    "targets_file": _path,
    "interval_s": _number(0.05, 60, " seconds"),
    "timeout_s": _number(0.1, 30, " seconds"),
    "flows": _whole(1, 64),
    "keys_file": _path,
    "allow": _networks,
    "advertise": _address,
    "source_pps": _number(1, 100_000, " packets per second"),
    "state_file": _path,
    "tcp_fallback": _flag,
    "election": _service,
    "max_pps": _number(10, MAX_PPS, " packets per second"),
}
_REQUIRED = ("cluster", "region", "listen", "http", "targets_file")


def load_config(path: Path) -> AgentConfig:
    """Reads and checks the file.

    Raises:
        ConfigProblem: with the first problem of the file.
    """
    try:
        node = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise ConfigProblem(f"{path}: the configuration can't be read ({reason}); name it by --config.") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        raise ConfigProblem(
            f"{path}:{line}: {getattr(error, 'problem', None) or 'no YAML'}; fix the syntax."
        ) from error
    if not isinstance(node, yaml.MappingNode):
        raise ConfigProblem(f"{path}:1: expected `field: value` lines; the required fields are {', '.join(_REQUIRED)}.")
    values = _read_fields(path, node)
    if missing := [field for field in _REQUIRED if field not in values]:
        raise ConfigProblem(f"{path}:1: {missing[0]}: the field is missing; add a line `{missing[0]}: ...`.")
    return AgentConfig(**values)


def _read_fields(path: Path, node: yaml.MappingNode) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key_node, value_node in node.value:
        field = str(key_node.value)
        where = f"{path}:{key_node.start_mark.line + 1}: {field}"
        read = _FIELDS.get(field)
        if read is None:
            near = difflib.get_close_matches(field, _FIELDS, n=1)
            advice = f"did you mean `{near[0]}`?" if near else f"allowed are {', '.join(_FIELDS)}."
            raise ConfigProblem(f"{where}: unknown field; {advice}")
        if field in values:
            raise ConfigProblem(f"{where}: the field is there twice; remove one of the lines.")
        try:
            value = yaml.SafeLoader("").construct_document(value_node)
        except (yaml.YAMLError, ValueError) as error:
            raise ConfigProblem(f"{where}: the value can't be read ({error}); put it in quotes.") from error
        try:
            values[field] = read(value)
        except ValueError as error:
            raise ConfigProblem(f"{where}: {value!r} is not allowed; expected {error}.") from None
    return values
