"""How far demand rose within each slot: the largest short rate relative to the slot's mean, by workload.

Replicas must serve a slot's peak, and its mean hides that: on real traces a forecast of means could not keep violations
at 0.3 % of the minutes at any quantile, one of maxima did. Each cluster's and origin's own maximum would not do, since
peaks that don't coincide would be added; so the sum over all of them is looked at, in the server, and only its ratio to
the mean comes back: one row for each workload.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from rebalancer.adapters.telemetry import promql
from rebalancer.adapters.telemetry.demand import NEXT_CYCLE, TOO_DEAR, Found, Source
from rebalancer.adapters.telemetry.errors import AnswerError
from rebalancer.adapters.telemetry.grid import Grid, split
from rebalancer.adapters.telemetry.ring import Key, Ring
from rebalancer.core.model import Floats

LOOKS = 2
"""Looks within one window of the rate: each minute of a slot is in two of them."""


class Peaks:
    """The peaks of what one source counts.

    Args:
        source: who counts; asked for its mean before.
    """

    def __init__(self, source: Source) -> None:
        self.source, self._ring = source, Ring()

    async def fetch(self, grid: Grid, window_s: float) -> list[str]:
        """Asks for what is not there yet; returns a sentence where that failed.

        Args:
            grid: slots of the history.
            window_s: window of the short rate, shorter than a slot.
        """
        self.move(grid)
        looks = int(grid.step_s / window_s * LOOKS)
        self._ring.bound(self.source.chunk(grid.step_s, looks))
        newer = self._ring.newer(())
        try:
            for part in split(newer, self._ring.chunk) if newer is not None else ():
                await self._put(part, window_s, looks)
            while (older := self._ring.older()) is not None:
                await self._put(older, window_s, looks)
        except AnswerError as error:
            cheaper = error.kind in TOO_DEAR and self._ring.cheaper()
            goes_on = f" {NEXT_CYCLE}" if cheaper else ""
            return [f"peaks of demand by {self.source.ask.name}{goes_on}: {error}"]
        return []

    async def _put(self, part: Grid, window_s: float, looks: int) -> None:
        def expression(narrowed: Iterable[tuple[str, str, str]]) -> str:
            short, mean = (self.source.expression(w, narrowed, apart=False) for w in (window_s, part.step_s))
            return promql.peak(short, mean, part.step_s, window_s / LOOKS)

        def key(labels: Mapping[str, str]) -> Key | None:
            workload = self.source.workload(labels)
            return (workload, "", "") if workload else None

        rows = await self.source.range(part, expression, key, Found(), looks=looks, merge=np.fmax)
        # Rates are stretched to the ends of their windows; no minute holds more than the whole slot does.
        self._ring.put(part, {k: np.clip(row, 1.0, looks) for k, row in rows.items()})

    def move(self, grid: Grid) -> None:
        """Moves to a window, as the history of means does."""
        self._ring.move(grid)

    @property
    def rows(self) -> Mapping[str, Floats]:
        """Ratios by workload, shape (slots,), at least 1; NaN where unknown."""
        return {key[0]: row for key, row in self._ring.rows.items()}


def unknown(rows: Mapping[Key, Floats], ratios: Mapping[str, Floats]) -> set[str]:
    """Returns the workloads that have demand in the newest slot, and no word of how far it rose within it.

    Args:
        rows: means of one source.
        ratios: its peaks, shape (slots,), NaN where unknown.
    """
    return {
        workload for (workload, _, _), row in rows.items()
        if len(row) and row[-1] > 0 and not (workload in ratios and np.isfinite(ratios[workload][-1]))
    }  # fmt: skip


def together(parts: Sequence[tuple[Mapping[Key, Floats], Mapping[str, Floats]]]) -> dict[str, Floats]:
    """The peaks of several sources of the same workloads: peaks add, as if they coincided.

    Args:
        parts: (rows of means, ratios) of each source that counts for these workloads.

    Returns:
        workload -> shape (slots,), at least 1; NaN where no peak is known.
    """
    counts = Counter(workload for _, ratios in parts for workload in ratios)
    found = {workload: row for _, ratios in parts for workload, row in ratios.items() if counts[workload] == 1}
    shared: dict[str, list[tuple[Floats, Floats]]] = {}
    for rows, ratios in parts:
        means: dict[str, Floats] = {}
        for (workload, _, _), row in rows.items():
            if counts[workload] > 1 and workload in ratios:
                means[workload] = means.get(workload, 0.0) + np.nan_to_num(row)
        for workload, mean in means.items():
            shared.setdefault(workload, []).append((mean, ratios[workload]))
    return found | {workload: _ratio(several) for workload, several in shared.items()}


def _ratio(found: Sequence[tuple[Floats, Floats]]) -> Floats:
    mean = np.sum([one for one, _ in found], axis=0)
    extra = np.sum([one * np.nan_to_num(ratio - 1.0) for one, ratio in found], axis=0)
    known = np.any([np.isfinite(ratio) for _, ratio in found], axis=0)
    return np.where(known, 1.0 + extra / np.where(mean > 0, mean, np.inf), np.nan)
