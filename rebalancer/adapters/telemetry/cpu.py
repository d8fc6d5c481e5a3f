"""CPU of each workload through one backend, and where it hides demand because pods may not use more.

CPU that is capped says how much was allowed, not how much was wanted: it is censored. Pods are capped when the kernel
throttles them, or when they use what their limit allows.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rebalancer.adapters.telemetry import promql
from rebalancer.adapters.telemetry.backend import Backend
from rebalancer.adapters.telemetry.decode import Series
from rebalancer.adapters.telemetry.errors import AnswerError
from rebalancer.adapters.telemetry.promql import Selector

THROTTLED_RATIO = 0.25
"""Share of the scheduler's periods in which a workload was throttled; where kubernetes-mixin's CPUThrottlingHigh is."""
AT_LIMIT_RATIO = 0.9
"""Mean use of a container's CPU limit over a workload's pods from which on it is taken to be at its limit."""
_WORDS = {
    "throttled": "its pods are throttled in {:.0%} of the CPU periods",
    "limit": "its pods use {:.0%} of their CPU limit",
}
Place = tuple[str, str]


def selector(backend: Backend, namespaces: Iterable[str], metric: str = promql.CPU) -> Selector:
    """Containers' CPU in the namespaces, without the pods' own cgroups, which would count twice."""
    return Selector(metric).where(
        ("container", "!=", ""), ("container", "!=", "POD"), ("namespace", "=~", promql.one_of(namespaces)),
        *backend.matchers(),
    )  # fmt: skip


async def used(
    backend: Backend, namespaces: Iterable[str], window_s: float, now: float
) -> tuple[dict[Place, float], list[str]]:
    """Reads cores by (workload, cluster); never raises, problems come as sentences."""
    try:
        answer = await backend.query(promql.cpu_rate(selector(backend, namespaces), backend.by, window_s), now)
    except AnswerError as error:
        return {}, [f"CPU: {error}"]
    found: dict[Place, float] = {}
    for one in answer.series:
        place = _place(backend, one)
        if place is not None:
            found[place] = found.get(place, 0.0) + float(one.values[0])
    return found, []


async def censored(
    backend: Backend, namespaces: Iterable[str], window_s: float, now: float
) -> tuple[dict[Place, str], list[str]]:
    """Reads for which (workload, cluster) CPU hides demand, with the words why; never raises."""
    names = sorted(namespaces)
    periods, stopped = (selector(backend, names, metric) for metric in (promql.PERIODS, promql.THROTTLED))
    throttled = promql.throttled(stopped, periods, backend.by, window_s)
    limits = Selector(promql.LIMITS).where(
        ("resource", "=", "cpu"), ("namespace", "=~", promql.one_of(names)), *backend.matchers()
    )
    at_limit = promql.at_limit(selector(backend, names), limits, backend.by, window_s)
    query = promql.either({"throttled": f"{throttled} > {THROTTLED_RATIO}", "limit": f"{at_limit} > {AT_LIMIT_RATIO}"})
    try:
        answer = await backend.query(query, now)
    except AnswerError as error:
        return {}, [f"whether CPU is throttled: {error}"]
    found: dict[Place, list[str]] = {}
    for one in answer.series:
        place, words = _place(backend, one), _WORDS.get(one.labels.get("kind", ""))
        if place is not None and words is not None:
            found.setdefault(place, []).append(words.format(float(one.values[0])))
    return {place: " and ".join(words) for place, words in found.items()}, []


def _place(backend: Backend, one: Series) -> Place | None:
    cluster, name = backend.cluster_of(one.labels), one.labels.get(promql.WORKLOAD, "")
    if not cluster or not name or not np.isfinite(one.values[0]):
        return None
    return f"{one.labels.get('namespace', '')}/{name}", cluster
