"""Decisions as pure functions of values: no I/O, clock, randomness or logging."""
