"""The transportation problems inside one workload: successive shortest paths on at most some twenty clusters.

`transport` serves demand by given replicas, `slopes` says what a replica more or less would change there, and `relaxed`
chooses fractional replicas as well. Columns are clusters, the last one is `unplaced`; rows are origins.
"""

from __future__ import annotations

import numpy as np

from rebalancer.core.placement.compiled import BIG, EPS, Scratch, inner

TINY = 1e-12
STAY, ADD, NOWHERE = -1, -2, -3
ROUNDS, PATHS = 40, 400


@inner
def _reach(k: int, n: int, s: Scratch) -> None:
    """Shortest ways from open replicas to every origin, where served demand may be moved to another cluster."""
    for j in range(k):
        s.at[j] = 0.0 if s.open[j] > EPS else BIG
        s.via_at[j] = -1
    for r in range(n):
        s.of[r] = BIG
        s.via_of[r] = -1
    for _ in range(ROUNDS):
        changed = False
        for r in range(n):
            for j in range(k):
                if s.x[j] > 0 and s.at[j] + s.serve[r, j] < s.of[r] - TINY:
                    s.of[r] = s.at[j] + s.serve[r, j]
                    s.via_of[r] = j
                    changed = True
        if not changed:
            return
        for j in range(k):
            if s.x[j] > 0:
                for r in range(n):
                    if s.flow[r, j] > EPS and s.of[r] - s.serve[r, j] < s.at[j] - TINY:
                        s.at[j] = s.of[r] - s.serve[r, j]
                        s.via_at[j] = r


@inner
def _carry(end: int, steps: int, most: float, s: Scratch) -> float:
    """Walks the way of `_reach` back from origin `end` and pushes `most`; returns what the way can carry."""
    amount, r = float(s.need[end]), end
    for _ in range(steps):
        j = s.via_of[r]
        come = s.via_at[j]
        s.flow[r, j] += most
        if come < 0:
            amount = min(amount, s.open[j])
            s.open[j] -= most
            break
        amount = min(amount, s.flow[come, j])
        s.flow[come, j] -= most
        r = come
    return amount


@inner
def transport(k: int, n: int, s: Scratch) -> float:
    """Serves `s.demand` by the replicas `s.x` as cheaply as can be.

    Args:
        k: columns.
        n: rows; the demand of all rows sums to at most the sum of `s.x`.
        s: reads x, serve, demand; writes flow.

    Returns:
        Its cost in $/h.
    """
    for r in range(n):
        s.need[r] = s.demand[r]
        for j in range(k):
            s.flow[r, j] = 0.0
    for j in range(k):
        s.open[j] = s.x[j]
    for _ in range(PATHS):
        _reach(k, n, s)
        end, best = -1, BIG * 0.5
        for r in range(n):
            if s.need[r] > EPS and s.of[r] < best:
                end, best = r, s.of[r]
        if end < 0:
            break
        amount = _carry(end, k + n, 0.0, s)
        _carry(end, k + n, amount, s)
        s.need[end] -= amount
    cost = 0.0
    for r in range(n):
        for j in range(k):
            if s.flow[r, j] > 0:
                cost += s.serve[r, j] * s.flow[r, j]
    return cost


@inner
def _potentials(k: int, n: int, s: Scratch) -> None:
    """Shortest ways over clusters in use, with served demand as ways back."""
    for j in range(k):
        s.at[j] = 0.0
    for r in range(n):
        s.of[r] = BIG
    for _ in range(ROUNDS):
        changed = False
        for r in range(n):
            for j in range(k):
                if s.x[j] > 0 and s.at[j] + s.serve[r, j] < s.of[r] - TINY:
                    s.of[r] = s.at[j] + s.serve[r, j]
                    changed = True
        for j in range(k):
            for r in range(n):
                if s.flow[r, j] > EPS and s.of[r] - s.serve[r, j] < s.at[j] - TINY:
                    s.at[j] = s.of[r] - s.serve[r, j]
                    changed = True
        if not changed:
            return


@inner
def slopes(k: int, n: int, s: Scratch) -> None:
    """Subgradient of `transport` in x, into `s.slope`.

    The dual of `transport` is max sum of demand * p - sum of x * q with p_r - q_j <= serve[r, j]; q is free in sign
    because demand and replicas are equal in sum (the last row takes what is idle), and -q is the subgradient.
    """
    _potentials(k, n, s)
    for j in range(k):
        if s.x[j] > 0:
            s.slope[j] = -s.at[j]
        else:
            gain = -BIG
            for r in range(n):
                if s.demand[r] > 0 and s.of[r] - s.serve[r, j] > gain:
                    gain = s.of[r] - s.serve[r, j]
            s.slope[j] = -gain


