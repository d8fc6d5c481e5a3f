"""What `rebalancer check` says of the metrics: there, degraded or missing, what that degrades, and the next step."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rebalancer.adapters.telemetry import dialect, network, promql
from rebalancer.adapters.telemetry.backend import Backend
from rebalancer.adapters.telemetry.decode import Series
from rebalancer.adapters.telemetry.demand import Source
from rebalancer.adapters.telemetry.discover import has_stores
from rebalancer.adapters.telemetry.errors import AnswerError
from rebalancer.adapters.telemetry.presence import Presence
from rebalancer.adapters.telemetry.promql import Selector
from rebalancer.catalog import RECORDED

State = Literal["ok", "degraded", "missing"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        state: ok, degraded or missing.
        what: backend, cluster, demand, history, censoring, probes, cpu or room.
        name: which one.
        sentence: what was found.
        degrades: what does not work because of it; empty when ok.
        next_step: what to do about it; empty when ok.
    """

    state: State
    what: str
    name: str
    sentence: str
    degrades: str = ""
    next_step: str = ""


def no_backend(cluster: str) -> Finding:
    """A cluster that no backend serves."""
    return Finding(
        "missing", "cluster", cluster, f"No backend serves {cluster}.", _CLUSTER,
        "Add it to telemetry.backends[].clusters.",
    )  # fmt: skip


_CLUSTER = "Nothing is decreased there, and its demand is held, then unknown."
_FIX = {
    "auth": "Set bearerTokenFile of the backend to a token that may query.",
    "not-prometheus": "Set url of the backend to where /api/v1/query is found.",
    "unreachable": "Check the URL, and that the server runs.",
    "timeout": "Look at the server's load, or raise timeout of the backend.",
}


async def look(
    backend: Backend, presence: Presence, sources: Sequence[Source], now: float, history_s: float, deadline_s: float
) -> tuple[Finding, ...]:
    """Looks at all that is needed of one backend; never raises.

    Args:
        backend: who is asked.
        presence: its memory of who was seen.
        sources: the ways in which policies count demand.
        now: Unix seconds.
        history_s: how far back demand is read.
        deadline_s: total deadline.
    """
    found: list[Finding] = []
    try:
        async with asyncio.timeout(deadline_s):
            found.append(await _server(backend, now))
            found += await _clusters(backend, presence, sources, now)
            for source in sources:
                if source.ask.query:
                    found.append(await _demand(backend, source, now))
                if not source.ask.query or found[-1].state != "missing":
                    found.append(await _history(backend, source, now, history_s))
            if any(not source.ask.query for source in sources):
                found.append(await _censoring(backend, now))
            found += [await _cpu(backend, sources, now), await _room(backend, now), await _probes(backend, now)]
    except AnswerError as error:
        found.append(_dead(backend, error.kind, str(error)))
    except TimeoutError:
        found.append(_dead(backend, "timeout", f"{backend.url} did not answer within {deadline_s:g} s."))
    return tuple(found)


def _dead(backend: Backend, kind: str, sentence: str) -> Finding:
    names = ", ".join(backend.clusters)
    fix = _FIX.get(kind, "Look at the server's log.")
    return Finding("missing", "backend", backend.name, sentence, f"Nothing is known of {names}.", fix)


async def _server(backend: Backend, now: float) -> Finding:
    await backend.query("vector(1)", now)
    version = ""
    try:
        data = await backend.get("/api/v1/status/buildinfo")
        version = str(data.get("version", "")) if isinstance(data, dict) else ""
    except AnswerError:
        version = "unknown version"
    kind = "thanos" if await has_stores(backend) else "prometheus"
    sentence = f"{backend.url} is {kind.capitalize()} {version}."
    if kind == backend.kind:
        return Finding("ok", "backend", backend.name, sentence)
    return Finding(
        "degraded", "backend", backend.name, f"{sentence[:-1]}, but its type is {backend.kind}.",
        "Missing stores go unnoticed." if kind == "thanos" else "The list of stores can't be read.",
        f"Set type: {kind} of the backend.",
    )  # fmt: skip


