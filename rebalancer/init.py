"""What `rebalancer init` writes: a commented configuration of what metrics and kubeconfig say of the fleet."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from rebalancer.adapters.kubernetes.kubeconfigs import contexts_of, region_of
from rebalancer.adapters.telemetry.discover import Discovered, discover, matching
from rebalancer.adapters.telemetry.recipes import Recipe
from rebalancer.api.controller import BackendSpec
from rebalancer.errors import RebalancerError


@dataclass(frozen=True, slots=True)
class Member:
    """A cluster as it will be written down.

    Attributes:
        name: of the MemberCluster.
        value: of the metrics label; empty where the metrics don't know it.
        context: of the kubeconfig; empty if none fits.
        region: empty if unknown.
    """

    name: str
    value: str
    context: str
    region: str


def run(url: str, kubeconfig: str, out: Path, token_file: str, ca_file: str) -> str:
    """Discovers and writes.

    Args:
        url: of the metrics backend.
        kubeconfig: path of the kubeconfig file.
        out: file to write; it must not be there yet.
        token_file: bearer token for the backend; empty for none.
        ca_file: its CA; empty for the system's.

    Returns:
        What to tell: one sentence.

    Raises:
        RebalancerError: the backend or the kubeconfig can't be read, or the file is there already.
    """
    if out.exists():
        raise RebalancerError(f"{out} is there already and is not overwritten; name another file with --out")
    spec = BackendSpec(url=url, bearer_token_file=token_file, ca_file=ca_file)
    found = asyncio.run(discover(spec, time.time()))
    known = contexts_of(kubeconfig)
    members = merge(found, known, {c: region_of(kubeconfig, c) for c in known})
    try:
        out.write_text(render(spec, found, members, kubeconfig), encoding="utf-8")
    except OSError as error:
        raise RebalancerError(f"{out} can't be written: {error.strerror}; check the path and its permissions") from None
    return f"{out}: {len(members)} clusters at {url}; read it, then run `rebalancer check --config {out}`"


def merge(found: Discovered, contexts: Mapping[str, str], regions: Mapping[str, str]) -> list[Member]:
    """Joins the clusters of metrics and kubeconfig, by name.

    Args:
        found: of the metrics.
        contexts: contexts of the kubeconfig -> its cluster there.
        regions: context -> region of its nodes; empty where unknown.
    """
    members, taken = [], set()
    for value, region in found.regions.items():
        context = matching(value, contexts)
        taken.add(context)
        members.append(Member(_name(value), value, context, region or regions.get(context, "")))
    members += [Member(_name(c), "", c, regions.get(c, "")) for c in contexts if c not in taken]
    return members


def render(spec: BackendSpec, found: Discovered, members: list[Member], kubeconfig: str) -> str:
    """Returns the configuration as text; it loads as it stands."""
    several = not found.label and len(members) > 1
    lines = [
        "# Written by `rebalancer init`. Lines with LOOK need your eye.",
        "apiVersion: rebalancer.dev/v1alpha1",
        "kind: RebalancerConfig",
        "metadata: {name: fleet}",
        "spec:",
        "  telemetry:",
        "    backends:",
        f"      - type: {found.kind}",
        f"        url: {_text(spec.url)}",
    ]
    for name, value in (("bearerTokenFile", spec.bearer_token_file), ("caFile", spec.ca_file)):
        lines += [f"        {name}: {_text(value)}"] if value else []
    if several:
        lines.append(
            "        # LOOK: no series carries a cluster label. Set one in each Prometheus (external_labels), or list"
        )
        lines.append("        # one backend per cluster, each with clusters: [its name].")
    lines += [f"# LOOK: not found there: {text}." for text in found.missing]
    for member in members:
        lines += _member(member, found.label, kubeconfig)
    return "\n".join([*lines, *_policy(found.recipes)]) + "\n"


def _member(member: Member, label: str, kubeconfig: str) -> list[str]:
    region = member.region or member.name
    lines = [
        "---",
        "apiVersion: rebalancer.dev/v1alpha1",
        "kind: MemberCluster",
        f"metadata: {{name: {_text(member.name)}}}",
    ]
    lines += ["spec:", f"  region: {_text(region)}"]
    if not member.region:
        lines[-1] += "  # LOOK: its nodes don't say; the name that users' origins have"
    context = member.context or member.name
    lines.append(f"  connection: {{kubeconfigPath: {_text(kubeconfig)}, context: {_text(context)}}}")
    if not member.context:
        lines[-1] += "  # LOOK: no context of the kubeconfig has its name"
    if member.value:
        lines.append(f"  metricsLabel: {{{label}: {_text(member.value)}}}")
    elif label:
        lines.append("  # LOOK: no series carries its name; take it out, or set metricsLabel")
    return lines


def _policy(recipes: tuple[Recipe, ...]) -> list[str]:
    """A policy as comments: whose it is, only its owner knows."""
    counting = [recipe for recipe in recipes if recipe.query]
    lines = ["# A policy says which Deployments are placed. Request counters that were found:"]
    lines += [f"#   {recipe.source}: {recipe.metric}; workload: {recipe.workload}." for recipe in recipes]
    if not recipes:
        lines.append("#   none that is known; without one, demand is the pods' CPU and its origin is unknown.")
    lines += [
        "# ---", "# apiVersion: rebalancer.dev/v1alpha1", "# kind: SchedulingPolicy",
        "# metadata: {name: web, namespace: shop}", "# spec:", "#   podSelector: {matchLabels: {app: web}}",
        "#   strategy: {type: LatencyFirst}",
    ]  # fmt: skip
    if counting:
        lines += ["#   demand:", f"#     query: {_text(counting[0].query)}",
                  f"#     workloadLabel: {counting[0].workload_label}",
                  f"#     origin: entryCluster        # {counting[0].origin.replace('`', '')}"]  # fmt: skip
    return lines


def _name(value: str) -> str:
    """A name that Kubernetes takes, made of a context or a label's value."""
    return re.sub(r"[^a-z0-9.-]+", "-", value.lower()).strip("-.")[:253] or "cluster"


def _text(value: str) -> str:
    """A scalar of YAML, quoted where it must be."""
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("\n...\n").strip()
