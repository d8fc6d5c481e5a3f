"""What happened on a path while its measurements were missing: one sample as long as the gap.

The probes' counters run on while an edge cluster is cut off, so their growth over the gap is known once it is back. It
is told as one sample with its length, and is never averaged into what is measured now.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from rebalancer.adapters.telemetry.backend import Backend
from rebalancer.adapters.telemetry.errors import AnswerError
from rebalancer.adapters.telemetry.grid import duration
from rebalancer.adapters.telemetry.promql import Selector
from rebalancer.catalog import LOST_OUTCOMES, PATH_OUTCOMES, metric
from rebalancer.core.network import Gap

Pair = tuple[str, str]
LEAST_S = 600.0
"""Shorter holes are the ordinary lateness of evaluations, scrapes and uploads."""
MOST_S = 48 * 3600.0
KEEP_S = 24 * 3600.0
_BEFORE_S = 60.0
"""The last sample before the gap is this much older than the recording made of it, at the most."""
_RAW = metric("probe_probes_total").name


@dataclass(frozen=True, slots=True)
class _Hole:
    start_s: float
    end_s: float


def growth(src: str, start_s: float, end_s: float) -> str:
    """Growth of a source's settled UDP probes by peer and outcome between two times (Unix seconds)."""
    chosen = Selector(_RAW).where(
        ("src_cluster", "=", src), ("proto", "=", "udp"), ("outcome", "=~", "|".join(PATH_OUTCOMES))
    )
    window = duration(end_s - start_s + _BEFORE_S)
    return f"sum by (dst_cluster, outcome) (increase({chosen}[{window}] @ {end_s:.3f}))"


class Gaps:
    """The gaps of one backend's pairs, found when they end.

    Args:
        backend: who is asked, once per source cluster that came back.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._seen: dict[Pair, float] = {}
        self._ended: dict[Pair, tuple[float, Gap]] = {}

    async def look(self, at: Mapping[Pair, float], now: float) -> list[str]:
        """Takes the time of each pair's newest recording, and asks for what grew where a gap has ended.

        Returns:
            Problems, a sentence each; the gap they concern stays unknown.
        """
        holes: dict[str, dict[str, _Hole]] = defaultdict(dict)
        for (src, dst), newest in at.items():
            last = self._seen.get((src, dst), newest)
            if LEAST_S <= newest - last <= MOST_S:
                holes[src][dst] = _Hole(last, newest)
        self._seen = {pair: one for pair, one in {**self._seen, **at}.items() if now - one <= MOST_S}
        self._ended = {pair: one for pair, one in self._ended.items() if now - one[0] <= KEEP_S}
        problems = []
        for src, peers in holes.items():
            try:
                await self._fill(src, peers)
            except AnswerError as error:
                problems.append(f"network, the gap of {src}: {error}")
        return problems

    def ended(self, now: float) -> dict[Pair, Gap]:
        """Returns the last gap of each pair that had one within a day."""
        return {
            pair: Gap(gap.duration_s, max(0.0, now - end_s), gap.samples, gap.loss)
            for pair, (end_s, gap) in self._ended.items()
        }

    async def _fill(self, src: str, peers: Mapping[str, _Hole]) -> None:
        # Pairs of one source are recorded by one Prometheus, so they vanish and come back together.
        start_s, end_s = min(h.start_s for h in peers.values()), max(h.end_s for h in peers.values())
        answer = await self._backend.query(growth(src, start_s, end_s), end_s)
        sent: dict[str, float] = defaultdict(float)
        lost: dict[str, float] = defaultdict(float)
        for series in answer.series:
            dst, value = series.labels.get("dst_cluster", ""), float(series.values[0])
            if 0.0 <= value < float("inf"):
                sent[dst] += value
                lost[dst] += value * (series.labels.get("outcome") in LOST_OUTCOMES)
        for dst, hole in peers.items():
            if sent[dst] > 0:
                length_s = hole.end_s - hole.start_s
                self._ended[src, dst] = (hole.end_s, Gap(length_s, 0.0, sent[dst], lost[dst] / sent[dst]))
