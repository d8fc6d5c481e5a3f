"""`rebalancer demo`: a day of a fleet's life in the simulated world, told in the terminal and in one HTML page."""

from __future__ import annotations

import asyncio
import math
from html import escape
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from rebalancer.cycle import CycleReport
from rebalancer.report import svg
from rebalancer.report.forecast import told
from rebalancer.report.page import cards, page, table
from rebalancer.sim.demand import Earth, earth
from rebalancer.sim.plant import Tick
from rebalancer.sim.scenarios import API, SEARCH, START_S, day
from rebalancer.worlds.simulated import SimulatedWorld, Story

HOURS = 24.0
SERVICES = (API, SEARCH)


def _hour(at_s: float) -> float:
    return (at_s - START_S) / 3600.0


def _hhmm(at_s: float) -> str:
    minutes = round((at_s - START_S) / 60.0)
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def _mean_latency(ticks: list[Tick], service: str) -> float:
    """Traffic- and time-weighted latency in ms over the day."""
    total = weight = 0.0
    last = START_S
    for tick in ticks:
        traffic = sum(v for (w, _, _), v in tick.served.items() if w == service) * (tick.at_s - last)
        last = tick.at_s
        if math.isfinite(tick.latency_ms[service]):
            total += tick.latency_ms[service] * traffic
            weight += traffic
    return total / weight if weight else math.nan


def _failed_share(ticks: list[Tick]) -> float:
    """Share of all requests of the day that failed."""
    failed = asked = 0.0
    last = START_S
    for tick in ticks:
        span, last = tick.at_s - last, tick.at_s
        failed += sum(tick.failed.values()) * span
        asked += sum(tick.demand.values()) * span
    return failed / asked if asked else math.nan


def _replica_hours(ticks: list[Tick]) -> float:
    total, last = 0.0, START_S
    for tick in ticks:
        total += sum(tick.ready.values()) * (tick.at_s - last) / 3600.0
        last = tick.at_s
    return total


def facts(story: Story) -> list[tuple[str, str]]:
    """The day in numbers: (label, value), with the replicas left alone beside it."""
    begun = {(a.source, a.target, r.at_s) for r in story.reports for a in r.plan.actions
             if a.kind != "scale" and a.reason not in ("finish-move", "move-timed-out", "move-cancelled")}  # fmt: skip
    return [
        ("latency of shop/api", f"{_mean_latency(story.ticks, API):.1f} ms"),
        ("the same, left alone", f"{_mean_latency(story.baseline, API):.1f} ms"),
        ("failed requests", f"{_failed_share(story.ticks):.2%}"),
        ("the same, left alone", f"{_failed_share(story.baseline):.2%}"),
        ("replica-hours", f"{_replica_hours(story.ticks):,.0f}"),
        ("the same, left alone", f"{_replica_hours(story.baseline):,.0f}"),
        ("moves between clusters", str(len(begun))),
        ("cycles", str(len(story.reports))),
    ]


