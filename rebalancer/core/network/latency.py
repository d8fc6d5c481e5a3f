"""The latency map: one cell per ordered pair of clusters, which says how sure it is of itself.

A cell is filled from the recorded series of the probes, read in one query. What is missing, NaN, infinite, negative or
too old is unknown: never 0 ms, never 100 % loss. Without an own measurement a cell takes the reverse direction's (a
probe goes both ways, so two probers of one pair see the same round trip: Azure |A-B - B-A| p50 1 ms, max 6 ms), else
the median between the two regions, else what the triangle inequality leaves over common neighbours (`inherit`).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

from rebalancer.core.network.heritage import Heritage, Pair

CellState = Literal[
    "ok", "lossy", "peer_down", "cluster_down", "path_down", "uplink_down", "udp_blocked", "maintenance", "unknown"
]
CellSource = Literal["direct", "reverse", "region", "predicted"]
Samples = Mapping[tuple[str, str, str, str], tuple[float, float]]
"""(recorded name, source, destination, proto) -> (value, age in s); the names' common prefix may be left out."""

INTRA_REGION_RTT_S = 0.0005
"""Round trip inside a region or a cluster: 0.4 ms inside GCP's regions (2023-11), below 1 ms in Azure's."""
_PREFIX = "pair:rebalancer_probe_"
_Z95 = 1.959963984540054
_SOME = 1e-9
_DOWN: frozenset[CellState] = frozenset(("path_down", "cluster_down", "uplink_down"))


@dataclass(frozen=True, slots=True)
class Gap:
    """What the counters of a path grew by while its measurements were missing: one sample, as long as the gap.

    Attributes:
        duration_s: how long nothing was measured.
        age_s: how long ago it ended.
        samples: probes settled meanwhile.
        loss: share of them that was lost, 0 to 1.
    """

    duration_s: float
    age_s: float
    samples: float
    loss: float


@dataclass(frozen=True, slots=True)
class Throughput:
    """What a cluster's nodes carry, in bytes per second; NaN where it is not known."""

    in_bytes_s: float
    out_bytes_s: float


@dataclass(frozen=True, slots=True)
class Cell:
    """What is known of the way from one cluster to another.

    Attributes:
        rtt_mean_s, rtt_p50_s, rtt_p99_s: round-trip time in s over 2 min; None is unknown.
        jitter_s: mean |difference| of consecutive round trips in s; None is unknown.
        loss: share of probes lost, 0 to 1; None is unknown.
        loss_low, loss_high: Wilson bounds of `loss` (95 %); None where it is unknown.
        loss_forward: share of probes lost on the way out, 0 to 1; None is unknown.
        samples: probes behind `loss`; 0 where it is unknown.
        age_s: how long ago the last good reply came; None if never.
        state: what the path does; `unknown` keeps the last values while they are at most an hour old.
        source: where the values come from.
        error_s: how far the round trip may be off, in s, where it was not measured; None for measured ones.
        proto: udp, or tcp where UDP is blocked.
        gap: the last gap of a day; it is no part of the values above.
    """

    rtt_mean_s: float | None = None
    rtt_p50_s: float | None = None
    rtt_p99_s: float | None = None
    jitter_s: float | None = None
    loss: float | None = None
    loss_low: float | None = None
    loss_high: float | None = None
    loss_forward: float | None = None
    samples: float = 0.0
    age_s: float | None = None
    state: CellState = "unknown"
    source: CellSource = "direct"
    proto: str = "udp"
    error_s: float | None = None
    gap: Gap | None = None

    @property
    def judged(self) -> bool:
        """Whether the cell is an own fresh measurement, so that quality may be judged by it."""
        return self.source == "direct" and self.state not in ("unknown", "maintenance", "peer_down")

    @property
    def down(self) -> bool:
        """Whether probes are sent and none of them is answered."""
        return self.state in _DOWN


@dataclass(frozen=True, slots=True)
class MapSettings:
    """How old measurements may be, and from when a path is called lossy.

    Attributes:
        fresh_s: a recorded value is the present up to this age (two evaluations of 1 min and a scrape).
        keep_s: a vanished value is kept, with growing age and state unknown, up to this age.
        lossy_loss: a path is lossy when its loss is surely above this share.
    """

    fresh_s: float = 150.0
    keep_s: float = 3600.0
    lossy_loss: float = 0.01


