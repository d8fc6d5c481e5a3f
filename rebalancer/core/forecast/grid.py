"""The grid of a forecast, and the tape: what was seen on it, slot by slot.

All arrays hold the series on their last axis, so that one slot of all series lies together: the engine goes forward in
time and does all series at once. Demand is kept as its square root: noise of counts is even there, and zero is allowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, tzinfo
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from rebalancer.core.model import Bools, Floats

DAY_S, HOUR_S = 86400.0, 3600.0
FINE = 96
"""From so many slots a day on (a quarter of an hour) neighbouring slots of other days are averaged."""
Singles = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Part = TypeVar("Part")


@dataclass(frozen=True, slots=True)
class Grid:
    """Slots, horizons and quantiles of all series of a forecast.

    Attributes:
        step_s: slot length in s.
        ahead: horizons in slots, ascending, at least 1 and at most a day less two slots (a day on coarse grids).
        probs: quantiles, ascending, in (0, 1).
        keep: how many slots of history are kept.
        season: slots per day.
        reach: the farthest horizon.
        fine: whether a slot is short against a day.
    """

    step_s: float
    ahead: tuple[int, ...]
    probs: tuple[float, ...]
    keep: int
    season: int = field(init=False)
    reach: int = field(init=False)
    fine: bool = field(init=False)

    def __post_init__(self) -> None:
        """Works out what is asked for in every slot."""
        season = max(1, round(DAY_S / self.step_s))
        object.__setattr__(self, "season", season)
        object.__setattr__(self, "reach", self.ahead[-1])
        object.__setattr__(self, "fine", season >= FINE)

    def slots(self, seconds: float) -> int:
        """Returns a duration in whole slots, at least one."""
        return max(1, round(seconds / self.step_s))


@dataclass(frozen=True, slots=True)
class Zone:
    """The wall clock of a region, as far as it is needed.

    Attributes:
        since_s: times from which an offset holds, ascending; the first one holds before, too.
        offset_s: seconds ahead of UTC.
    """

    since_s: tuple[float, ...]
    offset_s: tuple[float, ...]

    @staticmethod
    def between(clock: tzinfo, begin_s: float, end_s: float) -> Zone:
        """Returns what a time zone's clock does in a span of time, to the hour, in which clocks change."""
        hours = np.arange(np.floor(begin_s / HOUR_S), np.ceil(end_s / HOUR_S) + 1) * HOUR_S
        offsets = [_offset_s(clock, float(at)) for at in hours]
        kept = [i for i, offset in enumerate(offsets) if i == 0 or offset != offsets[i - 1]]
        return Zone(tuple(float(hours[i]) for i in kept), tuple(offsets[i] for i in kept))

    def slots(self, grid: Grid, slots: Ints) -> Ints:
        """Offsets in slots in some slots, by their absolute numbers."""
        place = np.searchsorted(self.since_s, slots * grid.step_s, side="right") - 1
        found = np.round(np.array(self.offset_s)[np.maximum(place, 0)] / grid.step_s)
        result: Ints = found.astype(np.int64)
        return result


UTC = Zone((0.0,), (0.0,))


def _offset_s(clock: tzinfo, at_s: float) -> float:
    ahead = datetime.fromtimestamp(at_s, clock).utcoffset()
    return ahead.total_seconds() if ahead is not None else 0.0


Zones = tuple[Zone, ...]


def _walls(grid: Grid, zones: Zones, slots: Ints) -> Ints:
    """Offsets in slots; shape (slots, S). Many series share few clocks."""
    kinds = list(dict.fromkeys(zones))
    place = {zone: row for row, zone in enumerate(kinds)}
    found: Ints = np.stack([zone.slots(grid, slots) for zone in kinds], axis=1)
    return found[:, [place[zone] for zone in zones]]


