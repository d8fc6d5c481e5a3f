"""Who is probed: a file in the shape of Prometheus' file_sd, read again when it changes; names resolved off the loop.

    [{"targets": ["198.51.100.7:8620"], "labels": {"cluster": "eu-1", "region": "eu-west"}}]

The optional label `draining: "true"` marks planned maintenance: the peer is not probed and nothing is counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import random
import socket
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import yaml

from probes.sockets import SocketAddress

MAX_TARGETS = 8_000
RESOLVE_EVERY_S = 30.0
RESOLVE_DEADLINE_S = 5.0
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml, where PyYAML was built with it: ten times faster, with the same line numbers."""


class TargetError(ValueError):
    """The target file can't be used; the message names file, line, field, value and the next step."""


@dataclass(frozen=True, slots=True, order=True)
class Target:
    """One address of a peer cluster.

    Attributes:
        cluster: the peer's name, as in the latency map.
        region: the peer's region, empty if unknown.
        host: IP address or name, without brackets.
        port: UDP port, 1 to 65 535.
        draining: whether the peer is under planned maintenance.
    """

    cluster: str
    region: str
    host: str
    port: int
    draining: bool = False

    @property
    def key(self) -> tuple[str, str, int]:
        """What identifies the path: a changed region or drain mark does not reset its counters."""
        return (self.cluster, self.host, self.port)


def split_address(text: str) -> tuple[str, int] | None:
    """Returns (host, port) of `host:port` or `[v6]:port`, None if it is neither."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    if not colon or not host or not port.isascii() or not port.isdigit() or len(port) > 5:
        return None
    if not 0 < int(port) < 65_536:
        return None
    if (":" in host) != bracketed:
        return None
    return host, int(port)


def load_targets(path: Path) -> list[Target]:
    """Reads the whole target file.

    Returns:
        The targets in the order of their names; an empty list is a valid file.

    Raises:
        TargetError: it can't be read, or any part of it is wrong: half a list would silently stop probing the rest.
    """
    try:
        text = path.read_text(encoding="utf-8")
        node = _compose(text)
    except (OSError, UnicodeDecodeError) as error:
        raise TargetError(f"{path}: the target file can't be read ({error}); write `[]` for no peers.") from error
    except RecursionError:
        raise TargetError(f"{path}: nested too deeply; write a list of {{targets, labels}}.") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        problem = getattr(error, "problem", None) or "no YAML or JSON"
        raise TargetError(f"{path}:{line}: {problem}; fix the syntax.") from error
    if not isinstance(node, yaml.SequenceNode):
        raise TargetError(f"{path}:1: expected a list of {{targets, labels}}; write `[]` for no peers.")
    found: dict[tuple[str, str, int], Target] = {}
    for group in node.value:
        for target in _read_group(path, group):
            if target.key in found:
                where = f"{path}:{group.start_mark.line + 1}"
                raise TargetError(f"{where}: {target.cluster} has {target.host}:{target.port} twice; remove one.")
            found[target.key] = target
    if len(found) > MAX_TARGETS:
        raise TargetError(f"{path}: {len(found)} targets, at most {MAX_TARGETS} can be probed by one agent; split it.")
    return sorted(found.values())


def _compose(text: str) -> yaml.Node | None:
    try:
        return yaml.compose(text, Loader=_LOADER)
    except yaml.YAMLError:
        return yaml.compose(text, Loader=yaml.SafeLoader)  # it names the line of a mistake better


def _read_group(path: Path, node: yaml.Node) -> list[Target]:
    line = node.start_mark.line + 1
    try:
        group = yaml.constructor.SafeConstructor().construct_document(node)
    # PyYAML meets a tag with nonsense behind it (`!!float ""`, `!!bool x`, `!!timestamp x`) with these.
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise TargetError(
            f"{path}:{line}: not a group of targets: {' '.join(str(error).split())}; put texts in quotes."
        ) from None
    if not isinstance(group, dict) or not isinstance(group.get("targets"), list):
        raise TargetError(f"{path}:{line}: targets: a list of `host:port` is missing; add it.")
    labels = group.get("labels", {})
    if not isinstance(labels, dict) or not isinstance(labels.get("cluster"), str) or not labels["cluster"]:
        raise TargetError(f"{path}:{line}: labels.cluster: the peer's cluster name is missing; add it.")
    if not labels["cluster"].isprintable():
        raise TargetError(f"{path}:{line}: labels.cluster: {labels['cluster']!r} is no name; use printable characters.")
    if unknown := sorted(str(key) for key in set(group) - {"targets", "labels"}):
        raise TargetError(f"{path}:{line}: {unknown[0]}: unknown field; allowed are targets and labels.")
    if not isinstance(labels.get("region", ""), str) or not labels.get("region", "").isprintable():
        raise TargetError(f"{path}:{line}: labels.region: {labels['region']!r} is no printable text; put it in quotes.")
    draining = str(labels.get("draining", "false")).lower()
    if draining not in ("true", "false"):
        raise TargetError(f"{path}:{line}: labels.draining: {draining!r} is neither true nor false.")
    targets = []
    for text in group["targets"]:
        address = split_address(text) if isinstance(text, str) and text.isprintable() else None
        if address is None:
            raise TargetError(
                f"{path}:{line}: targets: {text!r} is not `host:port` with a port of 1 to 65535; IPv6 goes in brackets."
            )
        targets.append(Target(labels["cluster"], labels.get("region", ""), *address, draining == "true"))
    return targets


@dataclass(frozen=True, slots=True)
class Diff:
    """What a reload changes.

    Attributes:
        added: targets with a new key.
        removed: targets whose key is gone.
        changed: targets whose region or drain mark is another now; their counters stay.
    """

    added: tuple[Target, ...]
    removed: tuple[Target, ...]
    changed: tuple[Target, ...]


def diff(old: Iterable[Target], new: Iterable[Target]) -> Diff:
    """Compares two target lists by key."""
    before = {target.key: target for target in old}
    after = {target.key: target for target in new}
    return Diff(
        added=tuple(target for key, target in after.items() if key not in before),
        removed=tuple(target for key, target in before.items() if key not in after),
        changed=tuple(target for key, target in after.items() if key in before and before[key] != target),
    )


def literal_address(host: str, port: int) -> tuple[int, SocketAddress] | None:
    """Returns (family, socket address) of an IP address, None for a name: that needs the resolver."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return (socket.AF_INET, (host, port)) if address.version == 4 else (socket.AF_INET6, (host, port, 0, 0))


