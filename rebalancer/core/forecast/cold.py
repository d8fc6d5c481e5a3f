"""From the memory of the last call to an engine that knows everything up to now, with bounded work per call.

After a restart nothing is remembered. Then the older part of the history is read in one pass, the newest days are
stepped through, and only so many series are built in one call; the others wait, with a band around their newest value
and without trust. The history of a large fleet itself arrives over some cycles, the newest part first: a series whose
history reaches a day further back than when it was built is built again, once no other waits. The core knows no clock,
so work is bounded by counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from rebalancer.core.forecast.bands import PRIOR_SAMPLES
from rebalancer.core.forecast.engine import Engine
from rebalancer.core.forecast.grid import Grid, Ints, Zones, join, take
from rebalancer.core.forecast.prefill import prefill
from rebalancer.core.model import Bools, Floats

STEPPED_DAYS, STEPPED_SLOTS = 2, 576
"""At least so much is stepped through and judged; with fewer than two more days before it, all is."""
CELLS = 200_000
"""Series times slots that a call steps through to build series up: five seconds or so."""
FITS = 150
"""Refits a call may make: as long again. A fleet of 10,000 series refits 35 in five minutes."""
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class ForecastMemory:
    """A cache only: a cold one costs time and, until it is built, trust; never a less safe decision.

    The engine goes on in place, so a memory serves one caller. One that does not fit the history is built anew.

    Attributes:
        at_s: when the last forecast was made.
        keys: whose series the engine holds, in its order.
        engine: what is known of them; None before the first forecast.
        begins: absolute slot of the oldest value that each was built from.
    """

    at_s: float | None = None
    keys: tuple[Key, ...] = ()
    engine: Engine | None = None
    begins: Mapping[Key, int] = field(default_factory=dict)


def caught_up(
    memory: ForecastMemory, grid: Grid, keys: tuple[Key, ...], values: Floats, last: int, zones: Zones
) -> tuple[Engine, ForecastMemory, Bools]:
    """Takes in everything up to the slot `last`.

    Args:
        memory: of the last call; used as far as it fits.
        grid: slots, horizons and quantiles.
        keys: whose series are wanted.
        values: shape (S, T), demand; NaN where nothing was seen.
        last: absolute number of the newest slot.
        zones: wall clock of each series; empty if all stay on one clock.

    Returns:
        An engine of all series in their order, what to remember, and shape (S,): which series wait to be built.
    """
    known, old = _gone_on(memory, grid, keys, values, last, zones)
    size = old.tape.size if old is not None else values.shape[1]
    most = max(1, CELLS // (values.shape[1] - _older(grid, values.shape[1])))
    begins = last + 1 - values.shape[1] + np.argmax(~np.isnan(values), axis=1)
    known, old = _without_outgrown(memory.begins, grid, keys, begins, most - (len(keys) - len(known)), known, old)
    place = {key: row for row, key in enumerate(known)}
    missing = np.array([row for row, key in enumerate(keys) if key not in place], dtype=np.int64)
    # The largest first: most depends on them.
    lately = np.nan_to_num(values[missing, -grid.season :]).sum(axis=1)
    missing = missing[np.argsort(-lately, kind="stable")]
    turn, rest = np.split(missing, [most])
    order, waiting = list(known), np.zeros(len(keys), dtype=bool)
    waiting[rest] = True
    for rows, part in ((turn, values[turn]), (rest, _held(values[rest]))):
        if not len(rows):
            continue
        clocks = _clocks(zones, rows)
        left = old.allowance if old is not None else FITS
        fresh = _built(grid, [keys[row] for row in rows], part, last, clocks, size, left)
        old = _joined(old, fresh) if old is not None else fresh
        order += [keys[row] for row in rows]
    assert old is not None  # there is at least one series, known or missing
    if order != list(keys):
        place = {key: row for row, key in enumerate(order)}
        old = take(old, np.array([place[k] for k in keys]))
    old.zones = zones
    old.refit()
    since = {key: memory.begins[key] for key in known} | {keys[row]: int(begins[row]) for row in turn}
    if not len(rest):
        return old, ForecastMemory(keys=keys, engine=old, begins=since), waiting
    built = np.flatnonzero(~waiting)
    kept = take(old, built)
    kept.zones = _clocks(zones, built)
    return old, ForecastMemory(keys=tuple(keys[row] for row in built), engine=kept, begins=since), waiting


def _without_outgrown(
    since: Mapping[Key, int],
    grid: Grid,
    keys: tuple[Key, ...],
    begins: Ints,
    most: int,
    known: tuple[Key, ...],
    old: Engine | None,
) -> tuple[tuple[Key, ...], Engine | None]:
    """Forgets at most so many series whose history reaches a day further back than what they were built from."""
    begin = dict(zip(keys, begins.tolist(), strict=True))
    grown = sorted((key for key in known if since[key] - begin[key] >= grid.season), key=lambda key: begin[key])
    gone = set(grown[: max(0, most)])
    if not gone or old is None:
        return known, old
    stay = np.array([row for row, key in enumerate(known) if key not in gone], dtype=np.int64)
    return tuple(key for key in known if key not in gone), take(old, stay) if len(stay) else None


def _gone_on(
    memory: ForecastMemory, grid: Grid, keys: tuple[Key, ...], values: Floats, last: int, zones: Zones
) -> tuple[tuple[Key, ...], Engine | None]:
    """Returns the remembered series that are still wanted, and their engine, stepped on; None where nothing fits."""
    old, slots = memory.engine, values.shape[1]
    if old is None:
        return (), None
    new = last - old.tape.slot
    row_of = {key: row for row, key in enumerate(keys)}
    kept = tuple(key for key in memory.keys if key in row_of)
    cheaper = new * len(kept) <= CELLS or new <= grid.season // 24
    if not kept or not old.fits(grid, zoned=bool(zones)) or not 0 <= new < slots or not cheaper:
        return (), None
    rows = np.array([row_of[key] for key in kept])
    if kept != memory.keys:
        old = take(old, np.array([row for row, key in enumerate(memory.keys) if key in row_of]))
    old.zones = _clocks(zones, rows)
    old.refits, old.allowance = {}, FITS
    old.revise(values[rows, : slots - new])
    for slot in range(slots - new, slots):
        old.step(values[rows, slot])
    return kept, old


def _clocks(zones: Zones, rows: Ints) -> Zones:
    """The wall clocks of some series; empty where all stay on one clock."""
    return tuple(zones[row] for row in rows) if zones else ()


def _joined(left: Engine, right: Engine) -> Engine:
    """Returns one engine of the series of both, with what is left of the second one's allowance."""
    both = join(left, right)
    both.refits = {o: left.refits.get(o, 0) + right.refits.get(o, 0) for o in {**left.refits, **right.refits}}
    both.allowance = right.allowance
    return both


