"""The controller's own /metrics and /healthz. Names, labels and help come from the catalogue only."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from rebalancer.catalog import CONTROLLER_METRICS, PREFIX, Metric
from rebalancer.errors import RebalancerError

Labels = Mapping[str, str]
BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
REQUEST_TIMEOUT_S = 5.0


class Exporter:
    """All metrics of the controller, made from the catalogue."""

    def __init__(self) -> None:
        """Registers every family; those without labels start at 0."""
        self._registry = CollectorRegistry()
        self._families: dict[str, Counter | Gauge | Histogram] = {
            m.name.removeprefix(PREFIX): self._make(m) for m in CONTROLLER_METRICS
        }
        self._lock = threading.Lock()

    def _make(self, metric: Metric) -> Counter | Gauge | Histogram:
        if metric.kind == "counter":
            return Counter(metric.name, metric.help, metric.labels, registry=self._registry)
        if metric.kind == "histogram":
            return Histogram(metric.name, metric.help, metric.labels, registry=self._registry, buckets=BUCKETS_S)
        return Gauge(metric.name, metric.help, metric.labels, registry=self._registry)

    def _child(self, name: str, labels: Labels) -> Counter | Gauge | Histogram:
        family = self._families[name]
        return family.labels(**labels) if labels else family

    def set(self, name: str, value: float, labels: Labels | None = None) -> None:
        """Sets one gauge."""
        child = self._child(name, labels or {})
        assert isinstance(child, Gauge)  # the catalogue says so
        with self._lock:
            child.set(value)

    def replace(self, name: str, values: list[tuple[Labels, float]]) -> None:
        """Sets a whole family of gauges; series that are not named disappear."""
        with self._lock:
            self._families[name].clear()
            for labels, value in values:
                child = self._child(name, labels)
                assert isinstance(child, Gauge)  # the catalogue says so
                child.set(value)

    def add(self, name: str, labels: Labels | None = None, amount: float = 1.0) -> None:
        """Raises one counter; an amount of 0 creates the series, so that its first event is not lost to increase()."""
        child = self._child(name, labels or {})
        assert isinstance(child, Counter)  # the catalogue says so
        child.inc(amount)

    def observe(self, name: str, value: float, labels: Labels | None = None) -> None:
        """Adds one observation to a histogram."""
        child = self._child(name, labels or {})
        assert isinstance(child, Histogram)  # the catalogue says so
        child.observe(value)

    def text(self) -> bytes:
        """The exposition."""
        with self._lock:
            return generate_latest(self._registry)


class Door:
    """A small HTTP server in its own thread: /metrics, and /healthz with a sentence."""

    def __init__(self, listen: str, exporter: Exporter, health: Callable[[], tuple[bool, str]]) -> None:
        """Binds.

        Args:
            listen: host:port; port 0 takes a free one.
            exporter: what /metrics shows.
            health: (healthy, sentence); unhealthy answers 503.

        Raises:
            RebalancerError: the address can't be bound.
        """
        host, _, port = listen.rpartition(":")
        handler = type("Handler", (_Handler,), {"exporter": exporter, "health": staticmethod(health)})
        try:
            self._server = ThreadingHTTPServer((host, int(port)), handler)
        except OSError as error:
            raise RebalancerError(
                f"{listen}: can't listen there: {error.strerror or error}; set another spec.listen"
            ) from None
        self._server.daemon_threads = True
        self.address = f"{host}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)

    def open(self) -> None:
        """Begins to answer."""
        self._thread.start()

    def close(self) -> None:
        """Stops answering."""
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    exporter: Exporter
    health: Callable[[], tuple[bool, str]]
    timeout = REQUEST_TIMEOUT_S

    def do_GET(self) -> None:  # the library's name
        """Answers the two paths."""
        if self.path == "/metrics":
            self._send(200, CONTENT_TYPE_LATEST, self.exporter.text())
        elif self.path == "/healthz":
            healthy, sentence = self.health()
            self._send(200 if healthy else 503, "text/plain; charset=utf-8", f"{sentence}\n".encode())
        else:
            self._send(404, "text/plain; charset=utf-8", b"/metrics and /healthz are here\n")

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def handle(self) -> None:
        """Answers one connection; a reader that goes away is no error of ours."""
        with contextlib.suppress(ConnectionError, TimeoutError):
            super().handle()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the library's name
        """Requests are not logged."""
