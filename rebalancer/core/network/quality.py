"""`network-quality` of pairs and clusters, with hysteresis: entered and left only on what is statistically sure.

Two comparators per pair (degraded, poor). One is switched on after its condition held for `enter_after_s`: loss surely
above the threshold (Wilson lower bound), or the median round trip far above its usual. It is switched off after a clean
run of `leave_after_s` whose pooled samples say that loss is surely below it (upper bound). Unknown does neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from rebalancer.core.network.heritage import Pair
from rebalancer.core.network.latency import Cell, LatencyMap, wilson

Quality = Literal["good", "degraded", "poor"]
TaintValue = Literal["degraded", "poor"]
_LEVELS: tuple[TaintValue, TaintValue] = ("degraded", "poor")
_RANK: Mapping[Quality, int] = MappingProxyType({"good": 0, "degraded": 1, "poor": 2})
_MAX_BLOCKS = 64


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """Thresholds and times; the defaults are those of the design of the probes, section 4.

    Attributes:
        degraded_loss, poor_loss: share lost over 2 min. 1 % halves the rate of a TCP flow on a 50 ms path (Mathis), at
            5 % interactive use breaks.
        degraded_rtt_factor, poor_rtt_factor: median round trip against its usual (7-day median).
        degraded_rtt_extra_s, poor_rtt_extra_s: and at least this much above it, so that 1 ms to 3 ms is no event.
        enter_after_s: how long the condition must hold; below it a route flap is over by itself.
        leave_after_s: how long it must be gone.
        window_s: span of the recorded ratios; blocks of a clean run this far apart share no probe.
        max_gap_s: without data for longer than this a run or a condition begins anew.
        min_share, min_pairs: share and number of a cluster's measured pairs that must be that bad for its taint.
    """

    degraded_loss: float = 0.01
    poor_loss: float = 0.05
    degraded_rtt_factor: float = 1.5
    poor_rtt_factor: float = 3.0
    degraded_rtt_extra_s: float = 0.020
    poor_rtt_extra_s: float = 0.050
    enter_after_s: float = 60.0
    leave_after_s: float = 300.0
    window_s: float = 120.0
    max_gap_s: float = 300.0
    min_share: float = 0.5
    min_pairs: int = 2

    def thresholds(self, level: TaintValue) -> tuple[float, float, float]:
        """Returns (loss, factor, extra in s) of a level."""
        if level == "poor":
            return self.poor_loss, self.poor_rtt_factor, self.poor_rtt_extra_s
        return self.degraded_loss, self.degraded_rtt_factor, self.degraded_rtt_extra_s


@dataclass(frozen=True, slots=True)
class Level:
    """One comparator's memory.

    Attributes:
        on: whether the level is in force.
        bad_since_s: since when its condition holds, None while it doesn't.
        clean_since_s: since when the point estimate is below the threshold, None while it isn't.
        blocks: (time, samples, lost) of the clean run, of windows that share no probe.
        seen_s: when there were data last.
    """

    on: bool = False
    bad_since_s: float | None = None
    clean_since_s: float | None = None
    blocks: tuple[tuple[float, float, float], ...] = ()
    seen_s: float | None = None


@dataclass(frozen=True, slots=True)
class NetworkMemory:
    """What `judge` needs from before; empty at the start, and losing it costs time only.

    Attributes:
        pairs: pair -> its comparators (degraded, poor).
        taints: taint in force by cluster.
    """

    pairs: Mapping[Pair, tuple[Level, Level]] = field(default_factory=lambda: MappingProxyType({}))
    taints: Mapping[str, TaintValue] = field(default_factory=lambda: MappingProxyType({}))


def undirected(src: str, dst: str) -> Pair:
    """Returns the one name of the pair between two clusters."""
    return (src, dst) if src <= dst else (dst, src)


def judge(
    latency: LatencyMap,
    memory: NetworkMemory,
    settings: NetworkSettings,
    now: float,
    *,
    usual_rtt_s: Mapping[Pair, float] | None = None,
    weights: Mapping[Pair, float] | None = None,
) -> tuple[dict[Pair, Quality], dict[str, TaintValue], NetworkMemory]:
    """Judges all pairs and clusters.

    Args:
        latency: the map of this cycle.
        memory: what the last call returned.
        settings: thresholds and times.
        now: Unix time in s, never before that of the last call.
        usual_rtt_s: pair (as `undirected` names it) -> 7-day median of its p50 in s; without it only loss is judged.
        weights: pair -> demand that crosses it, >= 0; without it all pairs count equally.

    Returns:
        Quality of every pair that is measured or was before; taint value of each tainted cluster; the new memory.
    """
    cells: dict[Pair, list[Cell]] = {}
    for (src, dst), cell in latency.cells.items():
        cells.setdefault(undirected(src, dst), []).append(cell)
    usual = usual_rtt_s or {}
    pairs: dict[Pair, tuple[Level, Level]] = {}
    measured: set[Pair] = set()
    for pair, both in cells.items():
        known = [cell for cell in both if cell.judged and _tells(cell, usual.get(pair))]
        before = memory.pairs.get(pair, (Level(), Level()))
        if known:
            measured.add(pair)
            degraded, poor = (
                _step(level, before[index], known, usual.get(pair), settings, now)
                for index, level in enumerate(_LEVELS)
            )
            pairs[pair] = (degraded, poor)
        elif pair in memory.pairs:
            pairs[pair] = before
    qualities = {pair: _quality(levels) for pair, levels in pairs.items()}
    present = {name for pair in cells for name in pair}  # a cluster that left the fleet takes its taint along
    held = {name: value for name, value in memory.taints.items() if name in present}
    taints = _taints(qualities, measured, held, settings, weights)
    return qualities, taints, NetworkMemory(MappingProxyType(pairs), MappingProxyType(taints))


def _quality(levels: tuple[Level, Level]) -> Quality:
    return "poor" if levels[1].on else "degraded" if levels[0].on else "good"


def _tells(cell: Cell, usual: float | None) -> bool:
    return cell.loss is not None or (usual is not None and cell.rtt_p50_s is not None)


def _step(
    level: TaintValue, before: Level, cells: list[Cell], usual: float | None, settings: NetworkSettings, now: float
) -> Level:
    """One comparator, one cycle with data; the worse direction counts."""
    if before.seen_s is not None and now - before.seen_s > settings.max_gap_s:
        before = Level(on=before.on)
    loss_limit, factor, extra_s = settings.thresholds(level)
    slow = usual is not None and any(
        cell.rtt_p50_s is not None and cell.rtt_p50_s > factor * usual and cell.rtt_p50_s > usual + extra_s
        for cell in cells
    )
    surely_lossy = any(cell.loss_low is not None and cell.loss_low > loss_limit for cell in cells)
    maybe_lossy = any(cell.loss is None or cell.loss >= loss_limit for cell in cells)
    bad = slow or surely_lossy
    bad_since = (before.bad_since_s if before.bad_since_s is not None else now) if bad else None
    clean = not slow and not maybe_lossy
    clean_since = (before.clean_since_s if before.clean_since_s is not None else now) if clean else None
    blocks = _pool(before.blocks if clean else (), cells, settings, now) if clean else ()
    on = before.on
    if bad_since is not None and now - bad_since >= settings.enter_after_s:
        on = True
    elif on and clean_since is not None and now - clean_since >= settings.leave_after_s:
        on = not _surely_below(loss_limit, blocks, cells)
    return Level(on, bad_since, clean_since, blocks, now)


def _surely_below(limit: float, blocks: tuple[tuple[float, float, float], ...], cells: list[Cell]) -> bool:
    """Whether the whole clean run, or at high rates the present window alone, puts loss below a limit."""
    if all(cell.loss_high is not None and cell.loss_high < limit for cell in cells):
        return True
    count, lost = (sum(block[i] for block in blocks) for i in (1, 2))
    return count > 0 and wilson(lost / count, count)[1] < limit


def _pool(
    blocks: tuple[tuple[float, float, float], ...], cells: list[Cell], settings: NetworkSettings, now: float
) -> tuple[tuple[float, float, float], ...]:
    if blocks and now - blocks[-1][0] < settings.window_s:
        return blocks  # the recorded window still overlaps the last block's: no probe counts twice
    count = sum(cell.samples for cell in cells)
    lost = sum(cell.samples * (cell.loss or 0.0) for cell in cells)
    return (*blocks, (now, count, lost))[-_MAX_BLOCKS:]


def _taints(
    qualities: Mapping[Pair, Quality],
    measured: set[Pair],
    before: Mapping[str, TaintValue],
    settings: NetworkSettings,
    weights: Mapping[Pair, float] | None,
) -> dict[str, TaintValue]:
    taints: dict[str, TaintValue] = {}
    for cluster in sorted({name for pair in qualities for name in pair} | set(before)):
        own = [pair for pair in qualities if cluster in pair]
        for level in reversed(_LEVELS):
            # Entering needs measured pairs. For leaving, a pair that is out of sight votes as it was seen last.
            held = _RANK[before.get(cluster, "good")] >= _RANK[level]
            voters = own if held else [pair for pair in own if pair in measured]
            if _majority(voters, qualities, level, settings, weights) or (held and not voters):
                taints[cluster] = level
                break
    return taints


def _majority(
    voters: list[Pair],
    qualities: Mapping[Pair, Quality],
    level: TaintValue,
    settings: NetworkSettings,
    weights: Mapping[Pair, float] | None,
) -> bool:
    bad = [pair for pair in voters if _RANK[qualities[pair]] >= _RANK[level]]
    if len(bad) < settings.min_pairs:
        return False
    total = sum(weights.get(pair, 0.0) for pair in voters) if weights else 0.0
    if weights is None or total <= 0:
        return len(bad) >= settings.min_share * len(voters)
    return sum(weights.get(pair, 0.0) for pair in bad) >= settings.min_share * total
