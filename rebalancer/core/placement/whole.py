"""Whole replicas for one workload at given prices: round the relaxed plan, then exchange single replicas.

The cost is convex in x but for the spread terms, so the slopes of the served network bound what an exchange can gain;
exchanges are tried in the order of that bound, and the search stops where no bound is left that could win.
"""

from __future__ import annotations

import numpy as np

from rebalancer.core.placement.compiled import (
    BIG,
    BUDGET,
    CLUSTERS,
    EPS,
    PEAK,
    REGIONS,
    SHARE,
    SPOT,
    Jobs,
    Near,
    Scratch,
    Sites,
    inner,
)
from rebalancer.core.placement.flows import relaxed, slopes, transport
from rebalancer.core.placement.items import SHORTFALL_DOLLARS, UNSERVED_DOLLARS

NEVER = 1e5
"""$/h for each replica beyond a bound that must hold: above everything that counts money."""


@inner
def _column(
    w: int, e: int, j: int, total: float, jobs: Jobs, near: Near, sites: Sites, price: np.ndarray, left: np.ndarray,
    s: Scratch,
) -> None:  # fmt: skip
    """Column j of the table: what replicas of workload w cost in one cluster, and how many it can have."""
    c = near.cluster[e]
    origins = jobs.demand.shape[1]
    for r in range(origins):
        s.serve[r, j] = near.serve[e, r]
    s.serve[origins, j] = 0.0
    s.cluster[j], s.region[j], s.spot[j] = c, sites.region[c], sites.spot[c]
    s.stay[j], s.floor[j], s.low[j] = near.stay[e], near.floor[e], 0.0
    if near.fixed[e]:
        # It stands whatever is decided: what it costs is the same in every plan.
        s.stay_price[j], s.new_price[j], s.spot[j] = 0.0, BIG, False
        s.low[j], s.add[j], s.high[j] = s.stay[j], 0.0, s.stay[j]
        return
    room = price[0, c] * jobs.cpu[w] + price[1, c] * jobs.memory[w]
    s.stay_price[j] = near.run[e] - jobs.stop[w] + (room if jobs.leaving[w] else 0.0)
    s.new_price[j] = near.run[e] + jobs.start[w] + room + price[2, c]
    space = BIG
    if jobs.cpu[w] > 0:
        space = left[0, c] / jobs.cpu[w]
    if jobs.memory[w] > 0:
        space = min(space, left[1, c] / jobs.memory[w])
    space = max(0.0, np.floor(min(space, 1e9) + 1e-6))
    s.add[j] = max(0.0, min(float(near.add[e]), np.floor(min(left[2, c], 1e9) + 1e-6)))
    if jobs.leaving[w]:
        s.high[j] = min(space, s.stay[j] + s.add[j], total)
    else:
        s.add[j] = min(s.add[j], space)
        s.high[j] = min(s.stay[j] + s.add[j], total)


@inner
def load(
    w: int, jobs: Jobs, near: Near, sites: Sites, price: np.ndarray, left: np.ndarray, s: Scratch
) -> tuple[int, int]:
    """Puts workload w on the table.

    Args:
        w: index.
        jobs: workloads.
        near: the clusters they choose from.
        sites: clusters.
        price: (3, C) $/h per core, byte and added replica.
        left: (3, C) what is left of them, the workload's own use given back; infinite where it does not bind.
        s: the table.

    Returns:
        Columns and rows in use.
    """
    first, end = near.first[w], near.first[w + 1]
    k, origins = end - first, jobs.demand.shape[1]
    total = float(jobs.replicas[w])
    served = 0.0
    for r in range(origins):
        s.demand[r] = jobs.demand[w, r]
        served += s.demand[r]
    s.demand[origins] = max(0.0, total - served)
    for j in range(k):
        _column(w, first + j, j, total, jobs, near, sites, price, left, s)
    s.stay_price[k], s.new_price[k] = jobs.unplaced[w], BIG
    s.stay[k], s.add[k], s.low[k], s.high[k], s.floor[k] = total, 0.0, 0.0, total, 0.0
    for r in range(origins):
        s.serve[r, k] = UNSERVED_DOLLARS
    s.serve[origins, k] = 0.0
    s.limits[BUDGET] = jobs.budget[w]
    s.limits[CLUSTERS], s.limits[REGIONS] = min(jobs.min_clusters[w], total), min(jobs.min_regions[w], total)
    s.limits[SHARE], s.limits[SPOT], s.limits[PEAK] = jobs.share[w], jobs.spot[w], jobs.peak[w]
    return k + 1, origins + 1


@inner
def plan_cost(k: int, s: Scratch) -> float:
    """$/h of the replicas on the table by their prices, without traffic."""
    cost = 0.0
    for j in range(k):
        staying = min(s.x[j], s.stay[j])
        if staying > 0:
            cost += s.stay_price[j] * staying
        if s.x[j] > staying:
            cost += s.new_price[j] * (s.x[j] - staying)
    return cost


