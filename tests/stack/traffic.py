"""Where requests go: rates of origins over time, and steering as a global load balancer would do it. Pure."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.stack.history import UTC_OFFSET_H, load_factor

Array = NDArray[np.float64]
Rate = Callable[[float], float]
"""Requests per second at a moment (Unix seconds)."""

MODES = ("external", "pinned", "weights")


def rate_of(spec: Any, origin: str, started_s: float) -> Rate:
    """Makes an origin's rate from its specification. Raises ValueError for one that means nothing.

    Args:
        spec: A number (constant requests/s); `{"points": [[t, rate], ...]}` with t in seconds after the start, linear
            between points and constant after the last (`"repeat_s"` makes it periodic, `"speed"` makes it run
            faster); `{"file": path}`, the same from a JSON file of points; or `{"shape": mean}`, the carried
            two-week shape in the origin's local time.
        origin: Region, for its local time.
        started_s: Moment 0 of points, Unix seconds.
    """
    if isinstance(spec, (int, float)):
        constant = float(spec)
        return lambda _: constant
    if isinstance(spec, Mapping) and "shape" in spec:
        mean, offset = float(spec["shape"]), UTC_OFFSET_H.get(origin, 0.0)
        return lambda at: mean * load_factor(at, offset)
    if isinstance(spec, Mapping) and "file" in spec:
        spec = {**spec, "points": json.loads(Path(spec["file"]).read_text())}
    if isinstance(spec, Mapping) and "points" in spec:
        return _points(spec, started_s)
    raise ValueError(f"not a rate: {spec!r}")


def _points(spec: Mapping[str, Any], started_s: float) -> Rate:
    points = [(float(t), float(rate)) for t, rate in spec["points"]]
    times = [t for t, _ in points]
    if not points or times != sorted(times):
        raise ValueError("points must be there and in the order of their times")
    repeat_s, speed = float(spec.get("repeat_s", 0)), float(spec.get("speed", 1))

    def rate(at: float) -> float:
        t = (at - started_s) * speed
        if repeat_s:
            t %= repeat_s
        index = bisect_right(times, t)
        if index == 0:
            return points[0][1]
        if index == len(points):
            return points[-1][1]
        (t0, r0), (t1, r1) = points[index - 1], points[index]
        return r0 + (r1 - r0) * (t - t0) / (t1 - t0) if t1 > t0 else r1

    return rate


def nearest_first(rates: Array, rtt: Array, capacity: Array) -> Array:
    """Steering `external`: nearest cluster first, spill to the next nearest, overload over all by capacity.

    Args:
        rates: Requests/s by origin.
        rtt: Round trips [origin, cluster]; infinite where there is no path.
        capacity: Requests/s each cluster takes; 0 without ready endpoints.

    Returns:
        Requests/s [origin, cluster]. Where no cluster is ready all goes to the nearest, to fail there.
    """
    served = np.zeros_like(rtt)
    if not capacity.any():
        served[np.arange(len(rates)), rtt.argmin(axis=1)] = rates
        return served
    left, room = rates.astype(np.float64).copy(), capacity.astype(np.float64).copy()
    order = rtt.argsort(axis=1, kind="stable")
    for rank in range(rtt.shape[1]):
        wanted = np.zeros_like(rtt)
        wanted[np.arange(len(rates)), order[:, rank]] = left
        total = wanted.sum(axis=0)
        # Origins that want the same last room share it by their size.
        share = np.divide(np.minimum(total, room), total, out=np.zeros_like(total), where=total > 0)
        taken = wanted * share
        served += taken
        # What rounding leaves below zero would come back as a negative rate.
        left = np.clip(left - taken.sum(axis=1), 0, None)
        room = np.clip(room - taken.sum(axis=0), 0, None)
    result: Array = served + np.outer(left, capacity / capacity.sum())
    return result


def by_weights(
    rates: Array, origins: list[str], clusters: list[str], table: Mapping[str, Mapping[str, float]], otherwise: Array
) -> Array:
    """Steering by a table origin -> cluster -> weight; `*` stands for any origin, unknown origins go `otherwise`."""
    served = otherwise.copy()
    for row, origin in enumerate(origins):
        weights = table.get(origin, table.get("*"))
        if weights is None:
            continue
        vector = np.array([float(weights.get(cluster, 0.0)) for cluster in clusters])
        if vector.sum() > 0:
            served[row] = rates[row] * vector / vector.sum()
    return served


_SUFFIXES = {"m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def quantity(text: str) -> float:
    """A Kubernetes quantity as a number: cores, bytes or a count."""
    for length in (2, 1):
        if text[-length:] in _SUFFIXES:
            return float(text[:-length]) * _SUFFIXES[text[-length:]]
    return float(text)
