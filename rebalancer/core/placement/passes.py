"""Passes over all workloads: prices by mini-batches, placing under hard room with prices that answer at once, bounds.

The price iteration is the one-pass projected stochastic subgradient of online linear programming (Li, Sun, Ye,
"Simple and fast algorithm for binary integer and online linear programming", 2020): each batch of workloads shows what
the fleet would use at the present prices, and prices follow the excess, multiplicatively, so that they can climb.
"""

from __future__ import annotations

import numpy as np

from rebalancer.core.placement.compiled import BIG, F64, I64, Jobs, Near, Scratch, Sites, compiled, inner, scratch
from rebalancer.core.placement.flows import relaxed
from rebalancer.core.placement.items import SHORTFALL_DOLLARS
from rebalancer.core.placement.whole import descend, fit, from_scratch, gang, load, standing, tighten

WARM_REPLICAS = 8
"""Up to so many replicas a plan is improved from where it stands; more are planned anew and compared."""
EXCHANGES = 12


@inner
def widest(near: Near) -> int:
    """Most clusters that one workload chooses from."""
    most = 1
    for w in range(near.first.shape[0] - 1):
        most = max(most, near.first[w + 1] - near.first[w])
    return most


@inner
def take(w: int, sign: float, jobs: Jobs, near: Near, x: I64, left: F64) -> None:
    """Gives (sign 1) what workload w uses back to `left`, or takes it (sign -1)."""
    for e in range(near.first[w], near.first[w + 1]):
        if x[e] == 0 or near.fixed[e]:
            continue
        c = near.cluster[e]
        added = max(0, x[e] - near.stay[e])
        counted = x[e] if jobs.leaving[w] else added
        left[0, c] += sign * jobs.cpu[w] * counted
        left[1, c] += sign * jobs.memory[w] * counted
        left[2, c] += sign * added


@inner
def _fractional(w: int, k: int, n: int, jobs: Jobs, s: Scratch) -> float:
    """The relaxed plan at the prices on the table; a gang has only whole ones."""
    total = jobs.replicas[w]
    if jobs.gang[w] > 0:
        cost = gang(k, n, total, jobs.gang[w], s)
        for j in range(k):
            s.new[j] = max(0.0, s.x[j] - s.stay[j])
        return cost
    tighten(k, total, s)
    cost = relaxed(k, n, s)
    for j in range(k - 1):
        s.high[j] = s.best[j]
    return cost


@inner
def _answer(w: int, k: int, n: int, jobs: Jobs, whole: bool, s: Scratch) -> None:
    """What workload w would have at the prices on the table, in `s.x`, and what of it is new, in `s.new`."""
    if not whole or jobs.gang[w] > 0:
        _fractional(w, k, n, jobs, s)
        return
    from_scratch(k, n, jobs.replicas[w], s, EXCHANGES + jobs.replicas[w])
    for j in range(k):
        s.new[j] = max(0.0, s.x[j] - s.stay[j])


@compiled
def price_pass(
    order: I64, every: int, jobs: Jobs, near: Near, sites: Sites, price: F64, size: F64, scale: F64,
    rates: tuple[float, float], whole: bool, mean: F64,
) -> None:  # fmt: skip
    """One pass of the price iteration.

    Args:
        order: workloads, in the order in which they are looked at.
        every: workloads between two updates.
        jobs: workloads.
        near: the clusters they choose from.
        sites: clusters.
        price: (3, C), in and out.
        size: (3, C) capacity.
        scale: (3,) a usual price; what a price of 0 starts climbing from.
        rates: step at the first and at the last workload.
        whole: whether workloads answer with whole replicas, which takes several times as long.
        mean: (3, C), out: the prices' mean over the pass.
    """
    s = scratch(widest(near), jobs.demand.shape[1], sites.region.shape[0])
    use, everything = np.zeros(size.shape), np.full(size.shape, BIG)
    count, total, batch = order.shape[0], jobs.replicas.shape[0], 0
    mean[:] = 0.0
    for index in range(count):
        w = order[index]
        k, n = load(w, jobs, near, sites, price, everything, s)
        _answer(w, k, n, jobs, whole, s)
        for j in range(k - 1):
            if s.x[j] > 0 and s.low[j] == 0:
                c = s.cluster[j]
                counted = s.x[j] if jobs.leaving[w] else s.new[j]
                use[0, c] += jobs.cpu[w] * counted
                use[1, c] += jobs.memory[w] * counted
                use[2, c] += s.new[j]
        batch += 1
        if batch < every and index < count - 1:
            continue
        step = (rates[0] + (rates[1] - rates[0]) * index / count) * batch / total
        for i in range(3):
            for c in range(size.shape[1]):
                excess = min(40.0, use[i, c] * total / (batch * size[i, c]) - 1.0)
                change = min(0.2, max(-0.2, step * excess)) * (scale[i] + price[i, c])
                price[i, c] = max(0.0, price[i, c] + change)
                mean[i, c] += price[i, c] * batch / count
                use[i, c] = 0.0
        batch = 0


