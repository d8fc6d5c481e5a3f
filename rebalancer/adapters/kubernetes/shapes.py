"""What a pod asks of its node: requests as the scheduler counts them, node affinity, tolerations."""

from __future__ import annotations

from rebalancer.adapters.kubernetes.structs import Container, Node, PodSpec, quantity
from rebalancer.core.model import Effect, NodeMatch, Taint, Toleration

_ORDINARY = frozenset({"cpu", "memory", "ephemeral-storage", "pods"})
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")


def requests_of(spec: PodSpec) -> tuple[float, float]:
    """What a pod requests, cores and bytes."""
    return _total(spec, "cpu"), _total(spec, "memory")


def extended_of(spec: PodSpec) -> dict[str, float]:
    """Units of other resources that a pod requests, such as `nvidia.com/gpu`."""
    containers = (*(spec.init_containers or ()), *(spec.containers or ()))
    names = {n for c in containers for n in (c.resources.requests or {} if c.resources else {})}
    names |= (spec.resources.requests or {}).keys() if spec.resources else set()
    return {n: total for n in sorted(names - _ORDINARY) if (total := _total(spec, n)) > 0}


def _total(spec: PodSpec, name: str) -> float:
    """One resource of a pod, as the scheduler counts it.

    Init containers run one after another beside the sidecars (init containers that always restart) before them.
    """
    sidecars = peak = 0.0
    for one in spec.init_containers or ():
        amount = _request(one, name)
        if one.restart_policy == "Always":
            sidecars += amount
            peak = max(peak, sidecars)
        else:
            peak = max(peak, sidecars + amount)
    total = max(peak, sidecars + sum(_request(c, name) for c in spec.containers or ()))
    whole = (spec.resources.requests or {}).get(name) if spec.resources else None
    total = quantity(whole) if whole is not None else total
    return total + quantity((spec.overhead or {}).get(name, 0))


def _request(container: Container, name: str) -> float:
    found = container.resources.requests if container.resources else None
    return quantity(found[name]) if found and name in found else 0.0


def affinity_of(spec: PodSpec) -> tuple[tuple[NodeMatch, ...], ...]:
    """The terms of the required node affinity; a term without expressions matches nothing and stays empty.

    Raises:
        ValueError: an operator is none of Kubernetes.
    """
    node = spec.affinity.node_affinity if spec.affinity else None
    terms = node.required.node_selector_terms if node and node.required else None
    found = []
    for term in terms or ():
        ones = (*(term.match_expressions or ()), *(term.match_fields or ()))
        for one in ones:
            if one.operator not in _OPERATORS:
                raise ValueError(f"node affinity has the operator {one.operator!r}")
        found.append(tuple(NodeMatch(o.key, o.operator, tuple(o.values or ())) for o in ones))
    return tuple(found)


def tolerations_of(spec: PodSpec) -> tuple[Toleration, ...]:
    """The tolerations that count where pods are placed; those of NoExecute too, as a tainted node evicts the others."""
    return tuple(
        Toleration(
            t.key, "Exists" if t.operator == "Exists" else "Equal", t.value, Effect(t.effect) if t.effect else None
        )
        for t in spec.tolerations or ()
        if t.effect in ("", *Effect)
    )


def taints_of(node: Node) -> tuple[Taint, ...]:
    """The taints of a node that bar pods."""
    return tuple(Taint(t.key, t.value, Effect(t.effect)) for t in node.spec.taints or () if t.effect in tuple(Effect))


def extended_room(node: Node) -> dict[str, float]:
    """Allocatable units of other resources."""
    return {k: quantity(v) for k, v in (node.status.allocatable or {}).items() if k not in _ORDINARY and "/" in k}
