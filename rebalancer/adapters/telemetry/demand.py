"""Demand through one backend: one query for now and one for the new history of each distinct way to count demand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from rebalancer.adapters.telemetry import budget, cpu, dialect, promql
from rebalancer.adapters.telemetry.asks import Ask
from rebalancer.adapters.telemetry.backend import Backend
from rebalancer.adapters.telemetry.decode import Answer, Series, on_grid
from rebalancer.adapters.telemetry.errors import AnswerError
from rebalancer.adapters.telemetry.grid import Grid, split, when
from rebalancer.adapters.telemetry.promql import Selector
from rebalancer.adapters.telemetry.ring import CHUNK, Key, Ring
from rebalancer.core.model import Floats

TOO_DEAR = ("timeout", "too-many-samples", "too-many-points")
"""Errors of a query that its server would answer if it asked for less."""
NEXT_CYCLE = "goes on next cycle"
"""In the sentence that tells of a history which is not whole yet."""


@dataclass(slots=True)
class Found:
    """What one backend says of one Ask.

    Attributes:
        latest: demand now by (workload, origin, cluster).
        rows: history by the same key, shape (slots,).
        warnings: of the answers.
        problems: one sentence each.
        answered: whether demand now was answered; else there is at best history.
        empty: whether the answer had no series at all.
        failed: whether there is nothing to use.
        senseless: clusters of which some value now is no number; what they count is not known.
    """

    latest: dict[Key, float] = field(default_factory=dict)
    rows: Mapping[Key, Floats] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    problems: list[str] = field(default_factory=list)
    answered: bool = False
    empty: bool = False
    failed: bool = False
    senseless: set[str] = field(default_factory=set)


def _add(left: Floats, right: Floats) -> Floats:
    both = np.where(np.isnan(left), right, left + np.where(np.isnan(right), 0.0, right))
    return np.asarray(both, dtype=np.float64)


class Source:
    """One Ask at one backend, with the history fetched so far.

    Args:
        backend: who is asked.
        ask: what for.
        regions: cluster -> region, the origin where users enter at the nearest cluster.
        late_s: for how long after a cluster's return the slots that it missed are read again.

    Attributes:
        by_pods: whether no series carries the workload's label, so that workloads are those that own the pods.
    """

    def __init__(self, backend: Backend, ask: Ask, regions: Mapping[str, str], late_s: float = 0.0) -> None:
        self._backend, self.ask, self._regions, self._late_s = backend, ask, regions, late_s
        self._ring = Ring()
        self._fetched_from_s, self._now_s = float("inf"), 0.0
        self._seen: frozenset[str] = frozenset()
        self._size: budget.Size | None = None
        self._reached_back = False
        self.by_pods = False

    def selector(self) -> Selector:
        """Returns what its samples are counted by, without the matchers of clusters.

        Raises:
            AnswerError: the query is no selector.
        """
        if not self.ask.query:
            return Selector(promql.CPU).where(("namespace", "=~", promql.one_of(self.ask.namespaces)))
        return promql.parse(self.ask.query)

    def expression(
        self, window_s: float, narrowed: Iterable[tuple[str, str, str]] = (), *, apart: bool = True
    ) -> str:  # fmt: skip
        """Returns the query of rates over a window, by workload, origin and cluster.

        Args:
            window_s: the window.
            narrowed: matchers of a shard.
            apart: False sums over origins and clusters.

        Raises:
            AnswerError: as selector().
        """
        by = self._backend.by if apart else ()
        if not self.ask.query:
            ours = cpu.selector(self._backend, self.ask.namespaces).where(*narrowed)
            return promql.cpu_rate(ours, by, window_s)
        origin = [self.ask.origin_label] if apart and self.ask.origin_label else []
        selector = self.selector().where(*self._backend.matchers(), *narrowed)
        if self.by_pods:
            owned = dict.fromkeys([*by, "namespace", *origin])
            return promql.owned_rate(selector, owned, self._backend.by, window_s)
        labels = [*by, "namespace", "exported_namespace", self.ask.workload_label, *origin]
        return promql.summed_rate(selector, dict.fromkeys(labels), window_s)

    async def fetch(self, grid: Grid, window_s: float, now: float, seen: Iterable[str]) -> Found:
        """Asks for demand now and for the history that is not there yet; never raises.

        Args:
            grid: slots of the history.
            window_s: window of the rate now.
            now: Unix seconds.
            seen: clusters in full sight in the last cycle.
        """
        found = Found()
        self._fetched_from_s, self._now_s = float("inf"), now
        try:
            answer = await self._now(window_s, now)
            found.warnings += answer.warnings
            found.answered, found.empty = True, not answer.series
            found.latest = self._sums(answer.series, lambda series: float(series.values[0]), found)
        except AnswerError as error:
            found.problems.append(f"demand by {self.ask.name}: {error}")
            return self.held(grid, found)
        await self._history(grid, frozenset(seen), found)
        return found

    async def _now(self, window_s: float, now: float) -> Answer:
        """Asks for demand now; where no series names a workload, by the pods that the counter is of."""
        answer = await self._backend.query(self.expression(window_s), now)
        named = not self.ask.query or any(one.labels.get(self.ask.workload_label) for one in answer.series)
        if self.by_pods or named or not answer.series:
            return answer
        self.by_pods = True
        owned = await self._backend.query(self.expression(window_s), now)
        if any(one.labels.get(promql.WORKLOAD) for one in owned.series):
            return owned
        self.by_pods = False
        return answer

    async def catch_up(self, grid: Grid, complete: frozenset[str], found: Found) -> None:
        """Reads again what clusters missed that have just come back, so that no cycle sees them without their past."""
        if found.answered and self._ring.misses(complete - self._seen):
            await self._history(grid, complete, found)

    def held(self, grid: Grid, found: Found | None = None) -> Found:
        """What is known from before where nothing was answered now: history with NaN at its end, or a failure."""
        held = found or Found()
        self._ring.move(grid)
        held.rows = dict(self._ring.rows)
        held.failed = not held.rows
        return held

    def judged(self, complete: Iterable[str]) -> None:
        """Is told whose views are complete, so that the slots of the others are read again later."""
        now_seen = frozenset(complete)
        if self._fetched_from_s < float("inf"):
            unseen = frozenset(self._backend.clusters) - now_seen
            filled = self._seen & now_seen
            self._ring.mark(unseen, filled, self._fetched_from_s, now=self._now_s, late_s=self._late_s)

    async def _history(self, grid: Grid, seen: frozenset[str], found: Found) -> None:
        """Reads what of the history is not there yet, as far as it is answered."""
        try:
            await self._continue(grid, seen, found)
        except AnswerError as error:
            found.problems.append(f"history of demand by {self.ask.name}: {error}")
        found.rows = dict(self._ring.rows)

    async def _continue(self, grid: Grid, seen: frozenset[str], found: Found) -> None:
        self._ring.move(grid)
        self._seen, self._reached_back = seen, self._reached_back and not self._ring.fresh
        newer = self._ring.newer(seen)
        if self._ring.older() is not None or (newer is not None and newer.slots > self._ring.chunk):
            await self._measure(grid.step_s, found)
        for part in split(newer, self._ring.chunk) if newer is not None else ():
            await self._put(part, found)
        while (older := self._ring.older()) is not None:
            try:
                await self._put(older, found, backfill=True)
            except asyncio.CancelledError:
                # The deadline of the whole call: what takes longer than that would never end.
                self._ring.cheaper()
                raise
            except AnswerError as error:
                if error.kind not in TOO_DEAR or not self._ring.cheaper():
                    raise
                if error.kind == "timeout":
                    # A server that is slow is not asked again at once; the next cycle goes on with half of it.
                    found.problems.append(f"history of demand by {self.ask.name} {NEXT_CYCLE}: {error}")
                    return
        await self._reach_back(grid, found)

    async def _reach_back(self, grid: Grid, found: Found) -> None:
        """Where raw samples end within the window: what Thanos keeps in coarser form, once after each backfill."""
        if self._backend.kind != "thanos" or self._reached_back:
            return
        self._reached_back = True
        for name, seconds in dialect.COARSER:
            begins = self._ring.begins()
            missing = max(begins.values(), default=0)
            if missing < 2:
                return
            part, window_s = Grid(grid.start_s, grid.step_s, missing), max(grid.step_s, dialect.COARSE_STEPS * seconds)
            rows = await self._range(part, window_s, found, name)
            for key, row in rows.items():
                row[begins.get(key[2], missing) :] = np.nan  # raw samples are better
            if any(np.isfinite(row).any() for row in rows.values()):
                self._ring.put(part, rows)
                found.problems.append(
                    f"history of demand by {self.ask.name} before {when(part.end_s)} comes from data downsampled to "
                    f"{name}: it is the mean over {window_s / 60:.0f} min there, so that shorter peaks are missing; "
                    "keep raw samples longer, or shorten telemetry.history."
                )

    async def _measure(self, step_s: float, found: Found) -> None:
        """Asks how large the counter is, so that no query of the backfill is too large for its server."""
        selector, label = self.selector().where(*self._backend.matchers()), self.ask.workload_label
        if not self.ask.query:
            selector, label = cpu.selector(self._backend, self.ask.namespaces), "namespace"
        elif self.by_pods:
            label = "namespace"
        answer = await self._backend.query(budget.query(selector, label), self._now_s)
        found.warnings += answer.warnings
        self._size = budget.read(label, answer.series)
        self._ring.bound(self._size.slots(step_s))

    async def _put(self, part: Grid, found: Found, *, backfill: bool = False) -> None:
        rows = await self._range(part, part.step_s, found)
        if backfill and _known_share(rows, part.slots) < 0.5:
            # Scraped less than twice a slot: two slots' worth of samples, only where a cluster has nothing else.
            rows = _complete(rows, await self._range(part, 2 * part.step_s, found))
        self._ring.put(part, rows)
        self._fetched_from_s = min(self._fetched_from_s, part.start_s)

    async def _range(self, part: Grid, window_s: float, found: Found, resolution: str = "0s") -> dict[Key, Floats]:
        return await self.range(part, lambda shard: self.expression(window_s, shard), self._key, found, resolution)

    def chunk(self, step_s: float, looks: int = 1) -> int:
        """Returns how many slots a query may have in which each is looked at several times."""
        return max(1, self._size.slots(step_s) // looks) if self._size is not None else CHUNK

    async def range(
        self,
        part: Grid,
        expression: Callable[[Iterable[tuple[str, str, str]]], str],
        key_of: Callable[[Mapping[str, str]], Key | None],
        found: Found,
        resolution: str = "0s",
        *,
        looks: int = 1,
        merge: Callable[[Floats, Floats], Floats] = _add,
    ) -> dict[Key, Floats]:
        """Evaluates a query on a grid, in shards that no server minds.

        Args:
            part: the slots.
            expression: the query of a shard, from the matchers that narrow it.
            key_of: whose a series is, from its labels; None leaves it out.
            found: takes warnings.
            resolution: the coarsest data that Thanos may use.
            looks: how many times each slot is looked at.
            merge: what becomes of two series of one key.

        Raises:
            AnswerError: a shard was not answered.
        """
        # A window of two slots beside the span is the longest that is asked for.
        span_s = (part.slots + 2) * part.step_s
        shards = self._size.shards(part.slots * looks, span_s) if self._size is not None else ((),)
        rows: dict[Key, Floats] = {}

        async def read(narrowed: tuple[tuple[str, str, str], ...]) -> None:
            # Each answer is laid out and let go before the next one of its lane is asked for: it is what needs memory.
            for answer in await self._backend.query_range(expression(narrowed), part, resolution):
                found.warnings += answer.warnings
                for series in answer.series:
                    key = key_of(series.labels)
                    if key is not None:
                        row = on_grid(series, part)
                        rows[key] = merge(rows[key], row) if key in rows else row

        tasks = [asyncio.ensure_future(read(narrowed)) for narrowed in shards]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:  # once one shard has failed, the others are of no use
                task.cancel()
        return rows

    def _sums(self, many: Iterable[Series], value: Callable[[Series], float], found: Found) -> dict[Key, float]:
        sums: dict[Key, float] = {}
        blank, total = 0, 0
        for series in many:
            total += 1
            blank += bool(self.ask.origin_label) and not series.labels.get(self.ask.origin_label)
            key = self._key(series.labels)
            if key is not None:
                sums[key] = sums.get(key, 0.0) + value(series)
        name, where = self.ask.query or promql.CPU, f"at {self._backend.url}"
        if blank:
            found.problems.append(
                f"{blank} of {total} series of {name} {where} carry no label {self.ask.origin_label}, "
                "so their origin is unknown; let the ingress set it, or change demand.originLabel."
            )
        if total and not sums:
            found.problems.append(
                f"no series of {name} {where} names a workload of a configured cluster by the labels namespace and "
                f"{self.ask.workload_label or 'pod'}; set demand.workloadLabel to the label that holds its name."
            )
        found.senseless |= {key[2] for key, amount in sums.items() if not np.isfinite(amount)}
        return {key: amount for key, amount in sums.items() if np.isfinite(amount)}

    def _key(self, labels: Mapping[str, str]) -> Key | None:
        cluster, workload = self._backend.cluster_of(labels), self.workload(labels)
        if not cluster or not workload:
            return None
        if self.ask.entry_cluster:
            origin = self._regions.get(cluster, "")
        else:
            origin = labels.get(self.ask.origin_label, "") if self.ask.origin_label else ""
        return workload, origin, cluster

    def workload(self, labels: Mapping[str, str]) -> str:
        """Returns whose a series is, as namespace/name; empty if its labels don't say."""
        name = labels.get(self.ask.workload_label if self.ask.query and not self.by_pods else promql.WORKLOAD, "")
        # A scraper renames the counter's own namespace when its target has one too; that of the target is the ingress'.
        namespace = labels.get("exported_namespace") or labels.get("namespace", "")
        if not namespace and len(self.ask.namespaces) == 1:
            namespace = next(iter(self.ask.namespaces))
        return f"{namespace}/{name}" if name and namespace else ""


def _known_share(rows: Mapping[Key, Floats], slots: int) -> float:
    """Share of the slots in which any row has a value."""
    known = np.zeros(slots, dtype=bool)
    for row in rows.values():
        known |= ~np.isnan(row)
        if known.all():
            break
    return float(known.mean()) if slots else 1.0


def _complete(rows: Mapping[Key, Floats], coarse: Mapping[Key, Floats]) -> dict[Key, Floats]:
    """Fills the slots in which a whole cluster has no value from rows with a longer window."""
    seen: dict[str, Floats] = {}
    for (_, _, cluster), row in rows.items():
        seen[cluster] = _add(seen[cluster], row) if cluster in seen else row
    done = dict(rows)
    for key, row in coarse.items():
        empty = np.isnan(seen[key[2]]) if key[2] in seen else np.full(row.shape, True)
        own = done.get(key, np.full(row.shape, np.nan))
        done[key] = np.where(empty & np.isnan(own), row, own)
    return done
