"""Clusters as network namespaces: each has one link to a router, and all faults are made of routes, links and signals.

Nothing is needed but root and iproute2: no netfilter, no netem. A rule `blackhole` drops without a word, `prohibit`
answers with an ICMP error; both may name protocol and ports. The agents are real processes.
"""

from __future__ import annotations

import ctypes
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

UDP_PORT, HTTP_PORT = 8620, 8621
_CLONE_NEWNET = 0x40000000
_NETNS = Path("/run/netns")
_SYSCTL = ["net.ipv4.icmp_ratelimit=0", "net.ipv4.conf.all.rp_filter=0", "net.ipv4.ip_forward=1"]


def ip(*words: str) -> None:
    """Runs one command of `ip`; raises RuntimeError with its words when it fails."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")


def require_namespaces() -> None:
    """Skips where this user or kernel can't make network namespaces; strict mode does not ask for more rights."""
    if shutil.which("ip") is None:
        pytest.skip("iproute2 is not installed: no network namespaces")
    name = f"try{os.getpid()}"
    try:
        ip("netns", "add", name)
        ip("-n", name, *["rule", "add", "ipproto", "udp", "dport", "9", "blackhole"])
    except RuntimeError as error:
        pytest.skip(f"network namespaces with rules can't be made here (they need root and CAP_SYS_ADMIN): {error}")
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=30, check=False)


def _enter(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(descriptor, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns {path}")
    finally:
        os.close(descriptor)


def socket_in(namespace: str) -> socket.socket:
    """A TCP socket that belongs to a namespace, wherever it is used."""
    own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        _enter(_NETNS / namespace)
        try:
            return socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        finally:
            _enter(Path(f"/proc/self/fd/{own}"))
    finally:
        os.close(own)


@dataclass
class Node:
    """One cluster: its namespace, its address and its agent."""

    name: str
    namespace: str
    host: str
    folder: Path
    process: subprocess.Popen[bytes] | None = None
    answers: bool = True
    peers: dict[str, dict[str, Any]] = field(default_factory=dict)

    def get(self, path: str) -> str:
        """An answer of the agent's HTTP port, which works even when the cluster is cut off."""
        connection = http.client.HTTPConnection("127.0.0.1", HTTP_PORT, timeout=5)
        connection.sock = socket_in(self.namespace)
        connection.sock.settimeout(5)
        try:
            connection.sock.connect(("127.0.0.1", HTTP_PORT))
            connection.request("GET", path)
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    def states(self) -> dict[str, tuple[str, str]]:
        """Peer -> (state, reason), as the agent's own table says."""
        lines = [line for line in self.get("/debug/peers").splitlines() if not line.startswith("#")]
        starts = {word: lines[0].index(word) for word in ("STATE", "WHY")}
        return {line.split()[0]: (line[starts["STATE"] :].split()[0], line[starts["WHY"] :]) for line in lines[1:]}

    def write_targets(self) -> None:
        """Replaces the target file in one step, as a ConfigMap volume does."""
        part = self.folder / f"{self.name}.part"
        part.write_text(json.dumps(list(self.peers.values())))
        part.replace(self.folder / f"{self.name}.json")

    def start(self, **more: object) -> None:
        """Starts the agent."""
        config = self.folder / f"{self.name}.yaml"
        fields = {
            "cluster": self.name, "region": f"region-{self.name}", "listen": f"0.0.0.0:{UDP_PORT}",
            "http": f"127.0.0.1:{HTTP_PORT}", "targets_file": str(self.folder / f"{self.name}.json"), **more,
        }  # fmt: skip
        config.write_text(json.dumps(fields))
        command = [sys.executable, "-m", "probes.agent", "--config", str(config)]
        with (self.folder / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(["ip", "netns", "exec", self.namespace, *command], stderr=log)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the agent (`ip netns exec` becomes the agent: it does not fork)."""
        assert self.process is not None
        self.process.send_signal(number)
        self.answers = number not in (signal.SIGKILL, signal.SIGSTOP)

    def source_ports(self) -> list[int]:
        """The ports that the agent sends from."""
        assert self.process is not None
        rows = Path(f"/proc/{self.process.pid}/net/udp").read_text().splitlines()[1:]
        ports = {int(row.split()[1].rpartition(":")[2], 16) for row in rows}
        return sorted(ports - {UDP_PORT})


class Net:
    """Some clusters around one router; close it, or namespaces and processes stay."""

    def __init__(self, label: str, names: Iterable[str], folder: Path) -> None:
        base = f"rp{os.getpid()}{label}"
        self.router = f"{base}-router"
        self.nodes: dict[str, Node] = {}
        folder.mkdir(parents=True, exist_ok=True)
        commands = [f"netns add {self.router}"]
        for index, name in enumerate(names):
            node = self.nodes[name] = Node(name, f"{base}-{name}", f"10.77.{index}.2", folder)
            commands += [
                f"netns add {node.namespace}",
                f"-n {node.namespace} link set lo up",
                f"-n {self.router} link add to-{name} type veth peer name uplink netns {node.namespace}",
                f"-n {self.router} addr add 10.77.{index}.1/24 dev to-{name}",
                f"-n {self.router} link set to-{name} up",
                f"-n {node.namespace} addr add {node.host}/24 dev uplink",
                f"-n {node.namespace} link set uplink up",
                f"-n {node.namespace} route add default via 10.77.{index}.1",
            ]
        try:
            for command in commands:
                ip(*command.split())
            self._sysctl(self.router, _SYSCTL)
        except RuntimeError:
            self.close()
            raise
        for node in self.nodes.values():
            node.peers = {
                other.name: {
                    "targets": [f"{other.host}:{UDP_PORT}"],
                    "labels": {"cluster": other.name, "region": f"region-{other.name}"},
                }
                for other in self.nodes.values()
                if other is not node
            }
            node.write_targets()

    @staticmethod
    def _sysctl(namespace: str, values: list[str]) -> None:
        pairs = (value.partition("=")[::2] for value in values)
        script = "; ".join(f"echo {value} > /proc/sys/{name.replace('.', '/')}" for name, value in pairs)
        ip("netns", "exec", namespace, "sh", "-c", script)

    def rule(self, src: str, dst: str, what: str, action: str = "blackhole") -> None:
        """Bars packets from one cluster to another at the router; `what` narrows it (ipproto, sport, dport)."""
        words = f"rule add from {self.nodes[src].host} to {self.nodes[dst].host} {what} {action}".split()
        ip("-n", self.router, *words)

    def set_link(self, name: str, state: str) -> None:
        """Sets a cluster's own end of its link up or down."""
        ip("-n", self.nodes[name].namespace, "link", "set", "uplink", state)

    def states(self) -> Mapping[tuple[str, str], tuple[str, str]]:
        """(source, destination) -> (state, reason) as every agent that still runs sees it."""
        found: dict[tuple[str, str], tuple[str, str]] = {}
        for node in self.nodes.values():
            if node.answers:
                found |= {(node.name, peer): state for peer, state in node.states().items()}
        return found

    def close(self) -> None:
        """Ends the agents and removes the namespaces."""
        for node in self.nodes.values():
            if node.process is not None:
                node.process.kill()
                node.process.wait(10)
        for namespace in (self.router, *(node.namespace for node in self.nodes.values())):
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, timeout=30, check=False)
