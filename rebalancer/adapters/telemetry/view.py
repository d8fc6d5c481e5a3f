"""The telemetry port over one or several metrics backends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from rebalancer.adapters.telemetry import check, counters, cpu, promql, throughput
from rebalancer.adapters.telemetry.asks import Ask, asks_of
from rebalancer.adapters.telemetry.backend import Backend, Counts, backends
from rebalancer.adapters.telemetry.demand import NEXT_CYCLE, Found, Source
from rebalancer.adapters.telemetry.errors import AnswerError
from rebalancer.adapters.telemetry.grid import Grid, of_window, when
from rebalancer.adapters.telemetry.network import Recordings
from rebalancer.adapters.telemetry.peaks import Peaks, together, unknown
from rebalancer.adapters.telemetry.presence import Presence, best_of
from rebalancer.adapters.telemetry.ring import Key
from rebalancer.api.cluster import MemberCluster
from rebalancer.api.controller import TelemetrySpec
from rebalancer.core.model import Floats, Unknown, View
from rebalancer.core.network import Throughput, build_map
from rebalancer.core.policy import Policy
from rebalancer.ports import (
    Clock,
    Counter,
    CounterAnswer,
    DemandAnswer,
    DemandWindow,
    NetworkAnswer,
    RoomAnswer,
    Selection,
)

DEADLINE_S = 30.0
"""Total deadline of one call of the port; a backend that has not answered by then is failed for this cycle."""

K = TypeVar("K")
V = TypeVar("V")


@dataclass(slots=True)
class _Part:
    """What one backend gave to a demand answer."""

    found: dict[tuple[str, str, str, bool], Found] = field(default_factory=dict)
    cpu: dict[tuple[str, str], float] = field(default_factory=dict)
    censored: dict[tuple[str, str], str] = field(default_factory=dict)
    views: dict[str, View] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    peaks: dict[tuple[str, str, str, bool], Mapping[str, Floats]] = field(default_factory=dict)
    peakless: dict[tuple[str, str, str, bool], set[str]] = field(default_factory=dict)


@dataclass(slots=True)
class _Side:
    """One backend with what is remembered of it."""

    backend: Backend
    presence: Presence
    recordings: Recordings
    sources: dict[tuple[str, str, str, bool], Source] = field(default_factory=dict)
    peaks: dict[tuple[str, str, str, bool], Peaks] = field(default_factory=dict)
    complete: frozenset[str] = frozenset()


class MetricsTelemetry:
    """Telemetry from Prometheus and Thanos. Belongs to one event loop; `close` it in the end.

    Args:
        spec: backends, rate window and allowed age.
        clusters: every configured cluster by name.
        clock: where `now` comes from.
        counts: told of each query: (backend, outcome, seconds); outcome is ok, partial or the kind of a TelemetryError.
        deadline_s: total deadline of each call.

    Attributes:
        owners: workload -> key (namespace/name) of its policy, where known; decides which way of counting is a
            workload's where policies of one namespace count differently.
    """

    def __init__(
        self,
        spec: TelemetrySpec,
        clusters: Mapping[str, MemberCluster],
        clock: Clock,
        counts: Counts | None = None,
        *,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._spec, self._clusters, self._clock, self._deadline_s = spec, dict(clusters), clock, deadline_s
        self.owners: Mapping[str, str] = {}
        labels = {name: cluster.metrics_label() for name, cluster in clusters.items()}
        self._regions = {name: cluster.spec.region for name, cluster in clusters.items()}
        self._sides = tuple(
            _Side(backend, Presence(backend, spec.max_age), Recordings(backend))
            for backend in backends(spec.backends, labels, counts)
        )

    async def close(self) -> None:
        """Closes connections and threads."""
        for side in self._sides:
            await side.backend.close()

    async def demand(self, window: DemandWindow, policies: Mapping[str, Policy]) -> DemandAnswer:
        """See Telemetry. Clusters that are not complete keep NaN in `latest` where nothing was counted."""
        now, asks = self._clock.now(), asks_of(policies)
        grid = of_window(window.start_s, window.end_s, window.step_s)
        parts = await asyncio.gather(*(self._demand_of(side, asks, grid, now) for side in self._sides))
        views = self._all(best_of(part.views for part in parts))
        rows, way = self._rows(asks, parts, views, grid.slots)
        keys = tuple(sorted(rows))
        units = {key[0]: rows[key][0] for key in keys}
        values = np.array([rows[key][2] for key in keys]).reshape(len(keys), grid.slots)
        latest = np.array([rows[key][1] for key in keys], dtype=np.float64)
        used = {key: cores for part in parts for key, cores in part.cpu.items()}
        hidden = {key: why for part in parts for key, why in part.censored.items() if key[0] in units}
        problems = dict.fromkeys(problem for part in parts for problem in part.problems)
        problems |= dict.fromkeys(filter(None, (_nowhere(ask, parts) for ask in asks)))
        mine = {id_: {w for w, ask in way.items() if ask.id == id_} for id_ in (ask.id for ask in asks)}
        peaks = together([
            (part.found[id_].rows, {w: ratio for w, ratio in ratios.items() if w in mine[id_]})
            for part in parts for id_, ratios in part.peaks.items()
        ])  # fmt: skip
        peakless = frozenset(w for part in parts for id_, some in part.peakless.items() for w in some & mine[id_])
        return DemandAnswer(keys, units, values, latest, views, used, tuple(problems), hidden, peaks, peakless)

    async def room(self) -> RoomAnswer:
        """See Telemetry. Cordoned nodes don't count."""
        now = self._clock.now()
        found = await asyncio.gather(*(self._of(side, _room(side.backend, now), "room") for side in self._sides))
        clusters: dict[str, Mapping[str, tuple[float, float]] | Unknown] = {}
        problems = [problem for _, said in found for problem in said]
        for name in self._clusters:
            known = next((rooms[name] for rooms, _ in found if name in rooms), None)
            detail = "; ".join(problems) or "kube_node_status_allocatable is not there; scrape kube-state-metrics"
            clusters[name] = known if known is not None else Unknown("room-unknown", None, detail)
        return RoomAnswer(clusters, tuple(problems))

    async def network(self, now: float) -> NetworkAnswer:
        """See Telemetry. Paths of clusters that are being drained are not judged."""
        samples: dict[tuple[str, str, str, str], tuple[float, float]] = {}
        problems: list[str] = []
        answers, (usual, unread) = await asyncio.gather(
            asyncio.gather(*(self._of(side, side.recordings.read(now), "network") for side in self._sides)),
            self._usual(now),
        )
        some = any(found for found, _ in answers)
        for found, said in answers:
            for key, one in found.items():
                if key not in samples or one[1] < samples[key][1]:
                    samples[key] = one
            # Of several backends one may have no probes; of all of them that is worth a word.
            problems += [problem for problem in said if found or not some or "no recordings" not in problem]
        draining = [name for name, cluster in self._clusters.items() if cluster.spec.drain]
        gaps = {pair: gap for side in self._sides for pair, gap in side.recordings.gaps.ended(now).items()}
        latency = build_map(samples, self._regions, now, maintenance=draining, gaps=gaps)
        return NetworkAnswer(latency, (*problems, *unread), usual)

    async def throughput(self, now: float) -> tuple[dict[str, Throughput], tuple[str, ...]]:
        """Asks what each cluster's nodes carry; returns it with a sentence per backend that could not say."""
        answers = await asyncio.gather(
            *(self._of(side, throughput.read(side.backend, now), "throughput") for side in self._sides)
        )
        found = {name: one for carried, _ in answers for name, one in carried.items()}
        return found, tuple(problem for _, said in answers for problem in said)

    async def counters(
        self, selection: Selection, clusters: Sequence[str], since_s: float, now: float
    ) -> CounterAnswer:
        """See Telemetry. Each series carries the cluster's name as its `cluster` label."""
        wanted = [(s, [c for c in clusters if c in s.backend.labels]) for s in self._sides]
        parts = await asyncio.gather(
            *(
                counters.read(side.backend, side.presence, selection, names, since_s, now, self._deadline_s)
                for side, names in wanted
                if names
            )
        )
        views = best_of(part.views for part in parts)
        taken: set[str] = set()
        total, bad, problems = list[Counter](), list[Counter](), list[str]()
        for part in parts:
            mine = {name for name, view in part.views.items() if view is views[name]} - taken
            taken |= mine
            total += [one for one in part.total if one.labels["cluster"] in mine]
            bad += [one for one in part.bad if one.labels["cluster"] in mine]
            problems += part.errors
        missing = {name: View("failed", None, _NO_BACKEND.format(name)) for name in clusters if name not in views}
        return CounterAnswer(tuple(total), tuple(bad), {**views, **missing}, tuple(dict.fromkeys(problems)))

    async def check(self, policies: Mapping[str, Policy]) -> tuple[check.Finding, ...]:
        """Says what is there, what is missing, what that degrades and what to do; never raises."""
        now, asks = self._clock.now(), asks_of(policies)
        answers = await asyncio.gather(
            *(
                check.look(s.backend, s.presence, self._sources(s, asks), now, self._spec.history, self._deadline_s)
                for s in self._sides
            )
        )
        served = {name for side in self._sides for name in side.backend.labels}
        orphans = tuple(check.no_backend(name) for name in self._clusters if name not in served)
        return (*(finding for answer in answers for finding in answer), *orphans)

    async def _demand_of(self, side: _Side, asks: tuple[Ask, ...], grid: Grid, now: float) -> _Part:
        part = _Part()
        end_s = asyncio.get_running_loop().time() + self._deadline_s
        try:
            async with asyncio.timeout_at(end_s):
                await self._fill(side, asks, grid, now, part)
        except TimeoutError:
            late = f"{side.backend.url} did not answer everything within {self._deadline_s:g} s; it {NEXT_CYCLE}."
            part.problems.append(late)
            part.views = {name: side.presence.failed(name, late) for name in side.backend.clusters}
            part.found = {id_: source.held(grid) for id_, source in side.sources.items()}
        side.complete = frozenset(name for name, view in part.views.items() if view.complete)
        for source in side.sources.values():
            source.judged(side.complete)
        await self._peaks(side, grid, end_s, part)
        return part

    async def _peaks(self, side: _Side, grid: Grid, end_s: float, part: _Part) -> None:
        """Asks for peaks in what is left of the time; those who have none then are named."""
        if self._spec.rate_window >= grid.step_s:
            return
        asked = {id_: peaks for id_, peaks in side.peaks.items() if part.found[id_].answered}
        failed = set(asked)
        try:
            async with asyncio.timeout_at(end_s):
                answers = await asyncio.gather(*(one.fetch(grid, self._spec.rate_window) for one in asked.values()))
            failed = {id_ for id_, said in zip(asked, answers, strict=True) if said}
            part.problems += [sentence for said in answers for sentence in said]
        except TimeoutError:
            late = f"{side.backend.url} did not answer within {self._deadline_s:g} s; it {NEXT_CYCLE}."
            part.problems.append(f"peaks of demand: {late}")
        for id_, peaks in side.peaks.items():
            peaks.move(grid)
            part.peaks[id_], rows = peaks.rows, part.found[id_].rows
            part.peakless[id_] = {key[0] for key in rows} if id_ in failed else unknown(rows, peaks.rows)

    async def _fill(self, side: _Side, asks: tuple[Ask, ...], grid: Grid, now: float, part: _Part) -> None:
        sources = self._sources(side, asks)
        tasks = (source.fetch(grid, self._spec.rate_window, now, side.complete) for source in sources)
        found, _ = await asyncio.gather(asyncio.gather(*tasks), self._cpu(side, asks, now, part))
        part.found = {source.ask.id: one for source, one in zip(sources, found, strict=True)}
        usable = [source for source in sources if not part.found[source.ask.id].failed]
        selectors = list(dict.fromkeys(source.selector() for source in usable))
        look = await side.presence.look(selectors, now)
        warnings = [text for one in found for text in one.warnings]
        views = side.presence.views(look, [str(selector) for selector in selectors], warnings)
        complete = frozenset(name for name, view in views.items() if view.complete)
        for source, one in zip(sources, found, strict=True):
            await source.catch_up(grid, complete, one)
        why = next((problem for one in found if not one.answered for problem in one.problems), "no answer")
        if sources and not any(one.answered for one in found):
            views = {n: v if v.state == "failed" else View("failed", v.since_s, why) for n, v in views.items()}
        elif any(one.rows and not one.answered for one in found):
            # Its workloads' demand now is not known here; of a way of counting that never answered nobody waits for it.
            views = {n: View("partial", now, why) if v.complete else v for n, v in views.items()}
        for source in usable:
            _doubt(side, source, part.found[source.ask.id], views, now)
        part.problems += [problem for one in found for problem in one.problems] + side.presence.problems(look)
        part.views = views

    def _sources(self, side: _Side, asks: tuple[Ask, ...]) -> list[Source]:
        """The sources of these asks; those of asks that are gone are forgotten, with their history."""
        kept = {}
        for ask in asks:
            old = side.sources.get(ask.id)
            if old is None or (not ask.query and old.ask.namespaces != ask.namespaces):
                old = Source(side.backend, ask, self._regions, self._spec.late_samples)
            old.ask = ask
            kept[ask.id] = old
        side.sources = kept
        looked = {peaks.source: peaks for peaks in side.peaks.values()}
        side.peaks = {id_: looked.get(source) or Peaks(source) for id_, source in kept.items()}
        return list(kept.values())

    async def _cpu(self, side: _Side, asks: tuple[Ask, ...], now: float, part: _Part) -> None:
        """Cores by workload, and where a limit hides some of what was wanted."""
        window = self._spec.rate_window
        namespaces = {namespace for ask in asks for namespace in ask.namespaces}
        if namespaces:
            part.cpu, problems = await cpu.used(side.backend, namespaces, window, now)
            part.problems += problems
            # Where requests are the demand, too: a replica's capacity is not learned from CPU that is capped.
            part.censored, problems = await cpu.censored(side.backend, namespaces, window, now)
            part.problems += problems

    def _rows(
        self, asks: tuple[Ask, ...], parts: Sequence[_Part], views: Mapping[str, View], slots: int
    ) -> tuple[dict[Key, tuple[str, float, Floats]], dict[str, Ask]]:
        """Puts the rows together, and says how each workload is counted: in one way, each cluster by one backend."""
        rows: dict[Key, tuple[str, float, Floats]] = {}
        empty = np.full(slots, np.nan)  # the latest values came, the history did not
        way: dict[str, Ask] = {}
        for ask in asks:
            taken: set[str] = set()
            for part in parts:
                one = part.found.get(ask.id)
                mine = {name for name, view in part.views.items() if view is views.get(name)} - taken
                taken |= mine
                if one is None or one.failed:
                    continue
                for key in one.latest.keys() | one.rows.keys():
                    if key[2] in mine and self._takes(ask, key[0]) and way.setdefault(key[0], ask) is ask:
                        rows[key] = (ask.unit, one.latest.get(key, np.nan), one.rows.get(key, empty))
        return rows, way

    def _takes(self, ask: Ask, workload: str) -> bool:
        owner = self.owners.get(workload)
        return owner in ask.policies if owner is not None else ask.takes(workload)

    def _all(self, views: Mapping[str, View]) -> dict[str, View]:
        return {name: views.get(name, View("failed", None, _NO_BACKEND.format(name))) for name in self._clusters}

    async def _of(
        self, side: _Side, reading: Awaitable[tuple[dict[K, V], list[str]]], what: str
    ) -> tuple[dict[K, V], list[str]]:
        """What one backend says within the deadline: values and problems."""
        try:
            async with asyncio.timeout(self._deadline_s):
                return await reading
        except TimeoutError:
            return {}, [f"{what}: {side.backend.url} did not answer within {self._deadline_s:g} s"]

    async def _usual(self, now: float) -> tuple[dict[tuple[str, str], float], list[str]]:
        """What round trips are usual, of all backends; the largest of those that know a pair."""
        answers = await asyncio.gather(
            *(self._of(side, side.recordings.usual(now), "usual round trips") for side in self._sides)
        )
        usual: dict[tuple[str, str], float] = {}
        problems: list[str] = []
        for found, said in answers:
            problems += said
            for pair, value in found.items():
                usual[pair] = max(value, usual.get(pair, 0.0))
        return usual, problems


