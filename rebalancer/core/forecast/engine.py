"""The forecaster's engine: one slot of all series after the other, so that it can't look ahead.

What it holds is a cache. Built anew from the history it goes through the same slots, and comes to the same answer but
for what lies before the history's begin.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rebalancer.core.forecast import bands, cleaning, mixing, regression, seasons, smoothing, trust, yesterday
from rebalancer.core.forecast.grid import Grid, Ints, Tape, Zones, mean, median
from rebalancer.core.model import Bools, Floats

EXPERTS = ("naive", "mean of 7 days", "week ago", "yesterday", "regression", "regression (log)", "smoothing")
"""statsmodels' ETSModel, refit daily and stepped between, is left out: as one more it makes the error 0.6 % larger on
hourly series and 0.1 % on five-minute ones without long outages, and one fit costs more than all experts' refit."""
FIRST_FIT_DAYS = 1.1
OFFSET_RATIO = 0.05
NO_BOUND = 1 << 30
BATCH = 16
"""Series fitted side by side: more need much memory and are no faster."""


@dataclass(slots=True)
class Engine:
    """All that is known of some series.

    Attributes:
        phase: shape (S,), slot of the day in which a series is refit; from its key, so that refits spread over the day.
        fitted: shape (S,), absolute slot of the last refit; -1 before the first.
        last: shape (S,), root of the newest known value.
        ahead: shape (reach + 1, 2, S), by slot: mean of seven days, and the value a week ago.
        weights: shape (E, H, S), the newest.
        point: shape (H, S), the newest forecast.
        band: shape (H, Q, S), likewise.
        zones: wall clock of each series; empty if all stay on one clock.
        refits: refits since the caller last emptied it, by outcome.
        allowance: how many refits may still be made; those left out come first when there is more.
    """

    grid: Grid
    tape: Tape
    cleaner: cleaning.Cleaner
    fit: regression.Regression
    before: yesterday.Yesterday
    bank: smoothing.Smoothing
    mix: mixing.Mixing
    errors: bands.Bands
    trust: trust.Trust
    phase: Ints
    fitted: Ints
    last: Floats
    ahead: Floats
    weights: Floats
    point: Floats
    band: Floats
    zones: Zones = ()
    refits: Mapping[str, int] = field(default_factory=dict)
    allowance: int = NO_BOUND

    @staticmethod
    def blank(grid: Grid, keys: Sequence[str], first: int, size: int = 0, zones: Zones = ()) -> Engine:
        """Returns an engine that has seen nothing; the first slot taken in will be `first + size`.

        Args:
            grid: slots, horizons and quantiles.
            keys: one for each series.
            first: absolute number of the first column's slot.
            size: how many columns stay gaps.
            zones: wall clock of each series; empty if all stay on one clock.
        """
        series, horizons = len(keys), len(grid.ahead)
        return Engine(
            grid=grid,
            tape=Tape.blank(grid, series, first, size, zones),
            cleaner=cleaning.Cleaner.blank(grid, series),
            fit=regression.Regression.blank(grid, series),
            before=yesterday.Yesterday.blank(grid, series),
            bank=smoothing.Smoothing.blank(grid, series),
            mix=mixing.Mixing.blank(grid, series, len(EXPERTS)),
            errors=bands.Bands.blank(grid, series),
            trust=trust.Trust.blank(grid, series),
            phase=np.array([zlib.crc32(k.encode()) % grid.season for k in keys], dtype=np.int64),
            fitted=np.full(series, -1, dtype=np.int64),
            last=np.full(series, np.nan),
            ahead=np.full((grid.reach + 1, 2, series), np.nan),
            weights=np.zeros((len(EXPERTS), horizons, series)),
            point=np.full((horizons, series), np.nan),
            band=np.full((horizons, len(grid.probs), series), np.nan),
            zones=zones,
        )

    def fits(self, grid: Grid, *, zoned: bool) -> bool:
        """Says whether it works on a grid, with or without wall clocks; how much history is kept may differ."""
        return (
            zoned == bool(self.zones)
            and replace(grid, keep=self.grid.keep) == self.grid
            and grid.keep <= self.grid.keep
        )

    def revise(self, demand: Floats) -> None:
        """Takes over samples that came late: levels and seasons see them, judgements stay as they were made.

        Args:
            demand: shape (S, T), what is now known of the newest T slots.
        """
        tape = self.tape
        width = min(demand.shape[1], tape.size, tape.grid.season)
        if not width:
            return
        lines = slice(tape.size - width, tape.size)
        root = np.sqrt(demand[:, -width:].T).astype(np.float32)
        fresh = ~((root == tape.raw[lines]) | (np.isnan(root) & np.isnan(tape.raw[lines])))
        if not fresh.any():
            return
        for line in (tape.raw, tape.clean):
            line[lines] = np.where(fresh, root, line[lines])
        tape.seen[lines] = np.where(fresh, ~np.isnan(root), tape.seen[lines])

    def step(self, demand: Floats) -> None:
        """Takes the next slot in; `demand` of shape (S,), NaN where nothing was seen."""
        grid, tape = self.grid, self.tape
        root = np.sqrt(demand)
        tape.make_room()
        tape.size += 1
        tape.tick(self.zones)
        out = cleaning.step(self.cleaner, tape, root)
        self._judge(root, demand, out)
        rows = np.arange(len(demand))
        column = np.array([tape.size - 1 + grid.reach])
        found = seasons.profile(tape, column, rows, self.fit.offset)
        regression.step(self.fit, tape, found)
        yesterday.step(self.before, tape, self.fit.base[tape.slot % len(self.fit.base), 0])
        self.ahead[(tape.slot + grid.reach) % len(self.ahead)] = found.days[0], found.week[0]
        self.refit()
        self._forecast(root, demand)

    def _judge(self, root: Floats, demand: Floats, out: Bools) -> None:
        """Holds earlier forecasts against what came; the values of an outage (`out`) say nothing about the experts."""
        grid, slot = self.grid, self.tape.slot
        seen, (root, demand) = root, (np.where(out, np.nan, one) for one in (root, demand))
        mixing.judge(self.mix, grid, slot, demand)
        which = trust.nearest(tuple(a * grid.step_s for a in grid.ahead), trust.SHIFT_S)
        origin = (slot - grid.ahead[which]) % (grid.reach + 1)
        residual = seen - self.errors.points[origin, which]
        edge = self.errors.edges[origin, which]
        horizons = np.arange(len(grid.ahead))
        origins = (slot - np.array(grid.ahead)) % (grid.reach + 1)
        own = mean(np.abs(self.errors.points[origins, horizons] ** 2 - demand))
        naive = mean(np.abs(self.mix.past[origins, 0, horizons] - demand))
        # Within rounding of single precision nothing was missed.
        own, naive = (np.where(e <= trust.ROUNDING * demand, 0.0, e) for e in (own, naive))
        usual = np.where(self.errors.outcomes[which] >= bands.needed(grid), bands.usual(self.errors)[which], np.nan)
        trust.judge(self.trust, grid, slot, residual, edge, usual, root, (own, naive))
        bands.judge(self.errors, grid, slot, root)
        bands.refresh(self.errors, grid, bands.due(self.errors, grid, slot, self.phase))

    def refit(self) -> None:
        """Fits those whose hour has come, within the allowance; a new fit counts from the next slot on."""
        grid, tape = self.grid, self.tape
        since = tape.slot - self.fitted
        due = ((tape.slot % grid.season == self.phase) & (since > 0)) | (self.fitted < 0) | (since > grid.season)
        due &= self.errors.samples >= FIRST_FIT_DAYS * grid.season
        rows = np.flatnonzero(due)
        rows = rows[np.argsort(self.fitted[rows], kind="stable")][: self.allowance]
        if not len(rows):
            return
        self.allowance -= len(rows)
        self.offsets(rows)
        done = 0
        for first in range(0, len(rows), BATCH):
            batch = rows[first : first + BATCH]
            done += int(regression.refit(self.fit, tape, batch).sum())
        self.fitted[rows] = tape.slot
        seen = self.refits
        self.refits = {"done": seen.get("done", 0) + done, "too-few": seen.get("too-few", 0) + len(rows) - done}

    def offsets(self, rows: Ints) -> None:
        """Sets the logarithm's offset, once for each series."""
        fresh = rows[np.isnan(self.fit.offset[rows])]
        if not len(fresh):
            return
        seen = self.tape.raw[: self.tape.size, fresh].astype(np.float64) ** 2
        usual = median(np.where(seen > 0, seen, np.nan))
        self.fit.offset[fresh] = np.where(usual > 0, OFFSET_RATIO * usual, OFFSET_RATIO) + 1e-9

    def _forecast(self, root: Floats, demand: Floats) -> None:
        """Asks the experts, mixes them and draws the bands."""
        grid, tape = self.grid, self.tape
        slots = (tape.slot + np.array(grid.ahead)) % len(self.ahead)
        cleaned = tape.clean[tape.size - 1].astype(np.float64)
        self.last = np.where(np.isnan(root), self.last, root)
        spar = smoothing.step(self.bank, tape, np.where(tape.seen[tape.size - 1], root, np.nan), cleaned)
        experts = np.stack([
            np.broadcast_to(self.last**2, self.point.shape),
            self.ahead[slots, 0],
            self.ahead[slots, 1],
            yesterday.forecast(self.before, tape, self.fit.base[slots, 0]),
            *regression.forecast(self.fit, tape),
            spar,
        ])  # fmt: skip
        self.mix.past[tape.slot % len(self.mix.past)] = experts
        self.weights = mixing.weights(self.mix, grid, experts, self.trust.lasting)
        mixed = (self.weights * np.where(np.isnan(experts), 0.0, experts)).sum(axis=0)
        self.point = np.where(np.isnan(experts).all(axis=0), np.nan, mixed)
        self.band = bands.draw(self.errors, grid, tape.slot, self.point)