async def _clusters(backend: Backend, presence: Presence, sources: Sequence[Source], now: float) -> list[Finding]:
    selectors = []
    for source in sources:
        try:
            selectors.append(source.selector())
        except AnswerError:
            continue  # said where its demand is looked at
    views = presence.views(await presence.look(selectors, now), [str(s) for s in selectors])
    found = []
    for name, view in views.items():
        if view.complete:
            age = "" if view.since_s is None else f", newest sample {max(0.0, now - view.since_s):.0f} s old"
            found.append(Finding("ok", "cluster", name, f"{name} is seen at {backend.url}{age}."))
        else:
            label, value = backend.labels[name]
            step = f'Bring back its metrics with the label {label}="{value}", or set metricsLabel of the cluster.'
            state: State = "missing" if view.state == "failed" else "degraded"
            found.append(Finding(state, "cluster", name, f"{name} is {view.state}: {view.detail}", _CLUSTER, step))
    return found


async def _demand(backend: Backend, source: Source, now: float) -> Finding:
    ask, name = source.ask, ", ".join(sorted(source.ask.policies))
    try:
        labels = [*backend.by, ask.workload_label, "pod", *([ask.origin_label] if ask.origin_label else [])]
        series = (await backend.query(f"count by ({', '.join(labels)}) ({source.selector()})", now)).series
    except AnswerError as error:
        return Finding("missing", "demand", name, str(error), "Demand is unknown.", "Correct demand.query.")
    if not series:
        return Finding(
            "missing", "demand", name, f"{ask.query} has no series at {backend.url}.",
            "Demand is unknown: replicas stay as they are.", "Let the ingress be scraped, or correct demand.query.",
        )  # fmt: skip
    return _labels(backend, source, series, name)


def _labels(backend: Backend, source: Source, series: Sequence[Series], name: str) -> Finding:
    ask, where = source.ask, f"{source.ask.query} at {backend.url}"
    if all(backend.cluster_of(one.labels) == "" for one in series):
        return Finding(
            "missing", "demand", name, f"{where} carries no label {backend.by[0]}.", "Demand by cluster is unknown.",
            "Set it as external or target label, or set metricsLabel of the MemberCluster.",
        )  # fmt: skip
    by_pods = not any(one.labels.get(ask.workload_label) for one in series)
    if by_pods and not any(one.labels.get("pod") for one in series):
        return Finding(
            "missing", "demand", name, f"{where} carries no label {ask.workload_label}, and none of its pods.",
            "Demand is unknown.", "Set demand.workloadLabel to the label that holds the workload's name.",
        )  # fmt: skip
    if ask.origin_label and not any(one.labels.get(ask.origin_label) for one in series):
        return Finding(
            "degraded", "demand", name, f"{where} carries no label {ask.origin_label}.",
            "The origin is unknown: nothing is placed by latency.", "Let the ingress set it, or declare originShares.",
        )  # fmt: skip
    if by_pods:
        return Finding("ok", "demand", name, f"{where}: its workloads are those that own the pods in its label pod.")
    workloads = len({one.labels.get(ask.workload_label) for one in series})
    origins = len({one.labels.get(ask.origin_label) for one in series}) if ask.origin_label else 0
    more = f", {origins} origins" if origins else ""
    return Finding("ok", "demand", name, f"{where}: {workloads} workloads{more}.")


async def _cpu(backend: Backend, sources: Sequence[Source], now: float) -> Finding:
    by_cpu = any(not source.ask.query for source in sources)
    found = (await backend.query(f"count({Selector(promql.CPU).where(*backend.matchers())})", now)).series
    if found:
        return Finding("ok", "cpu", promql.CPU, f"{promql.CPU}: {found[0].values[0]:.0f} series at {backend.url}.")
    return Finding(
        "missing" if by_cpu else "degraded", "cpu", promql.CPU, f"{promql.CPU} has no series at {backend.url}.",
        "Demand by CPU is unknown." if by_cpu else "Capacity per replica can't be learned.",
        "Scrape the kubelets' /metrics/cadvisor, or set capacityPerReplica.",
    )  # fmt: skip


