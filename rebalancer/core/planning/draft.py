"""One workload before placement: how many replicas, from where the demand comes, and which clusters may take part."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rebalancer.core import forecast as fc
from rebalancer.core import moves, scaling, sight, starts
from rebalancer.core.capacity import MIN_CORES, Learned, estimate, learn
from rebalancer.core.model import TOTAL, Demand, Effect, Forecast, Placement, Refusal, Sight, Unknown
from rebalancer.core.planning.ahead import look
from rebalancer.core.planning.ground import Ground, PlanMemory, penalty_ms
from rebalancer.core.policy import Policy
from rebalancer.core.room import Shape

UNSEEN = ("cluster-suspect", "view-partial", "room-unknown", "rtt-unknown")
"""Why replicas are held because something about their cluster is not known."""


@dataclass(frozen=True, slots=True)
class Room:
    """Room that others wait for: who needs it most, and what others lose, $/h, by each replica that does not leave."""

    waiting: str
    worth: float


@dataclass(slots=True)
class Draft:
    """One workload on its way through the planner.

    Attributes:
        now: replicas by cluster once the moves in flight are through, clusters that are lost left out.
        wanted: replicas wanted in total, with the reason.
        demand: quantile of total demand; NaN if unknown.
        capacity: demand one replica serves; NaN if unknown.
        origins: origin -> demand in replica equivalents; empty if unknown.
        barred: cluster -> reason id why nothing new goes there.
        frozen, leave, lost: clusters by fate.
        suffice: replicas that would do where a part of a decrease waits for moves in flight; else infinite.
        learned: samples of CPU by load; empty where capacity is given.
        lead_s: how far ahead replicas that begin now are ready.
        waits: replicas that begin in a later cycle, because a cluster begins no more in this one.
        hold: reason id why no voluntary move may begin; empty if they may.
        distance: (origin, cluster) -> ms with loss penalty.
        egress: cluster -> weighted $/h for what leaves it when a replica's worth of demand is served there.
        shapes: cluster -> what one replica needs of a node there.
        makes_room: cluster -> who waits for the room of what leaves it in this step, and what it is worth to them.
    """

    workload: str
    policy: Policy
    placements: Mapping[str, Placement]
    scene: moves.Scene
    now: dict[str, int]
    wanted: scaling.Wanted
    demand: float = math.nan
    capacity: float = math.nan
    unit: str = "requests/s"
    origins: dict[str, float] = field(default_factory=dict)
    barred: dict[str, str] = field(default_factory=dict)
    frozen: set[str] = field(default_factory=set)
    leave: dict[str, str] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    suffice: float = math.inf
    waits: int = 0
    hold: str = ""
    distance: dict[tuple[str, str], float] = field(default_factory=dict)
    egress: dict[str, float] = field(default_factory=dict)
    shapes: dict[str, Shape] = field(default_factory=dict)
    makes_room: dict[str, Room] = field(default_factory=dict)
    refusals: list[Refusal] = field(default_factory=list)
    recommendations: scaling.Recommendations = ()
    starts: starts.Starts = ()
    learned: Learned = Learned()
    lead_s: float = math.nan
    lines: list[str] = field(default_factory=list)

    def refuse(self, reason: str, cluster: str = "", detail: str = "") -> None:
        """Notes one thing that is not done."""
        self.refusals.append(Refusal(self.workload, reason, cluster, detail))


Rows = Mapping[tuple[str, str], int]
"""(workload, origin) -> row of the forecast."""


def rows_of(forecast: Forecast) -> dict[str, dict[tuple[str, str], int]]:
    """Rows of the forecast by workload."""
    result: dict[str, dict[tuple[str, str], int]] = {}
    for row, key in enumerate(forecast.keys):
        result.setdefault(key[0], {})[key] = row
    return result


def begin(workload: str, policy: Policy, ground: Ground, forecast: Forecast, rows: Rows, memory: PlanMemory) -> Draft:
    """Drafts a workload: everything that is known before the solver runs."""
    snapshot = ground.snapshot
    placements = snapshot.placements[workload]
    sights = {c: ground.sight_of(c, policy.lost_after_s) for c in snapshot.clusters}
    paused = frozenset(c for c, s in snapshot.clusters.items() if s.cluster.paused)
    demand = snapshot.demand.get(workload, Unknown("demand-unknown"))
    forbidden = frozenset(c for c in placements if c in snapshot.clusters and _must_leave(workload, policy, ground, c))
    scene = moves.Scene(policy, placements, demand, sights, snapshot.views, paused, forbidden)
    lost = {c for c in placements if sights[c] is Sight.LOST}
    now = moves.effective({c: p for c, p in placements.items() if c not in lost})
    current = sum(now.values())
    draft = Draft(workload, policy, placements, scene, now, scaling.Wanted(current, current, ""), lost=lost)
    draft.lines += [f"window {window} is open" for window in policy.open_windows]
    _amounts(draft, demand, forecast, rows, memory, ground)
    _clusters(draft, ground)
    _distances(draft, ground)
    _count_on_what_is_seen(draft, ground)
    return draft


def _amounts(
    draft: Draft, demand: Demand | Unknown, forecast: Forecast, rows: Rows, memory: PlanMemory, ground: Ground
) -> None:
    """Fills demand, capacity, wanted replicas and the origins' shares."""
    policy, current, now = draft.policy, sum(draft.now.values()), ground.snapshot.at_s
    draft.starts = starts.remember(memory.starts.get(draft.workload, ()), draft.placements)
    draft.lead_s = starts.lead_s(policy, draft.starts)
    draft.recommendations = memory.recommendations.get(draft.workload, ())
    if isinstance(demand, Unknown) or not math.isfinite(demand.total):
        detail = demand.detail if isinstance(demand, Unknown) else "no samples"
        draft.refuse("demand-unknown", "", detail)
        _bounds_only(draft, current)
        _hold(draft, now, current, ground)
        return
    draft.unit = demand.unit
    total_row = rows.get((draft.workload, TOTAL))
    draft.learned = memory.capacity.get(draft.workload, Learned())
    draft.capacity, why_unknown = _capacity(draft, demand)
    draft.demand, line = look(policy, demand, forecast, total_row, draft.lead_s, current * draft.capacity)
    draft.lines.append(line)
    for cluster, why in demand.censored.items() if demand.unit == "cores" else ():
        draft.lines.append(f"demand and forecast are censored in {cluster}, so that more may be wanted: {why}")
    if not draft.capacity > 0:
        draft.refuse("capacity-unknown", "", why_unknown)
        _bounds_only(draft, current)
        _hold(draft, now, current, ground)
    else:
        raw = math.ceil(draft.demand / draft.capacity - 1e-9)
        doubt = (
            "demand-partial" if demand.missing else "cluster-lost" if _back(draft, ground)
            else "" if demand.peaks_known else "peaks-unknown"
        )  # fmt: skip
        # What is partly unknown proves no calm: the whole window has to be seen before anything is taken away.
        _hold(draft, now, max(raw, current) if doubt else raw, ground)
        draft.wanted = scaling.wanted(
            policy, draft.demand, draft.capacity, current, draft.recommendations, now,
            scaling.behaviour(policy, ground.settings.scaling),
            may_decrease=not doubt and not policy.frozen, why_not=doubt or "freeze",
        )  # fmt: skip
    for reason in draft.wanted.held:
        detail = f"{draft.wanted.raw} would do, {current} stay" if draft.wanted.raw < current else ""
        detail = f"{draft.wanted.raw} are needed for the demand" if reason == "at-max" else detail
        if reason == "cluster-lost":
            detail += f"; {', '.join(_back(draft, ground))} came back a short time ago"
        draft.refuse(reason, "", f"missing: {', '.join(demand.missing)}" if reason == "demand-partial" else detail)
    _origins(draft, demand, forecast, rows)