@inner
def _replan(w: int, k: int, n: int, jobs: Jobs, near: Near, x: I64, out: I64, fresh: bool, s: Scratch) -> float:
    """Plans workload w at the prices and within the room on the table; its plan now stays on ties."""
    total, first = jobs.replicas[w], near.first[w]
    if jobs.gang[w] > 0:
        return gang(k, n, total, jobs.gang[w], s)
    placed = 0
    for j in range(k - 1):
        s.x[j] = x[first + j]
        placed += x[first + j]
    s.x[k - 1] = out[w]
    if fresh or placed == 0:
        return from_scratch(k, n, total, s, EXCHANGES + total)
    if total <= WARM_REPLICAS:
        fit(k, total, s)
        return descend(k, n, s, EXCHANGES + total)
    anew = from_scratch(k, n, total, s, EXCHANGES + total)
    for j in range(k):
        s.best[j] = s.x[j]
    for j in range(k - 1):
        s.x[j] = x[first + j]
    s.x[k - 1] = out[w]
    fit(k, total, s)
    stays = standing(k, n, s)
    if stays <= anew + 1e-9:
        return stays
    for j in range(k):
        s.x[j] = s.best[j]
    return anew


@inner
def _waiting(w: int, k: int, n: int, jobs: Jobs, s: Scratch, unmet: F64) -> None:
    """Shows the demand of replicas without a place to the cluster where they would cost least."""
    served = 0.0
    for r in range(n - 1):
        served += s.demand[r]
    best, least = -1, jobs.unplaced[w]
    for j in range(k - 1):
        cost = s.new_price[j]
        for r in range(n - 1):
            cost += s.serve[r, j] * s.demand[r] / max(served, 1e-9)
        if s.low[j] == 0 and cost < least:
            best, least = j, cost
    if best >= 0:
        unmet[0, s.cluster[best]] += jobs.cpu[w] * s.x[k - 1]
        unmet[1, s.cluster[best]] += jobs.memory[w] * s.x[k - 1]


@compiled
def place_pass(
    order: I64, every: int, jobs: Jobs, near: Near, sites: Sites, price: F64, base: F64, left: F64, size: F64,
    aim: F64, scale: F64, gain: float, done: tuple[float, float], fresh: bool, x: I64, out: I64,
    cost: F64,
) -> int:  # fmt: skip
    """Plans workloads one after the other within what is left, while prices follow how full the clusters get.

    Args:
        order: workloads, in the order in which they are planned.
        every: workloads between two updates.
        jobs: workloads.
        near: the clusters they choose from.
        sites: clusters.
        price: (3, C), in and out.
        base: prices that the first placement keeps near to.
        left: (3, C), in and out.
        size: (3, C) capacity.
        scale: (3,) as in `price_pass`.
        aim: (3, C) share of the capacity up to which prices don't rise.
        gain: how strongly prices follow; 0 leaves them.
        done: cores placed before and in total; above 0 in a first placement: all clusters fill alike.
        fresh: whether plans so far are forgotten.
        x: (entries,) replicas, in and out.
        out: (W,) replicas without a place, in and out.
        cost: (W,) $/h by the prices, out.

    Returns:
        How many plans changed.
    """
    s = scratch(widest(near), jobs.demand.shape[1], sites.region.shape[0])
    unmet = np.zeros(size.shape)
    count, batch, changed, placed = order.shape[0], 0, 0, done[0]
    for index in range(count):
        w = order[index]
        first = near.first[w]
        take(w, 1.0, jobs, near, x, left)
        k, n = load(w, jobs, near, sites, price, left, s)
        cost[w] = _replan(w, k, n, jobs, near, x, out, fresh, s)
        other = False
        for j in range(k - 1):
            value = int(s.x[j])
            other = other or x[first + j] != value
            x[first + j] = value
        out[w] = int(s.x[k - 1])
        changed += 1 if other else 0
        take(w, -1.0, jobs, near, x, left)
        if out[w] > 0:
            _waiting(w, k, n, jobs, s, unmet)
        placed += jobs.replicas[w] * jobs.cpu[w]
        batch += 1
        if gain == 0.0 or (batch < every and index < count - 1):
            continue
        if done[1] > 0:
            _steer(price, base, left, size, scale, unmet, gain, placed / done[1])
        else:
            _control(price, left, size, aim, scale, unmet, gain * batch / count, count / batch)
            unmet[:] = 0.0
        batch = 0
    return changed


