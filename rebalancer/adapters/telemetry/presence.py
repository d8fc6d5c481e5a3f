"""Who is seen, how fresh, and since when not: judged per cluster from explicit queries and, of Thanos, its stores.

An instant answer carries the evaluation time and looks five minutes back, so it hides how old its samples are: the time
of the newest sample is asked for. A cluster without traffic is present by its good scrapes (`up`). A counter that is
gone while its targets are scraped well was reset; gone together with its targets it is unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rebalancer.adapters.telemetry import dialect, promql
from rebalancer.adapters.telemetry.backend import Backend
from rebalancer.adapters.telemetry.decode import Answer, Series
from rebalancer.adapters.telemetry.errors import AnswerError
from rebalancer.adapters.telemetry.grid import when
from rebalancer.adapters.telemetry.promql import Selector
from rebalancer.core.model import View

LOOKBACK_S = 3600.0
FORGET_S = 86400.0
"""A job that stopped counting is missed for a day; then it counts as taken away on purpose."""
_UP = Selector("up")


@dataclass(slots=True)
class Look:
    """One look at a backend.

    Attributes:
        present: clusters with a live series in this look; an instant answer leaves out what has gone stale.
        seen: (cluster, job) -> last good scrape; down: (cluster, job) -> targets that fail.
        warnings: what the server said besides.
        stores: of Thanos.
        error: why nothing can be said; empty otherwise.
        bare: selector -> jobs of series without a cluster label; unlabelled: selectors that have no others.
    """

    at_s: float
    present: set[str] = field(default_factory=set)
    seen: dict[tuple[str, str], float] = field(default_factory=dict)
    down: dict[tuple[str, str], int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    stores: tuple[dialect.Store, ...] | None = None
    error: str = ""
    bare: dict[str, set[str]] = field(default_factory=dict)
    unlabelled: tuple[str, ...] = ()


class Presence:
    """What was last seen of each cluster through one backend; outlives the cycles.

    Args:
        backend: who is asked.
        max_age_s: a cluster whose newest sample is older is stale.
    """

    def __init__(self, backend: Backend, max_age_s: float) -> None:
        self._backend, self._max_age_s = backend, max_age_s
        self._newest: dict[tuple[str, str, str], float] = {}
        self._up: dict[str, float] = {}
        self._looked_back: set[tuple[str, str]] = set()
        self._began_s: float | None = None

    def note(self, selector: str, cluster: str, job: str, at_s: float) -> None:
        """Remembers the time of a sample (Unix seconds)."""
        key = (selector, cluster, job)
        self._newest[key] = max(at_s, self._newest.get(key, at_s))

    def jobs(self, selectors: Iterable[str]) -> set[str]:
        """Returns the jobs that were seen to export the selectors."""
        wanted = set(selectors)
        return {job for (selector, _, job) in self._newest if selector in wanted and job}

    async def look(self, selectors: Sequence[Selector], now: float, *, narrow: bool = False) -> Look:
        """Asks for freshness; never raises: a failure is the look's error.

        Args:
            selectors: counters whose newest samples are asked for.
            now: Unix seconds.
            narrow: ask only for scrapes of the jobs already known (cheap enough for every few seconds).
        """
        self._began_s = now if self._began_s is None else self._began_s
        look = Look(now)
        try:
            if not narrow:
                for selector in selectors:
                    self._take_newest(look, str(selector), await self._ask(look, self._newest_query(selector)))
            jobs = sorted(self.jobs(str(s) for s in selectors))
            up = _UP.where(*self._backend.matchers())
            up = up.where(("job", "=~", promql.one_of(jobs))) if narrow and jobs else up
            stores, series = await asyncio.gather(
                self._backend.stores(), self._ask(look, promql.presence(up, [*self._backend.by, "job"], jobs))
            )
            look.stores = stores
            self._take_up(look, series)
            await self._look_back(look, selectors, now)
        except AnswerError as error:
            look.error = str(error)
        self._forget(now)
        return look

    def views(self, look: Look, selectors: Iterable[str], warnings: Iterable[str] = ()) -> dict[str, View]:
        """Judges every cluster of the backend.

        Args:
            look: the last look.
            selectors: counters that must be whole.
            warnings: of the answers that the views stand for.
        """
        wanted = tuple(selectors)
        found = {name: self._judge(look, name, wanted) for name in self._backend.clusters}
        said = [text for text in (*warnings, *look.warnings) if dialect.is_partial((text,))]
        if said and all(view.complete for view in found.values()):
            # Something is missing and nobody knows whose.
            detail = f"{self._backend.name} gave a partial answer: {said[0][:200]}"
            return {name: View("partial", look.at_s, detail) for name in found}
        return found

    def problems(self, look: Look) -> list[str]:
        """Returns what went wrong with the look itself, a sentence each."""
        label = " or ".join(self._backend.by)
        return [*([look.error] if look.error else []), *(
            f"series of {selector} of job {', '.join(sorted(jobs)) or 'unknown'} at {self._backend.url} carry no label "
            f"{label}, so their cluster is unknown; set it as external or target label, or use metricsLabel."
            for selector, jobs in look.bare.items()
        )]  # fmt: skip

    def known(self, selector: str) -> dict[str, float]:
        """Returns the clusters in which a counter was seen within the last day -> its newest sample."""
        found: dict[str, float] = {}
        for (name, cluster, _), at in self._newest.items():
            if name == selector:
                found[cluster] = max(at, found.get(cluster, at))
        return found

    def newest(self, cluster: str) -> float | None:
        """Returns the time of the newest sample ever seen of a cluster; None if none was."""
        times = [at for (_, name, _), at in self._newest.items() if name == cluster]
        times += [self._up[cluster]] if cluster in self._up else []
        return max(times, default=None)

    def failed(self, cluster: str, why: str) -> View:
        """The view of a cluster about which the backend said nothing."""
        return View("failed", self.newest(cluster), why)

    def _judge(self, look: Look, cluster: str, selectors: Sequence[str]) -> View:
        newest = self.newest(cluster)
        if look.error:
            return self.failed(cluster, look.error)
        if look.stores == ():
            return self.failed(cluster, f"{self._backend.url} has no stores at all; look at its --endpoint flags.")
        by_store = None
        if look.stores is not None:
            by_store = dialect.of_cluster(look.stores, self._backend.labels[cluster], look.at_s, self._max_age_s)
        if by_store is not None and not by_store.healthy:
            return View("failed", newest if newest is not None else by_store.since_s, f"{by_store.detail}.")
        where = f"at {self._backend.name}"
        if selectors and set(selectors) <= set(look.unlabelled):
            label = self._backend.labels[cluster][0]
            return View("partial", newest, f"{look.unlabelled[0]} carries no label {label} {where}: set it there.")
        if newest is None or cluster not in look.present or look.at_s - newest > self._max_age_s:
            return self._gone(look, cluster, newest, where)
        return self._counters(look, cluster, selectors, where) or View("complete", newest)

    def _gone(self, look: Look, cluster: str, newest: float | None, where: str) -> View:
        label, value = self._backend.labels[cluster]
        said = next((text for text in look.warnings if dialect.is_partial((text,))), "")
        why = f"; the server says: {said[:200]}" if said else "; bring back its Prometheus or its targets"
        if newest is None:
            return View("failed", None, f'no sample with {label}="{value}" {where} in the last hour{why}.')
        age = look.at_s - newest
        return View("stale" if age <= LOOKBACK_S else "failed", newest,
                     f"no sample since {when(newest)} ({age:.0f} s ago) {where}{why}.")  # fmt: skip

    def _counters(self, look: Look, cluster: str, selectors: Sequence[str], where: str) -> View | None:
        """Says whether a counter's targets fail; None if all is well."""
        worst: View | None = None
        for (selector, name, job), at in sorted(self._newest.items()):
            if name != cluster or selector not in selectors:
                continue
            down, good = look.down.get((cluster, job), 0), look.seen.get((cluster, job))
            scraped = good is not None and look.at_s - good <= self._max_age_s
            if not scraped and (down or look.at_s - at > self._max_age_s):
                return View(
                    "stale", at, f"no sample of {selector} since {when(at)} {where}: its targets (job {job}) fail."
                )
            if down:
                worst = View("partial", at, f"{down} targets of job {job}, which export {selector}, fail {where}.")
        return worst

    async def _ask(self, look: Look, query: str) -> tuple[Series, ...]:
        answer: Answer = await self._backend.query(query, look.at_s)
        look.warnings += answer.warnings
        # A time that is no number says nothing: its cluster is then not seen, instead of ever fresh.
        return tuple(one for one in answer.series if np.isfinite(one.values[0]))

    def _newest_query(self, selector: Selector) -> str:
        return promql.newest(selector, [*self._backend.by, "job"])

    def _take_newest(self, look: Look, selector: str, found: Iterable[Series]) -> None:
        labelled = False
        for series in found:
            cluster = self._backend.cluster_of(series.labels)
            labelled = labelled or cluster != ""
            if cluster == "":
                look.bare.setdefault(selector, set()).add(series.labels.get("job", ""))
            elif cluster:
                look.present.add(cluster)
                self.note(selector, cluster, series.labels.get("job", ""), float(series.values[0]))
        if selector in look.bare and not labelled:
            look.unlabelled += (selector,)

    def _take_up(self, look: Look, found: Iterable[Series]) -> None:
        for series in found:
            cluster = self._backend.cluster_of(series.labels)
            if not cluster:
                continue
            key, value = (cluster, series.labels.get("job", "")), float(series.values[0])
            if series.labels.get("kind") == "down":
                look.down[key] = look.down.get(key, 0) + int(value)
            else:
                look.present.add(cluster)
                look.seen[key] = max(value, look.seen.get(key, value))
                self._up[cluster] = max(value, self._up.get(cluster, value))

    async def _look_back(self, look: Look, selectors: Sequence[Selector], now: float) -> None:
        """Once per cluster and counter: what was there within the last hour, so that a restart knows since when."""
        recent = {(s, c) for (s, c, _), at in self._newest.items() if now - at <= self._max_age_s}
        for selector in (*selectors, _UP):
            text = str(selector)
            missing = [
                name for name in self._backend.clusters
                if (text, name) not in self._looked_back
                and (name not in self._up if selector is _UP else (text, name) not in recent)
            ]  # fmt: skip
            if not missing:
                continue
            self._looked_back.update((text, name) for name in missing)
            try:
                await self._ask_back(look, selector, missing)
            except AnswerError as error:
                look.warnings += (f"PromQL: looking an hour back failed: {error}",)

    async def _ask_back(self, look: Look, selector: Selector, missing: Sequence[str]) -> None:
        of, by = selector.where(*self._backend.matchers(missing)), [*self._backend.by, "job"]
        if selector is _UP:
            for series in await self._ask(look, promql.presence_back(of, by)):
                cluster = self._backend.cluster_of(series.labels)
                if cluster:
                    at = float(series.values[0])
                    self._up[cluster] = max(at, self._up.get(cluster, at))
            return
        for series in await self._ask(look, promql.newest(of, by, back=True)):
            cluster = self._backend.cluster_of(series.labels)
            if cluster:
                self.note(str(selector), cluster, series.labels.get("job", ""), float(series.values[0]))

    def _forget(self, now: float) -> None:
        # A cluster as a whole is never forgotten: its `_up` stays.
        self._newest = {key: at for key, at in self._newest.items() if now - at <= FORGET_S}


def best_of(views: Iterable[Mapping[str, View]]) -> dict[str, View]:
    """Merges the views of several backends: the best one of each cluster counts."""
    order = {"complete": 0, "partial": 1, "stale": 2, "failed": 3}
    best: dict[str, View] = {}
    for one in views:
        for name, view in one.items():
            if name not in best or order[view.state] < order[best[name].state]:
                best[name] = view
    return best
