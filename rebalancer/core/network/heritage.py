"""Round trips that nobody measured: inherited from the pair of regions, else bounded over common neighbours. Pure.

Both come with their error. Where the triangle inequality holds, the truth is within it; on the internet it is broken
now and then, so an inherited value is a good guess and a predicted one only good enough to rank pairs.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping

Pair = tuple[str, str]
NEIGHBOURS = 16
"""Nearest measured neighbours of each end that are tried; more hardly narrow the bounds."""


class Heritage:
    """What the measured pairs say about the others.

    Args:
        measured: ordered pair -> its measured round trip in s; either direction stands for both.
        regions: cluster -> region.
    """

    def __init__(self, measured: Mapping[Pair, float], regions: Mapping[str, str]) -> None:
        self._regions = regions
        self._near: dict[str, dict[str, float]] = {}
        both: dict[Pair, list[float]] = {}
        for (src, dst), rtt_s in measured.items():
            self._near.setdefault(src, {})[dst] = rtt_s
            self._near.setdefault(dst, {}).setdefault(src, rtt_s)
            here, there = regions[src], regions[dst]
            for key in {(here, there), (there, here)}:
                both.setdefault(key, []).append(rtt_s)
        self._pairs = {key: (statistics.median(values), min(values), max(values)) for key, values in both.items()}
        # Sorted once: each unmeasured pair looks at few neighbours only.
        self._nearest = {
            name: sorted(found, key=lambda other: (found[other], other))[:NEIGHBOURS]
            for name, found in self._near.items()
        }

    def of_regions(self, src: str, dst: str) -> tuple[float, float] | None:
        """Returns (median round trip between the two regions, its error) in s; None where no such pair is measured.

        The error is the spread of the measured pairs, or how far the two clusters are off in their own regions,
        whichever is wider.
        """
        found = self._pairs.get((self._regions[src], self._regions[dst]))
        if found is None:
            return None
        middle, low, high = found
        return middle, max(middle - low, high - middle, self._offset_s(src) + self._offset_s(dst))

    def _offset_s(self, cluster: str) -> float:
        """Distance to the nearest measured cluster of the own region, 0 where there is none."""
        own = self._regions[cluster]
        near = [rtt_s for other, rtt_s in self._near.get(cluster, {}).items() if self._regions[other] == own]
        return min(near, default=0.0)

    def predicted(self, src: str, dst: str) -> tuple[float, float] | None:
        """Returns (middle, half width) in s of what the triangle inequality allows; None without a common neighbour."""
        here, there = self._near.get(src, {}), self._near.get(dst, {})
        tried = [*self._nearest.get(src, ()), *self._nearest.get(dst, ())]
        common = [(here[other], there[other]) for other in tried if other in here and other in there]
        if not common:
            return None
        high = min(a + b for a, b in common)
        low = min(high, max(abs(a - b) for a, b in common))
        return (low + high) / 2, (high - low) / 2
