"""Pytest plugin: `pytest_plugins = ["tests.stack.fixtures"]` in a test's conftest, or import the fixtures by name."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.stack import binaries
from tests.stack.binaries import KUBERNETES, METRICS
from tests.stack.fleet import ALL, CONTROL_PLANES, Fleet, FleetSpec
from tests.stack.users import Service


def require(names: tuple[str, ...] = KUBERNETES + METRICS) -> None:
    """Skips with one line when programs are missing, and fails where REBALANCER_STRICT=1 says they must be there."""
    absent = binaries.missing(names)
    if not absent:
        return
    line = f"{binaries.HOW} (missing: {', '.join(absent)})"
    if os.environ.get("REBALANCER_STRICT") == "1":
        pytest.fail(line, pytrace=False)
    pytest.skip(line)


@pytest.fixture(scope="session")
def stack_kubernetes() -> None:
    """The control planes' programs are there."""
    require(KUBERNETES)


@pytest.fixture(scope="session")
def stack_metrics() -> None:
    """Prometheus, promtool, Thanos and Alertmanager are there."""
    require(METRICS)


@pytest.fixture(scope="session")
def control_planes(stack_kubernetes: None) -> Iterator[Fleet]:
    """Hub and three members with nodes, nothing else; shared by the session: use namespaces of your own."""
    with Fleet.start(parts=CONTROL_PLANES) as fleet:
        fleet.add_nodes()
        yield fleet


@pytest.fixture(scope="session")
def fleet(stack_kubernetes: None, stack_metrics: None) -> Iterator[Fleet]:
    """Hub, three members with nodes, Prometheus and Thanos, and users of default/web; shared by the session."""
    rates = {"europe-west1": 20.0, "us-east4": 15.0, "asia-southeast1": 10.0, "asia-south1": 5.0}
    spec = FleetSpec(parts=ALL, services=(Service("web", rates),), history_days=14, history_step_s=300)
    with Fleet.start(spec) as started:
        started.add_nodes()
        yield started
