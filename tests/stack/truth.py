"""What really happened in the emulated fleet, to be compared with what the product believes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

_KEEP_S = 3600.0
_KEEP_CHANGES = 20_000


@dataclass
class Arm:
    """Counts of one version in one cluster; `first_bad_s` and `last_request_s` are Unix seconds."""

    image: str
    requests: int = 0
    errors: int = 0
    first_bad_s: float | None = None
    last_request_s: float | None = None


@dataclass
class _Record:
    arms: dict[str, dict[str, Arm]] = field(default_factory=dict)
    unserved: dict[str, int] = field(default_factory=dict)
    latency: deque[tuple[float, float, int]] = field(default_factory=deque)
    ready: dict[str, int] = field(default_factory=dict)
    changes: deque[tuple[float, int, dict[str, int]]] = field(default_factory=lambda: deque(maxlen=_KEEP_CHANGES))
    least: int | None = None


class Truth:
    """Ground truth by service. Not locked: the emulator's lock guards it."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}
        self._marked_s = 0.0

    def _of(self, service: str) -> _Record:
        return self._records.setdefault(service, _Record())

    def saw_ready(self, service: str, now: float, ready: dict[str, int]) -> None:
        """Notes the ready endpoints by cluster; every change is logged."""
        record = self._of(service)
        total = sum(ready.values())
        if ready != record.ready:
            record.ready = ready
            record.changes.append((now, total, ready))
        record.least = total if record.least is None else min(record.least, total)

    def known(self, service: str) -> bool:
        """Whether the service ever had a ready endpoint."""
        return any(total for _, total, _ in self._of(service).changes)

    def sent(self, service: str, now: float, counts: NDArray[np.int64], rtt_ms: NDArray[np.float64]) -> None:
        """Notes requests [origin, cluster] with their round trips, for the served latency."""
        latency = self._of(service).latency
        latency.append((now, float((counts * rtt_ms).sum()), int(counts.sum())))
        while latency[0][0] < now - _KEEP_S:
            latency.popleft()

    def served(self, service: str, cluster: str, arm: str, image: str, requests: int, errors: int, now: float) -> None:
        """Notes answered requests of one arm."""
        known = self._of(service).arms.setdefault(cluster, {}).setdefault(arm, Arm(image))
        known.requests += requests
        known.errors += errors
        if requests:
            known.last_request_s = now
        if errors and known.first_bad_s is None:
            known.first_bad_s = now

    def unserved(self, service: str, cluster: str, requests: int) -> None:
        """Notes requests that found no ready endpoint."""
        record = self._of(service).unserved
        record[cluster] = record.get(cluster, 0) + requests

    def mark(self, now: float) -> None:
        """Begins a new period for `min_total_ready`."""
        self._marked_s = now
        for record in self._records.values():
            record.least = sum(record.ready.values())

    def document(self, now: float, window_s: float) -> dict[str, Any]:
        """All of it as JSON; the served latency is of the last `window_s` seconds."""
        return {
            "marked": self._marked_s,
            "services": {k: _document(r, now - window_s) for k, r in self._records.items()},
        }


def _document(record: _Record, since: float) -> dict[str, Any]:
    recent = [entry for entry in record.latency if entry[0] >= since]
    requests = sum(count for _, _, count in recent)
    return {
        "arms": {cluster: {arm: vars(counts) for arm, counts in arms.items()} for cluster, arms in record.arms.items()},
        "unserved": record.unserved,
        "served_latency_ms": sum(total for _, total, _ in recent) / requests if requests else None,
        "window_requests": requests,
        "ready": record.ready,
        "total_ready": sum(record.ready.values()),
        "min_total_ready": record.least,
        "ready_log": [list(change) for change in record.changes],
    }