def _hold(draft: Draft, now: float, count: int, ground: Ground) -> None:
    """Notes what was recommended; where demand is unknown, that is what there is."""
    settings = scaling.behaviour(draft.policy, ground.settings.scaling)
    draft.recommendations = scaling.remember(draft.recommendations, now, count, settings)


def _back(draft: Draft, ground: Ground) -> list[str]:
    """Clusters with replicas that came back from a loss and are not trusted yet; what replaced them stays meanwhile."""
    policy, now = draft.policy, ground.snapshot.at_s
    return [
        c for c, n in sorted(draft.now.items())
        if n and draft.scene.sight[c] is Sight.READY
        and not sight.trusted_again(ground.clocks[c], policy.lost_after_s, policy.failback_after_s, now)
    ]  # fmt: skip


def _bounds_only(draft: Draft, current: int) -> None:
    """Without demand or capacity the number stays, but the policy's bounds hold all the same."""
    high = draft.policy.max_replicas
    wanted = max(draft.policy.min_replicas, current if high is None else min(current, high))
    reason = "below-min" if wanted > current else "above-max" if wanted < current else ""
    draft.wanted = scaling.Wanted(wanted, wanted, reason)


def _capacity(draft: Draft, demand: Demand) -> tuple[float, str]:
    """Capacity of a replica: declared, or for CPU as demand by definition, or learned; and why it is not known."""
    policy = draft.policy
    if policy.capacity_per_replica is not None:
        return policy.capacity_per_replica, ""
    usable = policy.target_utilization * max((p.cpu for p in draft.placements.values()), default=0.0)
    if demand.unit == "cores":
        return (usable, "") if usable > 0 else (math.nan, "the pods request no CPU")
    sample = _sample(draft, demand)
    if sample is not None:
        draft.learned = learn(draft.learned, *sample)
    found = estimate(draft.learned, usable)
    known = f"{found.capacity:.4g} {demand.unit}" if math.isfinite(found.capacity) else "not known"
    draft.lines.append(f"capacity of a replica {known}: {found.told}")
    return found.capacity, found.told