@dataclass(frozen=True, slots=True)
class LatencyMap:
    """All cells.

    Attributes:
        cells: (source, destination) -> cell; a pair that is not in it is unknown.
        regions: cluster -> region.
    """

    cells: Mapping[Pair, Cell] = field(default_factory=lambda: MappingProxyType({}))
    regions: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def rtt_s(self, src: str, dst: str) -> float | None:
        """Returns the mean round-trip time in s, None where it is unknown; a cluster to itself is 0.5 ms.

        Predictions are in `cells` only: they rank pairs that nobody measured and don't place workloads.
        """
        if src == dst:
            return INTRA_REGION_RTT_S
        cell = self.cells.get((src, dst))
        return cell.rtt_mean_s if cell and cell.source != "predicted" else None

    def loss(self, src: str, dst: str) -> float | None:
        """Returns the share of probes lost, 0 to 1, None where it is unknown; a cluster to itself loses nothing."""
        if src == dst:
            return 0.0
        cell = self.cells.get((src, dst))
        return cell.loss if cell else None


def wilson(loss: float, samples: float) -> tuple[float, float]:
    """Returns the Wilson score interval (95 %) of a loss ratio.

    Args:
        loss: share lost, 0 to 1.
        samples: number of probes; may be fractional, since `increase()` extrapolates. At 0 nothing is known: (0, 1).
    """
    if samples < _SOME:  # its square must not vanish
        return 0.0, 1.0
    z2 = _Z95 * _Z95
    centre = loss + z2 / (2 * samples)
    spread = _Z95 * math.sqrt(loss * (1 - loss) / samples + z2 / (4 * samples * samples))
    scale = 1 + z2 / samples
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def measured_cell(
    rtt_s: float | None, *, loss: float = 0.0, samples: float = 1200.0, loss_forward: float | None = None
) -> Cell:
    """Returns the cell of a path that is being measured, for worlds that know the truth (simulator, replay).

    Args:
        rtt_s: round-trip time in s, None while nothing is answered.
        loss: share lost, 0 to 1.
        samples: probes behind it.
        loss_forward: share lost on the way out, half of the loss if not given.
    """
    low, high = wilson(loss, samples)
    state: CellState = "path_down" if rtt_s is None or loss >= 1 else "lossy" if low > 0.01 else "ok"
    rtt = None if state == "path_down" else rtt_s
    forward = loss / 2 if loss_forward is None else loss_forward
    return Cell(rtt, rtt, rtt, 0.0, loss, low, high, forward, samples, 0.0, state)


def build_map(
    samples: Samples,
    clusters: Mapping[str, str],
    now: float,
    *,
    settings: MapSettings | None = None,
    maintenance: Collection[str] = (),
    gaps: Mapping[Pair, Gap] | None = None,
) -> LatencyMap:
    """Builds the map from one answer over the recorded series.

    Args:
        samples: value and age of each series; the age counts from `now`.
        clusters: every configured cluster -> its region; series of other clusters are ignored.
        now: Unix time in s; kept for symmetry with the other builders, since ages are given.
        settings: ages and thresholds.
        maintenance: clusters that are marked as draining: nothing is judged about their paths.
        gaps: the gaps that ended within a day.

    Returns:
        A map with a cell for every ordered pair of different clusters.
    """
    del now  # the ages are relative to it already
    chosen = settings or MapSettings()
    table = {(name.removeprefix(_PREFIX), src, dst, proto): value for (name, src, dst, proto), value in samples.items()}
    readers = {(src, dst): _Reader(table, src, dst, chosen) for src in clusters for dst in clusters if src != dst}
    cut_off = _cut_off(readers)
    direct = {
        pair: _direct(reader, chosen, draining=not set(maintenance).isdisjoint(pair), cut_off=pair[0] in cut_off)
        for pair, reader in readers.items()
    }
    direct = _tell_downs_apart(direct)
    measured = {pair: cell.rtt_mean_s for pair, cell in direct.items() if cell.judged and cell.rtt_mean_s is not None}
    heritage = Heritage(measured, clusters)
    cells = {
        # Whatever a direct cell says itself stands, be it that the path is down.
        pair: cell if cell.state != "unknown" else _substitute(pair, cell, direct, heritage)
        for pair, cell in direct.items()
    }
    cells |= {pair: replace(cells[pair], gap=gap) for pair, gap in (gaps or {}).items() if pair in cells}
    return LatencyMap(MappingProxyType(cells), MappingProxyType(dict(clusters)))


