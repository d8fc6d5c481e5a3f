"""Whether a forecast may be planned on, and why not: shifts of level, coverage, skill and age, per series."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rebalancer.core.forecast.grid import Grid, Ints, Singles, mean
from rebalancer.core.model import Bools, Floats

SHIFT_S = 900.0
"""The horizon whose band says that the level moved."""
SHIFT_SLOTS = 2
"""Over so many slots an error is averaged to be evidence of a shift: a spike of one slot is none."""
SHIFT_SHARE = 0.0125
"""How often slots without a shift may look like one, on each side."""
SHIFT_BEGIN, SHIFT_LEARNING, SHIFT_LEAST = 3.0, 0.2, 1.0
"""Bound of that evidence in usual errors: at first, by how much it rises after a slot beyond it, and at least."""
SHIFT_WINDOW, SHIFT_MISSES = 6, 3
"""Three values of six on one side of the band confirm a shift; then it lasts until six in a row lie inside."""
SHIFT_RATIO = 0.02
"""A value outside of the band by less (on the square-root scale; 4 % of demand) is no shift: the band of a service that
hardly varies is thinner than that, and the target's slack takes it."""
ROUNDING = 1e-6
COVERED = 0.95
MIN_COVERAGE = 0.90
MIN_OUTCOME_DAYS = 0.5
MAX_AGE_SLOTS = 2.0
MAX_ERROR = 1.0


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What is thought of each series' forecast.

    Attributes:
        trusted: shape (S,).
        why: per series, one sentence.
        coverage: shape (S,), share of the last day's outcomes under the 95 % quantile; NaN without outcomes.
        error: shape (S,), absolute error of the last day relative to the naive forecast's; NaN without outcomes.
    """

    trusted: Bools
    why: tuple[str, ...]
    coverage: Floats
    error: Floats


@dataclass(slots=True)
class Trust:
    """Outcomes of the last day.

    Attributes:
        sides: shape (SHIFT_WINDOW, S), by slot: 1 above the band, -1 below, 0 inside or unknown.
        lately: shape (SHIFT_SLOTS, S), by slot: residuals at the horizon of a shift; NaN where there was none.
        bound: shape (2, S), of their mean above and below, in usual errors: what a share of SHIFT_SHARE goes beyond.
        begun: shape (S,), whether the newest residuals go beyond it.
        lasting: shape (S,), whether it was confirmed, and is not over yet.
        covered: shape (season, S), 1 where the outcome lay under the 95 % quantile; NaN where there was none.
        missed, naive: shape (season, S), absolute errors, mean over horizons; NaN where there was no outcome.
    """

    sides: Singles
    lately: Floats
    bound: Floats
    begun: Bools
    lasting: Bools
    covered: Singles
    missed: Singles
    naive: Singles

    @staticmethod
    def blank(grid: Grid, series: int) -> Trust:
        """Returns one without experience."""
        nothing = np.full((grid.season, series), np.nan, dtype=np.float32)
        return Trust(
            sides=np.zeros((SHIFT_WINDOW, series), dtype=np.float32),
            lately=np.full((SHIFT_SLOTS, series), np.nan),
            bound=np.full((2, series), SHIFT_BEGIN),
            begun=np.zeros(series, dtype=bool),
            lasting=np.zeros(series, dtype=bool),
            covered=nothing,
            missed=nothing.copy(),
            naive=nothing.copy(),
        )

    @property
    def shifted(self) -> Bools:
        """Where the level moves; shape (S,)."""
        result: Bools = self.begun | self.lasting
        return result


def judge(
    trust: Trust, grid: Grid, slot: int, residual: Floats, edge: Floats, usual: Floats, root: Floats,
    errors: tuple[Floats, Floats],
) -> None:  # fmt: skip
    """Takes the newest outcomes in.

    Args:
        trust: is brought up to date.
        grid: slots.
        slot: the newest.
        residual: shape (S,), root of the value less root of the forecast, at the horizon of a shift.
        edge: shape (Q, S), the residual quantiles it was given.
        usual: shape (S,), its usual size; NaN until it is known well enough.
        root: shape (S,), square root of the value.
        errors: the forecast's and the naive one's, shape (S,), mean over horizons.
    """
    low, high = edge[0], edge[nearest(grid.probs, COVERED)]
    known = ~np.isnan(residual) & ~np.isnan(high)
    slack = SHIFT_RATIO * root
    with np.errstate(invalid="ignore"):
        side = np.where(known, 1.0 * (residual > high + slack) - 1.0 * (residual < low - slack), 0.0)
        under = residual <= high + ROUNDING * root + 1e-9
    trust.sides[slot % SHIFT_WINDOW] = side
    _shift(trust, slot, residual, usual, slack)
    place = slot % grid.season
    trust.covered[place] = np.where(known, under, np.nan)
    trust.missed[place], trust.naive[place] = errors


def _shift(trust: Trust, slot: int, residual: Floats, usual: Floats, slack: Floats) -> None:
    """Says whether the newest residuals together go beyond what they do without a shift, and learns how far that is."""
    trust.lately[slot % SHIFT_SLOTS] = residual
    together = trust.lately.mean(axis=0)
    evidence = np.stack([together, -together])
    bound = trust.bound * usual
    with np.errstate(invalid="ignore"):  # comparisons with NaN are false: what is unknown is no evidence
        trust.begun = np.any(evidence > bound + slack, axis=0)
        beyond = evidence > bound
    # Quantile tracking: over time a share of SHIFT_SHARE lies beyond each bound, whatever the errors look like.
    learnt = np.maximum(trust.bound + SHIFT_LEARNING * (beyond - SHIFT_SHARE), SHIFT_LEAST)
    trust.bound = np.where(np.isnan(together + usual), trust.bound, learnt)
    misses = np.maximum((trust.sides > 0).sum(axis=0), (trust.sides < 0).sum(axis=0))
    over = (trust.sides == 0).all(axis=0)
    trust.lasting = (trust.lasting | (trust.begun & (misses >= SHIFT_MISSES))) & ~over


def nearest(values: tuple[float, ...], wanted: float) -> int:
    """Returns the place of the value nearest to the wanted one."""
    return int(np.argmin(np.abs(np.array(values) - wanted)))


def verdicts(trust: Trust, grid: Grid, age_s: Floats, outcomes: Ints, late: Ints) -> Verdicts:
    """Says of each series whether its forecast may be planned on.

    Args:
        trust: outcomes of the last day.
        grid: slots.
        age_s: shape (S,), age of the newest sample; NaN if none.
        outcomes: shape (S,), of the first horizon, ever.
        late: shape (S,), slots since the newest value.
    """
    coverage = mean(trust.covered.astype(np.float64))
    own, naive = mean(trust.missed.astype(np.float64)), mean(trust.naive.astype(np.float64))
    error = np.where(naive > 0, own / np.where(naive > 0, naive, 1.0), np.where(own > 1e-9, np.inf, 1.0))
    error = np.where(np.isnan(own), np.nan, error)
    found = [
        _why(grid, *one)
        for one in zip(age_s, late, outcomes, trust.shifted, coverage, error, strict=True)
    ]  # fmt: skip
    return Verdicts(np.array([t for t, _ in found], dtype=bool), tuple(w for _, w in found), coverage, error)


def _why(
    grid: Grid, age_s: float, late: int, outcomes: int, shifted: bool, coverage: float, error: float
) -> tuple[bool, str]:
    """Returns (trusted, one sentence); the first thing that stands against it."""
    if np.isnan(age_s):
        return False, "no sample yet"
    if late > 0 or age_s >= MAX_AGE_SLOTS * grid.step_s:
        return False, f"the newest sample is {age_s:.0f} s old"
    needed = int(MIN_OUTCOME_DAYS * grid.season)
    if outcomes < needed:
        return False, f"young: {outcomes} of {needed} forecasts could be judged so far"
    if shifted:
        return False, "the level has just shifted"
    if not coverage >= MIN_COVERAGE:
        return False, f"only {coverage:.0%} of the last day lay under the 95 % quantile"
    if error > MAX_ERROR:
        return False, f"its error of the last day is {error:.2f} of the naive forecast's"
    return True, f"{coverage:.0%} of the last day under the 95 % quantile, error {error:.2f} of the naive forecast's"
