"""Agents ask a real API server who of them is ready, with the least rights, and go on without it."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from probes import election
from probes.election import Election, ElectionError, Endpoint, elect, read_endpoints
from tests.stack.control_plane import ControlPlane
from tests.stack.fleet import Fleet

pytestmark = [pytest.mark.stack]
SPACE = "probe-election"
SERVICE = f"{SPACE}/rebalancer-probe"
RIGHTS = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "metadata": {"name": "probe-election"},
    "rules": [{"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list"]}],
}


def slice_of(name: str, endpoints: dict[str, str], service: str = "rebalancer-probe", ready: bool = True) -> Any:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "addressType": "IPv4",
        "metadata": {"name": name, "namespace": SPACE, "labels": {"kubernetes.io/service-name": service}},
        "endpoints": [
            {
                "addresses": [f"10.1.{len(name)}.{index}"],
                "conditions": {"ready": ready},
                "targetRef": {"kind": "Pod", "name": pod, "namespace": SPACE},
                "zone": zone,
            }
            for index, (pod, zone) in enumerate(endpoints.items(), 1)
        ],
    }


@pytest.fixture
def plane(control_planes: Fleet) -> ControlPlane:
    found = control_planes.planes["eu-1"]
    found.api.namespace(SPACE)
    found.api.apply(RIGHTS)
    found.api.apply(slice_of("a", {"probe-1": "z1", "probe-2": "z1"}))
    found.api.apply(slice_of("bb", {"probe-3": "z2"}))
    found.api.apply(slice_of("ccc", {"probe-4": "z3"}, ready=False))
    found.api.apply(slice_of("dddd", {"other": "z1"}, service="other"))
    return found


def account(plane: ControlPlane, folder: Path, role: str) -> Path:
    folder.mkdir()
    name = f"probe-{role or 'none'}"
    (folder / "token").write_text(plane.mint_token(name, cluster_role=role, namespace=SPACE))
    (folder / "ca.crt").write_bytes(plane.credentials.ca.read_bytes())
    return folder


def in_cluster(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(port))


def test_the_ready_agents_of_the_service_are_read_with_one_right(
    plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_cluster(monkeypatch, plane.port)
    found = read_endpoints(SERVICE, account(plane, tmp_path / "account", "probe-election"))
    assert found == [Endpoint("probe-1", "z1"), Endpoint("probe-2", "z1"), Endpoint("probe-3", "z2")]
    assert "probe-3" in elect("eu-1", found), "the only one of another zone"
    with pytest.raises(ElectionError, match="says 403; let its service account list endpointslices"):
        read_endpoints(SERVICE, account(plane, tmp_path / "nobody", ""))


def test_the_last_list_stands_while_the_api_server_is_gone(
    plane: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_cluster(monkeypatch, plane.port)
    read = partial(read_endpoints, account=account(plane, tmp_path / "account", "probe-election"))
    monkeypatch.setattr(election, "read_endpoints", read)
    monkeypatch.setenv("POD_NAME", "probe-3")
    chosen = Election(SERVICE, "eu-1")
    changes: list[tuple[str, ...]] = []

    def ask() -> None:
        asyncio.run(chosen.ask(lambda: changes.append(chosen.elected)))

    ask()
    assert chosen.won
    before = chosen.elected
    in_cluster(monkeypatch, 1)
    ask()
    assert chosen.elected == before
    in_cluster(monkeypatch, plane.port)
    plane.api.apply(slice_of("bb", {"probe-3": "z2"}, ready=False))
    end = time.monotonic() + 10.0
    while chosen.won and time.monotonic() < end:
        ask()  # the API server answers from its cache, which may lag
    assert not chosen.won
    assert chosen.elected == tuple(elect("eu-1", [Endpoint("probe-1", "z1"), Endpoint("probe-2", "z1")]))
    assert changes == [before, chosen.elected]