async def _room(backend: Backend, now: float) -> tuple[dict[str, dict[str, tuple[float, float]]], list[str]]:
    """Room by cluster and resource as one backend sees it; never raises."""
    try:
        answer = await backend.query(promql.room(backend.by, backend.matchers()), now)
    except AnswerError as error:
        return {}, [f"room: {error}"]
    found: dict[str, dict[str, dict[str, float]]] = {}
    doubled: set[str] = set()
    for series in answer.series:
        cluster, labels = backend.cluster_of(series.labels), series.labels
        if cluster:
            kinds = found.setdefault(cluster, {}).setdefault(labels.get("resource", ""), {})
            doubled |= {cluster} if labels.get("kind", "") in kinds else set()
            kinds[labels.get("kind", "")] = float(series.values[0])
    rooms = {
        name: {
            resource: (kinds["allocatable"], kinds.get("requested", 0.0))
            for resource, kinds in resources.items()
            if np.isfinite(kinds.get("allocatable", np.nan))
        }
        for name, resources in found.items()
    }
    told = f"room: {backend.url} has several sums for {', '.join(sorted(doubled))}; give each cluster one label"
    return {n: one for n, one in rooms.items() if one and n not in doubled}, [told] if doubled else []


def _doubt(side: _Side, source: Source, one: Found, views: dict[str, View], now: float) -> None:
    """Makes views partial where an answer is there, but is not to be believed."""
    name, where = source.ask.query or promql.CPU, f"at {side.backend.name}"
    doubts = dict.fromkeys(one.senseless, View("partial", now, f"{name} {where} has values that are no numbers."))
    if one.answered and one.empty:
        # No traffic leaves a counter where it was. Gone everywhere at once, it was renamed, dropped or not answered.
        for cluster, at in side.presence.known(str(source.selector())).items():
            text = f"{name} {where} has no series at all, and had some until {when(at)}; was it renamed or dropped?"
            doubts[cluster] = View("partial", at, text)
    for cluster, doubt in doubts.items():
        if cluster in views and views[cluster].complete:
            views[cluster] = doubt


def _nowhere(ask: Ask, parts: Sequence[_Part]) -> str:
    """A sentence if every backend answered and none has a series of a counter; empty otherwise."""
    found = [part.found.get(ask.id) for part in parts]
    if ask.query and found and all(one is not None and one.answered and one.empty for one in found):
        return f"{ask.query} has no series at any backend; correct demand.query, or let its source be scraped."
    return ""


_NO_BACKEND = "no backend serves {}; add it to telemetry.backends[].clusters."
