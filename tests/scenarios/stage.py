"""The stage of all scenarios: a real fleet, real probes through a relay with real delays, and the real command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.stack.api import deployment, service
from tests.stack.faults import ROOT
from tests.stack.fleet import Fleet
from tests.stack.metrics import Target
from tests.stack.processes import Process, free_port, wait_for

GROUP = "rebalancer.dev/v1alpha1"
CLI = [sys.executable, "-m", "rebalancer"]
PROBE = [sys.executable, "-m", "probes.agent"]
INTERVAL_S = 0.1
FAST: dict[str, Any] = {
    "cycle": {"interval": "2s", "deadline": "10s"},
    "scaling": {"stabilization": "20s", "coolDown": "10s"},
    "network": {"enterAfter": "10s", "leaveAfter": "20s"},
    "rollouts": {"interval": "1s"},
}


class Mesh:
    """A probe agent in every cluster; every pair goes through its own relay, which delays as the real distance."""

    def __init__(self, fleet: Fleet) -> None:
        """Starts the agents and lets each cluster's Prometheus scrape its own."""
        self.fleet = fleet
        names = list(fleet.regions)
        self.udp = {n: free_port() for n in names}
        self.http = {n: free_port() for n in names}
        self.processes: list[Process] = []
        for src in names:
            folder = fleet.folder / f"probe-{src}"
            folder.mkdir()
            targets = []
            for dst in (n for n in names if n != src):
                port = fleet.relay.udp(f"{src}-{dst}", "127.0.0.1", self.udp[dst])
                fleet.relay.set_udp(f"{src}-{dst}", delay_ms=fleet.rtt_ms(fleet.regions[src], dst) / 2.0)
                labels = {"cluster": dst, "region": fleet.regions[dst]}
                targets.append({"targets": [f"127.0.0.1:{port}"], "labels": labels})
            (folder / "targets.json").write_text(json.dumps(targets))
            config = {
                "cluster": src, "region": fleet.regions[src], "listen": f"127.0.0.1:{self.udp[src]}",
                "http": f"127.0.0.1:{self.http[src]}", "targets_file": str(folder / "targets.json"),
                "interval_s": INTERVAL_S, "tcp_fallback": False,
            }  # fmt: skip
            (folder / "probe.yaml").write_text(yaml.safe_dump(config))
            process = Process(
                f"probe-{src}", [*PROBE, "--config", str(folder / "probe.yaml")], folder / "log", cwd=ROOT
            )
            self.processes.append(process.start())
            fleet.prometheus[src].scrape(Target("rebalancer-probe", f"http://127.0.0.1:{self.http[src]}/metrics"))
        for prometheus in fleet.prometheus.values():
            prometheus.reload()

    def link(self, a: str, b: str, *, loss: float) -> None:
        """Loses packets of the link in both directions."""
        for name in (f"{a}-{b}", f"{b}-{a}"):
            self.fleet.relay.set_udp(name, directions=("forward",), loss=loss)

    def stop(self) -> None:
        """Ends the agents."""
        for process in self.processes:
            process.kill()


def member(fleet: Fleet, name: str, kubeconfig: Path | None = None, **spec: Any) -> dict[str, Any]:
    """A MemberCluster of the fleet."""
    path = kubeconfig or fleet.planes[name].kubeconfig
    return {
        "apiVersion": GROUP, "kind": "MemberCluster", "metadata": {"name": name},
        "spec": {"region": fleet.regions[name], "connection": {"kubeconfigPath": str(path)},
                 "price": {"cpuCoreHour": 0.04}, **spec},
    }  # fmt: skip


def policy(name: str, **spec: Any) -> dict[str, Any]:
    """A LatencyFirst policy for the emulator's ingress, quick enough for a test."""
    base: dict[str, Any] = {
        "workloadRef": {"name": name},
        "strategy": {"type": "LatencyFirst"},
        "demand": {"query": "ingress_requests_total", "originLabel": "origin"},
        "capacityPerReplica": 40,
        "replicas": {"min": 2, "max": 40},
        "budget": {"maxMovesPerHour": "200%"},
        "migration": {"minReady": "1s", "drain": {"wait": "1s"}, "timeout": "60s"},
        "failover": {"lostAfter": "60s", "failbackAfter": "60s"},
    }
    return {"apiVersion": GROUP, "kind": "SchedulingPolicy", "metadata": {"name": name}, "spec": {**base, **spec}}


