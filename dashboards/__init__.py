"""Grafana boards as code."""