def _sample(draft: Draft, demand: Demand) -> tuple[float, float] | None:
    """Load and CPU of one ready replica now; None where a part of them is not seen, or CPU is capped by a limit."""
    ready = {c: p.ready for c, p in draft.placements.items() if p.ready}
    seen = {c for c in demand.cpu_cores if draft.scene.sight.get(c) is Sight.READY}
    if not ready or demand.missing or demand.censored or not ready.keys() <= seen:
        return None
    count, cores = sum(ready.values()), sum(demand.cpu_cores.values())
    if not (demand.total > 0 and MIN_CORES <= cores < math.inf):
        return None
    return demand.total / count, cores / count


def _origins(draft: Draft, demand: Demand, forecast: Forecast, rows: Mapping[tuple[str, str], int]) -> None:
    """Splits the demand over origins, in replica equivalents that sum to at most what is wanted.

    An origin without a sample has no share: what the users of other workloads do is no evidence, and replicas that
    move on a guess move twice. Who knows better says so by `originShares`, or a window's `originFactors`.
    """
    policy = draft.policy
    shares: dict[str, float] = {}
    if policy.demand.origin_shares:
        shares = dict(policy.demand.origin_shares)
    elif policy.demand.origin_known:
        known = {o for _, o in rows if o != TOTAL} if demand.missing else set()
        for origin in sorted({*demand.by_origin, *known}):
            # Where the clusters that count an origin are out of sight, its forecast stands in; it is not zero.
            row, value = rows.get((draft.workload, origin)), demand.by_origin.get(origin, math.nan)
            ahead = fc.at_quantile(forecast, row, 0.5, draft.lead_s) if row is not None else math.nan
            shares[origin] = max((v for v in (value, ahead) if math.isfinite(v)), default=0.0)
    shares = {origin: share * policy.origin_factors.get(origin, 1.0) for origin, share in shares.items()}
    total = sum(shares.values())
    if total <= 0:
        return
    wanted = draft.wanted.replicas
    # What is offered now, even where the plan lets replicas run fuller than their target: a replica that no traffic was
    # counted for would stay wherever it is.
    offered = max(draft.demand, demand.total)
    needed = min(float(wanted), offered / draft.capacity) if draft.capacity > 0 else float(wanted)
    draft.origins = {o: share / total * needed for o, share in sorted(shares.items()) if share > 0}


