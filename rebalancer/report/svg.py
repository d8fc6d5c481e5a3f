"""Small charts as inline SVG: lines, stacked areas and a map. No scripts, no network, readable in dark and light."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 256, 56, 24, 30, 26
PALETTE = ("#2f6fde", "#e07b39", "#3a9d5d", "#b3489b", "#c9a227", "#5b8f9e", "#d1495b", "#7b6fd0")


def _nice(top: float) -> float:
    """The next round number that four grid lines divide well."""
    if not math.isfinite(top) or top <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(top))
    return next(
        f * power for f in (1.0, 1.2, 1.6, 2.0, 2.4, 3.2, 4.0, 5.0, 6.0, 8.0, 10.0) if f * power >= top * (1 - 1e-9)
    )


class _Frame:
    """Coordinates and axes of a chart over hours."""

    def __init__(self, hours: Sequence[float], top: float) -> None:
        """Takes the x values in hours and the largest y value."""
        self.first, self.last = hours[0], max(hours[-1], hours[0] + 1e-9)
        self.top = _nice(top)

    def x(self, hour: float) -> float:
        """Pixel of an hour."""
        return LEFT + (hour - self.first) / (self.last - self.first) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """Pixel of a value."""
        return HEIGHT - BOTTOM - max(0.0, min(value, self.top)) / self.top * (HEIGHT - TOP - BOTTOM)

    def axes(self, unit: str) -> str:
        """Grid lines with their labels."""
        parts = []
        for i in range(5):
            value = self.top * i / 4
            y = self.y(value)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
        step = 3 if self.last - self.first > 12 else 1
        hour = math.ceil(self.first / step) * step
        while hour <= self.last + 1e-9:
            parts.append(
                f'<text x="{self.x(hour):.1f}" y="{HEIGHT - 8}" text-anchor="middle">{hour:02d}:00</text>'
            )  # fmt: skip
            hour += step
        parts.append(
            f'<text x="4" y="13">{escape(unit)}</text><text x="{WIDTH - 4}" y="13" text-anchor="end">hours UTC</text>'
        )
        return "".join(parts)


def _legend(names: Sequence[str]) -> str:
    items = (
        f'<span><i style="background:{PALETTE[i % len(PALETTE)]}"></i>{escape(n)}</span>' for i, n in enumerate(names)
    )
    return f'<div class="legend">{"".join(items)}</div>'


def _marks(frame: _Frame, marks: Sequence[tuple[float, str]]) -> str:
    """Numbered lines; those of one moment share a line and its numbers, counted from 1 in the order given."""
    places: dict[int, list[int]] = {}
    for number, (hour, _) in enumerate(marks, 1):
        places.setdefault(round(frame.x(hour)), []).append(number)
    return "".join(
        f'<line class="mark" x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - BOTTOM}">'
        f"<title>{escape('; '.join(marks[n - 1][1] for n in numbers))}</title></line>"
        f'<text x="{x}" y="{TOP - 4}" text-anchor="middle">{_range(numbers)}</text>'
        for x, numbers in places.items()
    )


def _range(numbers: Sequence[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"


def lines(
    hours: Sequence[float], series: Mapping[str, Sequence[float]], unit: str, marks: Sequence[tuple[float, str]] = ()
) -> str:
    """Draws lines.

    Args:
        hours: x values.
        series: name -> y values, NaN leaves a gap.
        unit: of the y axis.
        marks: (hour, text) of vertical lines.
    """
    top = max((v for values in series.values() for v in values if math.isfinite(v)), default=1.0)
    frame = _Frame(hours, top * 1.05)
    body = [frame.axes(unit), _marks(frame, marks)]
    for i, values in enumerate(series.values()):
        path, pen = [], "M"
        for hour, value in zip(hours, values, strict=True):
            if not math.isfinite(value):
                pen = "M"
                continue
            path.append(f"{pen}{frame.x(hour):.1f},{frame.y(value):.1f}")
            pen = "L"
        body.append(f'<path class="line" stroke="{PALETTE[i % len(PALETTE)]}" d="{"".join(path)}"/>')
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(body)}</svg>{_legend(list(series))}'


def stacked(
    hours: Sequence[float], series: Mapping[str, Sequence[float]], unit: str, marks: Sequence[tuple[float, str]] = ()
) -> str:
    """Draws areas on top of each other; arguments as `lines`, without gaps."""
    sums = [0.0] * len(hours)
    tops = [sum(column) for column in zip(*series.values(), strict=True)]
    frame = _Frame(hours, max(tops, default=1.0) * 1.05)
    body = [frame.axes(unit)]
    for i, values in enumerate(series.values()):
        upper = [s + v for s, v in zip(sums, values, strict=True)]
        there = [f"{frame.x(h):.1f},{frame.y(v):.1f}" for h, v in zip(hours, upper, strict=True)]
        back = [f"{frame.x(h):.1f},{frame.y(v):.1f}" for h, v in zip(hours, sums, strict=True)][::-1]
        body.append(f'<polygon fill="{PALETTE[i % len(PALETTE)]}" points="{" ".join([*there, *back])}"/>')
        sums = upper
    body.append(_marks(frame, marks))
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(body)}</svg>{_legend(list(series))}'


def world(
    places: Mapping[str, tuple[float, float]],
    replicas: Mapping[str, int],
    demand: Mapping[str, float],
    scale: tuple[int, float],
    title: str,
) -> str:
    """Draws a small world: a ring for the demand of a region, a disc for its replicas, both by area.

    Args:
        places: region -> (latitude, longitude).
        replicas: region -> replicas.
        demand: region -> demand, requests/s.
        scale: replicas of the largest disc and demand of the largest ring, the same for pictures to be compared.
        title: caption.
    """
    width, height = 420, 190
    body = []
    for line in range(-60, 90, 30):
        y = height * (80 - line) / 140
        body.append(f'<line class="grid" x1="0" x2="{width}" y1="{y:.1f}" y2="{y:.1f}"/>')
    top, most = scale[0] or 1, scale[1] or 1.0
    for region, (latitude, longitude) in places.items():
        x, y = width * (longitude + 180) / 360, height * (80 - latitude) / 140
        ring = 26 * math.sqrt(demand.get(region, 0.0) / most)
        disc = 22 * math.sqrt(replicas.get(region, 0) / top)
        label = f"{region}: {replicas.get(region, 0)} replicas, {demand.get(region, 0.0):.0f} requests/s"
        body.append(
            f'<circle class="ring" cx="{x:.1f}" cy="{y:.1f}" r="{ring:.1f}"/>'
            f'<circle class="disc" cx="{x:.1f}" cy="{y:.1f}" r="{disc:.1f}"><title>{escape(label)}</title></circle>'
            f'<text x="{x:.1f}" y="{y + max(ring, disc) + 10:.1f}" text-anchor="middle">{escape(region)}: '
            f"{replicas.get(region, 0)}</text>"
        )
    return (
        f'<figure><svg viewBox="0 0 {width} {height}" role="img">{"".join(body)}</svg>'
        f"<figcaption>{escape(title)}</figcaption></figure>"
    )
