"""Worlds: the same core with simulated or live ports, driven on one clock."""