@dataclass(slots=True)
class Tape:
    """What was seen, with its masks.

    Attributes:
        first: absolute number of the first column's slot (time / step).
        size: how many columns are filled.
        raw: shape (columns, S), square root of demand; NaN where nothing was seen.
        clean: as `raw`, with outages and one-off spikes replaced by what was expected; feeds seasonal memory only.
        seen: shape (columns, S), False in gaps and outages.
        wall: shape (columns + reach, S), clock offset of the series' region in slots; None if all stay on one clock.
    """

    grid: Grid
    first: int
    size: int
    raw: Singles
    clean: Singles
    seen: Bools
    wall: Ints | None = None

    @staticmethod
    def blank(grid: Grid, series: int, first: int, size: int = 0, zones: Zones = ()) -> Tape:
        """Returns a tape on which nothing stands; its first `size` columns are gaps."""
        columns = grid.keep + grid.season
        gaps = np.full((columns, series), np.nan, dtype=np.float32)
        wall = None
        if zones:
            wall = _walls(grid, zones, np.arange(first, first + columns + grid.reach))
        return Tape(grid, first, size, gaps, gaps.copy(), np.zeros((columns, series), dtype=bool), wall)

    def tick(self, zones: Zones) -> None:
        """Sets the wall clocks of the column that the farthest horizon reaches."""
        if self.wall is not None:
            slot = np.array([self.slot + self.grid.reach])
            self.wall[self.size - 1 + self.grid.reach] = _walls(self.grid, zones, slot)[0]

    @property
    def slot(self) -> int:
        """Absolute number of the newest slot."""
        return self.first + self.size - 1

    def make_room(self) -> None:
        """Drops the oldest columns when the tape is full."""
        if self.size < len(self.raw):
            return
        drop = self.size - self.grid.keep
        for line in (self.raw, self.clean, self.seen):
            line[:-drop] = line[drop:].copy()
        if self.wall is not None:
            self.wall[:-drop] = self.wall[drop:].copy()
        self.raw[-drop:], self.clean[-drop:], self.seen[-drop:] = np.nan, np.nan, False
        self.first, self.size = self.first + drop, self.size - drop

    def same_slot(self, columns: Ints, days: Sequence[int], rows: Ints) -> Ints:
        """Columns that stand `days` before others by the wall clock.

        Args:
            columns: shape (C,); may lie ahead of the newest slot.
            days: shape (K,).
            rows: shape (B,), series.

        Returns:
            Shape (K, C, B), or (K, C, 1) where all series share a clock; negative before the tape's begin.
        """
        back = np.asarray(days, dtype=np.int64)[:, None, None] * self.grid.season
        plain: Ints = columns[None, :, None] - back
        if self.wall is None:
            return plain
        there = self.wall[np.clip(plain, 0, len(self.wall) - 1), rows[None, None, :]]
        here = self.wall[np.clip(columns, 0, len(self.wall) - 1)][None][..., rows]
        shifted: Ints = plain + here - there
        return shifted

    def read(self, line: Singles, columns: Ints, rows: Ints) -> Floats:
        """Values at columns; NaN outside of what was seen. Shapes broadcast, rows on the last axis."""
        inside = (columns >= 0) & (columns < self.size)
        found = line[np.where(inside, columns, 0), rows]
        return np.where(inside, found, np.nan).astype(np.float64)


def take(part: Part, rows: Ints) -> Part:
    """Returns a part of the engine's state for some of its series, in the order given."""
    return _map([part], lambda arrays: arrays[0][..., rows])


def join(left: Part, right: Part) -> Part:
    """Returns the state of the series of both parts."""
    return _map([left, right], lambda arrays: np.concatenate(arrays, axis=-1))


def _map(parts: Sequence[Part], change: object) -> Part:
    """Applies a function to the arrays of parts of one kind; everything else is that of the first."""
    assert callable(change)
    found = {}
    for one in fields(parts[0]):  # type: ignore[arg-type] # all parts are dataclasses
        values = [getattr(p, one.name) for p in parts]
        if isinstance(values[0], np.ndarray):
            found[one.name] = change(values)
        elif hasattr(values[0], "__dataclass_fields__") and not isinstance(values[0], Grid):
            found[one.name] = _map(values, change)
        else:
            found[one.name] = values[0]
    return type(parts[0])(**found)


def half_life(slots: float) -> float:
    """Returns the factor by which a weight falls in one slot."""
    result: float = 0.5 ** (1.0 / slots)
    return result


def median(values: Floats) -> Floats:
    """Median over the first axis, NaN left out; NaN where nothing is known."""
    ordered = np.sort(values, axis=0)
    count = (~np.isnan(values)).sum(axis=0)
    low = np.take_along_axis(ordered, np.maximum(count - 1, 0)[None] // 2, axis=0)[0]
    high = np.take_along_axis(ordered, np.minimum(count // 2, len(values) - 1)[None], axis=0)[0]
    return np.where(count > 0, (low + high) / 2.0, np.nan)


def mean(values: Floats, weights: Floats | None = None) -> Floats:
    """Mean over the first axis, NaN left out, weighted by `weights` of that axis; NaN where nothing is known."""
    known = ~np.isnan(values)
    share = known if weights is None else known * weights.reshape(-1, *[1] * (values.ndim - 1))
    norm = share.sum(axis=0)
    total = (np.where(known, values, 0.0) * share).sum(axis=0)
    result: Floats = np.where(norm > 0, total, np.nan) / np.maximum(norm, 1e-300)
    return result
