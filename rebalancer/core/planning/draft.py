"""One workload before placement: how many replicas, from where the demand comes, and which clusters may take part."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rebalancer.core import forecast as fc
from rebalancer.core import moves, room, scaling, sight, starts
from rebalancer.core.model import TOTAL, Demand, Effect, Forecast, Placement, Refusal, Sight, Unknown
from rebalancer.core.placement import LATENCY_DOLLARS, Item
from rebalancer.core.planning.ahead import look
from rebalancer.core.planning.ground import Ground, PlanMemory, penalty_ms
from rebalancer.core.policy import Policy

GIB = 2.0**30
UNSEEN = ("cluster-suspect", "view-partial", "room-unknown", "rtt-unknown")
"""Why replicas are held because something about their cluster is not known."""
LEARN_WEIGHT = 0.1
"""Weight of a cycle's capacity in the learned one: noise is averaged over some ten cycles."""


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
        hold: reason id why no voluntary move may begin; empty if they may.
        distance: (origin, cluster) -> ms with loss penalty.
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
    hold: str = ""
    distance: dict[tuple[str, str], float] = field(default_factory=dict)
    refusals: list[Refusal] = field(default_factory=list)
    recommendations: scaling.Recommendations = ()
    starts: starts.Starts = ()
    lines: list[str] = field(default_factory=list)

    def refuse(self, reason: str, cluster: str = "", detail: str = "") -> None:
        """Notes one thing that is not done."""
        self.refusals.append(Refusal(self.workload, reason, cluster, detail))


def begin(workload: str, policy: Policy, ground: Ground, forecast: Forecast, memory: PlanMemory) -> Draft:
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
    _amounts(draft, demand, forecast, memory, ground)
    _clusters(draft, ground)
    _distances(draft, ground)
    _count_on_what_is_seen(draft, ground)
    return draft


def _amounts(draft: Draft, demand: Demand | Unknown, forecast: Forecast, memory: PlanMemory, ground: Ground) -> None:
    """Fills demand, capacity, wanted replicas and the origins' shares."""
    policy, current, now = draft.policy, sum(draft.now.values()), ground.snapshot.at_s
    draft.starts = starts.remember(memory.starts.get(draft.workload, ()), draft.placements)
    draft.recommendations = memory.recommendations.get(draft.workload, ())
    if isinstance(demand, Unknown) or not math.isfinite(demand.total):
        detail = demand.detail if isinstance(demand, Unknown) else "no samples"
        draft.refuse("demand-unknown", "", detail)
        _bounds_only(draft, current)
        _hold(draft, now, current, ground)
        return
    draft.unit = demand.unit
    rows = {key: row for row, key in enumerate(forecast.keys) if key[0] == draft.workload}
    total_row = rows.get((draft.workload, TOTAL))
    draft.capacity = _capacity(draft, demand, memory)
    lead_s = starts.lead_s(policy, draft.starts)
    draft.demand, line = look(policy, demand, forecast, total_row, lead_s, current * draft.capacity)
    draft.lines.append(line)
    if not draft.capacity > 0:
        draft.refuse("capacity-unknown")
        _bounds_only(draft, current)
        _hold(draft, now, current, ground)
    else:
        raw = math.ceil(draft.demand / draft.capacity - 1e-9)
        back = _back(draft, ground)
        # What is partly unknown proves no calm: the whole window has to be seen before anything is taken away.
        _hold(draft, now, max(raw, current) if demand.missing or back else raw, ground)
        draft.wanted = scaling.wanted(
            policy, draft.demand, draft.capacity, current, draft.recommendations, now, ground.settings.scaling,
            may_decrease=not demand.missing and not back,
            why_not="demand-partial" if demand.missing else "cluster-lost",
        )  # fmt: skip
    for reason in draft.wanted.held:
        detail = f"{draft.wanted.raw} would do, {current} stay" if draft.wanted.raw < current else ""
        if reason == "cluster-lost":
            detail += f"; {', '.join(_back(draft, ground))} came back a short time ago"
        draft.refuse(reason, "", f"missing: {', '.join(demand.missing)}" if reason == "demand-partial" else detail)
    _origins(draft, demand, forecast, rows)


