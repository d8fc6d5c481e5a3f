"""Where simulated users are: eight regions, real round-trip times, a real daily load shape that follows the sun."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

import numpy as np

from rebalancer.core.model import Floats

DAY_S = 86400.0
NOISE = 0.03
"""Relative noise of a minute's demand, seeded: about what a service of some hundred requests/s shows."""


@dataclass(frozen=True, slots=True)
class Region:
    """A region of the simulated world."""

    name: str
    place: str
    latitude: float
    longitude: float
    utc_offset_h: float
    share: float
    cpu_core_hour: float


@dataclass(frozen=True, slots=True)
class Earth:
    """Regions, distances and the shape of a day.

    Attributes:
        rtt_ms: (from, to) -> milliseconds, both directions the same.
        day_shape: demand by half hour of the local day, relative to its maximum.
        sources: where the numbers come from.
    """

    regions: Mapping[str, Region]
    rtt_ms: Mapping[tuple[str, str], float]
    day_shape: Floats
    sources: Mapping[str, str]

    def demand(self, region: str, peak: float, at_s: Floats) -> Floats:
        """Demand of a region without noise.

        Args:
            region: its name.
            peak: world-wide demand if all regions had their maximum at once.
            at_s: Unix seconds, any shape.

        Returns:
            Demand in the unit of `peak`, shape as `at_s`.
        """
        place = self.regions[region]
        local_s = (np.asarray(at_s) + place.utc_offset_h * 3600.0) % DAY_S
        hours = np.arange(len(self.day_shape) + 1) * DAY_S / len(self.day_shape)
        wrapped = np.append(self.day_shape, self.day_shape[0])
        result: Floats = peak * place.share * np.interp(local_s, hours, wrapped)
        return result


def earth() -> Earth:
    """Loads the carried world."""
    text = resources.files("rebalancer.sim").joinpath("data/world.json").read_text(encoding="utf-8")
    raw = json.loads(text)
    regions = {r["name"]: Region(**r) for r in raw["regions"]}
    names = list(regions)
    matrix = raw["rtt_ms"]
    rtt = {
        (a, b): (matrix[i][j] + matrix[j][i]) / 2.0 for i, a in enumerate(names) for j, b in enumerate(names)
    }  # fmt: skip
    return Earth(regions, rtt, np.array(raw["day_shape"]), raw["sources"])
