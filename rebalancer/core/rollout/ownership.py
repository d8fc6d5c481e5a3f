"""Which rollout owns a workload: one at a time, and never a newcomer while another has something in the clusters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rebalancer.core.rollout.stored import Stored


def holds(one: Stored) -> bool:
    """Whether the rollout may have left something in a cluster: it is under way, or it took a Deployment over."""
    return one.active or any(c.stable for c in one.status.clusters.values())


def _governing(one: Stored) -> Stored:
    """A rollout that holds one Deployment goes on with it, although its spec names another one meanwhile."""
    was, now = one.status.workload, one.spec.workload
    if not was or was == now or not holds(one):
        return one
    text = f"workloadRef was changed from {was} to {now}; set it back, or delete the rollout"
    return _with(replace(one, spec=replace(one.spec, workload=was)), text)


def _with(one: Stored, problem: str) -> Stored:
    return replace(one, problem="; ".join(text for text in (problem, one.problem) if text))


def _rank(one: Stored) -> tuple[bool, bool, bool, str, str]:
    """The least owns. Unreadable ones come last: they decide nothing, and would keep one that can from deciding."""
    return (not one.active, not holds(one), one.waits, one.created, one.spec.key)


def settle(every: Sequence[Stored]) -> list[Stored]:
    """Says of each rollout which workload it governs, and whether another one owns that; it waits, with the problem.

    Deleting one that waits but has traces of its own goes the normal way: it is rolled back and gives back.
    """
    every = [_governing(one) for one in every]
    owners: dict[str, Stored] = {}
    for one in sorted(every, key=_rank):
        owners.setdefault(one.spec.workload_key, one)
    out = []
    for one in sorted(every, key=lambda s: s.spec.key):
        owner = owners[one.spec.workload_key]
        if owner is not one:
            one = _with(one, f"{one.spec.workload_key} belongs to the rollout {owner.spec.key} already")
            one = replace(one, waits=not (one.deleting and not one.waits and holds(one)))
        out.append(one)
    return out