async def _history(backend: Backend, source: Source, now: float, history_s: float) -> Finding:
    """Whether demand can be read back as far as it is wanted, in raw samples."""
    name, days = source.ask.query or promql.CPU, history_s / 86400
    query = f"count(count_over_time({source.selector().where(*backend.matchers())}[2h]))"
    begin = now - history_s + 7200.0
    if (await backend.query(query, begin)).series:
        return Finding("ok", "history", name, f"{name} reaches back {days:.3g} days at {backend.url}.")
    for resolution, seconds in dialect.COARSER if backend.kind == "thanos" else ():
        if (await backend.query(query, begin, resolution)).series:
            return Finding(
                "degraded", "history", name,
                f"{name} reaches back {days:.3g} days at {backend.url} only in data downsampled to {resolution}.",
                f"Peaks shorter than {dialect.COARSE_STEPS * seconds / 60:.0f} min are missing from its older part.",
                "Raise --retention.resolution-raw of Thanos' compactor, or shorten telemetry.history.",
            )  # fmt: skip
    kept = await _retention(backend)
    return Finding(
        "degraded", "history", name, f"{name} has no samples {days:.3g} days ago at {backend.url}{kept}.",
        "The forecast knows fewer days; to know the week it needs two of them.",
        "Raise the retention, or shorten telemetry.history; a new counter grows into it.",
    )  # fmt: skip


async def _retention(backend: Backend) -> str:
    try:
        data = await backend.get("/api/v1/status/runtimeinfo")
    except AnswerError:
        return ""
    kept = data.get("storageRetention") if isinstance(data, dict) else None
    return f", which keeps {kept}" if kept else ""


async def _censoring(backend: Backend, now: float) -> Finding:
    """Whether CPU that hides demand can be told from CPU that shows it."""
    missing = [
        metric for metric in (promql.PERIODS, promql.LIMITS)
        if not (await backend.query(f"count({Selector(metric).where(*backend.matchers())})", now)).series
    ]  # fmt: skip
    if not missing:
        return Finding("ok", "censoring", promql.PERIODS, f"{promql.PERIODS} and {promql.LIMITS} are at {backend.url}.")
    return Finding(
        "degraded", "censoring", missing[0], f"{' and '.join(missing)} at {backend.url}: no series.",
        "CPU of pods that are throttled or at their limit is taken for all that was wanted.",
        "Scrape the kubelets' /metrics/cadvisor and kube-state-metrics, or count requests with demand.query.",
    )  # fmt: skip


async def _room(backend: Backend, now: float) -> Finding:
    metric = "kube_node_status_allocatable"
    if (await backend.query(f"count({Selector(metric).where(*backend.matchers())})", now)).series:
        return Finding("ok", "room", metric, f"{metric} is there at {backend.url}.")
    return Finding(
        "degraded", "room", metric, f"{metric} has no series at {backend.url}.",
        "Room is known from the API servers only.", "Scrape kube-state-metrics.",
    )  # fmt: skip


async def _probes(backend: Backend, now: float) -> Finding:
    found = (await backend.query(f"count by (__name__) ({network.ALL})", now)).series
    missing = sorted(set(RECORDED) - {one.labels.get("__name__", "") for one in found})
    if not missing:
        return Finding("ok", "probes", network.PREFIX + "*", f"{len(found)} recordings of probes at {backend.url}.")
    raw = (await backend.query(f"count({network.RAW})", now)).series
    step = f"Load {network.RULES} into each cluster's Prometheus."
    return Finding(
        "degraded" if found else "missing", "probes", network.PREFIX + "*",
        f"{len(missing)} of {len(RECORDED)} recordings of probes are missing at {backend.url}: "
        f"{', '.join(name.removeprefix(network.PREFIX) for name in missing)}.",
        "Latency is unknown: nothing is placed by it.",
        step if raw else f"Run rebalancer-probe in each cluster and scrape it. {step}",
    )  # fmt: skip
