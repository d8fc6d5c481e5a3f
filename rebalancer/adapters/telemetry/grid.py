"""Pure alignment of time: evaluation times on a grid, ranges split below Prometheus' limit of points.

A slot is named by its end: slot t of a grid with step s covers (t - s, t].
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

MAX_POINTS = 11_000
"""Prometheus and Thanos refuse a range query when (end - start) / step is above this."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Slots with ends start_s, start_s + step_s, ..., in all `slots` of them; times are Unix seconds."""

    start_s: float
    step_s: float
    slots: int

    @property
    def end_s(self) -> float:
        """End of the last slot; before `start_s` if there is none."""
        return self.start_s + (self.slots - 1) * self.step_s

    def index(self, at_s: float) -> int:
        """Index of the slot that ends at `at_s`, rounded to the nearest; may lie outside of the grid."""
        return round((at_s - self.start_s) / self.step_s)

    def parts(self, size: int) -> Iterator[Grid]:
        """Splits into grids of at most `size` slots, newest first."""
        left = self.slots
        while left > 0:
            count = min(size, left)
            left -= count
            yield Grid(self.start_s + left * self.step_s, self.step_s, count)


def of_window(start_s: float, end_s: float, step_s: float) -> Grid:
    """Returns the grid of the slots in (start, end], with ends that are multiples of the step.

    Args:
        start_s: begin of the first slot; moved up to the grid.
        end_s: end of the last slot; moved down to the grid.
        step_s: slot length, > 0.
    """
    low, high = math.ceil(start_s / step_s - 1e-6), math.floor(end_s / step_s + 1e-6)
    return Grid((low + 1) * step_s, step_s, max(0, high - low))


def split(grid: Grid, max_points: int = MAX_POINTS) -> list[Grid]:
    """Splits a grid so that each part is one range query that a server takes, oldest first."""
    return list(grid.parts(max_points))[::-1]


def duration(seconds: float) -> str:
    """Renders a PromQL duration, whole milliseconds at least 1."""
    millis = max(1, round(seconds * 1000))
    return f"{millis // 1000}s" if millis % 1000 == 0 else f"{millis}ms"


def when(at_s: float) -> str:
    """Renders a time for people, UTC."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
