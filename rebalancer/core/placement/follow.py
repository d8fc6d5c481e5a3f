"""From where a fleet stands to where it should stand: what of a target may begin before anything has left."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from rebalancer.core.placement.problem import MAY_STAY, MUST_STAY, Floats, Ints, Problem, Small

EPSILON = 1e-6
Flags = npt.NDArray[np.bool_]


def follow(problem: Problem, target: Small) -> Small:
    """The part of a target that fits into the room that is free now; replicas that leave give theirs back later.

    First begins what is missing altogether, dearest first; then what spreads a workload that stands in too few
    clusters; then those whose going makes most room where others wait for it. No more of a workload go than begin
    elsewhere, above what it is short of.

    Args:
        problem: the fleet; `capacity` is free now, `add` fits now.
        target: (W, C) within bounds and budgets of the problem, as if what leaves made room at once.

    Returns:
        (W, C) the step; the target itself where all of it fits.
    """
    stays = np.where((problem.state & MAY_STAY) > 0, problem.now, 0)
    come = np.where((problem.state & MUST_STAY) > 0, 0, np.maximum(target - stays, 0))
    tight = np.asarray((needs(problem, come) > problem.capacity + EPSILON).any(axis=0), np.bool_)
    missing = problem.replicas - stays.sum(axis=1)
    # A target may take what stands from who is short, or have no place for it; it stays for all that.
    given_up = np.maximum(stays - target, 0).sum(axis=1) > np.maximum(0, come.sum(axis=1) - missing)
    if not tight.any() and (come <= problem.add).all() and not given_up.any():
        return target
    left, begun = problem.capacity.copy(), np.zeros_like(come)
    size = np.stack([problem.cpu, problem.memory, np.ones(problem.size)], axis=1)
    for w, most in _short(problem, come, missing):
        _admit(problem, w, most, size[w], come, begun, left)
        # What is short keeps the room that it waits for: smaller ones would take it, piece by piece.
        waiting = most - int(begun[w].sum())
        for c in np.flatnonzero(come[w] > begun[w]).tolist() if waiting > 0 else ():
            left[:, c] -= size[w] * min(waiting, int(come[w, c] - begun[w, c]))
            waiting = max(0, waiting - int(come[w, c] - begun[w, c]))
    for w in _others(problem, come, stays, target, tight):
        _admit(problem, w, int(come[w].sum() - begun[w].sum()), size[w], come, begun, left)
    step = np.array(target)
    for w in np.flatnonzero((begun < come).any(axis=1) | given_up).tolist():
        gone = _gone(stays[w] - target[w], int(begun[w].sum()) - int(missing[w]), tight, problem.spot)
        step[w] = stays[w] + begun[w] - gone
        if step[w][problem.spot].sum() > max(problem.spot_max[w], stays[w][problem.spot].sum()):
            # Spot replicas go with the last of the others that come; until then none of them begins.
            step[w] = stays[w]
    return step


def needs(problem: Problem, added: Small) -> Floats:
    """(3, C) cores, GiB and additions of replicas that begin."""
    return np.stack([problem.cpu @ added, problem.memory @ added, added.sum(axis=0, dtype=np.float64)])


def _short(problem: Problem, come: Small, missing: Ints) -> Iterator[tuple[int, int]]:
    """(row, replicas) of what is missing altogether, dearest first."""
    short = np.flatnonzero((missing > 0) & (come.sum(axis=1) > 0))
    for w in short[np.argsort(-problem.unplaced[short], kind="stable")].tolist():
        yield w, int(min(missing[w], come[w].sum()))


def _others(problem: Problem, come: Small, stays: Small, target: Small, tight: Flags) -> Iterator[int]:
    """Rows that exchange replicas, in the order in which they are looked at."""
    used = (stays > 0).sum(axis=1)
    narrow = (used < np.minimum(problem.min_clusters, problem.replicas)) & ((target > 0).sum(axis=1) > used)
    makes = np.where(tight[None, :], np.maximum(stays - target, 0), 0).sum(axis=1) * problem.cpu
    others = np.flatnonzero(come.sum(axis=1) > np.maximum(problem.replicas - stays.sum(axis=1), 0))
    yield from others[np.lexsort((-makes[others], ~narrow[others]))].tolist()


def _admit(problem: Problem, w: int, most: int, size: Floats, come: Small, begun: Small, left: Floats) -> None:
    """Lets replicas of one workload begin where they should stand and fit; a gang as a whole or not at all."""
    for c in np.flatnonzero(come[w] > begun[w]).tolist():
        count = min(most, int(come[w, c] - begun[w, c]), int(problem.add[w, c] - begun[w, c]))
        binds = size > 0
        count = min(count, int(np.min((left[binds, c] + EPSILON) / size[binds])))
        if count > 0 and not (problem.gang[w] > 0 and count < come[w, c]):
            begun[w, c] += count
            left[:, c] -= size * count
            most -= count


def _gone(go: Small, count: int, tight: Flags, spot: Flags) -> Small:
    """Which replicas go for those that began: first where others wait for the room, then where they may vanish."""
    gone = np.zeros_like(go)
    order = np.flatnonzero(go > 0)
    for c in order[np.lexsort((~spot[order], ~tight[order]))].tolist():
        gone[c] = max(0, min(int(go[c]), count))
        count -= int(gone[c])
    return gone