class _Reader:
    """Recorded values of one ordered pair; unusable ones are None."""

    def __init__(
        self, table: Mapping[tuple[str, str, str, str], tuple[float, float]], src: str, dst: str, settings: MapSettings
    ) -> None:
        self._table, self._src, self._dst, self._settings = table, src, dst, settings

    def get(self, name: str, proto: str, *, fresh: bool = False, high: float = math.inf) -> float | None:
        value, age_s = self._table.get((name, self._src, self._dst, proto), (math.nan, math.nan))
        limit = self._settings.fresh_s if fresh else self._settings.keep_s
        usable = math.isfinite(value) and 0 <= value <= high and age_s <= limit
        return value if usable else None

    def counted(self, name: str) -> bool:
        return (self.get(name, "udp", fresh=True) or 0.0) > 0

    def last_ok_age(self, proto: str) -> float | None:
        value, age_s = self._table.get(("last_ok_age_seconds:min", self._src, self._dst, proto), (math.nan, math.nan))
        return max(0.0, value) + age_s if math.isfinite(value) and math.isfinite(age_s) else None

    def timed(self, proto: str, *, fresh: bool) -> Cell:
        return Cell(
            rtt_mean_s=self.get("rtt_seconds:mean2m", proto, fresh=fresh),
            rtt_p50_s=self.get("rtt_seconds:p50_2m", proto, fresh=fresh),
            rtt_p99_s=self.get("rtt_seconds:p99_2m", proto, fresh=fresh),
            jitter_s=self.get("jitter_seconds:mean2m", proto, fresh=fresh),
            age_s=self.last_ok_age(proto),
            proto=proto,
        )


def _cut_off(readers: Mapping[Pair, _Reader]) -> frozenset[str]:
    """Sources whose own host can't send to at least two others while none answers: their uplink is gone."""
    failing = Counter(pair[0] for pair, reader in readers.items() if reader.counted("send_errors:increase2m"))
    several = {src for src, pairs in failing.items() if pairs >= 2}
    answered = {
        pair[0]
        for pair, reader in readers.items()
        if pair[0] in several
        and reader.get("loss:ratio2m", "udp", fresh=True, high=math.nextafter(1.0, 0.0)) is not None
    }
    return frozenset(several - answered)


def _direct(reader: _Reader, settings: MapSettings, *, draining: bool, cut_off: bool) -> Cell:
    count = reader.get("samples:increase2m", "udp", fresh=True)
    loss = reader.get("loss:ratio2m", "udp", fresh=True, high=1.0)
    age_s = reader.last_ok_age("udp")
    stale = reader.timed("udp", fresh=False)
    if age_s is not None and age_s > settings.keep_s:
        stale = Cell(age_s=age_s)
    if draining:
        return replace(stale, state="maintenance")
    if count is None or count <= 0 or loss is None or loss >= 1:
        if (tcp := _over_tcp(reader)) is not None:
            return tcp
        if cut_off and reader.counted("send_errors:increase2m"):
            return Cell(age_s=age_s, state="uplink_down")
        # Hosts send about one ICMP error a second, so a dead process lets most probes vanish and refuses a few.
        if reader.counted("refused:increase2m"):
            return Cell(age_s=age_s, state="peer_down")
    if count is None or count <= 0 or loss is None:
        return stale
    if loss >= 1:
        # Without any reply ever, a closed firewall and a dead path look the same: nothing is known.
        return Cell(state="unknown") if age_s is None else _with_loss(Cell(age_s=age_s, state="path_down"), 1.0, count)
    cell = _with_loss(reader.timed("udp", fresh=True), loss, count)
    forward = reader.get("loss_forward:ratio2m", "udp", fresh=True, high=1.0)
    lossy = cell.loss_low is not None and cell.loss_low > settings.lossy_loss
    return replace(cell, loss_forward=forward, state="lossy" if lossy else "ok")


