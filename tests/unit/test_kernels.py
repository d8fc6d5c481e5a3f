"""Kernels are compiled beside a running controller, and only where a fleet needs them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rebalancer.core.placement import SMALL_FLEET
from rebalancer.cycle import CycleSettings
from rebalancer.worlds.kernels import Kernels


def after(workloads: int) -> tuple[bool, str]:
    """Returns (whether the planner uses kernels, what went wrong) once a cycle has shown so many workloads."""

    async def run() -> tuple[bool, str]:
        cycle = cast("Any", SimpleNamespace(settings=CycleSettings()))
        kernels = Kernels(cycle)
        report = cast("Any", SimpleNamespace(snapshot=SimpleNamespace(placements=dict.fromkeys(range(workloads)))))
        kernels.look(report)
        if kernels._task is not None:
            await kernels._task
        await kernels.close()
        return cycle.settings.plan.kernels, kernels.problem

    return asyncio.run(run())


def test_a_small_fleet_compiles_nothing() -> None:
    assert after(SMALL_FLEET) == (False, "")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_large_fleet_gets_its_kernels() -> None:
    assert after(SMALL_FLEET + 1) == (True, "")


def test_nothing_that_a_small_fleet_uses_imports_numba() -> None:
    program = """
import sys
from rebalancer.core.placement import Item, solve
solve([Item("s/w", 2, {"eu": 1.0}, ("a",), {"a": 1}, {("eu", "a"): 0.1}, {"a": 0.0}, {"a": 2})], {}, {})
import rebalancer.cli
sys.exit("numba" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
