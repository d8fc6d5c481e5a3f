"""What a namespace allows: its ResourceQuotas, and the PodDisruptionBudgets that select a workload."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rebalancer.adapters.kubernetes.structs import Budget, Quota, quantity
from rebalancer.core.model import PodBudget

_NAMES = {
    "cpu": "cpu", "requests.cpu": "cpu", "memory": "memory", "requests.memory": "memory", "pods": "pods",
    "count/pods": "pods",
}  # fmt: skip
_OTHERS = frozenset({"Terminating", "BestEffort"})
"""Scopes of pods that end by themselves or request nothing; a quota of another scope counts, as ours may be in it."""


def quotas_of(quotas: Iterable[Quota]) -> dict[str, dict[str, float]]:
    """Returns what is left by namespace and resource, the least where several quotas bind; limits are not read.

    A quota whose use was never counted leaves nothing yet: its controller writes it within seconds.

    Raises:
        ValueError: a quantity is none.
    """
    result: dict[str, dict[str, float]] = {}
    for one in quotas:
        if _OTHERS & set(one.spec.scopes or ()):
            continue
        left = result.setdefault(one.metadata.namespace, {})
        used = one.status.used or {}
        for name, hard in (one.spec.hard or {}).items():
            known = _NAMES.get(name) or (name.removeprefix("requests.") if name.startswith("requests.") else "")
            if known:
                free = max(0.0, quantity(hard) - quantity(used[name])) if name in used else 0.0
                left[known] = min(left.get(known, free), free)
    return result


def budgets_of(budgets: Iterable[Budget], namespace: str, labels: Mapping[str, str]) -> tuple[PodBudget, ...]:
    """Returns the budgets that select pods with such labels; an expression beside the labels is taken to hold."""
    return tuple(
        PodBudget(b.spec.min_available, b.spec.max_unavailable)
        for b in budgets
        if b.metadata.namespace == namespace
        and b.spec.selector is not None
        and (b.spec.selector.match_labels or {}).items() <= labels.items()
    )