@inner
def missed(k: int, s: Scratch) -> float:
    """$/h for the bounds and the spread that the replicas on the table miss."""
    real = k - 1
    used, adds, spot, top, cost = 0, 0.0, 0.0, 0.0, 0.0
    for j in range(real):
        s.regions[s.region[j]] = 0.0
    for j in range(real):
        x = s.x[j]
        if x > 0:
            used += 1
            s.regions[s.region[j]] += 1.0
        adds += max(0.0, x - s.stay[j])
        spot += x if s.spot[j] else 0.0
        top = max(top, x)
        if s.low[j] < s.high[j]:
            cost += SHORTFALL_DOLLARS * max(0.0, x - s.limits[SHARE])
        cost += SHORTFALL_DOLLARS * max(0.0, s.floor[j] - x)
    spread = 0.0
    for j in range(real):
        if s.regions[s.region[j]] > 0:
            spread += 1.0
            s.regions[s.region[j]] = 0.0
    cost += SHORTFALL_DOLLARS * (max(0.0, s.limits[CLUSTERS] - used) + max(0.0, s.limits[REGIONS] - spread))
    cost += NEVER * (max(0.0, adds - s.limits[BUDGET]) + max(0.0, spot - s.limits[SPOT]))
    return float(cost + s.limits[PEAK] * top)


@inner
def standing(k: int, n: int, s: Scratch) -> float:
    """$/h of the replicas on the table as they stand: their traffic, their prices and what they miss."""
    return transport(k, n, s) + plan_cost(k, s) + missed(k, s)


@inner
def _plain(k: int, s: Scratch) -> bool:
    """Whether only the budget of additions and the number of clusters have to be looked after."""
    if s.limits[REGIONS] > 1 or s.limits[PEAK] > 0:
        return False
    total, spot = 0.0, False
    for j in range(k):
        total += s.x[j]
        spot = spot or s.spot[j]
        if s.floor[j] > 0:
            return False
    return s.limits[SHARE] >= total and (not spot or s.limits[SPOT] >= total)


@inner
def _adds_and_clusters(k: int, s: Scratch) -> tuple[float, float]:
    adds, used = 0.0, 0.0
    for j in range(k - 1):
        adds += max(0.0, s.x[j] - s.stay[j])
        used += 1.0 if s.x[j] > 0 else 0.0
    return adds, used


@inner
def _exchanges(k: int, s: Scratch) -> int:
    """Fills `s.bound` with the least that each exchange of one replica could change; returns how many could gain."""
    plain = _plain(k, s)
    adds, used = _adds_and_clusters(k, s)
    budget, clusters = s.limits[BUDGET], s.limits[CLUSTERS]
    before = missed(k, s)
    count = 0
    for d in range(k):
        if s.x[d] <= s.low[d]:
            continue
        given = -(s.stay_price[d] if s.x[d] <= s.stay[d] else s.new_price[d]) - s.slope[d]
        frees = d < k - 1 and s.x[d] > s.stay[d]
        for r in range(k):
            s.bound[d, r] = BIG
            if r == d or s.x[r] + 1 > s.high[r] + EPS:
                continue
            change = given + (s.stay_price[r] if s.x[r] < s.stay[r] else s.new_price[r]) + s.slope[r]
            if plain:
                after = adds - (1.0 if frees else 0.0) + (1.0 if r < k - 1 and s.x[r] >= s.stay[r] else 0.0)
                spread = used - (1.0 if d < k - 1 and s.x[d] == 1 else 0.0)
                spread += 1.0 if r < k - 1 and s.x[r] == 0 else 0.0
                change += NEVER * max(0.0, after - budget) + SHORTFALL_DOLLARS * max(0.0, clusters - spread) - before
            else:
                s.x[d] -= 1
                s.x[r] += 1
                change += missed(k, s) - before
                s.x[d] += 1
                s.x[r] -= 1
            if change < -EPS:
                s.bound[d, r] = change
                count += 1
    return count