def _clusters(draft: Draft, ground: Ground) -> None:
    """Says for each cluster whether replicas may come, stay or must go."""
    claims = sorted({n for p in draft.placements.values() for n in p.claims})
    flying = {c for r in moves.records(draft.placements).values() for c in (r.source, r.target)}
    for cluster in draft.now:
        reason = _why_barred(draft, ground, cluster)
        if reason:
            draft.barred[cluster] = reason
        if cluster in flying:
            draft.frozen.add(cluster)
            draft.barred.setdefault(cluster, "move-in-flight")
        elif claims and cluster not in draft.policy.data:
            _stay_with_data(draft, cluster, claims)
        elif reason in ("cluster-suspect", "paused", "view-partial"):
            draft.frozen.add(cluster)
        elif must := _must_leave(draft.workload, draft.policy, ground, cluster):
            if draft.policy.frozen and must != "residency" and draft.now[cluster]:
                draft.frozen.add(cluster)
                draft.refuse("freeze", cluster, f"{must} waits for the end of the window")
            else:
                draft.leave[cluster] = must
        elif reason == "room-unknown":
            draft.frozen.add(cluster)
    for cluster in draft.lost:
        draft.refuse("cluster-lost", cluster, "its replicas count as gone, nothing is deleted there")


def _stay_with_data(draft: Draft, cluster: str, claims: Sequence[str]) -> None:
    """Holds what reads a volume where it is: nobody said that its data is anywhere else, or that it may be left."""
    draft.frozen.add(cluster)
    draft.barred.setdefault(cluster, "volume-bound")
    if draft.now[cluster]:
        draft.refuse("volume-bound", cluster, f"its pods claim {', '.join(claims)}; {draft.now[cluster]} stay")


def _why_barred(draft: Draft, ground: Ground, cluster: str) -> str:
    """The first reason why a cluster may receive nothing new; empty if it may."""
    policy, declared = draft.policy, ground.cluster(cluster)
    if declared.paused:
        return "paused"
    if draft.scene.sight[cluster] is not Sight.READY:
        return "cluster-suspect"
    if not ground.snapshot.views[cluster].complete:
        return "view-partial"
    if isinstance(ground.rooms[cluster], Unknown):
        return "room-unknown"
    if isinstance(ground.snapshot.clusters[cluster].quotas, Unknown):
        return "quota-unknown"
    if must := _must_leave(draft.workload, draft.policy, ground, cluster):
        return must
    if not sight.trusted_again(
        ground.clocks[cluster], policy.lost_after_s, policy.failback_after_s, ground.snapshot.at_s
    ):
        return "cluster-lost"
    if any(not any(t.tolerates(taint) for t in policy.tolerations) for taint in ground.taints[cluster]):
        return "taint-not-tolerated"
    return ""


def _must_leave(workload: str, policy: Policy, ground: Ground, cluster: str) -> str:
    """Why the replicas of a cluster have to go; empty if they may stay."""
    declared = ground.cluster(cluster)
    allowed = ground.snapshot.allowed.get(workload)
    if allowed is not None and cluster not in allowed:
        return "residency"
    if any(declared.labels.get(k) != v for k, v in policy.residency_labels.items()):
        return "residency"
    if policy.residency_regions and declared.region not in policy.residency_regions:
        return "residency"
    if declared.drain:
        return "drain"
    for taint in ground.taints[cluster]:
        if taint.effect is Effect.NO_EXECUTE and not any(t.tolerates(taint) for t in policy.tolerations):
            return "taint-no-execute"
    return ""