def _with_loss(cell: Cell, loss: float, count: float) -> Cell:
    low, high = wilson(loss, count)
    return replace(cell, loss=loss, loss_low=low, loss_high=high, samples=count)


def _over_tcp(reader: _Reader) -> Cell | None:
    # TCP hides loss behind its own retransmissions, so its loss stays unknown.
    cell = reader.timed("tcp", fresh=True)
    return None if cell.rtt_mean_s is None else replace(cell, state="udp_blocked")


def _tell_downs_apart(cells: Mapping[Pair, Cell]) -> dict[Pair, Cell]:
    """Names the culprit of each path without answers: it takes the other vantage points to know."""
    told = dict(cells)
    answers = {pair for pair, cell in cells.items() if cell.judged and not cell.down}
    answers_of = Counter(name for pair in answers for name in pair)
    from_src: dict[str, list[bool]] = defaultdict(list)
    to_dst: dict[str, dict[str, bool]] = defaultdict(dict)
    for (src, dst), cell in cells.items():
        if cell.judged:
            from_src[src].append(cell.down)
            if cell.state != "uplink_down":  # who can't send at all is no witness of another
                to_dst[dst][src] = cell.down
    for (src, dst), cell in cells.items():
        if cell.state != "path_down":
            continue
        src_cut = len(from_src[src]) >= 2 and all(from_src[src])
        witnesses = [down for other, down in to_dst[dst].items() if other != src]
        dst_answers_elsewhere = answers_of[dst] > ((src, dst) in answers) + ((dst, src) in answers)
        if src_cut and len(answers) > answers_of[src]:
            told[src, dst] = replace(cell, state="uplink_down")
        elif witnesses and all(witnesses) and not dst_answers_elsewhere:
            told[src, dst] = replace(cell, state="cluster_down")
    return told


def _substitute(pair: Pair, own: Cell, direct: Mapping[Pair, Cell], heritage: Heritage) -> Cell:
    reverse = direct[pair[1], pair[0]]
    if reverse.judged and reverse.rtt_mean_s is not None:
        forward = reverse.loss_forward
        swapped = None if forward is None or reverse.loss is None else max(0.0, reverse.loss - forward)
        return replace(reverse, source="reverse", loss_forward=swapped)
    if own.rtt_mean_s is not None:
        return own  # at most an hour old: nearer to the truth than other clusters' values
    source: CellSource = "region"
    found = heritage.of_regions(*pair)
    if found is None:
        source, found = "predicted", heritage.predicted(*pair)
    if found is None:
        return own
    rtt_s, error_s = found
    return Cell(rtt_mean_s=rtt_s, rtt_p50_s=rtt_s, age_s=own.age_s, source=source, error_s=error_s)


def origin_rtt(
    latency: LatencyMap, region_of_cluster: Mapping[str, str], origin_region: str, dst_cluster: str
) -> float | None:
    """Returns the round-trip time in s from users in a region to a cluster.

    Users are where their region's clusters are: the nearest of these to the destination is the vantage point. A
    destination inside the origin region is its own vantage point and gets `INTRA_REGION_RTT_S`. Values of source
    `predicted` don't count: they rank pairs, they don't place workloads.

    Args:
        latency: the map.
        region_of_cluster: cluster -> region, every configured cluster.
        origin_region: where the users are.
        dst_cluster: where they would be served.

    Returns:
        Seconds, or None where no vantage point in the region has a measurement: the origin is Unknown then.
    """
    if region_of_cluster.get(dst_cluster) == origin_region:
        return INTRA_REGION_RTT_S
    found = []
    for vantage, region in region_of_cluster.items():
        cell = latency.cells.get((vantage, dst_cluster)) if region == origin_region else None
        if cell is not None and cell.source != "predicted" and cell.rtt_mean_s is not None:
            found.append(cell.rtt_mean_s)
    return min(found, default=None)
