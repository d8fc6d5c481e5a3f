"""Shared fixtures: those of the real stack; and how property tests run here."""

from hypothesis import settings

pytest_plugins = ["tests.stack.fixtures"]

# A busy machine is no counterexample: Hypothesis' own 200 ms limit would judge the neighbours.
settings.register_profile("house", deadline=None)
settings.load_profile("house")
