"""Shared fixtures: those of the real stack; and how property tests run here."""

import os

from hypothesis import settings

pytest_plugins = ["tests.stack.fixtures"]

# A busy machine is no counterexample: Hypothesis' own 200 ms limit would judge the neighbours.
# CI judges a change by the same examples each time; new ones are looked for on developers' machines.
settings.register_profile("house", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("house")
