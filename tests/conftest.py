"""Shared fixtures: those of the real stack."""

pytest_plugins = ["tests.stack.fixtures"]