async def resolve(host: str, port: int) -> tuple[int, SocketAddress] | None:
    """Resolves a name in a thread of its own within 5 s; None if that failed (the caller keeps the last good address).

    A resolver that hangs blocks neither the loop nor the end of the process nor the pool that reads files.

    Args:
        host: IP address or name.
        port: UDP port.
    """
    if (known := literal_address(host, port)) is not None:
        return known
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[str | None] = loop.create_future()

    def ask() -> None:
        found = _look_up(host, port)
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            loop.call_soon_threadsafe(lambda: None if answer.done() else answer.set_result(found))

    try:
        threading.Thread(target=ask, name=f"resolve {host}", daemon=True).start()
        async with asyncio.timeout(RESOLVE_DEADLINE_S):
            found = await answer
    except (TimeoutError, RuntimeError):  # too late, or no thread can be had
        return None
    return None if found is None else literal_address(found, port)


def _look_up(host: str, port: int) -> str | None:
    with contextlib.suppress(OSError, UnicodeError):
        for family, _type, _proto, _name, address in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM):
            if family in (socket.AF_INET, socket.AF_INET6):
                return str(address[0])
    return None


def next_resolution_s() -> float:
    """Returns the pause before a name is resolved again, spread by +-10 % so that agents don't ask in step."""
    return RESOLVE_EVERY_S * random.uniform(0.9, 1.1)
