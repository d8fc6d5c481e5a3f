"""Pytest plugin: `pytest_plugins = ["tests.stack.fixtures"]` in tests/conftest.py.

A module that wants a fleet of its own calls `fleet_for` in a fixture of its own.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, NoReturn

import pytest

from tests.stack import binaries
from tests.stack.binaries import KUBERNETES, METRICS
from tests.stack.fleet import ALL, CONTROL_PLANES, Fleet, FleetSpec, Part
from tests.stack.users import Service

_METRIC_PARTS: frozenset[Part] = frozenset({"prometheus", "thanos", "global", "alertmanager"})


def program(name: str) -> str:
    """Path of one of the stack's programs, else of that on PATH (Debian's promtool will do); as `require` without."""
    found = binaries.find(name) or shutil.which(name)
    return str(found) if found else _absent((name,))


def require(names: tuple[str, ...] = KUBERNETES + METRICS) -> None:
    """Skips with one line when programs are missing, and fails where REBALANCER_STRICT=1 says they must be there."""
    absent = binaries.missing(names)
    if absent:
        _absent(absent)


def _absent(names: tuple[str, ...]) -> NoReturn:
    line = f"{binaries.HOW} (missing: {', '.join(names)})"
    if os.environ.get("REBALANCER_STRICT") == "1":
        pytest.fail(line, pytrace=False)
    pytest.skip(line)


@contextmanager
def fleet_for(request: pytest.FixtureRequest, spec: FleetSpec | None = None, **changes: Any) -> Iterator[Fleet]:
    """As `Fleet.start`, for a fixture that yields it: skips without programs, keeps logs when a test failed meanwhile.

    Args:
        request: The fixture's request.
        spec: What to start.
        changes: Fields of FleetSpec to change.
    """
    chosen = replace(spec or FleetSpec(), **changes)
    require((KUBERNETES if chosen.parts & CONTROL_PLANES else ()) + (METRICS if chosen.parts & _METRIC_PARTS else ()))
    failed_before = request.session.testsfailed
    with Fleet.start(chosen) as started:
        yield started
        if request.session.testsfailed > failed_before:
            started.keep_logs = True
            _tell(request, f"\nlogs of the stack are kept in {started.folder}\n")


def _tell(request: pytest.FixtureRequest, text: str) -> None:
    """Writes past pytest's capture, which would swallow what a fixture's end prints."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else nullcontext():
        sys.stderr.write(text)


@pytest.fixture(scope="session")
def stack_kubernetes() -> None:
    """The control planes' programs are there."""
    require(KUBERNETES)


@pytest.fixture(scope="session")
def stack_metrics() -> None:
    """Prometheus, promtool, Thanos and Alertmanager are there."""
    require(METRICS)


@pytest.fixture(scope="session")
def control_planes(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    """Hub and three members with nodes, nothing else; shared by the session: use namespaces of your own."""
    with fleet_for(request, parts=CONTROL_PLANES) as fleet:
        fleet.add_nodes()
        yield fleet


@pytest.fixture(scope="session")
def fleet(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    """Hub, three members with nodes, Prometheus and Thanos, and users of default/web; shared by the session."""
    rates = {"europe-west1": 20.0, "us-east4": 15.0, "asia-southeast1": 10.0, "asia-south1": 5.0}
    spec = FleetSpec(parts=ALL, services=(Service("web", rates),), history_days=14, history_step_s=300)
    with fleet_for(request, spec) as started:
        started.add_nodes()
        yield started
