"""Bounds by weak duality, and the measures that prices of room go by."""

from __future__ import annotations

import numpy as np

from rebalancer.core.placement.compiled import Near
from rebalancer.core.placement.nearby import beyond_of, jobs_of, owner_of, sites_of
from rebalancer.core.placement.passes import lower_bound
from rebalancer.core.placement.problem import MAY_STAY, MUST_STAY, UNBOUND, Floats, Problem


def sizes(problem: Problem) -> Floats:
    """(3, C) capacities as a measure of how full a cluster is; never 0."""
    known = problem.capacity < UNBOUND / 2
    mean = np.where(known, problem.capacity, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    return np.asarray(np.maximum(problem.capacity, np.maximum(1e-3 * mean, 1e-6)[:, None]), np.float64)


def usual(problem: Problem, near: Near) -> Floats:
    """(3,) usual prices per core, GiB and addition: what a middling cluster costs more than the best one."""
    weight = problem.demand / np.maximum(problem.demand.sum(axis=1, keepdims=True), 1e-12)
    owner = owner_of(near)
    cost = near.run + (near.serve * weight[owner]).sum(axis=1)
    count = np.diff(near.first)
    some = count > 0
    first = near.first[:-1][some]
    if not len(first):
        return np.full(3, 1e-3)
    extra = np.add.reduceat(cost, first) / count[some] - np.minimum.reduceat(cost, first)
    replicas = problem.replicas[some]
    mean = float((extra * replicas).sum() / max(replicas.sum(), 1)) + 1e-6
    cpu = float((problem.cpu[some] * replicas).sum() / max(replicas.sum(), 1))
    memory = float((problem.memory[some] * replicas).sum() / max(replicas.sum(), 1))
    return np.array([mean / max(cpu, 1e-6), mean / max(memory, 1e-6), mean])


def bound(problem: Problem, near: Near, price: Floats, *, whole: bool = False) -> tuple[float, Floats, Floats]:
    """A lower bound of the cost of every plan, by weak duality.

    Args:
        problem: the fleet.
        near: clusters to choose from.
        price: (3, C); any prices give a bound, good ones a tight one.
        whole: see `lower_bound`.

    Returns:
        (bound in $/h, its parts by workload, what the cheapest plans use (3, C)).
    """
    use, least = np.zeros(price.shape), np.zeros(problem.size)
    lower_bound(
        jobs_of(problem), near, sites_of(problem), price, problem.capacity, whole,
        beyond_of(problem, near, price), use, least,
    )  # fmt: skip
    return dual_value(problem, price, least), least, use


def dual_value(problem: Problem, price: Floats, least: Floats) -> float:
    """Sum of the workloads' least costs less what the room is worth at the prices."""
    held = float(np.where(price > 0, price * np.minimum(problem.capacity, UNBOUND), 0.0).sum())
    return float(least.sum()) - held


def constant(problem: Problem) -> Floats:
    """(W,) $/h that every plan pays: replicas that must stay, and what removing all others would cost."""
    must = (problem.state & MUST_STAY) > 0
    fixed = np.where(must, problem.run * problem.now, 0.0).sum(axis=1)
    kept = ((problem.state & MAY_STAY) > 0) & ~must
    return np.asarray(fixed + problem.stop * np.where(kept, problem.now, 0).sum(axis=1), np.float64)
