"""Shared fixtures: those of the real stack; and how property tests run here."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hypothesis import settings

if TYPE_CHECKING:
    import pytest

    from tests.lanes import LaneScheduling

pytest_plugins = ["tests.stack.fixtures"]

# A busy machine is no counterexample: Hypothesis' own 200 ms limit would judge the neighbours.
# CI judges a change by the same examples each time; new ones are looked for on developers' machines.
settings.register_profile("house", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("house")


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LaneScheduling | None:
    """With `--dist loadfile` files keep to their lanes."""
    if config.getvalue("dist") != "loadfile":
        return None
    from tests.lanes import LaneScheduling  # only where xdist runs

    return LaneScheduling(config, log)
