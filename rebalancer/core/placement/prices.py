"""The large solver: prices of room by mini-batches, then whole replicas in passes that steer by these prices.

Only this module and what it imports need numba; import it inside the function that is called for a large fleet.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rebalancer.core.placement.compiled import BIG, F64, I64, Near
from rebalancer.core.placement.duality import bound, constant, dual_value, sizes, usual
from rebalancer.core.placement.nearby import jobs_of, near_of, owner_of, sites_of
from rebalancer.core.placement.passes import place_pass, price_pass, push_in, regrets, values
from rebalancer.core.placement.problem import MAY_STAY, Floats, Ints, Problem, Small

FINE = ((0.1, 0.05, 1.0), (0.05, 0.05, 1.0), (0.05, 0.03, 1.0), (0.03, 0.02, 1.0), (0.02, 0.02, 1.0),
        (0.02, 0.01, 1.0), (0.01, 0.01, 1.0), (0.01, 0.005, 1.0), (0.005, 0.003, 1.0))  # fmt: skip
COLD = ((8.0, 4.0, 1.0), (4.0, 2.0, 1.0), (2.0, 1.0, 1.0), (1.0, 0.5, 1.0), (0.5, 0.25, 1.0), (0.25, 0.1, 1.0))
COLD_SMALL = (*COLD[1:4], (0.5, 0.2, 1.0), (0.2, 0.1, 1.0), *FINE)
COLD_HUGE = ((4.0, 2.0, 0.3), (2.0, 1.0, 0.5), (1.0, 0.5, 1.0), (0.5, 0.25, 1.0), (0.25, 0.12, 1.0), (0.12, 0.06, 1.0))
WARM = ((2.0, 1.0, 1.0), (1.0, 0.5, 1.0), (0.5, 0.2, 1.0))
WARM_SMALL = ((2.0, 1.0, 1.0), (1.0, 0.5, 1.0), (0.5, 0.2, 1.0), (0.2, 0.1, 1.0), *FINE)
WARM_HUGE = ((0.5, 0.25, 0.5), (0.25, 0.12, 1.0), (0.12, 0.06, 1.0))
"""(first step, last step, share of the workloads) of each price pass."""
WHOLE_WARM = ((6.0, 2.0, 1.0), (2.0, 0.5, 1.0))
WHOLE_COLD, WHOLE_BATCH = (*WHOLE_WARM, (0.5, 0.2, 1.0)), 256
"""Passes after these in a huge fleet, and workloads between two updates of prices: its workloads answer with whole
replicas. At prices for fractional ones they would overfill its clusters by some 4 % of all cores."""
HUGE, LARGE = 20_000, 3_000
GAINS, GAINS_HUGE = (20.0, 12.0, 6.0, 2.0), (12.0, 3.0, 0.7)
POLISH = (1.0, 0.0)
RELUCTANCE = 12.0
"""Where few workloads changed, a move has to pay for itself so many times over: most small gains are in the way of the
next workload. In cycles of noise 3 moves twice as much and ends as far above the bound; full plans lose by it."""
DRIFTED = 3.0
"""Likewise where small changes have added up to a plan too far from the bound, and all are planned again."""
PUSHED = 1500
FULL_RATIO = 0.01
"""A cluster with less room than this has none for who grows."""
Cores = tuple[float, float]
Schedule = tuple[tuple[float, float, float], ...]
ROUNDS, ROUNDS_LARGE, ROUNDS_HUGE, ROUNDS_SHORT = 2, 1, 1, 6
"""Rounds by size; more, up to the last, while something is without a place."""
RAW_RATIO = 0.001
"""While more than this share of a huge fleet has no place, it is not polished: the passes that find one undo that."""
ENOUGH = 0.003
"""The search ends this close to the bound of whole replicas."""
CHUNK = 10


@dataclass(frozen=True, slots=True)
class Solved:
    """A plan of all workloads.

    Attributes:
        plan: (W, C) replicas.
        out: (W,) replicas without a place.
        price: (3, C) what the last core, GiB and addition of a cluster is worth, $/h.
        cost: (W,) $/h of each workload's plan.
        least: (W,) the least it could be at `price`, room being no bound.
        bound: no plan is cheaper than this in sum, $/h.
    """

    plan: Small
    out: Ints
    price: Floats
    cost: Floats
    least: Floats
    bound: float

    @property
    def gap_ratio(self) -> float:
        """How far the plan is above the bound at most."""
        total = float(self.cost.sum())
        return (total - self.bound) / max(abs(self.bound), 1e-9)


@dataclass(frozen=True, slots=True)
class _Kept:
    """A state of the search that may be come back to; `total` is what it costs, $/h."""

    total: float
    x: I64
    out: I64
    left: F64
    cost: F64
    price: F64


class _Search:
    """The state that the passes share."""

    def __init__(self, problem: Problem, near: Near, price: F64, seed: int) -> None:
        """Nothing is placed at the start."""
        self.problem, self.near, self.price = problem, near, price.copy()
        self.base = price.copy()
        self.owner = owner_of(near)
        self.jobs, self.sites = jobs_of(problem), sites_of(problem)
        self.size, self.scale = sizes(problem), usual(problem, near)
        grain = np.array([np.median(problem.cpu), np.median(problem.memory), 1.0])[:, None]
        self.aim = 1.0 - np.clip(grain / self.size, 0.005, 0.08)
        self.left = problem.capacity.copy()
        self.x = np.zeros(len(near.cluster), np.int64)
        self.out = problem.replicas.copy()
        self.cost = np.zeros(problem.size)
        self.least: F64 | None = None
        self.rng = np.random.default_rng(seed)
        self.every = int(np.clip(problem.size // 100, 8, 64))
        whole = problem.cpu * np.where(problem.gang > 0, problem.replicas, 1)
        self.weight = whole
        self.lump = (problem.gang > 0) | (whole > 0.02 * np.median(self.size[0]))

    def place(
        self, order: I64, gain: float, *, share: float = 1.0, fresh: bool = False, done: Cores = (0.0, 0.0)
    ) -> None:
        """One pass over some workloads; `share` scales the prices that steer it when they are not to follow."""
        price = self.price if gain > 0 or share == 1.0 else self.price * share
        place_pass(
            np.ascontiguousarray(order, np.int64), self.every, self.jobs, self.near, self.sites, price, self.base,
            self.left, self.size, self.aim, self.scale, gain, done, fresh, self.x, self.out, self.cost,
        )  # fmt: skip

    def stand(self, plan: Small) -> None:
        """Starts from a plan; what is not on the list of a workload counts as without a place."""
        self.x = plan[self.owner, self.near.cluster].astype(np.int64)
        self.x = np.minimum(self.x, self.near.stay.astype(np.int64) + self.near.add)
        placed = np.bincount(self.owner, self.x, self.problem.size).astype(np.int64)
        self.out = np.maximum(0, self.problem.replicas - placed)
        self.left = self.problem.capacity - self._use()

    def _use(self) -> F64:
        left = np.zeros(self.size.shape)
        free = ~self.near.fixed
        added = np.where(free, np.maximum(self.x - self.near.stay, 0), 0)
        counted = np.where(self.problem.leaving[self.owner], np.where(free, self.x, 0), added)
        clusters = self.size.shape[1]
        for i, each in enumerate(
            (self.problem.cpu[self.owner] * counted, self.problem.memory[self.owner] * counted, added)
        ):
            left[i] = np.bincount(self.near.cluster, each, clusters)
        return left

    def begin_cold(self) -> None:
        """Places everything for the first time: lumps by size, the rest in random order."""
        p = self.problem
        lumps = np.flatnonzero(self.lump)
        lumps = lumps[np.argsort(-self.weight[lumps], kind="stable")]
        rest = self.rng.permutation(np.flatnonzero(~self.lump))
        cores = p.replicas * p.cpu
        self.place(lumps, 0.0, fresh=True)
        self.place(rest, 1.0, fresh=True, done=(float(cores[lumps].sum()), max(float(cores.sum()), 1e-9)))

    def begin_warm(self, plan: Small) -> None:
        """Starts from a plan: first who needs less, then lumps, then who needs more."""
        self.stand(plan)
        placed = np.bincount(self.owner, self.x, self.problem.size)
        less = placed > self.problem.replicas
        self.place(self.rng.permutation(np.flatnonzero(less)), 0.0)
        # A gang that stands and grows waits for others to make room: to move it is to move all of it.
        grows = (self.problem.gang > 0) & (placed > 0) & (self.out > 0)
        self.place(np.flatnonzero(~less & self.lump & ~grows), 0.0)
        # Who has what it wants is asked by the polish only: a quiet fleet stays where it is.
        self.place(self.rng.permutation(np.flatnonzero((self.out > 0) & ~self.lump)), 0.0)
        self.make_room()

    def make_room(self) -> None:
        """Waiting replicas get their cheapest cluster; who loses least by it plans again elsewhere."""
        p = self.problem
        waiting = np.flatnonzero(self.out > 0)
        if not len(waiting) or len(waiting) >= max(10, 0.1 * p.size):
            return
        urgency = p.unplaced[waiting] / np.maximum(p.cpu[waiting], 1e-6)
        waiting = waiting[np.argsort(-urgency, kind="stable")][:PUSHED]
        push_in(waiting, self.jobs, self.near, self.sites, self.price, self.left, self.size, self.x, self.out)
        self._clear(waiting)

    def rounds(self) -> None:
        """Passes with prices that follow, each round polished at true cost; the best round stays."""
        p = self.problem
        everyone, huge = np.arange(p.size), p.size > HUGE
        gains = GAINS_HUGE if huge else GAINS
        usual_rounds = ROUNDS if p.size <= LARGE else ROUNDS_HUGE if huge else ROUNDS_LARGE
        best = None if huge and self.out.sum() > RAW_RATIO * p.replicas.sum() else self._made_room()
        last = max(usual_rounds, ROUNDS_SHORT) - 1
        for number in range(last + 1):
            if best and not best.out.any() and (number >= usual_rounds or self._enough(best.total)):
                break
            for gain in gains:
                self.make_room()
                self.place(self.rng.permutation(everyone), gain)
            if huge and self.out.any() and number < last:
                continue
            kept = self._now()
            best = self._polished(best)
            self._back(kept)
        if best:
            self._back(best)

    def _made_room(self) -> _Kept:
        """Polishes, and makes room for who waits: fewer moves than by prices that make all others think again."""
        best = self._polished(None)
        for _ in range(ROUNDS_SHORT if self.problem.size <= LARGE else 1):
            if not self.out.any():
                break
            self.make_room()
            best = self._polished(best)
        self._back(best)
        return best

    def true_cost(self, problem: Problem) -> None:
        """Sets what each plan costs in the problem as it is, moves at what they cost."""
        free = np.zeros(self.size.shape)
        values(jobs_of(problem), self.near, self.sites, free, self.x, self.out, self.cost)

    def _enough(self, total: float) -> bool:
        """Whether no plan can be much cheaper, by the bound at the prices that the search began with."""
        if self.least is None:
            return False
        value = dual_value(self.problem, self.base, self.least)
        return total - value <= ENOUGH * abs(value)

    def _now(self) -> _Kept:
        total = float(self.cost.sum())
        return _Kept(total, self.x.copy(), self.out.copy(), self.left.copy(), self.cost.copy(), self.price.copy())

    def _back(self, kept: _Kept) -> None:
        self.x, self.out, self.left = kept.x.copy(), kept.out.copy(), kept.left.copy()
        self.cost, self.price = kept.cost.copy(), kept.price.copy()

    def _polished(self, best: _Kept | None) -> _Kept:
        """Lets the prices go in steps, and returns the better of the result and the best so far."""
        for share in POLISH:
            order, regret = self.by_regret()
            # At the prices of room themselves, who regrets nothing has nothing to gain.
            self.place(order[regret[order] > 1e-6] if share == 1.0 else order, 0.0, share=share)
        found = self._now()
        return found if best is None or found.total < best.total - 1e-9 else best

    def regret(self) -> F64:
        """(W,) $/h that each workload pays for not having its plan of choice at the prices of room."""
        if self.least is None:
            whole = self.problem.size <= HUGE
            _, self.least, _ = bound(self.problem, self.near, self.base, whole=whole)
        value = np.zeros(self.problem.size)
        values(self.jobs, self.near, self.sites, self.base, self.x, self.out, value)
        return np.asarray(value - self.least)

    def by_regret(self) -> tuple[I64, F64]:
        """Workloads, first who would gain most per core of room if only there were any, and their regret (W,)."""
        regret = self.regret()
        return np.argsort(-regret / np.maximum(self.problem.cpu, 1e-6), kind="stable"), regret

    def _clear(self, pushed: I64) -> None:
        """Overfull clusters are emptied by those who lose least, at last by those who were pushed in."""
        loss = regrets(self.jobs, self.near, self.price, self.left, self.x)
        hit = np.flatnonzero(loss < 1e17)
        hit = hit[~np.isin(hit, pushed)]
        hit = hit[np.lexsort((loss[hit], self.problem.gang[hit] > 0))]
        done = 0
        while done < len(hit) and (self.left < -1e-6).any():
            part = hit[done : done + CHUNK]
            self.place(part, 0.0)
            done += len(part)
        if (self.left < -1e-6).any():
            self.place(pushed, 0.0)

    def plan(self) -> Small:
        """(W, C) replicas."""
        p = self.problem
        result = np.zeros(p.now.shape, np.int32)
        result[self.owner, self.near.cluster] = self.x
        return result


def iterate_prices(problem: Problem, start: Floats | None, seed: int) -> tuple[Floats, Near]:
    """Prices of room.

    Args:
        problem: the fleet.
        start: (3, C) prices of the last cycle; None begins at 0.
        seed: decides the order in which workloads are looked at.

    Returns:
        (prices (3, C), the clusters to choose from at them).
    """
    cold, size = start is None, problem.size
    schedule: Schedule
    whole: Schedule = ()
    if size > HUGE:
        schedule, whole = (COLD_HUGE, WHOLE_COLD) if cold else (WARM_HUGE, WHOLE_WARM)
    elif size > 2000:
        schedule = COLD if cold else WARM
    else:
        schedule = COLD_SMALL if cold else WARM_SMALL
    price = np.zeros(problem.capacity.shape) if start is None else start.copy()
    near = near_of(problem, price)
    jobs, sites, scale, measure = jobs_of(problem), sites_of(problem), usual(problem, near), sizes(problem)
    rng = np.random.default_rng(seed)
    every = 32 if size >= 1000 else 8
    for number, (first, last, share) in enumerate((*schedule, *whole)):
        order = rng.permutation(size)[: max(min(size, 2000), int(size * share))]
        by_whole, mean = number >= len(schedule), np.zeros(price.shape)
        batch = WHOLE_BATCH if by_whole else every
        price_pass(order, batch, jobs, near, sites, price, measure, scale, (first, last), by_whole, mean)
        price = mean
        if number in (0, 1, len(schedule) - 1) or size > HUGE:
            near = near_of(problem, price)
    return price, near


def solve_all(
    problem: Problem, *, price: Floats | None = None, start: Small | None = None, seed: int = 0, dual: bool = True,
    reluctance: float = 1.0,
) -> Solved:  # fmt: skip
    """Plans all workloads.

    Args:
        problem: the fleet.
        price: prices of the last cycle; None starts cold.
        start: (W, C) plan to start from; None places everything anew.
        seed: decides the order in which workloads are looked at; the same seed gives the same plan.
        dual: whether prices are iterated first; not needed when few workloads changed.
        reluctance: how many times over a move has to pay for itself; costs are returned as they are.
    """
    problem = problem.tidy()
    if price is None or dual:
        price, near = iterate_prices(problem, price, seed)
    else:
        near = near_of(problem, price, left=problem.capacity - problem.use(problem.now))
    # Starting and stopping are dearer by the same factor, so growth is decided as ever.
    asked = replace(problem, start=problem.start * reluctance, stop=problem.stop * reluctance)
    search = _Search(asked, near, price, seed)
    if start is None:
        search.begin_cold()
    else:
        search.begin_warm(start)
    search.rounds()
    search.true_cost(problem)
    value, least, _ = bound(problem, near, price)
    extra = constant(problem)
    return Solved(search.plan(), search.out, price, search.cost + extra, least + extra, value + float(extra.sum()))


def who_makes_room(problem: Problem, active: Ints, plan: Small, price: Floats, most: int) -> Ints:
    """Adds to workloads that are planned again those who would lose least per core by leaving clusters that are full.

    Args:
        problem: the fleet.
        active: rows that are planned in any case.
        plan: (W, C) of all.
        price: (3, C) prices of the last cycle.
        most: how many are added at most.

    Returns:
        All these rows, in order.
    """
    left = problem.capacity - problem.use(plan)
    full = (left[:2] < FULL_RATIO * sizes(problem)[:2]).any(axis=0)
    near = near_of(problem, price, left=left)
    over = np.where(full, -1.0, 1.0) * np.ones((3, 1))
    standing = plan[owner_of(near), near.cluster].astype(np.int64)
    loss = regrets(jobs_of(problem), near, price, over, standing)
    # Not who is planned anyhow, nor who is still on the way to its plan, nor gangs, which could only go as a whole.
    loss[active] = BIG
    loss[(plan != problem.now).any(axis=1) | (problem.gang > 0)] = BIG
    extra = np.argsort(loss, kind="stable")[:most]
    return np.union1d(active, extra[loss[extra] < BIG])


def solve_some(problem: Problem, active: Ints, plan: Small, price: Floats, seed: int) -> Solved:
    """Plans some workloads at given prices; all others stay as planned and only take room.

    Args:
        problem: the fleet.
        active: rows that are planned.
        plan: (W, C) of all.
        price: (3, C) prices of the last cycle.
        seed: see `solve_all`.

    Returns:
        What was found for the rows of `active`.
    """
    others = plan.copy()
    stays = ((problem.state[active] & MAY_STAY) > 0) & ~problem.leaving[active, None]
    others[active] = np.where(stays, problem.now[active], 0)
    capacity = np.maximum(problem.capacity - problem.use(others), 0.0)
    part = problem.rows(active, capacity)
    return solve_all(part, price=price, start=part.now, seed=seed, dual=False, reluctance=RELUCTANCE)
