"""The older part of a history in one pass, all slots at once: memory of days and weeks, but nothing judged.

After a restart two weeks stand ready. Stepping through all of them costs minutes with thousands of series, and only the
newest days are needed to judge the experts. All that is read here lies before the first forecast that is judged, so
cleaning may look to both sides of a slot.
"""

from __future__ import annotations

import numpy as np

from rebalancer.core.forecast import cleaning, regression, seasons, smoothing, yesterday
from rebalancer.core.forecast.engine import FIRST_FIT_DAYS, Engine
from rebalancer.core.forecast.grid import Ints, Tape, half_life, mean, median
from rebalancer.core.model import Bools, Floats

DAYS = (-3, -2, -1, 1, 2, 3)
"""Whose same slots say what is usual."""
BATCH = 64
"""Series side by side: what is worked on stays in the processor's cache."""
LEVEL_DAYS = 3


def prefill(engine: Engine, demand: Floats) -> None:
    """Takes many slots in at once.

    Args:
        engine: a blank one; afterwards it stands where `demand` ends.
        demand: shape (S, T), at least two days; NaN where nothing was seen.
    """
    tape = engine.tape
    lines = slice(tape.size, tape.size + demand.shape[1])
    root = np.sqrt(demand.T)
    known = ~np.isnan(root)
    tape.raw[lines], tape.clean[lines], tape.seen[lines] = root, root, known
    tape.size += demand.shape[1]
    engine.errors.samples += known.sum(axis=0)
    newest = len(root) - 1 - known[::-1].argmax(axis=0)
    engine.last = root[newest, np.arange(len(demand))]
    enough = engine.errors.samples >= FIRST_FIT_DAYS * engine.grid.season
    engine.offsets(np.flatnonzero(enough))
    for first in range(0, len(demand), BATCH):
        rows = np.arange(first, min(first + BATCH, len(demand)))
        _clean(engine, rows)
        _views(engine, rows)
        _smooth(engine, rows)


def _clean(engine: Engine, rows: Ints) -> None:
    """Cleans the tape of some series, and leaves the cleaner as if it had gone through them."""
    tape, grid, cleaner = engine.tape, engine.grid, engine.cleaner
    columns = np.arange(tape.size)
    value = tape.raw[: tape.size][:, rows].astype(np.float64)
    past = tape.read(tape.raw, tape.same_slot(columns, DAYS, rows), rows)
    usual, known = median(past), (~np.isnan(past)).sum(axis=0)
    level = np.nan_to_num(mean(value[-LEVEL_DAYS * grid.season :]))
    out = _outages(tape, value, usual, level, rows)
    kept = np.where(out, np.nan, value)
    deviation = kept - usual
    before, after = _around(deviation, len(cleaner.deviations))
    distance = np.abs(deviation)
    bounded = np.minimum(distance, 3.0 * np.nan_to_num(mean(distance), nan=np.inf))
    spread = np.maximum(1.2533 * np.nan_to_num(mean(bounded)), cleaning.SPREAD_FLOOR_RATIO * level) + 1e-9
    ratio = np.nan_to_num((deviation - before) / spread)
    marks = (np.sign(ratio) * (np.abs(ratio) > cleaning.KNOWN_SPIKE)).astype(np.int8)
    # What agrees with the hours after it is a new level.
    spike = (np.abs(ratio) > cleaning.SPIKE) & (np.abs(deviation - after) > cleaning.SPIKE * spread) & (known >= 2)
    spike &= ~_habit(marks, grid.season) & ~_habit(marks, 7 * grid.season)
    spike &= _lengths(spike) <= grid.slots(cleaning.SPIKE_S)
    expected = np.maximum(usual + before, 0.0)
    lines = slice(0, tape.size)
    tape.seen[lines, rows] &= ~out
    tape.clean[lines, rows] = np.where((spike | out) & ~np.isnan(expected), expected, value)
    for ring, found in ((cleaner.marks, marks), (cleaner.deviations, deviation)):
        place = _ring(engine, len(ring))
        ring[place[:, None], rows] = found[-len(place) :]
    for state, found, days in ((cleaner.level, kept, LEVEL_DAYS), (cleaner.spread, bounded, 1)):
        lately = found[-days * grid.season :]
        state[:, rows] = np.nansum(lately, axis=0), (~np.isnan(lately)).sum(axis=0)


def _outages(tape: Tape, value: Floats, usual: Floats, level: Floats, rows: Ints) -> Bools:
    """Says which slots belong to an outage; all of shape (T, B), `level` of shape (B,)."""
    week = tape.read(tape.raw, tape.same_slot(np.arange(len(value)), (7,), rows)[0], rows)
    with np.errstate(invalid="ignore"):  # comparisons with NaN are false, as they should be
        low = (value < np.sqrt(cleaning.OUTAGE_RATIO) * usual) & (usual > np.sqrt(cleaning.OUTAGE_FLOOR_RATIO) * level)
        low &= ~(week < np.sqrt(cleaning.WEEKLY_LOW_RATIO) * usual)
    result: Bools = low & (_lengths(low) >= cleaning.OUTAGE_SLOTS)
    return result


