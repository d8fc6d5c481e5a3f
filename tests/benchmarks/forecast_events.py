"""What gaps, outages, spikes, shifts of level and the clocks' change do to the forecast, and how the young ones fare.

Each event is laid into real series at four times of the day, all rows go through one engine, and errors are told
relative to its errors on the untouched series from the same origins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rebalancer.core.forecast import readable
from rebalancer.core.forecast.bands import MIN_OUTCOMES, PRIOR_SAMPLES, SPACING_S
from rebalancer.core.forecast.engine import Engine
from rebalancer.core.forecast.grid import HOUR_S, UTC, Grid, Ints, Zone, take
from rebalancer.core.model import Bools, Floats
from tests.benchmarks import traces
from tests.benchmarks.figures import line
from tests.benchmarks.forecast_rivals import filled
from tests.benchmarks.forecast_walk import HORIZONS, Record, Walk, aligned, error, geometric, record, relative
from tests.benchmarks.traces import Trace

PROBS = (0.05, 0.5, 0.95)
DAY, HOUR, STEP_S = 288, 12, 300.0
TEST, WARM = 4 * DAY, 21 * DAY
"""Events begin in the last four days."""
ONSETS = tuple(range(0, DAY, DAY // 4))
SPIKES = tuple(range(0, 3 * DAY, DAY // 6))
"""A spike is judged by few slots: at four times of one day even the untouched series lie under P95 in 92.6 % only."""
SERIES = {"ms_mongo_01": 0, "ms_machine_01": 0, "nab_Twitter_volume_AMZN": 0, "nasa_http": 35 * DAY,
          "nab_elb_request_count_8c0756": 0}  # fmt: skip
"""Where each begins; nasa's server was off before. The last days of asg_cpu are a real incident."""
WEEKLY, INCIDENT = "nab_cpu_utilization_asg_misconfiguration", 4 * DAY
FLAG_SLOTS, FACTORS = 3, (2.0, 1.5, 0.5)
"""Shifts of level of those sizes are to be flagged within so many slots."""
STARTS = 24
"""Services that begin on each series, for the first day."""


@dataclass(frozen=True)
class Variant:
    """One series with one event.

    Attributes:
        event: its name; empty on the untouched series.
        trace: whose series it is.
        told: shape (T,), what the forecaster sees.
        true: shape (T,), what it is judged by.
        at: slot in which the event begins.
        zone: the region's wall clock, where it is known.
    """

    event: str
    trace: str
    told: Floats
    true: Floats
    at: int
    zone: Zone = UTC


@dataclass(frozen=True)
class Gate:
    """What must hold after an event, from origins `begin` to `end` slots after it began.

    Attributes:
        error: bound of the error over the untouched series'.
        cover: shares under the 95 % quantile that are allowed.
        beats: forecast that must be worse: "naive", "yesterday" (as it was without the event), or none.
    """

    name: str
    event: str
    begin: int
    end: int
    error: float
    cover: tuple[float, float] = (0.0, 1.0)
    beats: str = ""


