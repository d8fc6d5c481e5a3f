"""Faults of the real stack: kill, pause, proxy, relay; and nothing outlives its owner."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.stack.api import Api, deployment, path_of
from tests.stack.binaries import KUBERNETES
from tests.stack.credentials import rotate_account_key
from tests.stack.faults import ROOT, Relay
from tests.stack.fixtures import fleet_for, require
from tests.stack.fleet import Fleet, Member
from tests.stack.processes import Process, StackError, free_port, wait_for

pytestmark = [pytest.mark.stack]


@pytest.fixture(scope="module")
def fleet(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    members = (Member("eu-1", "europe-west1"), Member("us-1", "us-east4"))
    parts = frozenset({"members", "thanos", "users", "relay"})
    with fleet_for(request, parts=parts, members=members) as started:
        started.add_nodes()
        yield started


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[Relay]:
    with Relay(tmp_path, seed=7) as started:
        yield started


@pytest.fixture
def echo() -> Iterator[int]:
    """A UDP reflector; yields its port."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 0))
    server.settimeout(0.2)
    over = threading.Event()

    def reflect() -> None:
        while not over.is_set():
            try:
                data, sender = server.recvfrom(2048)
            except TimeoutError:
                continue
            server.sendto(data, sender)

    thread = threading.Thread(target=reflect)
    thread.start()
    yield server.getsockname()[1]
    over.set()
    thread.join()
    server.close()


def _ping(port: int, count: int, *, wait_s: float = 0.3, gap_s: float = 0.001) -> list[float]:
    """Sends numbered packets; returns the round trips (ms) of those that came back."""
    times: list[float] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.settimeout(wait_s)

        def receive() -> None:
            try:
                while True:
                    data = probe.recv(64)
                    times.append((time.monotonic() - float(data)) * 1000)
            except TimeoutError:
                return

        probe.sendto(b"0", ("127.0.0.1", port))  # binds the socket before the receiver starts
        receiver = threading.Thread(target=receive)
        receiver.start()
        for _ in range(count):
            probe.sendto(str(time.monotonic()).encode(), ("127.0.0.1", port))
            time.sleep(gap_s)
        receiver.join()
    return [ms for ms in times if ms < 60_000]