@inner
def _steer(price: F64, base: F64, left: F64, size: F64, scale: F64, unmet: F64, gain: float, share: float) -> None:
    """Prices of a first placement: dearer where a cluster is fuller than the fleet."""
    for i in range(3):
        for c in range(size.shape[1]):
            excess = 1.0 - left[i, c] / size[i, c] + unmet[i, c] / size[i, c] - share
            if base[i, c] <= 0:
                excess = max(0.0, excess - 0.03)
            change = gain * (scale[i] + base[i, c]) * min(1.0, max(-1.0, excess))
            price[i, c] = max(0.0, base[i, c] + change)


@inner
def _control(price: F64, left: F64, size: F64, aim: F64, scale: F64, unmet: F64, step: float, more: float) -> None:
    """Prices of the later passes: up where a cluster is fuller than it should be or replicas wait for it, else down."""
    for i in range(3):
        for c in range(size.shape[1]):
            excess = min(0.05, max(-0.05, 1.0 - left[i, c] / size[i, c] - aim[i, c]))
            excess += min(0.3, unmet[i, c] / size[i, c] * more)
            if excess > 0:
                price[i, c] += 5.0 * step * (scale[i] + price[i, c]) * excess
            elif price[i, c] > 0:
                price[i, c] = max(0.0, price[i, c] + step * (scale[i] + price[i, c]) * excess)


@compiled
def push_in(
    waiting: I64, jobs: Jobs, near: Near, sites: Sites, price: F64, left: F64, size: F64, x: I64,
    out: I64,
) -> None:  # fmt: skip
    """Gives waiting replicas their cheapest cluster although it is full; who is to make room there is chosen next."""
    s = scratch(widest(near), jobs.demand.shape[1], sites.region.shape[0])
    roomy = np.full(size.shape, BIG)
    for index in range(waiting.shape[0]):
        w = waiting[index]
        first = near.first[w]
        take(w, 1.0, jobs, near, x, left)
        roomy[2] = left[2]
        k, n = load(w, jobs, near, sites, price, roomy, s)
        for j in range(k - 1):
            s.x[j] = x[first + j]
        s.x[k - 1] = out[w]
        now = standing(k, n, s)
        best, amount = -1, 0.0
        for j in range(k - 1):
            here = min(s.x[k - 1], s.high[j] - s.x[j])
            if here < 1 or jobs.cpu[w] * here > 0.25 * size[0, s.cluster[j]]:
                continue
            if jobs.gang[w] > 0 and (here < s.x[k - 1] or s.x[j] + here < jobs.replicas[w]):
                continue
            s.x[j] += here
            s.x[k - 1] -= here
            cost = standing(k, n, s)
            s.x[j] -= here
            s.x[k - 1] += here
            if cost < now - 1e-9:
                best, amount, now = j, here, cost
        if best >= 0:
            x[first + best] += int(amount)
            out[w] -= int(amount)
        take(w, -1.0, jobs, near, x, left)


@compiled
def values(jobs: Jobs, near: Near, sites: Sites, price: F64, x: I64, out: I64, value: F64) -> None:
    """$/h of each workload's plan at given prices of room, into `value` (W,)."""
    s = scratch(widest(near), jobs.demand.shape[1], sites.region.shape[0])
    everything = np.full(price.shape, BIG)
    for w in range(value.shape[0]):
        k, n = load(w, jobs, near, sites, price, everything, s)
        for j in range(k - 1):
            s.x[j] = x[near.first[w] + j]
        s.x[k - 1] = out[w]
        value[w] = standing(k, n, s)