def _older(grid: Grid, slots: int) -> int:
    """How many slots of a history are read in one pass."""
    older = slots - max(STEPPED_DAYS * grid.season, STEPPED_SLOTS)
    return older if older >= 2 * grid.season else 0


def _held(values: Floats) -> Floats:
    """The newest known value in all of the few slots that the widest pooled quantiles are for; shape (S, slots)."""
    known = ~np.isnan(values)
    newest = values.shape[1] - 1 - known[:, ::-1].argmax(axis=1)
    width = min(PRIOR_SAMPLES - 1, values.shape[1])
    return np.repeat(values[np.arange(len(values)), newest][:, None], width, axis=1)


def _built(
    grid: Grid, keys: list[Key], values: Floats, last: int, zones: Zones, size: int, allowance: int
) -> Engine:  # fmt: skip
    """Returns an engine that has gone through a whole history; its tape ends in column `size`."""
    slots = values.shape[1]
    blank = max(0, size - slots)
    engine = Engine.blank(grid, ["/".join(k) for k in keys], last + 1 - slots - blank, blank, zones)
    engine.allowance = allowance
    older = _older(grid, slots)
    left = 0
    if older:
        prefill(engine, values[:, :older])
        engine.refit()
        # One fit of each series is enough to judge it by.
        left, engine.allowance = engine.allowance, 0
    for slot in range(older, slots):
        engine.step(values[:, slot])
    engine.allowance += left
    return engine