def _hold(draft: Draft, now: float, count: int, ground: Ground) -> None:
    """Notes what was recommended; where demand is unknown, that is what there is."""
    draft.recommendations = scaling.remember(draft.recommendations, now, count, ground.settings.scaling)


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


def _capacity(draft: Draft, demand: Demand, memory: PlanMemory) -> float:
    """Capacity of a replica: declared, or for CPU as demand by definition, or learned from CPU per demand."""
    policy = draft.policy
    if policy.capacity_per_replica is not None:
        return policy.capacity_per_replica
    request = max((p.cpu for p in draft.placements.values()), default=0.0)
    if demand.unit == "cores":
        return request * policy.target_utilization if request > 0 else math.nan
    cpu = sum(demand.cpu_cores.values()) if demand.cpu_cores else math.nan
    seen = scaling.learned_capacity(policy, demand.total, cpu, request)
    old = memory.capacity.get(draft.workload, math.nan)
    if not math.isfinite(seen) or demand.missing:
        return old
    return seen if not math.isfinite(old) else old + LEARN_WEIGHT * (seen - old)


def _origins(draft: Draft, demand: Demand, forecast: Forecast, rows: Mapping[tuple[str, str], int]) -> None:
    """Splits the demand over origins, in replica equivalents that sum to at most what is wanted."""
    policy = draft.policy
    shares: dict[str, float] = {}
    if policy.demand.origin_shares:
        shares = dict(policy.demand.origin_shares)
    elif policy.demand.origin_known:
        known = {o for _, o in rows if o != TOTAL} if demand.missing else set()
        for origin in sorted({*demand.by_origin, *known}):
            # Where the clusters that count an origin are out of sight, its forecast stands in; it is not zero.
            row, value = rows.get((draft.workload, origin)), demand.by_origin.get(origin, math.nan)
            ahead = (
                fc.at_quantile(forecast, row, 0.5, starts.lead_s(policy, draft.starts)) if row is not None else math.nan
            )
            shares[origin] = max((v for v in (value, ahead) if math.isfinite(v)), default=0.0)
    total = sum(shares.values())
    if total <= 0:
        return
    wanted = draft.wanted.replicas
    needed = min(float(wanted), draft.demand / draft.capacity) if draft.capacity > 0 else float(wanted)
    draft.origins = {o: share / total * needed for o, share in sorted(shares.items()) if share > 0}


def _clusters(draft: Draft, ground: Ground) -> None:
    """Says for each cluster whether replicas may come, stay or must go."""
    flying = {c for r in moves.records(draft.placements).values() for c in (r.source, r.target)}
    for cluster in draft.now:
        reason = _why_barred(draft, ground, cluster)
        if reason:
            draft.barred[cluster] = reason
        if cluster in flying:
            draft.frozen.add(cluster)
            draft.barred.setdefault(cluster, "move-in-flight")
        elif reason in ("cluster-suspect", "paused", "view-partial"):
            draft.frozen.add(cluster)
        elif must := _must_leave(draft.workload, draft.policy, ground, cluster):
            draft.leave[cluster] = must
        elif reason == "room-unknown":
            draft.frozen.add(cluster)
    for cluster in draft.lost:
        draft.refuse("cluster-lost", cluster, "its replicas count as gone, nothing is deleted there")


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
            draft.refuse("rtt-unknown", "", f"no cluster in origin region {origin} has measured anything")
        for cluster in sorted(draft.now):
            if any((o, cluster) not in draft.distance for o in located):
                _out_of_reach(draft, cluster)
    if policy.weights.data > 0 and policy.data:
        for cluster in sorted(draft.now):
            if data_distance(draft, ground, cluster) is None:
                _out_of_reach(draft, cluster)
    _may_move(draft, ground)