@compiled
def regrets(jobs: Jobs, near: Near, price: F64, left: F64, x: I64) -> F64:
    """What each workload would lose per core by leaving overfull clusters, in $/h; BIG where it uses none of them."""
    result = np.full(jobs.replicas.shape[0], BIG)
    for w in range(result.shape[0]):
        served = max(1e-9, np.sum(jobs.demand[w]))
        here, other = BIG, jobs.unplaced[w]
        for e in range(near.first[w], near.first[w + 1]):
            c = near.cluster[e]
            added = max(0, x[e] - near.stay[e])
            cost = near.run[e] + price[0, c] * jobs.cpu[w] + price[1, c] * jobs.memory[w]
            for r in range(jobs.demand.shape[1]):
                cost += near.serve[e, r] * jobs.demand[w, r] / served
            if left[0, c] < -1e-6 or left[1, c] < -1e-6 or left[2, c] < -1e-6:
                if not near.fixed[e] and (x[e] if jobs.leaving[w] else added) > 0:
                    here = min(here, cost)
            elif near.add[e] > 0 and not near.fixed[e]:
                other = min(other, cost + jobs.start[w] + price[2, c])
        if here < BIG:
            result[w] = (other - here) / max(jobs.cpu[w], 1e-6)
    return result


@inner
def _elsewhere(w: int, k: int, n: int, jobs: Jobs, beyond: F64, s: Scratch) -> float:
    """The relaxed plan with one more column: all clusters that are not listed, as cheap as the cheapest of them."""
    total = jobs.replicas[w]
    s.stay[k], s.low[k], s.add[k], s.high[k], s.stay_price[k], s.new_price[k] = 0.0, 0.0, total, total, 0.0, 0.0
    alone = 0.0
    for r in range(n):
        s.serve[r, k] = beyond[w, r]
        alone += s.demand[r] * beyond[w, r]
    if jobs.gang[w] > 0:
        return alone
    tighten(k, total, s)
    cost = relaxed(k + 1, n, s)
    for j in range(k - 1):
        s.high[j] = s.best[j]
    if cost > 0.9 * SHORTFALL_DOLLARS:
        # Spread is asked for, not enforced: a plan that misses it pays for it and is not bound by it.
        cost = min(cost, SHORTFALL_DOLLARS + relaxed(k + 1, n, s))
    return cost


@compiled
def lower_bound(
    jobs: Jobs, near: Near, sites: Sites, price: F64, capacity: F64, whole: bool, beyond: F64, use: F64,
    least: F64,
) -> None:  # fmt: skip
    """Each workload's least cost at the prices, room being no bound: their sum less price x capacity is a lower bound.

    Args:
        jobs: workloads.
        near: the clusters they choose from.
        sites: clusters.
        price: (3, C), at least 0.
        capacity: (3, C).
        whole: whole replicas on the listed clusters (a stronger bound, tested, not proved) instead of fractional ones
            on all clusters (a proved one).
        beyond: (W, O + 1) what clusters that are not listed cost at least.
        use: (3, C), out: what the plans use of the listed clusters.
        least: (W,), out: $/h.
    """
    s = scratch(widest(near) + 1, jobs.demand.shape[1], sites.region.shape[0])
    everything = np.full(capacity.shape, BIG)
    use[:] = 0.0
    for w in range(least.shape[0]):
        k, n = load(w, jobs, near, sites, price, everything, s)
        if jobs.gang[w] > 0:
            least[w] = gang(k, n, jobs.replicas[w], jobs.gang[w], s)
            if not whole:
                least[w] = min(least[w], _elsewhere(w, k, n, jobs, beyond, s))
        elif whole:
            least[w] = from_scratch(k, n, jobs.replicas[w], s, EXCHANGES + jobs.replicas[w])
        else:
            least[w] = _elsewhere(w, k, n, jobs, beyond, s)
        for j in range(k - 1):
            if s.x[j] > 0 and s.low[j] == 0:
                c = s.cluster[j]
                added = max(0.0, s.x[j] - s.stay[j])
                counted = s.x[j] if jobs.leaving[w] else added
                use[0, c] += jobs.cpu[w] * counted
                use[1, c] += jobs.memory[w] * counted
                use[2, c] += added
