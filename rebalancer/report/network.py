"""The latency map for a terminal and as JSON: each path with how sure its numbers are."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rebalancer.core.network import Cell, Gap, LatencyMap, Throughput
from rebalancer.report.plan import null

_STYLES = {"ok": "", "unknown": "dim", "maintenance": "dim", "lossy": "yellow", "udp_blocked": "yellow"}
_COLUMNS = ("from", "to", "p50 ms", "p99 ms", "jitter ms", "loss % (95 % sure)", "out %", "probes", "age", "state",
            "source")  # fmt: skip
FILE_WIDTH = 160
"""Where nobody looks on, as in a pipe, nothing is folded."""
_WIDE = 130
_ONLY_WIDE = ("jitter ms", "out %", "probes")
"""Left out on a narrow terminal; JSON has everything."""


def _ms(value_s: float | None, error_s: float | None = None) -> str:
    if value_s is None:
        return "unknown"
    return f"{1000 * value_s:.3g}" + (f" ±{1000 * error_s:.2g}" if error_s is not None else "")


def _percent(ratio: float | None) -> str:
    return "unknown" if ratio is None else f"{100 * ratio:.3g}" if ratio > 1e-9 else "0"


def _mbits(bytes_s: float) -> str:
    return f"{8e-6 * bytes_s:.4g} Mbit/s" if math.isfinite(bytes_s) else "unknown"


def span(seconds: float | None) -> str:
    """A length of time as people say it; `never` where there is none."""
    if seconds is None or not math.isfinite(seconds):
        return "never"
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _loss(cell: Cell) -> str:
    if cell.loss is None or cell.loss_low is None or cell.loss_high is None:
        return "unknown"
    return f"{_percent(cell.loss)} ({_percent(cell.loss_low)} to {_percent(cell.loss_high)})"


def _gap(src: str, dst: str, gap: Gap) -> str:
    return (
        f"{src} to {dst} was not measured for {span(gap.duration_s)} until {span(gap.age_s)} ago: "
        f"{_percent(gap.loss)} % of {gap.samples:.0f} probes were lost meanwhile"
    )


def _row(src: str, dst: str, cell: Cell) -> tuple[str, ...]:
    return (
        src, dst, _ms(cell.rtt_p50_s, cell.error_s), _ms(cell.rtt_p99_s), _ms(cell.jitter_s), _loss(cell),
        _percent(cell.loss_forward), f"{cell.samples:.0f}", span(cell.age_s), cell.state,
        cell.source if cell.proto == "udp" else f"{cell.source}, {cell.proto}",
    )  # fmt: skip


def _chosen(latency: LatencyMap, cluster: str | None) -> list[tuple[tuple[str, str], Cell]]:
    return sorted((pair, cell) for pair, cell in latency.cells.items() if cluster is None or cluster in pair)


def render(
    latency: LatencyMap,
    throughput: Mapping[str, Throughput],
    errors: tuple[str, ...] = (),
    cluster: str | None = None,
    *,
    width: int = _WIDE,
) -> RenderableType:
    """Returns the map for a terminal.

    Args:
        latency: the map.
        throughput: what clusters carry, where it is known.
        errors: what could not be read.
        cluster: shows only the paths of this one.
        width: columns of the terminal.
    """
    table = Table(title="Paths between clusters, over 2 min", title_justify="left")
    shown = [index for index, name in enumerate(_COLUMNS) if width >= _WIDE or name not in _ONLY_WIDE]
    for name in (_COLUMNS[index] for index in shown):
        table.add_column(name, justify="right" if name.endswith(("ms", "%", "probes", "age")) else "left")
    chosen = _chosen(latency, cluster)
    for (src, dst), cell in chosen:
        row = _row(src, dst, cell)
        table.add_row(*(Text(row[index]) for index in shown), style=_STYLES.get(cell.state, "red"))
    known = sum(1 for _, cell in chosen if cell.state != "unknown")
    lines = [Text(e, "yellow") for e in errors]
    carried = [
        Text(f"{name} carries in {_mbits(one.in_bytes_s)}, out {_mbits(one.out_bytes_s)}")
        for name, one in sorted(throughput.items())
    ]
    gaps = [Text(_gap(src, dst, cell.gap)) for (src, dst), cell in chosen if cell.gap is not None]
    return Group(*lines, table, *gaps, *carried, Text(f"{known} of {len(chosen)} paths are measured.", "bold"))


def as_json(
    latency: LatencyMap, throughput: Mapping[str, Throughput], errors: tuple[str, ...] = (), cluster: str | None = None
) -> str:
    """Returns the same as JSON; what is unknown is null."""
    cells = [{"from": src, "to": dst, **asdict(cell)} for (src, dst), cell in _chosen(latency, cluster)]
    carried = {
        name: {way: null(value) for way, value in asdict(one).items()} for name, one in sorted(throughput.items())
    }
    return json.dumps({"paths": cells, "throughput": carried, "errors": list(errors)}, indent=2, allow_nan=False)
