"""Verbs for the command line: the annotation that asks for one, and the status as lines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from rebalancer.core.evidence import log_bad
from rebalancer.core.rollout.model import VERBS, Request, Spec, Status, Verb

REQUEST_ANNOTATION = "rebalancer.dev/rollout-request"


def request_patch(verb: Verb, request_id: str, *, full: bool = False) -> dict[str, object]:
    """Returns the merge patch of a CanaryRollout that asks for a verb.

    Args:
        verb: what is wanted.
        request_id: unique per wish; the status acknowledges it as `lastHandledRequest`.
        full: promote skips all remaining steps and waves.

    Raises:
        ValueError: the verb is unknown, or the id is empty.
    """
    if verb not in VERBS:
        raise ValueError(f"unknown verb {verb!r}; known are {', '.join(VERBS)}")
    if not request_id:
        raise ValueError("a request needs an id")
    text = json.dumps({"id": request_id, "verb": verb, "full": full}, sort_keys=True)
    return {"metadata": {"annotations": {REQUEST_ANNOTATION: text}}}


def parse_request(annotations: Mapping[str, str]) -> Request | None:
    """Reads the request off an object's annotations; None when there is none or it is no request of ours."""
    text = annotations.get(REQUEST_ANNOTATION)
    if not text:
        return None
    try:
        data = json.loads(text)
        request = Request(str(data["id"]), data["verb"], bool(data.get("full", False)))
    except (ValueError, KeyError, TypeError):
        return None
    return request if request.verb in VERBS and request.id else None


def render_status(spec: Spec, status: Status) -> list[str]:
    """Returns a rollout's status as lines for people."""
    lines = [
        f"rollout   {spec.key} of Deployment {spec.workload}",
        f"phase     {status.phase} ({status.shown})",
        f"message   {status.told or '-'}",
        f"revision  {status.revision or '-'}" + (f", attempt {status.attempt}" if status.attempt > 1 else ""),
    ]
    if status.active and status.batches:
        at, steps = min(status.step + 1, len(spec.steps)), len(spec.steps)
        lines.append(
            f"step      wave {status.here.wave} ({status.batch + 1}/{len(status.batches)}), step {at}/{steps}, "
            f"weight {spec.step(status.step).weight}, {status.elapsed_s:.0f} s of it counted"
        )
    if status.aborted:
        lines.append(f"aborted   {', '.join(status.aborted)}")
    lines += _cluster_lines(status)
    return lines


def _cluster_lines(status: Status) -> list[str]:
    lines = []
    for name, c in sorted(status.clusters.items()):
        actual = "unknown" if c.actual_weight is None else f"{c.actual_weight:g} %"
        parts = [f"stable {c.stable or '-'}", f"weight {c.weight} %, actual {actual}", f"canary pods <= {c.target}"]
        for metric, e in sorted(status.evidence.items()):
            own = e.clusters.get(name)
            if own is not None:
                n = own.counts
                parts.append(f"{metric} {n.canary_bad:.0f}/{n.canary_requests:.0f}, ln E_bad {log_bad(own):.1f}")
        if c.note:
            parts.append(c.note)
        lines.append(f"  {name}: {'; '.join(parts)}")
    return lines


def render_list(rollouts: Sequence[tuple[Spec, Status]]) -> list[str]:
    """Returns one line per rollout with a heading."""
    rows = [("ROLLOUT", "PHASE", "STATE", "REVISION", "MESSAGE")]
    rows += [(s.key, t.phase, t.shown, t.revision or "-", t.told or "-") for s, t in rollouts]
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return ["  ".join([*(row[i].ljust(widths[i]) for i in range(4)), row[4]]) for row in rows]
