"""A small fleet of Deployments in memory, with the behaviour of real ones that rollouts depend on, and its own tests.

A paused Deployment keeps its pods and scales them, but a new template makes none; unpaused it rolls. Pods become
ready after `start_s`. Requests are spread over ready pods and counted per cluster and version.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from rebalancer.core.evidence import Counts
from rebalancer.core.rollout.decision import (
    Action,
    DeleteCanary,
    EnsureCanary,
    PauseStable,
    ReleaseStable,
    ScaleCanary,
    SetTemplate,
)
from rebalancer.core.rollout.model import (
    CanarySeen,
    ClusterSeen,
    ClusterStatus,
    Metric,
    Observed,
    Request,
    Sample,
    Spec,
    StableSeen,
    Status,
    Template,
    Wave,
)
from rebalancer.core.rollout.revision import revision_of


def template(image: str) -> Template:
    return {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "web", "image": image}]}}


OLD, NEW, NEWER = template("web:1"), template("web:2"), template("web:3")
R_OLD, R_NEW, R_NEWER = revision_of(OLD), revision_of(NEW), revision_of(NEWER)


@dataclass
class Pods:
    """Pods of one revision: the times since when they exist."""

    born: list[float] = field(default_factory=list)


@dataclass
class Site:
    """One cluster: the user's Deployment, and the canary's."""

    wanted: int = 10
    spec: Template = field(default_factory=lambda: OLD)
    paused: bool = False
    running: str = R_OLD  # empty: created paused
    stable: dict[str, list[float]] = field(default_factory=dict)
    canary: tuple[Template, int] | None = None
    canary_born: list[float] = field(default_factory=list)
    reachable: bool = True
    present: bool = True
    broken: set[str] = field(default_factory=set)
    templates: dict[str, Template] = field(default_factory=lambda: {R_OLD: OLD})
    held: bool = False
    min_old_ready: int = 10**9


@dataclass
class Plant:
    """Several sites under one virtual clock; every write is counted."""

    sites: dict[str, Site]
    start_s: float = 1.0
    now: float = 1000.0
    labels: dict[str, dict[str, str]] = field(default_factory=dict)
    request: Request | None = None
    deleting: bool = False
    writes: list[Action] = field(default_factory=list)

    def __post_init__(self) -> None:
        for site in self.sites.values():
            if site.present and site.running:
                site.stable.setdefault(R_OLD, [-1e9] * site.wanted)

    def step(self, seconds: float = 1.0) -> None:
        """The Deployment controllers of all sites work for a while."""
        self.now += seconds
        for site in self.sites.values():
            if site.present:
                self._roll(site)

    def _roll(self, site: Site) -> None:
        goal = revision_of(site.spec)
        site.templates[goal] = site.spec
        if not site.paused:
            site.running = goal
        if not site.running:  # created paused: there is no ReplicaSet
            return
        pods = site.stable.setdefault(site.running, [])
        while len(pods) < site.wanted:
            pods.append(self.now)
        del pods[site.wanted :]
        if self.ready(site, site.running) >= site.wanted:  # maxUnavailable 0, maxSurge 100 %
            site.stable = {site.running: pods}
        if site.canary is not None:
            wanted = site.canary[1]
            while len(site.canary_born) < wanted:
                site.canary_born.append(self.now)
            del site.canary_born[wanted:]

    def ready(self, site: Site, revision: str) -> int:
        if revision in site.broken:
            return 0
        return sum(1 for t in site.stable.get(revision, []) if self.now - t >= self.start_s)

    def canary_ready(self, site: Site) -> int:
        if site.canary is None or revision_of(site.canary[0]) in site.broken:
            return 0
        return sum(1 for t in site.canary_born if self.now - t >= self.start_s)

    def new_share(self, site: Site, revision: str) -> float:
        """Share of ready pods with this revision."""
        on = self.ready(site, revision)
        if site.canary is not None and revision_of(site.canary[0]) == revision:
            on += self.canary_ready(site)
        total = sum(self.ready(site, r) for r in site.stable) + self.canary_ready(site)
        return on / total if total else 0.0

    def observe(self) -> Observed:
        seen = {name: self._seen(name, site) for name, site in self.sites.items()}
        labels = {name: self.labels.get(name, {}) for name in self.sites}
        return Observed(seen, labels, self.request, self.deleting)

    def _seen(self, name: str, site: Site) -> ClusterSeen:
        if not site.reachable:
            return ClusterSeen(name, reachable=False, error="timed out")
        stable = None
        if site.present:
            pods = {r: len(p) for r, p in site.stable.items() if p}
            ready = {r: self.ready(site, r) for r in pods}
            goal = revision_of(site.spec)
            settled = site.paused or site.running == goal
            stable = StableSeen(site.wanted, site.paused, site.spec, goal, pods, ready, settled, held=site.held)
        canary = None
        if site.canary is not None:
            revision, n = revision_of(site.canary[0]), len(site.canary_born)
            failing = n if revision in site.broken else 0
            canary = CanarySeen(site.canary[1], revision, n, self.canary_ready(site), failing)
        return ClusterSeen(name, True, stable, canary, {r: r for r in site.templates}, dict(site.templates))

    def apply(self, action: Action) -> bool:
        """Carries one action out; False if the site can't be reached."""
        site = self.sites[action.cluster]
        if not site.reachable:
            return False
        self.writes.append(action)
        match action:
            case EnsureCanary():
                if site.canary is None or revision_of(site.canary[0]) != action.revision:
                    site.canary_born = []
                site.canary = (action.template, action.replicas)
                site.templates[action.revision] = action.template
            case ScaleCanary():
                assert site.canary is not None
                site.canary = (site.canary[0], action.replicas)
                del site.canary_born[action.replicas :]
            case DeleteCanary():
                site.canary, site.canary_born = None, []
            case PauseStable():
                site.paused = site.held = True
            case ReleaseStable():
                site.spec, site.paused, site.held = action.template or site.spec, False, False
            case SetTemplate():
                site.spec, site.paused = action.template, action.paused
        return True

    def edit(self, new: Template) -> None:
        """The user, or Git, edits the template everywhere."""
        for site in self.sites.values():
            site.spec = new