def _quick(times_ms: list[float]) -> float:
    """The time of the quickest tenth."""
    return sorted(times_ms)[len(times_ms) // 10]


def test_relay_carries_and_delays_per_direction(relay: Relay, echo: int) -> None:
    port = relay.udp("eu-1>us-1", "127.0.0.1", echo)
    assert _quick(_ping(port, 50)) < 5
    relay.set_udp("eu-1>us-1", directions=("forward",), delay_ms=30)
    relay.set_udp("eu-1>us-1", directions=("back",), delay_ms=10)
    found = _ping(port, 50)
    assert len(found) == 50
    # Never earlier than told; a busy machine adds to some packets, and the quicker ones show what the relay does.
    assert min(found) >= 40
    assert _quick(found) < 46


def test_relay_loses_by_ratio_and_cuts_per_direction(relay: Relay, echo: int) -> None:
    port = relay.udp("path", "127.0.0.1", echo)
    relay.set_udp("path", directions=("back",), loss=0.3)
    assert 240 < len(_ping(port, 500)) < 440
    relay.set_udp("path", directions=("back",), loss=0.0, cut=True)
    before = relay.state()["udp"]["path"]
    assert _ping(port, 20) == []
    after = relay.state()["udp"]["path"]
    assert after["forward"] - before["forward"] == 21
    assert after["back"] == before["back"]
    relay.set_udp("path", cut=False)
    assert len(_ping(port, 20)) == 20


def test_relay_keeps_flows_apart_and_refuses_nonsense(relay: Relay, echo: int) -> None:
    port = relay.udp("path", "127.0.0.1", echo)
    relay.set_udp("path", duplicate=1.0, directions=("back",))
    assert len(_ping(port, 10)) == 20
    with pytest.raises(ValueError, match="out of bounds"):
        relay.set_udp("path", loss=1.5)
    with pytest.raises(ValueError, match="KeyError"):
        relay.set_udp("nowhere", loss=0.5)


def test_proxy_delays_hangs_cuts_and_resets(fleet: Fleet) -> None:
    plane = fleet.planes["eu-1"]
    server = fleet.proxy_plane("eu-1")
    api = Api(server, plane.api.token, plane.credentials.ca, timeout_s=1.5)
    door = "api-eu-1"
    assert api.get("/version")
    fleet.relay.set_tcp(door, delay_ms=150)
    began = time.monotonic()
    assert api.get("/version")
    assert time.monotonic() - began > 0.29
    fleet.relay.set_tcp(door, mode="hang", delay_ms=0)
    with pytest.raises(httpx.TimeoutException):
        api.get("/version")
    fleet.relay.set_tcp(door, mode="reset")
    with pytest.raises((httpx.ConnectError, httpx.ReadError)):
        api.get("/version")
    fleet.relay.set_tcp(door, mode="cut")
    with pytest.raises(httpx.ConnectError):
        api.get("/version")
    fleet.relay.set_tcp(door, mode="pass")
    assert wait_for(lambda: api.get("/version"), "proxy passes again")
    assert fleet.relay.state()["tcp"][door]["mode"] == "pass"
    api.close()


def test_killed_parts_come_back_with_their_data(fleet: Fleet) -> None:
    plane = fleet.planes["us-1"]
    plane.api.apply(deployment("kept", replicas=2))
    plane.wait_ready_pods(2, selector="app=kept")
    for part in ("apiserver", "etcd", "kcm", "scheduler", "kwok"):
        plane.parts[part].kill()
    with pytest.raises(httpx.ConnectError):
        plane.api.get("/version")
    plane.restart("etcd", "apiserver", "kcm", "scheduler", "kwok")
    plane.api.scale("default", "kept", 4)
    plane.wait_ready_pods(4, selector="app=kept", timeout_s=60)


def test_paused_api_server_hangs_and_resumes(fleet: Fleet) -> None:
    plane = fleet.planes["us-1"]
    plane.parts["apiserver"].pause()
    with pytest.raises(httpx.TimeoutException):
        plane.api.call("GET", "/version", timeout=1.0)
    plane.parts["apiserver"].resume()
    assert wait_for(lambda: plane.api.get("/version"), "API server after its pause")


def test_start_delay_changes_while_running(fleet: Fleet) -> None:
    plane = fleet.planes["eu-1"]
    plane.set_start_delay(2.0)
    plane.api.apply(deployment("late"))
    assert plane.wait_ready_pods(1, selector="app=late") > 1.5
    plane.set_start_delay(0.0)


def test_rotated_key_ends_old_tokens(fleet: Fleet) -> None:
    plane = fleet.planes["us-1"]
    api = Api(plane.server, plane.mint_token("old", cluster_role="view"), plane.credentials.ca)
    assert api.items(path_of("Pod", "", "default"))
    rotate_account_key(plane.credentials)
    plane.restart("apiserver")
    with pytest.raises(Exception, match="401"):
        api.items(path_of("Pod", "", "default"))
    api.close()
    plane.restart("kcm")  # it signs for its own controllers with the same key


def test_lost_prometheus_and_sidecar_are_seen_by_thanos(fleet: Fleet) -> None:
    fleet.sidecars["us-1"].process.kill()
    wait_for(lambda: fleet.thanos.healthy_stores() == ["eu-1"], "Thanos sees the loss", 30)
    fleet.sidecars["us-1"].restart()
    fleet.thanos.wait_stores(2, 60)
    prometheus = fleet.prometheus["eu-1"]
    prometheus.process.kill()
    with pytest.raises(httpx.ConnectError):
        prometheus.query.vector("up")
    prometheus.restart()
    assert prometheus.query.vector("count_over_time(up[5m])")


def test_missing_program_skips_and_fails_in_strict_mode(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REBALANCER_STACK_DIR", str(tmp_path))
    monkeypatch.delenv("REBALANCER_STRICT", raising=False)
    with pytest.raises(pytest.skip.Exception, match="make stack"):
        require(("etcd",))
    monkeypatch.setenv("REBALANCER_STRICT", "1")
    with pytest.raises(pytest.fail.Exception, match="make stack"):
        require(("etcd",))


def test_wait_names_what_it_waited_for() -> None:
    with pytest.raises(StackError, match=r"no rain within 0.05 s: ZeroDivisionError"):
        wait_for(lambda: bool(1 / 0), "rain", 0.05)


def test_dead_owner_of_a_wait_is_named(tmp_path: Path) -> None:
    short = Process("short", [sys.executable, "-c", "print('last words')"], tmp_path / "log").start()
    with pytest.raises(StackError, match=r"short ended \(code 0\)[\s\S]*last words"):
        wait_for(lambda: False, "nothing", 10, owner=short)


OWNER = """
import sys, threading
from tests.stack.fleet import Fleet, Member
parts = frozenset({"members", "relay"})
with Fleet.start(parts=parts, members=(Member("eu-1", "europe-west1"),)) as fleet:
    print(" ".join(str(p.pid) for p in fleet.processes()), flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("how", ["kill", "end"])
def test_nothing_outlives_its_owner(how: str) -> None:
    require(KUBERNETES)
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout and owner.stdin
    pids = [int(pid) for pid in owner.stdout.readline().split()]
    assert len(pids) == 6
    assert all(_alive(pid) for pid in pids)
    if how == "kill":
        os.kill(owner.pid, signal.SIGKILL)
    else:
        owner.stdin.write("\n")
        owner.stdin.close()
    owner.wait(timeout=30)
    wait_for(lambda: not any(_alive(pid) for pid in pids), "end of all parts", 10)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_ports_are_not_handed_out_twice() -> None:
    ports = [free_port() for _ in range(50)]
    assert len(set(ports)) == 50
    assert all(15000 <= port < 32000 for port in ports)
