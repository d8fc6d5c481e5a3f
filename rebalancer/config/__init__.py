"""Raw documents, from files or from the hub, to frozen objects.

Every problem is one sentence with file, line, field, value, bound and the next step; all problems are reported at once.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from rebalancer.api.base import API_VERSION, GROUP
from rebalancer.api.cluster import MemberCluster
from rebalancer.api.controller import RebalancerConfig
from rebalancer.api.policy import SchedulingPolicy
from rebalancer.api.propagation import PropagationPolicy
from rebalancer.api.rollout import CanaryRollout
from rebalancer.config.documents import Document, from_hub, parse, read_files
from rebalancer.config.nowhere import nowhere
from rebalancer.config.words import PLANNED, sentence, short
from rebalancer.errors import ConfigError

__all__ = ["KINDS", "PLANNED", "Config", "Document", "Kind", "from_hub", "load", "load_each", "parse", "read_files"]

Kind = MemberCluster | SchedulingPolicy | PropagationPolicy | CanaryRollout | RebalancerConfig
KINDS: Mapping[str, type[Kind]] = {
    k.__name__: k for k in (MemberCluster, SchedulingPolicy, PropagationPolicy, CanaryRollout, RebalancerConfig)
}


@dataclass(frozen=True)
class Config:
    """Everything a user wrote, checked.

    Attributes:
        controller: how the controller runs; None where no file says so.
        clusters: by name. policies, propagation, rollouts: by `namespace/name`.
    """

    controller: RebalancerConfig | None
    clusters: Mapping[str, MemberCluster]
    policies: Mapping[str, SchedulingPolicy]
    propagation: Mapping[str, PropagationPolicy]
    rollouts: Mapping[str, CanaryRollout]


def _kind_of(document: Document) -> type[Kind]:
    """Finds the class of a document.

    Raises:
        ConfigError: foreign group, other version or unknown kind.
    """
    version, kind = document.data.get("apiVersion"), document.data.get("kind")
    if version != API_VERSION:
        raise ConfigError(
            [
                f"{document.at(('apiVersion',))}: apiVersion is {short(version)}: must be {API_VERSION}; "
                f"only objects of the group {GROUP} belong here"
            ]
        )
    if not isinstance(kind, str) or kind not in KINDS:
        near = difflib.get_close_matches(str(kind), KINDS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known kinds: {', '.join(KINDS)}"
        raise ConfigError([f"{document.at(('kind',))}: kind is {short(kind)}: unknown; {hint}"])
    return KINDS[kind]


def load(documents: Iterable[Document], *, bounds: bool = True) -> Config:
    """Checks all documents and returns the objects.

    Args:
        documents: of files or of the hub.
        bounds: whether policies are refused that ask for more clusters than there are; not where a hub has the others.

    Raises:
        ConfigError: with every problem found.
    """
    problems: list[str] = []
    objects: dict[tuple[str, str], tuple[Kind, Document]] = {}
    for document in documents:
        try:
            model = _kind_of(document)
            parsed = model.model_validate(document.data)
        except ConfigError as error:
            problems += error.problems
            continue
        except ValidationError as error:
            problems += [sentence(document, model, e) for e in error.errors()]
            continue
        namespaced = not isinstance(parsed, MemberCluster | RebalancerConfig)
        key = f"{parsed.metadata.namespace}/{parsed.metadata.name}" if namespaced else parsed.metadata.name
        if (parsed.kind, key) in objects:
            other = objects[parsed.kind, key][1].at(("metadata", "name"))
            problems.append(
                f"{document.at(('metadata', 'name'))}: {parsed.kind} {key} stands at {other} already; "
                "remove one of the two"
            )
        objects[parsed.kind, key] = (parsed, document)
    problems += _two_policies(objects)
    problems += _unknown_clusters(objects)
    bounds &= not any(isinstance(o, RebalancerConfig) and o.spec.hub is not None for o, _ in objects.values())
    regions = _unknown_regions(objects)
    # A region that nobody has is told by itself; what stands nowhere because of it is no second mistake.
    problems += regions or nowhere(objects.values(), bounds=bounds)
    problems += _two_controllers(objects)
    if problems:
        raise ConfigError(problems)
    return _collect(objects)


def _collect(objects: Mapping[tuple[str, str], tuple[Kind, Document]]) -> Config:
    parsed = {key: o for key, (o, _) in objects.items()}
    controllers = [o for o in parsed.values() if isinstance(o, RebalancerConfig)]
    return Config(
        controller=controllers[0] if controllers else None,
        clusters={k[1]: o for k, o in parsed.items() if isinstance(o, MemberCluster)},
        policies={k[1]: o for k, o in parsed.items() if isinstance(o, SchedulingPolicy)},
        propagation={k[1]: o for k, o in parsed.items() if isinstance(o, PropagationPolicy)},
        rollouts={k[1]: o for k, o in parsed.items() if isinstance(o, CanaryRollout)},
    )


def _two_controllers(objects: Mapping[tuple[str, str], tuple[Kind, Document]]) -> list[str]:
    """More than one RebalancerConfig."""
    found = [d.at(("metadata", "name")) for o, d in objects.values() if isinstance(o, RebalancerConfig)]
    return [
        f"{where}: RebalancerConfig stands at {found[0]} already; one says how the controller runs, remove the other"
        for where in found[1:]
    ]


def _two_policies(objects: Mapping[tuple[str, str], tuple[Kind, Document]]) -> list[str]:
    """Two policies that name one workload, or have one selector, in one namespace."""
    seen: dict[tuple[str, ...], Document] = {}
    problems = []
    for parsed, document in objects.values():
        if not isinstance(parsed, SchedulingPolicy):
            continue
        spec = parsed.spec
        labels = sorted(spec.pod_selector.match_labels.items()) if spec.pod_selector else []
        key = (parsed.metadata.namespace, spec.workload_ref.name if spec.workload_ref else "", *map(str, labels))
        if key in seen:
            other = seen[key].at(("metadata", "name"))
            problems.append(
                f"{document.at(('metadata', 'name'))}: selects the same workloads as the policy at {other}; "
                "a workload has one policy, remove one of the two"
            )
        seen[key] = document
    return problems


def _unknown_clusters(objects: Mapping[tuple[str, str], tuple[Kind, Document]]) -> list[str]:
    """Names of clusters that no MemberCluster has."""
    known = {key for kind, key in objects if kind == "MemberCluster"}
    if not known:
        return []
    problems = []
    for parsed, document in objects.values():
        named: list[tuple[tuple[str | int, ...], str]] = []
        if isinstance(parsed, SchedulingPolicy):
            data = parsed.spec.data.clusters if parsed.spec.data else []
            named = [(("spec", "data", "clusters", i, "name"), c.name) for i, c in enumerate(data)]
            named += _dependencies(parsed)
        elif isinstance(parsed, PropagationPolicy):
            wanted = parsed.spec.placement.cluster_names
            named = [(("spec", "placement", "clusterNames", i), name) for i, name in enumerate(wanted)]
        elif isinstance(parsed, CanaryRollout):
            named = [
                (("spec", "placement", "waves", i, "clusters", j), c)
                for i, w in enumerate(parsed.spec.placement.waves)
                for j, c in enumerate(w.clusters)
            ]
        elif isinstance(parsed, RebalancerConfig):
            named = [
                (("spec", "telemetry", "backends", i, "clusters", j), c)
                for i, b in enumerate(parsed.spec.telemetry.backends)
                for j, c in enumerate(b.clusters)
            ]
        for path, name in named:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(known))}"
                problems.append(f"{document.at(path)}: no MemberCluster is called {name!r}; {hint}")
    return problems


def _dependencies(policy: SchedulingPolicy) -> list[tuple[tuple[str | int, ...], str]]:
    """Clusters named by what the workload depends on, with the fields that name them."""
    return [
        (("spec", "dependsOn", i, "clusters", j), c)
        for i, need in enumerate(policy.spec.depends_on)
        for j, c in enumerate(need.clusters)
    ]


def _unknown_regions(objects: Mapping[tuple[str, str], tuple[Kind, Document]]) -> list[str]:
    """Regions of a residency that no MemberCluster stands in."""
    known = {o.spec.region for o, _ in objects.values() if isinstance(o, MemberCluster)}
    problems = []
    for parsed, document in objects.values():
        regions = parsed.spec.residency.regions if known and isinstance(parsed, SchedulingPolicy) else []
        for i, name in ((i, r) for i, r in enumerate(regions) if r not in known):
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(known))}"
            where = document.at(("spec", "residency", "regions", i))
            problems.append(f"{where}: no MemberCluster stands in the region {name!r}; {hint}")
    return problems


def load_each(documents: Iterable[Document]) -> tuple[Config, list[str]]:
    """Checks documents one by one, for a running controller: a bad one is left out with its sentences, others go on.

    A policy that asks for more clusters than are left is no bad one then: it is planned as far as it goes.

    Returns:
        (the objects that are good, one sentence per problem).
    """
    # Clusters first: whether a policy can be fulfilled shows once they are known.
    every = sorted(documents, key=lambda document: document.data.get("kind") != "MemberCluster")
    with contextlib.suppress(ConfigError):
        return load(every, bounds=False), []  # as nearly always; only a mistake is worth looking at each by itself
    good: list[Document] = []
    problems: list[str] = []
    for document in every:
        try:
            load([*good, document], bounds=False)
        except ConfigError as error:
            problems += error.problems
        else:
            good.append(document)
    return load(good, bounds=False), problems
