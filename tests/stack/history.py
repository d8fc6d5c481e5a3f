"""Two weeks of past requests, so that a real Prometheus starts with a real memory."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_DATA = Path(__file__).parent / "data"
_DAY_S = 86400

# Standard time of the carried regions, hours from UTC: demand follows the day of each origin.
UTC_OFFSET_H = {
    "europe-west1": 1.0,
    "us-east4": -5.0,
    "us-west1": -8.0,
    "southamerica-east1": -3.0,
    "asia-southeast1": 8.0,
    "asia-northeast1": 9.0,
    "asia-south1": 5.5,
    "australia-southeast1": 10.0,
}


@cache
def rtt_ms() -> dict[str, dict[str, float]]:
    """Measured round trips between eight regions, milliseconds, [source][destination]."""
    matrix: dict[str, dict[str, float]] = json.loads((_DATA / "rtt.json").read_text())["rtt_ms"]
    return matrix


@cache
def _shape() -> tuple[tuple[float, ...], float]:
    document = json.loads((_DATA / "load_shape.json").read_text())
    return tuple(value / 1000 for value in document["values"]), float(document["step_s"])


def load_factor(unix_s: float, utc_offset_h: float = 0.0) -> float:
    """The carried two-week load shape at a moment, as a multiple of its mean; it repeats every 14 days.

    Args:
        unix_s: Moment, Unix seconds.
        utc_offset_h: The origin's offset from UTC in hours: the shape's weekday and hour are local.
    """
    values, step_s = _shape()
    # 1970-01-05 was a Monday, the day the shape begins with.
    position = ((unix_s + utc_offset_h * 3600 - 4 * _DAY_S) / step_s) % len(values)
    low = int(position)
    share = position - low
    return values[low] * (1 - share) + values[(low + 1) % len(values)] * share


@dataclass(frozen=True)
class PastService:
    """What a service's past looks like in one cluster.

    Attributes:
        namespace: Of the service.
        name: Of the service.
        rates: Mean requests per second by origin that this cluster served.
        arm: pod_template_hash of the past series.
        daily: Whether the load follows the day; else it is constant.
    """

    namespace: str
    name: str
    rates: Mapping[str, float]
    arm: str = "history"
    daily: bool = True


def write(
    path: Path,
    cluster: str,
    services: list[PastService],
    *,
    end_s: float,
    days: float = 14.0,
    step_s: float = 60.0,
    factor: Callable[[float, str], float] | None = None,
) -> int:
    """Writes ingress_requests_total as OpenMetrics text with timestamps; returns the number of samples.

    Args:
        path: File to write.
        cluster: Value of the `cluster` label; job and instance are those of the live scrape, so series go on.
        services: Whose past it is.
        end_s: Time of the last sample, Unix seconds.
        days: Length of the past.
        step_s: Between samples, seconds.
        factor: Load relative to the mean at (Unix seconds, origin); default is the carried shape in local time.
    """
    shape = factor or (lambda at, origin: load_factor(at, UTC_OFFSET_H.get(origin, 0.0)))
    steps = math.floor(days * _DAY_S / step_s)
    times = [end_s - (steps - index) * step_s for index in range(steps + 1)]
    shapes: dict[str, list[float]] = {}
    flat = [1.0] * len(times)
    count = 0
    with path.open("w") as out:
        out.write("# TYPE ingress_requests counter\n")
        for service in services:
            for origin, rate in service.rates.items():
                loads = flat
                if service.daily:
                    if origin not in shapes:
                        shapes[origin] = [shape(at, origin) for at in times]
                    loads = shapes[origin]
                head = "ingress_requests_total{" + _labels(cluster, service, origin) + "} "
                total = 0.0
                lines = []
                for at, load in zip(times, loads, strict=True):
                    total += rate * load * step_s
                    lines.append(f"{head}{total:.0f} {at:.3f}\n")
                out.writelines(lines)
                count += len(lines)
        out.write("# EOF\n")
    return count


def _labels(cluster: str, service: PastService, origin: str) -> str:
    labels = {
        "cluster": cluster,
        "job": "ingress",
        "instance": f"{cluster}-ingress",
        "namespace": service.namespace,
        "service": service.name,
        "origin": origin,
        "pod_template_hash": service.arm,
        "code": "200",
    }
    return ",".join(f'{name}="{value}"' for name, value in labels.items())
