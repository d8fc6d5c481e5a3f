"""From a draft to what the solver takes: what each cluster would cost, and how many replicas it could have."""

from __future__ import annotations

from rebalancer.core.model import GIB
from rebalancer.core.placement import LATENCY_DOLLARS, Item
from rebalancer.core.planning.draft import Draft
from rebalancer.core.planning.ground import Ground
from rebalancer.core.room import shape_of


def item(draft: Draft, ground: Ground) -> Item:
    """Turns a draft into what the solver takes, with the room that is free."""
    policy = draft.policy
    cpu = max((p.cpu for p in draft.placements.values()), default=0.0)
    memory = max((p.memory for p in draft.placements.values()), default=0.0)
    add_max, roomless = {}, set()
    for cluster in draft.now:
        shape = draft.shapes[cluster] = shape_of(draft.placements[cluster], cpu, memory)
        here = 0 if cluster in draft.barred else ground.fits(cluster, shape, draft.lead_s)
        if here and (left := ground.within_quota(cluster, draft.workload, shape, here)) < here:
            here = left
            told = f"{cluster}: the quotas of its namespace leave {left} replica(s)"
            if told not in draft.lines:
                draft.lines.append(told)
            if left == 0:
                draft.barred[cluster] = "quota-full"
        add_max[cluster] = min(here, draft.wanted.replicas)
        if here < draft.wanted.replicas and cluster not in draft.barred:
            roomless.add(cluster)
        if here == 0:
            draft.barred.setdefault(cluster, "no-room")
    draft.egress = _egress(draft, ground)
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
        max_exchanges=0 if draft.hold else None,
        roomless=frozenset(roomless),
        gang=policy.gang,
    )


def _serve(draft: Draft, ground: Ground) -> dict[tuple[str, str], float]:
    """Dollars per replica equivalent and hour by origin and cluster: latency, calls, distance to the data, egress."""
    weights = draft.policy.weights
    serve = {}
    for (origin, cluster), ms in draft.distance.items():
        serve[origin, cluster] = weights.latency * LATENCY_DOLLARS * ms
    for cluster in draft.now if draft.origins else ():
        beside = _beside(draft, ground, cluster) + draft.egress.get(cluster, 0.0)
        for origin in draft.origins:
            if (origin, cluster) in serve:
                serve[origin, cluster] += beside
    return serve


def _beside(draft: Draft, ground: Ground, cluster: str) -> float:
    """Dollars per replica equivalent and hour in a cluster, whoever is served: to the data and to what is called."""
    policy, weights = draft.policy, draft.policy.weights
    data_ms, calls_ms = ground.data_ms(policy, cluster), ground.calls_ms(policy, cluster)
    return LATENCY_DOLLARS * (weights.data * (data_ms or 0.0) + weights.latency * (calls_ms or 0.0))


def _egress(draft: Draft, ground: Ground) -> dict[str, float]:
    """Dollars per replica equivalent and hour for what leaves each cluster, weighted; unknown prices as in `_run`."""
    size_kib = draft.policy.demand.response_kib
    if not (size_kib > 0 and draft.capacity > 0):
        return {}
    gib_h = draft.capacity * 3600.0 * size_kib * 1024 / GIB
    prices = {c: price for c in draft.now if (price := ground.prices[c].egress_gib) is not None}
    typical = sum(prices.values()) / len(prices) if prices else 0.0
    return {c: draft.policy.weights.cost * gib_h * prices.get(c, typical) for c in draft.now}


def _run(draft: Draft, ground: Ground, cpu: float, memory: float) -> dict[str, float]:
    """Dollars per replica and hour, weighted; an unknown price counts as the mean of the known: it decides nothing."""
    prices = {}
    for cluster in draft.now:
        price = ground.prices[cluster]
        if price.cpu_core_hour is not None:
            prices[cluster] = price.cpu_core_hour * cpu + (price.memory_gib_hour or 0.0) * memory / GIB
    typical = sum(prices.values()) / len(prices) if prices else 0.0
    run = {c: draft.policy.weights.cost * prices.get(c, typical) for c in draft.now}
    for cluster in draft.now if not draft.origins else ():
        # Without origins these are paid per replica, so that they count with an unknown origin too.
        run[cluster] += _beside(draft, ground, cluster) + draft.egress.get(cluster, 0.0)
    return run