GATES = (
    Gate("gaps", "gaps", 0, TEST - HORIZONS, 1.20, (0.93, 0.97)),
    Gate("counter_resets", "resets", 0, TEST - HORIZONS, 1.05),
    Gate("outage_just_over", "outage", 6 * HOUR, 8 * HOUR, 1.20),
    Gate("outage_yesterday", "outage", DAY, DAY + 6 * HOUR, 1.67, (0.89, 1.0), "naive"),
    Gate("spike_yesterday", "spike", DAY - HORIZONS, DAY + HOUR // 2, 1.25, (0.94, 1.0), "yesterday"),
    Gate("spike_just_over", "spike", HOUR // 2, HOUR // 2 + 2 * HOUR, 1.54),
    Gate("double_level_2h", "double", 0, 2 * HOUR, 4.55),
    Gate("double_level_first_day", "double", 2 * HOUR, DAY, 2.8),
    Gate("double_level_second_day", "double", DAY, 2 * DAY, 2.6, (0.93, 1.0), "naive"),
    Gate("clocks_zone_unknown_first_day", "clocks", 0, DAY, 1.44),
    Gate("clocks_zone_unknown_second_day", "clocks", DAY, 2 * DAY, 1.38),
    Gate("clocks_zone_known_first_day", "clocks-known", 0, DAY, 1.05),
    Gate("clocks_zone_known_second_day", "clocks-known", DAY, 2 * DAY, 1.05),
)


def robustness(hourly: Sequence[Walk]) -> bool:
    """All events on all series, with their bounds; `hourly`: walks over the hourly series."""
    variants = _variants()
    seen = record(
        aligned([readable(v.told) for v in variants]), DAY, [f"{v.event}-{v.trace}-{v.at}" for v in variants], PROBS,
        tuple(v.zone for v in variants),
    )  # fmt: skip
    good = True
    for gate in GATES:
        good &= _held(gate, variants, seen)
    good &= _shifts(variants, seen)
    good &= _weekly(hourly)
    good &= _still()
    good &= _young()
    return _first_day() and good


def _variants() -> list[Variant]:
    """The untouched series, and each event on each of them at all its times; all of one length, aligned at the end."""
    found = []
    for trace in traces.five_minutes():
        if (begin := _begin(trace)) is None:
            continue
        values = trace.values[begin:][-(WARM + TEST) :]
        values = np.concatenate([np.full(WARM + TEST - len(values), np.nan), values])
        found.append(Variant("", trace.name, values, values, 0))
        for seed in range(len(ONSETS)):
            rng = np.random.default_rng(seed)
            for event, (told, true) in _everywhere(values, seed, rng).items():
                found.append(Variant(event, trace.name, told, true, WARM))
        for event, change in EVENTS.items():
            for at in (WARM + onset for onset in (SPIKES if event == "spike" else ONSETS)):
                changed = change(values, at)
                found.append(Variant(event, trace.name, changed, changed, at))
        for at in (WARM + onset for onset in ONSETS):
            for hours in (-1, 1):
                moved = _moved(values, at, hours)
                zone = Zone((0.0, at * STEP_S), (0.0, hours * HOUR_S))
                found.append(Variant("clocks", trace.name, moved, moved, at))
                found.append(Variant("clocks-known", trace.name, moved, moved, at, zone))
    return found


def _begin(trace: Trace) -> int | None:
    """Slot from which a series takes part; None if it does not."""
    return next((begin for name, begin in SERIES.items() if trace.name.startswith(name)), None)


def _everywhere(values: Floats, seed: int, rng: np.random.Generator) -> dict[str, tuple[Floats, Floats]]:
    """Events that are not at one time: event -> (told, true)."""
    gaps = np.where(rng.random(len(values)) < 0.2, np.nan, values)
    hole = WARM + DAY + ONSETS[seed]
    gaps[hole : hole + 6 * HOUR] = np.nan
    resets = values.copy()
    resets[WARM + rng.choice(TEST, 30, replace=False)] *= -1.0
    return {"gaps": (gaps, values), "resets": (resets, values)}


def _times(factor: float, slots: int) -> Callable[[Floats, int], Floats]:
    """An event that multiplies demand for some slots."""

    def change(values: Floats, at: int) -> Floats:
        result = values.copy()
        result[at : at + slots] *= factor
        return result

    return change


EVENTS = {
    "outage": _times(0.0, 6 * HOUR),
    "spike": _times(5.0, HOUR // 2),
    "double": _times(2.0, TEST),
}


def _moved(values: Floats, at: int, hours: int) -> Floats:
    """Habits from `at` on that many hours earlier, as when clocks are set forward."""
    slots = hours * HOUR
    result = np.concatenate([values[:at], values[at + slots :], np.full(max(slots, 0), np.nan)])
    return result[: len(values)]


def _mean_error(made: Floats, true: Floats, origins: Ints) -> float:
    """Mean absolute error over all horizons; `made` of shape (T, H) or of values to come, shape (T,)."""
    ahead = origins[:, None] + np.arange(1, HORIZONS + 1)
    there = made[origins] if made.ndim > 1 else made[ahead]
    return error(there, true[ahead], ~np.isnan(true[ahead] + there))


def _naive(seen: Record, row: int) -> Floats:
    """The newest known value for all horizons; shape (T, H)."""
    return np.repeat(seen.naive[:, row : row + 1], HORIZONS, axis=1)


def _share_under(band: Floats, true: Floats, origins: Ints) -> float:
    """Share of what came at or under a quantile; `band` of shape (T, H)."""
    actual, bound = true[origins[:, None] + np.arange(1, HORIZONS + 1)], band[origins]
    known = ~np.isnan(actual + bound)
    return float((actual <= bound * (1 + 1e-6) + 1e-9)[known].mean())


@dataclass(frozen=True)
class Found:
    """Mean over the times of an event on one series: errors over two references, and the share under P95."""

    over_untouched: float
    over_other: float
    covered: float


def _found(gate: Gate, variants: Sequence[Variant], seen: Record, untouched: int) -> Found:
    """What a gate asks of one series; `untouched`: its row without an event."""
    before, ours, clean, other, under = variants[untouched], list[float](), list[float](), list[float](), list[float]()
    yesterday = np.concatenate([np.full(DAY, np.nan), filled(before.true, DAY)[:-DAY]])
    for row, one in enumerate(variants):
        if one.event != gate.event or one.trace != before.trace:
            continue
        origins = np.arange(one.at + gate.begin, one.at + gate.end)
        ours.append(_mean_error(seen.points[..., row], one.true, origins))
        clean.append(_mean_error(seen.points[..., untouched], before.true, origins))
        other.append(_mean_error(_naive(seen, row) if gate.beats == "naive" else yesterday, one.true, origins))
        under.append(_share_under(seen.bands[:, :, -1, row], one.true, origins))
    return Found(float(np.mean(ours) / np.mean(clean)), float(np.mean(ours) / np.mean(other)), float(np.mean(under)))


def _held(gate: Gate, variants: Sequence[Variant], seen: Record) -> bool:
    """One gate: geometric mean over the series."""
    found = {v.trace: _found(gate, variants, seen, row) for row, v in enumerate(variants) if not v.event}
    untouched = geometric([f.over_untouched for f in found.values()])
    good = line(f"{gate.name}_error_over_untouched", untouched, "ratio", gate.error)
    if gate.beats:
        over = geometric([f.over_other for f in found.values()])
        good &= line(f"{gate.name}_error_over_{gate.beats}", over, "ratio", 1.0)
    if gate.cover != (0.0, 1.0):
        good &= _cover(gate.name, float(np.mean([f.covered for f in found.values()])), gate.cover)
    told = ", ".join(f"{n} {f.over_untouched:.2f} (under P95 {f.covered:.3f})" for n, f in found.items())
    print(f"# {gate.name}: {told}", flush=True)
    return good


def _cover(name: str, found: float, bounds: tuple[float, float]) -> bool:
    """Prints how far a share under the 95 % quantile lies outside of its bounds."""
    print(f"# {name}: {found:.3f} under the 95 % quantile, {bounds[0]:g} to {bounds[1]:g} wanted")
    return line(f"{name}_coverage_off", max(0.0, bounds[0] - found, found - bounds[1]), "share", 0.0)


def _shifts(variants: Sequence[Variant], seen: Record) -> bool:
    """How often a shift of level is flagged within three slots, by when it begins, and how often without a shift."""
    rare = {}
    for factor, shares in _flagged([v for v in variants if not v.event]).items():
        told = ", ".join(f"{n} {s:.2f}" for n, s in shares.items())
        print(f"# shift flag, x{factor:g}, share of hours flagged within {FLAG_SLOTS} slots: {told}", flush=True)
        rare[factor] = sum(s < 0.5 for s in shares.values())
    begun, on = {}, {}
    for row, one in enumerate(variants):
        if not one.event:
            length = int((~np.isnan(one.true)).sum())
            test = slice(-min(14 * DAY, length // 2), None)
            begun[one.trace], on[one.trace] = (float(f[test, row].mean()) for f in (seen.begun, seen.shifted))
    for label, shares in (("shift without one", begun), ("shift flag still up without one", on)):
        print(f"# {label}: {', '.join(f'{n} {s:.3f}' for n, s in shares.items())}", flush=True)
    good = line("shift_mostly_flagged_later_than_3_slots", rare[2.0], "series", 1)
    return line("shift_without_one", float(np.mean(list(begun.values()))), "share", 0.025) and good


def _flagged(untouched: Sequence[Variant]) -> dict[float, dict[str, float]]:
    """By factor and series: in what share of the last four days' hours a shift that begins then is flagged in time."""
    table, names = aligned([readable(v.told) for v in untouched]), [v.trace for v in untouched]
    engine = Engine.blank(Grid(STEP_S, tuple(range(1, HORIZONS + 1)), PROBS, len(table)), names, 0)
    found: dict[float, list[Bools]] = {factor: [] for factor in FACTORS}
    for slot, values in enumerate(table[: 1 - FLAG_SLOTS]):
        for factor in FACTORS if slot >= WARM and slot % HOUR == 0 else ():
            # From here on the level is another one, in a copy that is thrown away afterwards.
            fork, begun = take(engine, np.arange(len(names))), np.zeros(len(names), dtype=bool)
            for moved in table[slot : slot + FLAG_SLOTS]:
                fork.step(factor * moved)
                begun |= fork.trust.begun
            found[factor].append(begun)
        engine.step(values)
    return {f: dict(zip(names, np.mean(hits, axis=0).tolist(), strict=True)) for f, hits in found.items()}


def _weekly(hourly: Sequence[Walk]) -> bool:
    """Weeks: 14 days known of a week's habit, 8 days of another's, and the hourly series beside a week ago."""
    by_name = {t.name: t.values for t in traces.five_minutes()}
    asg = next(v for n, v in by_name.items() if n.startswith(WEEKLY))[:-INCIDENT]
    machine = next(v for n, v in by_name.items() if n.startswith("ms_machine_01"))
    rows = [asg[begin : begin + 21 * DAY] for begin in range(0, len(asg) - 21 * DAY + 1, 7 * DAY)]
    table = aligned([*rows, machine[: 14 * DAY]])
    seen = record(table, DAY, [str(row) for row in range(table.shape[1])], PROBS)
    good = True
    known = ((slice(0, len(rows)), 7, "14_days_known", 0.27), (slice(len(rows), None), 6, "8_days_known", 0.55))
    for part, days, name, bound in known:
        origins = np.arange(len(table) - days * DAY, len(table) - HORIZONS)
        ours, naive, covers = [], [], []
        for row in range(table.shape[1])[part]:
            ours.append(_mean_error(seen.points[..., row], table[:, row], origins))
            naive.append(_mean_error(_naive(seen, row), table[:, row], origins))
            covers.append(_share_under(seen.bands[:, :, -1, row], table[:, row], origins))
        good &= line(f"week_{name}_error_over_naive", float(np.mean(ours) / np.mean(naive)), "ratio", bound)
        good &= _cover(f"week_{name}", float(np.mean(covers)), (0.92, 1.0))
    if not hourly:
        return good
    week = [_week_ago(one) for one in hourly]
    over = geometric(relative(hourly, None, 0)) / geometric(week)
    return line("week_hourly_error_over_week_ago", over, "ratio", 0.86) and good


def _week_ago(one: Walk) -> float:
    """Error of the value a week before, relative to yesterday's."""
    origins = np.array(one.origins)
    whole, season = filled(one.values, one.trace.season), one.trace.season
    lagged = [np.concatenate([np.full(lag, np.nan), whole[:-lag]]) for lag in (7 * season, season)]
    week, day = (_mean_error(made, one.values, origins) for made in lagged)
    return week / day


def _still() -> bool:
    """Series that hardly move or are hardly known: always finite, zero stays zero, a constant stays itself."""
    slots, rng = 10 * DAY, np.random.default_rng(0)
    wave = 100.0 + 50.0 * np.sin(np.arange(slots) / DAY * 2 * np.pi)
    wave[2 * DAY : 9 * DAY] = np.nan
    jump = np.where(np.arange(slots) < 5 * DAY, 0.0, 100.0)
    rows = [np.zeros(slots), np.full(slots, 5.0), 1.0 * (rng.random(slots) < 0.02), wave, jump]
    seen = record(aligned(rows), DAY, [str(row) for row in range(len(rows))], PROBS)
    good = line("still_not_finite", int((~np.isfinite(seen.bands)).sum() + (~np.isfinite(seen.points)).sum()), "n", 0)
    good &= line("still_zero_p95", float(np.nanmax(seen.bands[:, :, -1, 0])), "demand", 0.0)
    return line("still_constant_off", float(np.nanmax(np.abs(seen.points[..., 1] - 5.0))), "demand", 1e-6) and good


def _young() -> bool:
    """The second and the sixth day of services that begin on each series, from its begin and four days later."""
    spans = [(t.name, t.values[b : b + 6 * DAY + HORIZONS]) for t in traces.five_minutes() for b in (0, 4 * DAY)]
    spans = [(name, span) for name, span in spans if len(span) == 6 * DAY + HORIZONS and not np.isnan(span[0])]
    table = aligned([span for _, span in spans])
    seen = record(table, DAY, [f"{name}-{row}" for row, (name, _) in enumerate(spans)], PROBS)
    good = True
    for day, bound in ((2, 0.79), (6, 0.68)):
        origins = np.arange((day - 1) * DAY, day * DAY)
        over: dict[str, list[float]] = {}
        covers = []
        for row, (name, _) in enumerate(spans):
            ours = _mean_error(seen.points[..., row], table[:, row], origins)
            naive = _mean_error(_naive(seen, row), table[:, row], origins)
            if naive > 0:  # else it stood still all day
                over.setdefault(name, []).append(ours / naive)
            covers.append(_share_under(seen.bands[:, :, -1, row], table[:, row], origins))
        ratios = {name: geometric(found) for name, found in over.items()}
        good &= line(f"new_service_day_{day}_error_over_naive", geometric(list(ratios.values())), "ratio", bound)
        good &= _cover(f"new_service_day_{day}", float(np.mean(covers)), (0.93, 1.0))
        print(f"# new service, day {day}: {', '.join(f'{n} {r:.2f}' for n, r in ratios.items())}", flush=True)
    return good


def _first_day() -> bool:
    """Coverage of the pooled quantiles, and of the first own ones, by how much history there is."""
    spans = {t.name: _begun(t.values) for t in traces.five_minutes()}
    table = aligned([span for found in spans.values() for span in found])
    seen = record(table, DAY, [str(row) for row in range(table.shape[1])], PROBS)
    own = HORIZONS + int(MIN_OUTCOMES * SPACING_S / STEP_S)
    stages = (("first_hour", 3, PRIOR_SAMPLES - 1), ("pooled", PRIOR_SAMPLES - 1, own), ("own", own, DAY))
    good, row = True, 0
    covers: dict[str, dict[str, float]] = {stage: {} for stage, _, _ in stages}
    for name, found in spans.items():
        for stage, begin, end in stages:
            shares = [
                _share_under(seen.bands[:, :, -1, r], table[:, r], np.arange(begin, end))
                for r in range(row, row + len(found))
            ]
            covers[stage][name] = float(np.mean(shares))
        row += len(found)
    for stage, by_name in covers.items():
        good &= _cover(f"first_day_{stage}", float(np.mean(list(by_name.values()))), (0.90, 0.97))
        print(f"# first day, {stage}: {', '.join(f'{n} {s:.3f}' for n, s in by_name.items())}", flush=True)
    return good


def _begun(values: Floats) -> list[Floats]:
    """A day of some services that begin on a series, and what is needed to judge it; none of them has gaps."""
    length = DAY + HORIZONS
    begins = np.linspace(0, len(values) - length, STARTS).astype(int)
    spans = [values[begin : begin + length] for begin in begins]
    return [span for span in spans if not np.isnan(span).any()]