@inner
def descend(k: int, n: int, s: Scratch, most: int) -> float:
    """Steepest descent by exchanges of one replica from `s.x`.

    Args:
        k: columns.
        n: rows.
        s: the table.
        most: exchanges at most.

    Returns:
        Cost in $/h of the plan in `s.x`, with what it misses.
    """
    served = transport(k, n, s)
    for _ in range(most):
        slopes(k, n, s)
        count = _exchanges(k, s)
        give, take, gain, found = -1, -1, -EPS, 0.0
        while count > 0:
            d, r, bound = -1, -1, gain
            for a in range(k):
                if s.x[a] > s.low[a]:
                    for b in range(k):
                        if s.bound[a, b] < bound:
                            d, r, bound = a, b, s.bound[a, b]
            if d < 0:
                break
            linear = bound + s.slope[d] - s.slope[r]
            s.bound[d, r] = BIG
            count -= 1
            s.x[d] -= 1
            s.x[r] += 1
            cost = transport(k, n, s)
            s.x[d] += 1
            s.x[r] -= 1
            if linear + cost - served < gain:
                give, take, gain, found = d, r, linear + cost - served, cost
        if give < 0:
            break
        s.x[give] -= 1
        s.x[take] += 1
        served = transport(k, n, s)
        if abs(served - found) > 1e-6 * max(1.0, abs(found)):
            break
    else:
        served = transport(k, n, s)
    return standing(k, n, s)


@inner
def round_up(k: int, total: int, s: Scratch) -> None:
    """Whole replicas from fractional ones: the floors, then the largest remainders that still fit."""
    placed = 0
    for j in range(k):
        whole = np.floor(s.x[j] + 1e-7)
        s.new[j] = s.x[j] - whole
        s.x[j] = whole
        placed += int(whole)
    for _ in range(total - placed):
        best, most = k - 1, 1e-9
        for j in range(k):
            if s.x[j] + 1 <= s.high[j] + EPS and s.new[j] > most:
                best, most = j, s.new[j]
        s.x[best] += 1
        s.new[best] = 0.0


@inner
def tighten(k: int, total: int, s: Scratch) -> None:
    """Bounds each cluster so that the spread over clusters comes out; the bounds before are kept in `s.best`."""
    can = 0.0
    for j in range(k - 1):
        can += 1.0 if s.high[j] > 0 else 0.0
    reach = total - min(s.limits[CLUSTERS], can) + 1
    for j in range(k - 1):
        s.best[j] = s.high[j]
        s.high[j] = max(s.low[j], min(s.high[j], reach, max(s.limits[SHARE], s.low[j])))


@inner
def fit(k: int, total: int, s: Scratch) -> None:
    """Makes the plan in `s.x` fit its bounds and the total: the surplus goes where a replica is dearest."""
    placed = 0.0
    for j in range(k):
        s.x[j] = max(s.low[j], min(s.x[j], np.floor(s.high[j] + 1e-9)))
        placed += s.x[j]
    if placed < total:
        s.x[k - 1] += total - placed
    while placed > total:
        worst, price = -1, -BIG
        for j in range(k):
            if s.x[j] > s.low[j]:
                here = s.stay_price[j] if s.x[j] <= s.stay[j] else s.new_price[j]
                if here > price:
                    worst, price = j, here
        if worst < 0:
            break
        s.x[worst] -= 1
        placed -= 1


@inner
def from_scratch(k: int, n: int, total: int, s: Scratch, most: int) -> float:
    """The plan of whole replicas that the relaxed one leads to; returns its cost in $/h."""
    tighten(k, total, s)
    relaxed(k, n, s)
    round_up(k, total, s)
    for j in range(k - 1):
        s.high[j] = s.best[j]
    # The relaxed plan does not know what must stay.
    fit(k, total, s)
    return descend(k, n, s, most)


@inner
def _within_spot(k: int, s: Scratch) -> None:
    """Takes what stands beyond the spot share off the table, where it is dearest first."""
    over = -s.limits[SPOT]
    for j in range(k - 1):
        over += s.x[j] if s.spot[j] else 0.0
    while over > EPS:
        worst, price = -1, -BIG
        for j in range(k - 1):
            if s.spot[j] and s.x[j] > s.low[j] and s.stay_price[j] > price:
                worst, price = j, s.stay_price[j]
        if worst < 0:
            break
        s.x[worst] -= 1
        s.x[k - 1] += 1
        over -= 1


@inner
def gang(k: int, n: int, total: int, least: int, s: Scratch) -> float:
    """All in one cluster, at least `least` of them, or nothing new at all; returns the cost in $/h.

    What runs may stay as it is: a gang that can't grow is not ended for it.
    """
    held = 0.0
    for j in range(k):
        held += s.low[j]
    price = BIG
    for choice in range(k + 1):
        if held > 0 and choice < k:
            continue
        for j in range(k):
            s.x[j] = s.stay[j] if choice == k and j < k - 1 else 0.0
        if choice == k:
            fit(k, total, s)
            _within_spot(k, s)
        elif choice < k - 1:
            s.x[choice] = min(float(total), np.floor(s.high[choice] + 1e-9))
            if s.x[choice] < min(least, total):
                continue
            s.x[k - 1] = total - s.x[choice]
        else:
            s.x[k - 1] = total
        cost = standing(k, n, s)
        if cost < price - EPS:
            price = cost
            for j in range(k):
                s.best[j] = s.x[j]
    for j in range(k):
        s.x[j] = s.best[j]
    return price