def _ring(engine: Engine, size: int) -> Ints:
    """Places in a ring of the newest columns."""
    slots = engine.tape.slot - np.arange(min(size, engine.tape.size))[::-1]
    place: Ints = slots % size
    return place


def _around(deviation: Floats, span: int) -> tuple[Floats, Floats]:
    """Usual deviation in the span before each slot's and in the one after it; zero where unknown."""
    blocks = -(-len(deviation) // span)
    padded = np.full((blocks * span, deviation.shape[1]), np.nan)
    padded[: len(deviation)] = deviation
    usual = np.nan_to_num(median(padded.reshape(blocks, span, -1).transpose(1, 0, 2)))
    before = np.concatenate([usual[:1], usual[:-1]])
    after = np.concatenate([usual[1:], usual[-1:]])
    return tuple(np.repeat(b, span, axis=0)[: len(deviation)] for b in (before, after))  # type: ignore[return-value] # two


def _habit(marks: np.ndarray[tuple[int, int], np.dtype[np.int8]], lag: int) -> Bools:
    """Where an excursion of the same sign was marked near the same slot, `lag` slots earlier."""
    near, slots = cleaning.NEAR, len(marks)
    result = np.zeros(marks.shape, dtype=bool)
    for shift in range(lag - near, lag + near + 1):
        if shift < slots:
            result[shift:] |= (marks[: slots - shift] == marks[shift:]) & (marks[shift:] != 0)
    return result


def _lengths(flags: Bools) -> Ints:
    """Length of the run each flag stands in; 0 where there is none."""
    place = np.arange(len(flags))[:, None]
    begin = np.maximum.accumulate(np.where(flags, -1, place), axis=0)
    end = np.minimum.accumulate(np.where(flags, len(flags), place)[::-1], axis=0)[::-1]
    result: Ints = np.where(flags, end - begin - 1, 0)
    return result


def _views(engine: Engine, rows: Ints) -> None:
    """Fills what the experts read of other days: the profile up to the farthest horizon, and today's deviations."""
    tape, grid, fit = engine.tape, engine.grid, engine.fit
    columns = np.arange(max(0, tape.size - grid.season), tape.size + grid.reach)
    found = seasons.profile(tape, columns, rows, fit.offset[rows])
    ring = len(fit.base)
    ahead = (tape.first + columns[-ring:]) % ring
    fit.base[ahead[:, None], :, rows] = found.base[:, -ring:].transpose(1, 2, 0)
    fit.sides[ahead[:, None], :, :, rows] = found.sides[:, :, -ring:].transpose(2, 3, 0, 1)
    engine.ahead[ahead[:, None], 0, rows] = found.days[-ring:]
    engine.ahead[ahead[:, None], 1, rows] = found.week[-ring:]
    newest = tape.size - 1 + grid.reach + max(yesterday.shifts(grid))
    yesterday.read(engine.before, tape, np.arange(max(0, newest + 1 - len(engine.before.past)), newest + 1), rows)
    seen = tape.seen[columns[: -grid.reach]][:, rows]
    root = np.where(seen, tape.raw[columns[: -grid.reach]][:, rows], np.nan).astype(np.float64)
    deviation = seasons.scaled(root, fit.offset[rows]) - found.base[:, : -grid.reach]
    place = _ring(engine, grid.season)
    fit.today[place[:, None], :, rows] = deviation[:, -len(place) :].transpose(1, 2, 0)
    regression.recount(fit, rows)
    held = np.stack([seasons.hold(one)[-1:-4:-1] for one in deviation], axis=1)
    fit.held[:, :, rows] = held


def _smooth(engine: Engine, rows: Ints) -> None:
    """Lets seasonal smoothing go through whole days: season and slow level, while deviations are taken as gone."""
    tape, grid, bank = engine.tape, engine.grid, engine.bank
    gamma = np.array(smoothing.SETTINGS)[:, 1][None, :, None]
    keep = half_life(smoothing.SLOW_DAYS)
    season = np.full((grid.season, len(smoothing.SETTINGS), len(rows)), np.nan)
    slow = np.full(season.shape[1:], np.nan)
    for first in range(tape.size % grid.season, tape.size, grid.season):
        lines = np.arange(first, first + grid.season)
        places = (tape.first + lines) % grid.season
        local = np.full((2, grid.season, len(rows)), np.nan)
        here = places[:, None]
        if tape.wall is not None:
            here = (here + tape.wall[lines][:, rows]) % grid.season
        kept = np.where(tape.seen[lines][:, rows], tape.raw[lines][:, rows], np.nan)
        local[0, here, np.arange(len(rows))] = kept
        local[1, here, np.arange(len(rows))] = np.where(np.isnan(kept), np.nan, tape.clean[lines][:, rows])
        level = mean(local[0][:, None] - np.nan_to_num(season))
        mixed = np.where(np.isnan(slow), level, keep * slow + (1.0 - keep) * level)
        slow = np.where(np.isnan(level), slow, mixed)
        wanted = local[1][:, None] - slow
        fresh = np.where(np.isnan(season), wanted, season + gamma * (wanted - season))
        season = np.where(np.isnan(wanted), season, fresh)
        bank.days[rows] += (~np.isnan(kept)).sum(axis=0)
    bank.season[:, :, rows], bank.slow[:, rows] = np.nan_to_num(season), np.nan_to_num(slow)