def _distances(draft: Draft, ground: Ground) -> None:
    """Fills distances, and says which clusters are out of reach."""
    policy = draft.policy
    for origin in draft.origins:
        for cluster in draft.now:
            found = ground.origin_ms(origin, cluster)
            if found is not None:
                draft.distance[origin, cluster] = penalty_ms(*found)
    if policy.weights.latency > 0 and draft.origins:
        located = {o for o, _ in draft.distance}
        for origin in sorted(set(draft.origins) - located):
            stands = origin in ground.regions.values()
            regions = ", ".join(sorted({*ground.regions.values()}))
            why = f"origin {origin} is the region of no MemberCluster; their regions are {regions}"
            draft.refuse("rtt-unknown", "", f"no cluster in region {origin} has measured anything" if stands else why)
        for cluster in sorted(draft.now):
            if any((o, cluster) not in draft.distance for o in located):
                _out_of_reach(draft, cluster)
    for cluster in sorted(draft.now):
        if policy.weights.data > 0 and policy.data and ground.data_ms(policy, cluster) is None:
            _out_of_reach(draft, cluster)
        if policy.weights.latency > 0 and policy.depends and ground.calls_ms(policy, cluster) is None:
            _out_of_reach(draft, cluster)
    _may_move(draft, ground)


def _may_move(draft: Draft, ground: Ground) -> None:
    """Says why no voluntary move may begin, if so."""
    policy = draft.policy
    missed = moves.not_followed(draft.placements, ground.snapshot.at_s)
    failed = moves.quarantined(draft.placements, ground.snapshot.at_s)
    if policy.frozen:
        draft.hold = "freeze"
    elif policy.steering == "none":
        draft.hold = "not-steerable"
    elif failed:
        draft.hold = "quarantine"
        told = ", ".join(f"{m.source} -> {m.target} {m.outcome}" for m in failed)
        draft.refuse(draft.hold, failed[-1].target, f"{len(failed)} moves failed in a row: {told}")
    elif missed is not None:
        draft.hold = "traffic-did-not-follow"
        draft.refuse(draft.hold, missed.target, f"move {missed.id} of {missed.replicas} replica(s)")
    elif policy.strategy == "LatencyFirst" and not draft.origins:
        draft.hold = "origin-unknown"
    if draft.hold and draft.hold not in ("traffic-did-not-follow", "quarantine"):
        draft.refuse(draft.hold)


def _count_on_what_is_seen(draft: Draft, ground: Ground) -> None:
    """Takes no replica away because others are held where something is unknown.

    These stay, so the whole decrease would fall on the clusters that are seen, and leave the users of these to replicas
    that may be out of their reach. So they come on top of what is wanted, up to what there is now.
    """
    current = sum(draft.now.values())
    unseen = {c: draft.now[c] for c in sorted(draft.frozen) if draft.now[c] and draft.barred.get(c) in UNSEEN}
    if draft.wanted.replicas >= current or not unseen:
        return
    keep = min(current, draft.wanted.replicas + sum(unseen.values()))
    if ground.brake:
        draft.refuse("fleet-brake", "", f"{draft.wanted.replicas} would do, {keep} stay")
    for cluster, count in unseen.items():
        detail = f"its {count} replica(s) are not counted on: {draft.wanted.replicas} would do, {keep} stay"
        draft.refuse(draft.barred[cluster], cluster, detail)
    draft.wanted = replace(draft.wanted, replicas=keep, reason=draft.wanted.reason if keep < current else "")


def _out_of_reach(draft: Draft, cluster: str) -> None:
    """A distance that nobody measured: nothing new goes there, and what is there stays unless it must leave."""
    draft.barred.setdefault(cluster, "rtt-unknown")
    if cluster not in draft.leave:
        draft.frozen.add(cluster)