def _may_move(draft: Draft, ground: Ground) -> None:
    """Says why no voluntary move may begin, if so."""
    policy = draft.policy
    missed = moves.not_followed(draft.placements, ground.snapshot.at_s)
    if policy.steering == "none":
        draft.hold = "not-steerable"
    elif missed is not None:
        draft.hold = "traffic-did-not-follow"
        draft.refuse(draft.hold, missed.target, f"move {missed.id} of {missed.replicas} replica(s)")
    elif policy.strategy == "LatencyFirst" and not draft.origins:
        draft.hold = "origin-unknown"
    if draft.hold and draft.hold != "traffic-did-not-follow":
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


def item(draft: Draft, ground: Ground, max_exchanges: int | None) -> Item:
    """Turns a draft into what the solver takes."""
    policy = draft.policy
    cpu = max((p.cpu for p in draft.placements.values()), default=0.0)
    memory = max((p.memory for p in draft.placements.values()), default=0.0)
    add_max = {}
    for cluster in draft.now:
        space = ground.rooms[cluster]
        here = 0 if cluster in draft.barred or isinstance(space, Unknown) else room.fits(
            space, cpu, memory, draft.placements[cluster].node_selector
        )  # fmt: skip
        add_max[cluster] = min(here, draft.wanted.replicas)
        if here == 0:
            draft.barred.setdefault(cluster, "no-room")
    exchanges = 0 if draft.hold else max_exchanges
    return Item(
        workload=draft.workload,
        replicas=draft.wanted.replicas,
        demand=draft.origins,
        clusters=tuple(sorted(draft.now)),
        now=draft.now,
        serve=_serve(draft, ground),
        run=_run(draft, ground, cpu, memory),
        add_max=add_max,
        frozen=frozenset(draft.frozen),
        leave=frozenset(draft.leave),
        cpu=cpu,
        memory=memory,
        regions=ground.regions,
        spot=frozenset(c for c in draft.now if ground.cluster(c).spot),
        priority=policy.priority,
        cluster_min=policy.cluster_min,
        cluster_max=policy.cluster_max,
        min_clusters=policy.min_clusters,
        min_regions=policy.min_regions,
        max_share=policy.max_share,
        spot_max_share=policy.spot_max_share,
        spread_weight=policy.weights.spread,
        max_exchanges=exchanges,
    )


def _serve(draft: Draft, ground: Ground) -> dict[tuple[str, str], float]:
    """Dollars per replica equivalent and hour for each origin and cluster: latency, and distance to the data."""
    weights = draft.policy.weights
    serve = {}
    for (origin, cluster), ms in draft.distance.items():
        serve[origin, cluster] = weights.latency * LATENCY_DOLLARS * ms
    for cluster in draft.now:
        data_ms = data_distance(draft, ground, cluster)
        if data_ms is not None:
            for origin in draft.origins:
                if (origin, cluster) in serve:
                    serve[origin, cluster] += weights.data * LATENCY_DOLLARS * data_ms
    return serve


def data_distance(draft: Draft, ground: Ground, cluster: str) -> float | None:
    """Mean round-trip time in ms from a cluster to the data, by share; None without data or measurement."""
    total = 0.0
    for where, share in draft.policy.data.items():
        ms = ground.between_ms(cluster, where)
        if ms is None:
            return None
        total += share * ms
    return total if draft.policy.data else None


def _run(draft: Draft, ground: Ground, cpu: float, memory: float) -> dict[str, float]:
    """Dollars per replica and hour, weighted; an unknown price counts as the mean of the known: it decides nothing."""
    prices = {}
    for cluster in draft.now:
        price = ground.cluster(cluster).price
        if price.cpu_core_hour is not None:
            prices[cluster] = price.cpu_core_hour * cpu + (price.memory_gib_hour or 0.0) * memory / GIB
    typical = sum(prices.values()) / len(prices) if prices else 0.0
    run = {c: draft.policy.weights.cost * prices.get(c, typical) for c in draft.now}
    for cluster in draft.now:
        # Data distance without origins is paid per replica, so that DataLocality works with an unknown origin.
        ms = data_distance(draft, ground, cluster) if not draft.origins else None
        if ms is not None:
            run[cluster] += draft.policy.weights.data * LATENCY_DOLLARS * ms
    return run