def controller_config(fleet: Fleet, listen: int, **spec: Any) -> dict[str, Any]:
    """A RebalancerConfig on the fleet's Thanos, with short intervals."""
    telemetry = {
        "backends": [{"type": "thanos", "url": fleet.thanos.url, "timeout": "5s"}],
        "rateWindow": "10s", "maxAge": "10s", "history": "14d", "historyStep": "5m",
    }  # fmt: skip
    body = {"telemetry": telemetry, "listen": f"127.0.0.1:{listen}", **FAST, **spec}
    return {"apiVersion": GROUP, "kind": "RebalancerConfig", "metadata": {"name": "scenario"}, "spec": body}


@dataclass
class Controller:
    """The real controller as a process, with its configuration in a folder of its own."""

    fleet: Fleet
    folder: Path
    documents: list[dict[str, Any]]
    spec: Mapping[str, Any] = field(default_factory=dict)
    act: bool = True

    def __post_init__(self) -> None:
        """Writes the configuration."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.write()
        arguments = ["run", "--config", str(self.config), *(["--act"] if self.act else [])]
        self.process = Process("controller", [*CLI, *arguments], self.folder / "log", cwd=ROOT)

    @property
    def config(self) -> Path:
        """The configuration file."""
        return self.folder / "rebalancer.yaml"

    def write(self) -> None:
        """Writes the configuration file from the documents."""
        documents = [controller_config(self.fleet, self.port, **self.spec), *self.documents]
        self.config.write_text(yaml.safe_dump_all(documents))

    def start(self) -> Controller:
        """Starts it and waits until it has done a cycle."""
        self.process.start()
        wait_for(lambda: "last cycle" in self.get("/healthz"), "first cycle", 40, owner=self.process)
        return self

    def get(self, path: str) -> str:
        """Reads one of its pages; empty while it does not answer."""
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=5.0, trust_env=False).text
        except httpx.HTTPError:
            return ""

    def metric(self, line: str) -> float | None:
        """The value of one series of /metrics; None if it is not there."""
        for found in self.get("/metrics").splitlines():
            if found.startswith(line + " "):
                return float(found.rpartition(" ")[2])
        return None

    def log(self) -> str:
        """What it logged."""
        return (self.folder / "log").read_text(errors="replace")

    def cli(self, *arguments: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Runs a command with this configuration."""
        return subprocess.run(
            [*CLI, *arguments, "--config", str(self.config)], cwd=ROOT, capture_output=True, text=True,
            timeout=timeout_s, check=False, env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1"},
        )  # fmt: skip

    def plan(self) -> dict[str, Any]:
        """The plan as JSON, from a process of its own that changes nothing."""
        done = self.cli("plan", "--output", "json")
        assert done.returncode in (0, 2, 3), done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def stop(self) -> None:
        """Ends it at once."""
        if self.process.running:
            self.process.kill()


def replicas(fleet: Fleet, name: str) -> dict[str, int]:
    """spec.replicas of a Deployment by cluster, as kubectl would show it."""
    return {
        cluster: int(plane.api.get(f"/apis/apps/v1/namespaces/default/deployments/{name}")["spec"]["replicas"])
        for cluster, plane in fleet.planes.items()
    }


def deploy(fleet: Fleet, name: str, counts: Mapping[str, int], **changes: Any) -> None:
    """Deploys a service with its Deployment in every cluster and waits until all pods are ready."""
    for cluster, plane in fleet.planes.items():
        fleet.deploy(deployment(name, replicas=counts.get(cluster, 0), **changes), (cluster,))
        fleet.deploy(service(name), (cluster,))
        plane.wait_ready_pods(counts.get(cluster, 0), selector=f"app={name}", timeout_s=60)


def remove(fleet: Fleet, name: str) -> None:
    """Takes a Deployment away, so that the next scenario has the room."""
    for plane in fleet.planes.values():
        plane.api.delete(f"/apis/apps/v1/namespaces/default/deployments/{name}")


def scale_writes(fleet: Fleet, cluster: str, name: str) -> list[int]:
    """Replicas that somebody wrote to a Deployment's scale, in order, by the API server's own audit log."""
    records = fleet.planes[cluster].audit(writes_only=True)
    return [
        int(r.body["spec"].get("replicas", 0))
        for r in records
        if r.resource.startswith("deployments") and r.subresource == "scale" and r.name == name and r.code == 200
    ]


def intents(fleet: Fleet, name: str) -> dict[str, str]:
    """The move intents found on the objects, by cluster."""
    found = {}
    for cluster, plane in fleet.planes.items():
        meta = plane.api.get(f"/apis/apps/v1/namespaces/default/deployments/{name}")["metadata"]
        text = meta.get("annotations", {}).get("rebalancer.dev/move", "")
        if text:
            found[cluster] = text
    return found
