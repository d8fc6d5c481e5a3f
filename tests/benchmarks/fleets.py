"""Generated fleets for the placement benchmark: clusters on a globe, workloads of mixed size, strategy and rules.

Nothing here was tuned to the planner: shares and sizes are round numbers of what public traces show (many small
workloads, few large ones; most users near, some far).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rebalancer.core.placement.items import (
    AMORTISATION_H,
    LATENCY_DOLLARS,
    MOVE_DOLLARS,
    REMOVE_DOLLARS,
    UNPLACED_DOLLARS,
)
from rebalancer.core.placement.problem import MAY_STAY, Floats, Problem, Small

SIZES = {"8x50": (8, 50), "20x1,000": (20, 1_000), "50x10,000": (50, 10_000), "200x100,000": (200, 100_000)}
ORIGINS = 5
KM_PER_MS = 70.0
"""Great-circle kilometres a round trip of 1 ms covers: light in fibre and back, with a third of detour."""


def _globe(rng: np.random.Generator, clusters: int) -> tuple[np.ndarray, Floats]:
    """(region of each cluster, round trip in ms from each region to each cluster)."""
    regions = min(clusters, max(4, clusters // 3))
    spot = rng.normal(size=(regions, 3))
    spot /= np.linalg.norm(spot, axis=1, keepdims=True)
    region = np.concatenate([np.arange(regions), rng.integers(0, regions, clusters - regions)])
    angle = np.arccos(np.clip(spot @ spot[region].T, -1, 1))
    return region, 6371.0 * angle / KM_PER_MS + rng.uniform(0.5, 2.0, (regions, clusters))


EVENTS = ("shift", "outage", "price", "noise", "some")


def make(size: str | tuple[int, int], seed: int, use: float = 0.85) -> Problem:
    """Makes a fleet without replicas.

    Args:
        size: key of SIZES, or (clusters, workloads).
        seed: of the generator.
        use: share of the fleet's cores that all replicas together ask for.
    """
    clusters, workloads = SIZES[size] if isinstance(size, str) else size
    rng = np.random.default_rng([seed, clusters, workloads])
    region, distance = _globe(rng, clusters)
    replicas = np.clip(np.round(rng.lognormal(1.5, 0.9, workloads)), 1, 200).astype(np.int64)
    cpu = rng.choice([0.25, 0.5, 1.0, 2.0, 4.0, 8.0], workloads, p=[0.2, 0.3, 0.25, 0.15, 0.08, 0.02])
    memory = cpu * rng.choice([1.0, 2.0, 4.0, 8.0], workloads, p=[0.1, 0.3, 0.4, 0.2])
    weights = np.array([[1.0, 0.0, 0.05], [0.05, 0.0, 1.0], [0.05, 1.0, 0.05]])
    latency, data, money = weights[rng.choice(3, workloads, p=[0.5, 0.3, 0.2])].T
    mass = rng.dirichlet(np.full(distance.shape[0], 1.5))
    origin, demand = _users(rng, mass, replicas)
    price = rng.uniform(0.02, 0.06, clusters)
    allowed = np.ones((workloads, clusters), np.bool_)
    home = rng.integers(0, distance.shape[0], workloads)
    tied = rng.random(workloads) < 0.15
    for w in np.flatnonzero(tied):
        near = np.argsort(distance[home[w]])[: max(3, clusters // 3)]
        allowed[w] = np.isin(np.arange(clusters), near)
    allowed &= ~((rng.random(clusters) < 0.05)[None, :] & (rng.random(workloads) < 0.8)[:, None])
    gang = (rng.random(workloads) < 0.03) & (replicas * cpu < 64)
    spread = np.where(gang, 1, rng.choice([1, 2, 3], workloads, p=[0.65, 0.3, 0.05]))
    spot = rng.random(clusters) < 0.15
    spot_max = np.where(rng.random(workloads) < 0.2, replicas // 2, replicas)
    memory_price = price / 8.0
    none = np.zeros((workloads, clusters), np.int32)
    return Problem(
        replicas=replicas, demand=demand, origin=origin, distance=distance, reach=latency * LATENCY_DOLLARS,
        site_row=np.where(data > 0, rng.integers(0, clusters, workloads), -1)[:, None].astype(np.int64),
        site=distance[region], site_weight=(data * LATENCY_DOLLARS)[:, None],
        run=(money[:, None] * (cpu[:, None] * price + memory[:, None] * memory_price)).astype(np.float32),
        now=none, add=np.where(allowed, replicas[:, None], 0).astype(np.int32),
        state=np.where(allowed, MAY_STAY, 0).astype(np.int8), cpu=cpu, memory=memory,
        unplaced=UNPLACED_DOLLARS * 2.0 ** rng.choice([0.0, 1.0, 2.0], workloads, p=[0.7, 0.2, 0.1]),
        start=np.full(workloads, MOVE_DOLLARS / AMORTISATION_H),
        stop=np.full(workloads, REMOVE_DOLLARS / AMORTISATION_H),
        budget=replicas.astype(np.float64), min_clusters=np.minimum(spread, replicas),
        min_regions=np.ones(workloads, np.int64), share=replicas.copy(), cluster_max=replicas.copy(), spot_max=spot_max,
        floor=np.zeros(workloads, np.int64), peak=np.zeros(workloads), gang=np.where(gang, replicas, 0),
        region=region, spot=spot,
        leaving=np.ones(workloads, np.bool_),
        capacity=_capacity(rng, mass[region] / np.bincount(region)[region], replicas, cpu, memory, use),
    )  # fmt: skip


def _users(rng: np.random.Generator, mass: Floats, replicas: np.ndarray) -> tuple[np.ndarray, Floats]:
    """Origins of each workload and their demand in replica equivalents; most of it comes from the first."""
    workloads, regions = len(replicas), len(mass)
    count = rng.integers(1, ORIGINS + 1, workloads)
    every = np.resize(np.arange(regions), max(ORIGINS, regions))
    chance = np.resize(mass, len(every)) / np.resize(mass, len(every)).sum()
    origin = np.stack([rng.choice(every, ORIGINS, replace=False, p=chance) for _ in range(workloads)])
    share = rng.dirichlet(np.full(ORIGINS, 0.8), workloads)
    share = -np.sort(-share, axis=1) * (np.arange(ORIGINS) < np.minimum(count, regions)[:, None])
    share /= share.sum(axis=1, keepdims=True)
    return origin.astype(np.int64), share * (replicas * rng.uniform(0.75, 1.0, workloads))[:, None]


def _capacity(
    rng: np.random.Generator, mass: Floats, replicas: np.ndarray, cpu: Floats, memory: Floats, use: float
) -> Floats:
    """(3, C): cores, GiB and, for the first placement, any number of additions; room is where users are, about."""
    clusters = len(mass)
    share = (mass + 0.5 / clusters) * rng.lognormal(0.0, 0.4, clusters)
    share /= share.sum()
    cores = share * float((replicas * cpu).sum()) / use
    ratio = float((replicas * memory).sum()) / float((replicas * cpu).sum())
    return np.stack([cores, cores * ratio * rng.uniform(1.0, 1.3, clusters), np.full(clusters, 1e9)])


def later(problem: Problem, plan: Small, event: str, seed: int) -> Problem:
    """The same fleet a cycle later, standing as planned.

    Args:
        problem: the fleet.
        plan: (W, C) where it stands.
        event: shift (demand -35 to +35 % by region), outage of a cluster, price (a region dearer by 60 %), noise
            (+-5 % of demand, everywhere), some (5 % of the workloads by up to 30 %); any
            other word changes nothing.
        seed: of the event.
    """
    rng = np.random.default_rng([seed, 7])
    workloads, clusters = plan.shape
    factor = np.ones((workloads, ORIGINS))
    run = problem.run
    state, add, now = problem.state.copy(), problem.add.copy(), plan.astype(np.int32)
    capacity = problem.capacity.copy()
    if event == "shift":
        wave = 0.35 * np.sin(np.arange(problem.distance.shape[0]) / problem.distance.shape[0] * 2 * np.pi + seed)
        factor = 1.0 + wave[problem.origin]
    elif event == "noise":
        factor = rng.uniform(0.95, 1.05, (workloads, 1)) * np.ones(ORIGINS)
    elif event == "some":
        picked = np.flatnonzero(rng.random(workloads) < 0.05)
        factor[picked] = rng.uniform(0.7, 1.3, (len(picked), 1))
    elif event == "outage":
        # The middling one: to lose the largest is another fleet, to lose the smallest is nothing.
        lost = int(np.argsort(capacity[0])[clusters // 2])
        state[:, lost], add[:, lost], now[:, lost] = 0, 0, 0
        capacity[:, lost] = 0.0
    elif event == "price":
        dear = np.isin(problem.region, problem.region[rng.integers(0, clusters, 1)]).astype(np.bool_)
        run = np.where(dear[None, :], run * np.float32(1.6), run)
    demand = problem.demand * factor
    total = demand.sum(axis=1)
    # Stabilised as the planner's scaling does: a replica more or less only where demand leaves the band.
    slack = total / np.maximum(problem.replicas, 1)
    wanted = np.where((slack > 1.0) | (slack < 0.65), np.ceil(total / 0.9), problem.replicas).astype(np.int64)
    wanted = np.maximum(wanted, 1)
    fit = np.minimum(1.0, wanted / np.maximum(total, 1e-9))
    over = float((wanted * problem.cpu).sum()) / float(capacity[0].sum())
    if over > 0.9:
        capacity[:2] *= over / 0.9
    # A tenth of what stands may be added in a cycle, beside growth and what the outage took.
    standing = now.sum(axis=1)
    growth = float(np.maximum(wanted - standing, 0).sum())
    capacity[2] = np.ceil(0.1 * now.sum(axis=0)) + np.ceil(2.0 * growth * capacity[0] / capacity[0].sum()) + 2.0
    gangs = problem.gang > 0
    budget = np.maximum(0, wanted - standing) + np.where(gangs, wanted, np.maximum(1, np.ceil(0.25 * standing)))
    return replace(
        problem, replicas=wanted, demand=demand * fit[:, None], now=now,
        add=np.where(add > 0, wanted[:, None], 0).astype(np.int32),
        state=state, capacity=capacity, budget=budget.astype(np.float64), gang=np.where(gangs, wanted, 0),
        min_clusters=np.minimum(problem.min_clusters, wanted), share=wanted.copy(), cluster_max=wanted.copy(),
        spot_max=np.where(problem.spot_max < problem.replicas, wanted // 2, wanted), run=run,
    )  # fmt: skip
