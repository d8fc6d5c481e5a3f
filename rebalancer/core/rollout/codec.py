"""Status <-> JSON values, as they stand in the custom resource."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, cast

from rebalancer.core.evidence import MetricEvidence, from_dict, to_dict
from rebalancer.core.rollout.model import Batch, ClusterStatus, Spec, State, Status

_PLAIN = (
    "hold", "hold_since_s", "pause", "problem", "revision", "attempt", "batch", "step", "started_s", "entered_s",
    "elapsed_s", "ticked_s", "no_data_since_s", "bad_since_s", "ended_s", "restore", "outcome", "handled_request",
    "observed_generation", "workload",
)  # fmt: skip
_RENAMED = {
    "revision": "currentPodHash",
    "step": "currentStepIndex",
    "batch": "currentBatchIndex",
    "handled_request": "lastHandledRequest",
}


def _camel(name: str) -> str:
    if name in _RENAMED:
        return _RENAMED[name]
    head, *rest = name.removesuffix("_s").split("_")
    camel = head + "".join(word.capitalize() for word in rest)
    return camel + "Seconds" if name.endswith("_s") else camel


_KEYS = {name: _camel(name) for name in _PLAIN}
_CLUSTER_KEYS = {f.name: _camel(f.name) for f in fields(ClusterStatus)}


def _evidence(e: MetricEvidence) -> dict[str, object]:
    return {
        "fleet": e.fleet,
        "pooled": to_dict(e.pooled),
        "clusters": {name: to_dict(own) for name, own in sorted(e.clusters.items())},
    }


def status_to_dict(spec: Spec, status: Status) -> dict[str, object]:
    """Returns the status as JSON values; equal statuses give equal values."""
    weight = spec.step(status.step).weight if status.active else 0
    return {
        **{key: getattr(status, name) for name, key in _KEYS.items()},
        "phase": status.phase,
        "state": status.state.value,
        "shown": status.shown,
        "message": status.told,
        "currentStepWeight": weight,
        "aborted": list(status.aborted),
        "batches": [
            {"wave": b.wave, "clusters": list(b.clusters), "bakeSeconds": b.bake_s} for b in status.batches
        ],
        "clusters": [
            {"name": name, **{key: getattr(c, field) for field, key in _CLUSTER_KEYS.items()}}
            for name, c in sorted(status.clusters.items())
        ],
        "evidence": {name: _evidence(e) for name, e in sorted(status.evidence.items())},
        "sampledSeconds": dict(sorted(status.sampled_s.items())),
    }  # fmt: skip


def status_from_dict(data: Mapping[str, Any] | None) -> Status:
    """Reads a status back; nothing is a rollout that never ran.

    Raises:
        ValueError: the data is not what `status_to_dict` wrote; starting over would forget what was aborted.
    """
    if not data or "state" not in data:
        return Status()
    try:
        plain = {name: data[key] for name, key in _KEYS.items() if key in data}
        return Status(
            message=_message(data),
            state=State(data["state"]),
            aborted=tuple(data.get("aborted", ())),
            batches=tuple(
                Batch(b["wave"], tuple(b["clusters"]), float(b["bakeSeconds"])) for b in data.get("batches", ())
            ),
            clusters={
                c["name"]: ClusterStatus(**{field: c[key] for field, key in _CLUSTER_KEYS.items() if key in c})
                for c in data.get("clusters", ())
            },
            evidence={name: _metric(cast("Mapping[str, Any]", e)) for name, e in data.get("evidence", {}).items()},
            sampled_s={str(k): float(v) for k, v in data.get("sampledSeconds", {}).items()},
            **plain,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the status of the rollout can't be read: {error!r}") from error


def _message(data: Mapping[str, Any]) -> str:
    """The last decision, without the problem that stands before it for readers of the object."""
    return str(data.get("message", "")).removeprefix(data.get("problem", "")).removeprefix("; ")


def _metric(data: Mapping[str, Any]) -> MetricEvidence:
    clusters = {name: from_dict(own) for name, own in data["clusters"].items()}
    return MetricEvidence(from_dict(data["pooled"]), clusters, int(data["fleet"]))
