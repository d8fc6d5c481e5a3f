"""Demand history that is fetched once and then only continued, so that a cycle costs little.

Filled newest first in chunks; what the deadline cuts off is fetched in the next cycles. The last slots are read again
for samples that came late, and slots in which a cluster was out of sight once it is back, and for a while after that:
what was cut off sends what it kept in its own time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from rebalancer.adapters.telemetry.grid import Grid
from rebalancer.core.model import Floats

Key = tuple[str, str, str]
REREAD = 2
CHUNK = 1440
MIN_CHUNK = 12


class Ring:
    """Rows on one grid.

    Attributes:
        chunk: slots of one backfill query; halved when the server finds it too dear.
    """

    def __init__(self) -> None:
        self.chunk = CHUNK
        self._rows: dict[Key, Floats] = {}
        self._grid = Grid(0.0, 1.0, 0)
        self._low_s = self._high_s = 0.0
        self._holes: dict[str, float] = {}
        self._back: dict[str, float] = {}

    def move(self, grid: Grid) -> None:
        """Moves to a window; keeps what both have in common. Another step, or a gap, begins anew."""
        old = self._grid
        offset = (grid.start_s - old.start_s) / old.step_s
        same = old.slots > 0 and old.step_s == grid.step_s and abs(offset - round(offset)) < 1e-6
        if not same or self._empty or grid.start_s > self._high_s or grid.end_s < self._low_s:
            self._rows, self._holes, self._back, self._grid = {}, {}, {}, grid
            self._low_s = self._high_s = grid.end_s
            return
        if old == grid:
            return
        shift = old.index(grid.start_s)
        low, high = max(0, shift), min(old.slots, shift + grid.slots)
        block = np.full((len(self._rows), grid.slots), np.nan)
        for fresh, row in zip(block, self._rows.values(), strict=True):
            fresh[low - shift : high - shift] = row[low:high]
        kept = ~np.isnan(block).all(axis=1)
        self._rows = {key: row for key, row, there in zip(self._rows, block, kept, strict=True) if there}
        self._grid = grid
        self._low_s = max(self._low_s, grid.start_s - grid.step_s)
        self._high_s = min(self._high_s, grid.end_s)
        # What has left the window can't be filled any more; what begins before it, only within it.
        self._holes = {name: max(at, grid.start_s) for name, at in self._holes.items() if at <= grid.end_s}

    def newer(self, seen: Iterable[str]) -> Grid | None:
        """Returns the slots to fetch so that the newest are there; None before the first backfill.

        Args:
            seen: clusters in full sight; the slots they missed are read again.
        """
        grid = self._grid
        if self._empty:
            return None
        start = self._high_s - (REREAD - 1) * grid.step_s
        start = min([start, *(self._holes[name] for name in seen if name in self._holes)])
        return self._part(max(start, self._low_s + grid.step_s, grid.start_s), grid.end_s)

    def older(self) -> Grid | None:
        """Returns the next chunk of the backfill, None when all is there."""
        last = self._low_s
        if not self._grid.slots or self._grid.index(last) < 0:
            return None
        return self._part(max(self._grid.start_s, last - (self.chunk - 1) * self._grid.step_s), last)

    def put(self, part: Grid, rows: Mapping[Key, Floats]) -> None:
        """Takes the answer for a part of the window; what was known before stays where the answer has nothing."""
        at = self._grid.index(part.start_s)
        new = [key for key in rows if key not in self._rows]
        # One block for all new rows: an array of its own for each of ten thousand takes longer than to fill it.
        self._rows.update(zip(new, np.full((len(new), self._grid.slots), np.nan), strict=True))
        for key, values in rows.items():
            np.copyto(self._rows[key][at : at + part.slots], values, where=~np.isnan(values))
        self._high_s = max(self._high_s, part.end_s)
        self._low_s = min(self._low_s, part.start_s - part.step_s)

    def mark(
        self, unseen: Iterable[str], filled: Iterable[str], since_s: float, *, now: float = 0.0, late_s: float = 0.0
    ) -> None:
        """Remembers from which slot on a cluster's part is missing, until it was read again for long enough.

        Args:
            unseen: clusters out of sight.
            filled: clusters whose missing slots were read again.
            since_s: end of the first slot that was read just now.
            now: Unix seconds.
            late_s: for how long after its return a cluster's samples may still come in.
        """
        for name in filled:
            if name in self._holes and now - self._back.setdefault(name, now) >= late_s:
                del self._holes[name], self._back[name]
        for name in unseen:
            self._back.pop(name, None)
            self._holes[name] = min(self._holes.get(name, since_s), since_s)

    def begins(self) -> dict[str, int]:
        """Returns the first slot in which each cluster has a value; one without any is left out."""
        known: dict[str, int] = {}
        for (_, _, cluster), row in self._rows.items():
            there = np.flatnonzero(~np.isnan(row))
            if len(there):
                known[cluster] = min(int(there[0]), known.get(cluster, len(row)))
        return known

    def misses(self, names: Iterable[str]) -> bool:
        """Says whether slots of one of these clusters are missing because it was out of sight."""
        return any(name in self._holes for name in names)

    def bound(self, slots: int) -> None:
        """Keeps the chunks of the backfill within a number of slots."""
        self.chunk = max(1, min(self.chunk, slots))

    def cheaper(self) -> bool:
        """Halves the chunk; says whether that was possible."""
        if self.chunk <= MIN_CHUNK:
            return False
        self.chunk = max(MIN_CHUNK, self.chunk // 2)
        return True

    @property
    def fresh(self) -> bool:
        """Whether it was begun anew and holds nothing yet."""
        return self._empty

    @property
    def rows(self) -> Mapping[Key, Floats]:
        """Rows of shape (slots of the window,), NaN where unknown."""
        return self._rows

    @property
    def _empty(self) -> bool:
        """Whether nothing was fetched: what is there is (low, high], in slot ends."""
        return self._low_s >= self._high_s

    def _part(self, start_s: float, end_s: float) -> Grid | None:
        step = self._grid.step_s
        slots = round((end_s - start_s) / step) + 1
        return Grid(start_s, step, slots) if slots > 0 else None
