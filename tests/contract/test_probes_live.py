"""Real agents, a real relay that loses packets, a real Prometheus with the committed rules, and the map they make."""

from __future__ import annotations

import contextlib
import json
import os
import random
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rebalancer.catalog import RECORDED
from rebalancer.core.network import LatencyMap, NetworkMemory, NetworkSettings, build_map, judge
from rules.__main__ import HERE as RULES
from tests.stack.fixtures import require
from tests.stack.metrics import Prometheus
from tests.stack.processes import wait_for

CLUSTERS = {"eu-1": "eu", "us-1": "us", "ap-1": "ap"}
HOSTS = {"eu-1": "127.0.0.11", "us-1": "127.0.0.12", "ap-1": "127.0.0.13"}
INTERVAL_S = 0.1
DEADLINE_S = 150.0
LOSS = 0.2


@dataclass
class Relay:
    """Carries UDP to one reflector and back, and loses a share of what goes out; it counts the truth."""

    target: tuple[str, int]
    loss: float = 0.0
    forwarded: int = 0
    lost: int = 0
    _socket: socket.socket = field(default_factory=lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    _stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._socket.bind(("127.0.0.20", 0))
        self._rng = random.Random(5)
        self._clients: dict[tuple[str, int], socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        host, port = self._socket.getsockname()
        return f"{host}:{port}"

    def close(self) -> None:
        self._stop.set()
        self._thread.join(5)
        for sock in (self._socket, *self._clients.values()):
            sock.close()
        self._selector.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            for key, _events in self._selector.select(0.2):
                with contextlib.suppress(OSError):
                    self._carry(key.data)

    def _carry(self, client: tuple[str, int] | None) -> None:
        if client is not None:
            self._socket.sendto(self._clients[client].recv(2048), client)
            return
        data, source = self._socket.recvfrom(2048)
        if self._rng.random() < self.loss:
            self.lost += 1
            return
        self.forwarded += 1
        if source not in self._clients:
            sock = self._clients[source] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self._selector.register(sock, selectors.EVENT_READ, source)
        self._clients[source].sendto(data, self.target)


@dataclass
class Rig:
    """What runs."""

    relay: Relay
    prometheus: Prometheus
    http: dict[str, int]
    agents: dict[str, subprocess.Popen[bytes]]
    directory: Path

    def query(self, expr: str) -> list[dict[str, Any]]:
        return list(self.prometheus.query.get("query", query=expr)["data"]["result"])

    def latency(self) -> LatencyMap:
        samples = {}
        now = time.time()
        for item in self.query('{__name__=~"pair:rebalancer_probe_.*"}'):
            labels = item["metric"]
            key = (labels["__name__"], labels["src_cluster"], labels["dst_cluster"], labels["proto"])
            samples[key] = (float(item["value"][1]), max(0.0, now - float(item["value"][0])))
        return build_map(samples, CLUSTERS, now)


def free_port(host: str) -> int:
    """A port that is free for UDP and TCP, below the range from which the kernel gives ports to others meanwhile."""
    for _ in range(100):
        port = random.randint(15_000, 30_000)
        with (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
            socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tcp,
            contextlib.suppress(OSError),
        ):
            udp.bind((host, port))
            tcp.bind((host, port))
            return port
    raise AssertionError("no free port in a hundred tries")


def start_agent(
    name: str, listen: dict[str, int], http: int, targets: Path, directory: Path
) -> subprocess.Popen[bytes]:
    config = directory / f"{name}.yaml"
    config.write_text(
        f"cluster: {name}\nregion: {CLUSTERS[name]}\nlisten: {HOSTS[name]}:{listen[name]}\n"
        f"http: 127.0.0.1:{http}\ntargets_file: {targets}\ninterval_s: {INTERVAL_S}\n"
    )
    with (directory / f"{name}.log").open("wb") as log:
        return subprocess.Popen([sys.executable, "-m", "probes.agent", "--config", str(config)], stderr=log)


def start_prometheus(http: dict[str, int], directory: Path) -> Prometheus:
    targets = [f"127.0.0.1:{number}" for number in http.values()]
    scrapes = {"scrape_configs": [{"job_name": "rebalancer-probe", "static_configs": [{"targets": targets}]}]}
    rules = [RULES / "rebalancer-recording.yaml", RULES / "rebalancer-alerts.yaml"]
    return Prometheus("prometheus", directory / "prometheus", rule_files=rules, config=scrapes).start()


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    require(("prometheus",))
    directory = tmp_path_factory.mktemp("probes")
    listen = {name: free_port(HOSTS[name]) for name in CLUSTERS}
    http = {name: free_port("127.0.0.1") for name in CLUSTERS}
    relay = Relay((HOSTS["us-1"], listen["us-1"]), loss=LOSS)
    running: list[subprocess.Popen[bytes]] = []
    agents = {}
    prometheus: Prometheus | None = None
    try:
        for name in CLUSTERS:
            groups = [
                {
                    # The way from eu-1 to us-1 goes through the relay.
                    "targets": [relay.address if (name, peer) == ("eu-1", "us-1") else f"{HOSTS[peer]}:{listen[peer]}"],
                    "labels": {"cluster": peer, "region": CLUSTERS[peer]},
                }
                for peer in CLUSTERS
                if peer != name
            ]
            targets = directory / f"{name}-targets.json"
            targets.write_text(json.dumps(groups))
            agents[name] = start_agent(name, listen, http[name], targets, directory)
            running.append(agents[name])
        prometheus = start_prometheus(http, directory)
        yield Rig(relay, prometheus, http, agents, directory)
    finally:
        if prometheus is not None:
            prometheus.stop()
        for process in running:
            process.terminate()
        for process in running:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
        relay.close()


@pytest.mark.stack
def test_a_lossy_link_is_seen_with_its_direction_and_the_others_are_clean(rig: Rig) -> None:
    wait_for(lambda: len(rig.query("up == 1")) == 3, "all agents are scraped", 30)
    enough = {("eu-1", "us-1"): 400.0, ("us-1", "eu-1"): 300.0, ("ap-1", "eu-1"): 300.0}
    wait_for(
        lambda: all(rig.latency().cells[pair].samples >= n for pair, n in enough.items()), "enough samples", DEADLINE_S
    )
    latency = rig.latency()
    recorded = {item["metric"]["__name__"] for item in rig.query('{__name__=~"pair:rebalancer_probe_.*"}')}
    assert recorded == set(RECORDED), "every recorded series comes out"
    bad = latency.cells["eu-1", "us-1"]
    truth = rig.relay.lost / (rig.relay.lost + rig.relay.forwarded)
    assert bad.loss is not None
    assert bad.loss_forward is not None
    assert bad.loss == pytest.approx(truth, abs=0.06)
    assert bad.loss_low is not None
    assert bad.loss_low > 0.05
    assert bad.loss_forward > 0.8 * bad.loss, "the relay loses on the way out only"
    assert (bad.state, bad.source) == ("lossy", "direct")
    for pair, cell in latency.cells.items():
        assert cell.rtt_mean_s is not None, pair
        assert 0 < cell.rtt_mean_s < 0.02, pair
        if pair != ("eu-1", "us-1"):
            assert (cell.loss, cell.state) == (0.0, "ok"), pair


@pytest.mark.stack
def test_the_pair_is_poor_and_one_link_taints_nobody(rig: Rig) -> None:
    settings = NetworkSettings(enter_after_s=2.0, leave_after_s=10.0)
    memory = NetworkMemory()

    def poor() -> bool:
        nonlocal memory
        qualities, taints, memory = judge(rig.latency(), memory, settings, time.time())
        assert taints == {}
        assert set(qualities.values()) <= {"good", "degraded", "poor"}
        return qualities.get(("eu-1", "us-1")) == "poor"

    wait_for(poor, "the pair becomes poor", 120)


@pytest.mark.stack
def test_an_agent_that_dies_is_no_lossy_path(rig: Rig) -> None:
    wait_for(lambda: rig.latency().cells["eu-1", "ap-1"].state == "ok", "a path in order", 60)
    os.kill(rig.agents["ap-1"].pid, signal.SIGTERM)
    assert rig.agents["ap-1"].wait(10) == 0, "it ends cleanly"
    wait_for(lambda: len(rig.query(f'up{{instance="127.0.0.1:{rig.http["ap-1"]}"}} == 0')) == 1, "it is down", 60)
    refused = 'rebalancer_probe_probes_total{src_cluster="eu-1",dst_cluster="ap-1",outcome="refused"} > 20'
    wait_for(lambda: len(rig.query(refused)) == 1, "its host refuses", 60)
    cell = rig.latency().cells["eu-1", "ap-1"]
    assert cell.loss in (None, 0.0), "a dead process is no path loss"
    assert cell.state in ("ok", "peer_down")
    wait_for(lambda: "peer_down" in debug_table(rig), "the agent's own table names the dead process", 60)


def debug_table(rig: Rig) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{rig.http['eu-1']}/debug/peers", timeout=5) as answer:
        return str(answer.read().decode())