@dataclass
class Traffic:
    """Poisson requests over ready pods; error rates by revision."""

    plant: Plant
    errors: dict[str, float]
    rps: float = 200.0
    default_error: float = 0.001
    seed: int = 0
    silent: bool = False
    by_site: dict[tuple[str, str], float] = field(default_factory=dict)
    first_bad_s: float | None = None

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def samples(self, spec: Spec, status: Status, seconds: float = 1.0) -> list[Sample]:
        out = []
        for metric in spec.metrics:
            for name, site in self.plant.sites.items():
                after = status.sampled_s.get(f"{name}/{metric.name}")
                if self.silent:
                    out.append(Sample(name, metric.name, after, after or 0.0, gap="no series"))
                    continue
                out.append(self._one(name, site, metric, status.revision, after, seconds))
        return out

    def _one(self, name: str, site: Site, metric: Metric, revision: str, after: float | None, seconds: float) -> Sample:
        share = self.plant.new_share(site, revision)
        rate = self.by_site.get((name, revision), self.errors.get(revision, self.default_error))
        n = float(self.rng.poisson(self.rps * share * seconds))
        k = float(self.rng.binomial(int(n), rate))
        ns = float(self.rng.poisson(self.rps * (1.0 - share) * seconds))
        ks = float(self.rng.binomial(int(ns), self.default_error))
        if k > 0 and rate > 10 * self.default_error and self.first_bad_s is None:
            self.first_bad_s = self.plant.now
        return Sample(name, metric.name, after, self.plant.now, Counts(n, k, ns, ks))


METRIC = Metric("error-rate", "requests_total", 'requests_total{code=~"5.."}', "version")


def spec(**changes: object) -> Spec:
    base = Spec(
        "shop", "web", "web", metrics=(METRIC,), warmup_s=5.0, min_step_s=5.0, scale_down_delay_s=5.0,
        waves=(Wave("first", clusters=("a",)), Wave("rest", clusters=("b", "c"))),
    )  # fmt: skip
    return replace(base, **changes)  # type: ignore[arg-type]  # fields of a test's choice


def fleet(**sites: Site) -> Plant:
    return Plant(sites or {n: Site() for n in "abc"})


def test_a_paused_deployment_withholds_an_edited_template_and_scales_the_old_one() -> None:
    plant = fleet(a=Site(paused=True))
    plant.edit(NEW)
    plant.sites["a"].wanted = 12
    for _ in range(3):
        plant.step()
    seen = plant.observe().clusters["a"].stable
    assert seen is not None
    assert (seen.revision, dict(seen.pods)) == (R_NEW, {R_OLD: 12})
    plant.sites["a"].paused = False
    for _ in range(3):
        plant.step()
    seen = plant.observe().clusters["a"].stable
    assert seen is not None
    assert dict(seen.ready) == {R_NEW: 12}


def test_nothing_is_remembered_of_a_cluster_that_has_no_status() -> None:
    assert ClusterStatus().actual_weight is None