def html(world: Earth, story: Story) -> str:
    """The page of the day."""
    kept = story.ticks[::5]
    left = story.baseline[::5]
    hours = [_hour(t.at_s) for t in kept]
    marks = [(_hour(t), text) for t, text in story.told]
    regions = list(world.regions)
    replicas = {r: [float(sum(t.ready[s, r] for s in SERVICES)) for t in kept] for r in regions}
    demand = {r: [sum(t.demand[s, r] for s in SERVICES) for t in kept] for r in regions}
    latency = {
        "with the rebalancer": [t.latency_ms[API] for t in kept],
        "replicas left where they were": [t.latency_ms[API] for t in left],
    }
    failed = {
        "with the rebalancer": [sum(t.failed.values()) for t in kept],
        "replicas left where they were": [sum(t.failed.values()) for t in left],
    }
    places = {r.name: (r.latitude, r.longitude) for r in world.regions.values()}
    moments = [min(story.ticks, key=lambda t: abs(_hour(t.at_s) - h)) for h in (3, 9, 15, 21)]
    here = [{r: sum(t.ready[s, r] for s in SERVICES) for r in regions} for t in moments]
    wanted = [{r: sum(t.demand[s, r] for s in SERVICES) for r in regions} for t in moments]
    scale = (max(max(h.values()) for h in here), max(max(w.values()) for w in wanted))
    maps = [
        svg.world(places, h, w, scale, f"{_hhmm(t.at_s)} UTC: orange rings are demand, blue discs replicas")
        for t, h, w in zip(moments, here, wanted, strict=True)
    ]
    rows = [(_hhmm(r.at_s), a.kind, a.workload, a.reason, a.explanation) for r in story.reports for a in r.plan.actions]
    sources = "".join(f"<li>{escape(name)}: {escape(text)}</li>" for name, text in world.sources.items())
    body = (
        "<h1>A day of a fleet</h1><p class='soft'>Two services, eight clusters, one simulated day. The same core plans "
        "here as on real clusters; only clock, metrics and clusters are simulated. <i>Left alone</i> is the same day "
        "with the replicas where and as many as they were at midnight, on the two clusters of the first year. Latency "
        "is the network's round trip with what losses add, weighted by traffic. Numbers on the red lines refer to the "
        "table <i>What happened</i>.</p>"
        + cards(facts(story))
        + "<h2>The sun moves and replicas follow</h2>" + f"<div class='maps'>{''.join(maps)}</div>"
        + "<h2>Demand by region, requests/s</h2>" + svg.stacked(hours, demand, "requests/s")
        + "<h2>Ready replicas by cluster</h2>" + svg.stacked(hours, replicas, "replicas", marks)
        + "<h2>Traffic-weighted latency of shop/api</h2>" + svg.lines(hours, latency, "ms", marks)
        + "<h2>Failed requests per second</h2>" + svg.lines(hours, failed, "requests/s", marks)
        + "<h2>What happened</h2>" + table(
            ("", "UTC", "what"), [(str(n), _hhmm(t), x) for n, (t, x) in enumerate(story.told, 1)]
        )
        + f"<h2>Every action, with its reason ({len(rows)})</h2>"
        + table(("UTC", "kind", "workload", "reason", "explanation"), rows)
        + f"<h2>Sources</h2><ul class='soft'>{sources}</ul>"
    )  # fmt: skip
    return page("A day of a fleet", body)


def run(out: Path, seed: int, console: Console) -> int:
    """Runs the demo.

    Args:
        out: where the page goes.
        seed: of the users' noise; the same seed gives the same day.
        console: where progress goes.

    Returns:
        The exit code.
    """
    world = earth()
    sim = SimulatedWorld(world, day(world), seed)
    told = 0
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[line]}"), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("00:00 UTC", total=HOURS, line="")

        def show(report: CycleReport) -> None:
            nonlocal told
            for at_s, text in sim.story.told[told:]:
                console.print(f"{_hhmm(at_s)}  {text}", highlight=False, markup=False, soft_wrap=True)
            told = len(sim.story.told)
            tick, left = sim.story.ticks[-1], sim.story.baseline[-1]
            ready = sum(tick.ready.values())
            line = f"{ready} replicas, {tick.latency_ms[API]:.0f} ms (left alone {left.latency_ms[API]:.0f} ms)"
            progress.update(task, completed=_hour(report.at_s), description=f"{_hhmm(report.at_s)} UTC", line=line)

        asyncio.run(sim.drive(HOURS, show))
    story = sim.story
    for label, value in facts(story):
        console.print(f"{label:24} {value}", highlight=False, markup=False)
    return save(out, html(world, story), console)


def forecast(workload: str, form: str, seed: int = 1) -> str:
    """Tells the forecast that the demo's first cycle makes.

    Args:
        workload: `namespace/name`.
        form: text, json or html.
        seed: of the users' noise.

    Raises:
        RebalancerError: the demo has no such workload.
    """
    world = earth()
    scenario = day(world)
    report = asyncio.run(SimulatedWorld(world, scenario, seed).cycle.run(scenario.policies))
    return told(report.forecast, report.history, workload, form)


def save(out: Path, text: str, console: Console) -> int:
    """Writes the page and says where it is; returns the exit code."""
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        reason = f"can't be written: {error.strerror}; name another file with --out"
        console.print(f"{out}: {reason}", highlight=False, markup=False, soft_wrap=True)
        return 1
    console.print(f"pictures: {out.resolve()}", highlight=False, markup=False, soft_wrap=True)
    return 0