@inner
def _start_labels(k: int, n: int, left: float, s: Scratch) -> None:
    """Labels of clusters that replicas can still reach directly."""
    for j in range(k):
        s.at[j] = BIG
        s.via_at[j] = NOWHERE
        if s.x[j] < s.high[j] - EPS:
            if s.x[j] - s.new[j] < s.stay[j] - EPS:
                s.at[j] = s.stay_price[j]
                s.via_at[j] = STAY
            if left > EPS and s.new[j] < s.add[j] - EPS and s.new_price[j] < s.at[j]:
                s.at[j] = s.new_price[j]
                s.via_at[j] = ADD
    for r in range(n):
        s.of[r] = BIG
        s.via_of[r] = -1


@inner
def _label(k: int, n: int, left: float, s: Scratch) -> int:
    """Shortest ways from staying and added replicas to every origin; returns who gives the budget back, -1 if free."""
    _start_labels(k, n, left, s)
    budget, giver = (0.0, -1) if left > EPS else (BIG, -1)
    for _ in range(ROUNDS):
        changed = False
        for r in range(n):
            for j in range(k):
                if s.at[j] + s.serve[r, j] < s.of[r] - TINY:
                    s.of[r] = s.at[j] + s.serve[r, j]
                    s.via_of[r] = j
                    changed = True
        for j in range(k):
            for r in range(n):
                if s.flow[r, j] > EPS and s.of[r] - s.serve[r, j] < s.at[j] - TINY:
                    s.at[j] = s.of[r] - s.serve[r, j]
                    s.via_at[j] = r
                    changed = True
            if s.new[j] > EPS and s.via_at[j] >= 0 and s.at[j] - s.new_price[j] < budget - TINY:
                budget = s.at[j] - s.new_price[j]
                giver = j
                changed = True
        if giver >= 0:
            for j in range(k):
                free = s.x[j] < s.high[j] - EPS and s.new[j] < s.add[j] - EPS
                if j != giver and free and budget + s.new_price[j] < s.at[j] - TINY:
                    s.at[j] = budget + s.new_price[j]
                    s.via_at[j] = ADD
                    changed = True
        if not changed:
            break
    return giver


@inner
def _push(end: int, giver: int, left: float, most: float, steps: int, s: Scratch) -> float:
    """Walks the way back from origin `end`: at most == 0 it only measures, else it pushes `most`.

    Returns:
        What the way can carry; 0 where it is broken.
    """
    amount, r = float(s.need[end]), end
    for _ in range(steps):
        j = s.via_of[r]
        come = s.via_at[j]
        s.flow[r, j] += most
        if come >= 0:
            amount = min(amount, s.flow[come, j])
            s.flow[come, j] -= most
            r = come
            continue
        if come == NOWHERE:
            return 0.0
        amount = min(amount, s.high[j] - s.x[j])
        s.x[j] += most
        if come == STAY:
            return float(min(amount, s.stay[j] - (s.x[j] - most - s.new[j])))
        amount = min(amount, s.add[j] - s.new[j])
        s.new[j] += most
        if giver < 0:
            return float(min(amount, left))
        come = s.via_at[giver]
        if come < 0:
            return 0.0
        amount = min(amount, s.new[giver], s.flow[come, giver])
        s.new[giver] -= most
        s.x[giver] -= most
        s.flow[come, giver] -= most
        r = come
    return 0.0


@inner
def relaxed(k: int, n: int, s: Scratch) -> float:
    """The cheapest fractional plan of one workload at the prices on the table.

    Args:
        k: columns.
        n: rows.
        s: reads serve, demand, prices, stay, add, high and the budget; writes x, new, flow.

    Returns:
        Its cost in $/h. Should the paths run out (rounding), a lower bound of it.
    """
    floor = 0.0
    for r in range(n):
        s.need[r] = s.demand[r]
        least = BIG
        for j in range(k):
            s.flow[r, j] = 0.0
            least = min(least, s.serve[r, j] + min(s.stay_price[j], s.new_price[j]))
        floor += least * s.demand[r]
    for j in range(k):
        s.x[j] = 0.0
        s.new[j] = 0.0
    left = s.limits[0]
    for _ in range(PATHS):
        giver = _label(k, n, left, s)
        end, best = -1, BIG * 0.5
        for r in range(n):
            if s.need[r] > EPS and s.of[r] < best:
                end, best = r, s.of[r]
        if end < 0:
            break
        amount = _push(end, giver, left, 0.0, k + n, s)
        if amount <= TINY:
            break
        used = np.sum(s.new[:k])
        _push(end, giver, left, amount, k + n, s)
        left -= np.sum(s.new[:k]) - used
        s.need[end] -= amount
    cost, missing = 0.0, 0.0
    for r in range(n):
        missing += s.need[r]
        for j in range(k):
            cost += s.serve[r, j] * s.flow[r, j]
    if missing > 1e-6:
        return floor
    for j in range(k):
        cost += s.stay_price[j] * (s.x[j] - s.new[j]) + s.new_price[j] * s.new[j]
    return cost
