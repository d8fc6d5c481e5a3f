"""One workload's forecast for a reader: history, band, whether it is trusted and why; text, JSON or one HTML page."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from html import escape

import numpy as np

from rebalancer.core.model import TOTAL, Floats, Forecast, History
from rebalancer.errors import RebalancerError
from rebalancer.report import svg
from rebalancer.report.page import cards, page, table
from rebalancer.report.plan import clock, null, number

BLOCKS = "▁▂▃▄▅▆▇█"
GAP = "·"
WIDTH = 72
DAY_S = 86400.0


def rows(forecast: Forecast, workload: str) -> list[int]:
    """Rows of a workload, the total first.

    Raises:
        KeyError: there is none.
    """
    found = [row for row, key in enumerate(forecast.keys) if key[0] == workload]
    if not found:
        raise KeyError(workload)
    return sorted(found, key=lambda row: (forecast.keys[row][1] != TOTAL, forecast.keys[row][1]))


def told(forecast: Forecast, history: History, workload: str, form: str) -> str:
    """Tells a workload's forecast in a form: text, json or html.

    Raises:
        RebalancerError: there is no such workload; names those that there are.
    """
    writer = {"json": as_json, "html": as_html}.get(form, as_text)
    try:
        return writer(forecast, history, workload)
    except KeyError:
        known = ", ".join(sorted({w for w, _ in forecast.keys})) or "none"
        raise RebalancerError(f"{workload}: no demand of such a workload was found; known: {known}") from None


def sparkline(values: Sequence[float] | Floats, width: int = WIDTH) -> str:
    """Draws values as a line of blocks from zero to the largest; a gap is a dot.

    Args:
        values: NaN is a gap; averaged where there are more of them than columns.
        width: columns at most.
    """
    parts = np.array_split(np.asarray(values, dtype=np.float64), min(width, max(1, len(values))))
    means = [float(np.mean(p[~np.isnan(p)])) if (~np.isnan(p)).any() else math.nan for p in parts]
    top = max((m for m in means if math.isfinite(m)), default=0.0)
    last = len(BLOCKS) - 1
    return "".join(
        GAP if math.isnan(m) else BLOCKS[0] if top <= 0 else BLOCKS[min(last, int(m / top * last + 0.5))] for m in means
    )


def _lately(history: History, row: int) -> Floats:
    """The last day of a series."""
    slots = max(1, round(DAY_S / history.step_s))
    lately: Floats = history.values[row, -slots:]
    return lately


def _state(forecast: Forecast, row: int) -> str:
    why = forecast.why[row] if forecast.why else ""
    return f"{'trusted' if forecast.trusted[row] else 'not trusted'}: {why}"


def _origin(forecast: Forecast, row: int) -> str:
    origin = forecast.keys[row][1]
    return "all origins (peaks of the slots)" if origin == TOTAL else f"from {origin} (means)"


def as_text(forecast: Forecast, history: History, workload: str) -> str:
    """The forecast in the terminal.

    Raises:
        KeyError: there is no such workload.
    """
    lines = [f"{workload} at {clock(forecast.at_s)}"]
    place = {key: row for row, key in enumerate(history.keys)}
    for row in rows(forecast, workload):
        lately = _lately(history, place[forecast.keys[row]])
        known = lately[~np.isnan(lately)]
        span = f"{number(float(known.min()))} to {number(float(known.max()))}" if len(known) else "nothing seen"
        lines += ["", f"{_origin(forecast, row)}: {_state(forecast, row)}"]
        lines.append(f"  last day  {sparkline(lately)}  {span}")
        median = int(np.argmin(np.abs(forecast.quantiles - 0.5)))
        ahead = np.interp(np.arange(12), np.linspace(0, 11, len(forecast.horizons_s)), forecast.bands[row, :, median])
        lines.append(f"  ahead     {sparkline([*lately[-60:], *ahead])}  the last 12 columns are forecast")
        lines.append("  in      " + "".join(f"{f'q{q:g}':>10}" for q in forecast.quantiles))
        for place_h, horizon in enumerate(forecast.horizons_s):
            band = "".join(f"{number(float(v)):>10}" for v in forecast.bands[row, place_h])
            lines.append(f"  {f'{horizon:g} s':8}{band}")
    return "\n".join(lines)


def as_json(forecast: Forecast, history: History, workload: str) -> str:
    """The forecast for programs; what is unknown is null.

    Raises:
        KeyError: there is no such workload.
    """
    place = {key: row for row, key in enumerate(history.keys)}
    series = []
    for row in rows(forecast, workload):
        there = place[forecast.keys[row]]
        series.append({
            "origin": forecast.keys[row][1],
            "trusted": forecast.trusted[row],
            "why": forecast.why[row],
            "method": forecast.method[row],
            "ageSeconds": null(forecast.age_s[row]),
            "coverageRatio": null(forecast.coverage_ratio[row]),
            "scaledError": null(forecast.scaled_error[row]),
            "history": [null(v) for v in _lately(history, there)],
            "band": [[null(v) for v in line] for line in forecast.bands[row]],
        })  # fmt: skip
    end_s = history.start_s + (history.values.shape[1] - 1) * history.step_s
    found = {
        "workload": workload, "at": forecast.at_s, "historyEnd": end_s, "historyStepSeconds": history.step_s,
        "horizonsSeconds": forecast.horizons_s.tolist(), "quantiles": forecast.quantiles.tolist(), "series": series,
    }  # fmt: skip
    return json.dumps(found, indent=2)


def as_html(forecast: Forecast, history: History, workload: str) -> str:
    """The forecast as one self-contained page.

    Raises:
        KeyError: there is no such workload.
    """
    place = {key: row for row, key in enumerate(history.keys)}
    body = [f"<h1>{escape(workload)}</h1><p class='soft'>Forecast of demand, made at {clock(forecast.at_s)}.</p>"]
    for row in rows(forecast, workload):
        lately = _lately(history, place[forecast.keys[row]])
        slots = len(lately)
        end_s = history.start_s + (history.values.shape[1] - 1) * history.step_s
        hours = [(end_s % DAY_S + (i - slots + 1) * history.step_s) / 3600.0 for i in range(slots)]
        later = [(end_s % DAY_S + h) / 3600.0 for h in forecast.horizons_s]
        gap, past = [math.nan] * len(later), [math.nan] * slots
        drawn = {"demand": [*lately, *gap]}
        for q, quantile in enumerate(forecast.quantiles):
            drawn[f"quantile {quantile:g}"] = [*past[1:], float(lately[-1]), *forecast.bands[row, :, q]]
        facts = [
            ("trusted", "yes" if forecast.trusted[row] else "no"),
            ("under the 95 % quantile", number(forecast.coverage_ratio[row])),
            ("error / naive", number(forecast.scaled_error[row])),
            ("age of the newest sample", f"{number(forecast.age_s[row])} s"),
        ]
        head = ("in", *(f"q{q:g}" for q in forecast.quantiles))
        lines = [
            (f"{h:g} s", *(number(float(v)) for v in forecast.bands[row, i]))
            for i, h in enumerate(forecast.horizons_s)
        ]  # fmt: skip
        body += [f"<h2>{escape(_origin(forecast, row).capitalize())}</h2><p>{escape(_state(forecast, row))}</p>",
                 cards(facts), svg.lines([*hours, *later], drawn, "demand"), table(head, lines)]  # fmt: skip
    return page(f"Forecast of {workload}", "".join(body))
