"""Moves replicas of one service between Kubernetes clusters, by measured network and forecast load."""

__version__ = "0.1.0"
