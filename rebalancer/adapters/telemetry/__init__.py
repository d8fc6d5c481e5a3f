"""The global metrics view: Prometheus through prometheus-api-client, Thanos through httpx, one logic above them."""

from rebalancer.adapters.telemetry.check import Finding
from rebalancer.adapters.telemetry.view import MetricsTelemetry

__all__ = ["Finding", "MetricsTelemetry"]
