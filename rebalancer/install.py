"""What a cluster needs before the rebalancer runs: CustomResourceDefinitions from the kinds, and least rights.

The schemas are structural and carry no defaults: a default lives in the controller only, so that an upgrade can change
it and an object says what its author wrote. Unknown fields are refused by kubectl and by server-side apply; a client
that asks for less is warned and the field is pruned.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import Any

import yaml
from pydantic import BaseModel

from rebalancer.adapters.kubernetes.resources import RESOURCES, Resource
from rebalancer.api.base import GROUP, VERSION
from rebalancer.config import KINDS

Object = dict[str, Any]
NAMESPACE = "rebalancer-system"
ACCOUNT = "fleet-rebalancer"
HUB, MEMBER, ROLLOUTS = "fleet-rebalancer-hub", "fleet-rebalancer-member", "fleet-rebalancer-member-rollouts"
VIEWER, EDITOR, ADMIN = "fleet-rebalancer-viewer", "fleet-rebalancer-policy-editor", "fleet-rebalancer-fleet-admin"
_KEEP = frozenset({
    "description", "type", "enum", "pattern", "minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems",
    "minProperties", "maxProperties", "required", "x-kubernetes-validations",
})  # fmt: skip
_ANYTHING: Object = {"x-kubernetes-preserve-unknown-fields": True}
_COLUMNS: Mapping[str, tuple[tuple[str, str, str], ...]] = {
    "MemberCluster": (("Region", "string", ".spec.region"), ("Drain", "boolean", ".spec.drain"),
                      ("Seen", "date", ".status.sight.seenTime")),
    "SchedulingPolicy": (("Strategy", "string", ".spec.strategy.type"), ("Paused", "boolean", ".spec.paused")),
    "PropagationPolicy": (),
    "CanaryRollout": (("Workload", "string", ".spec.workloadRef.name"), ("Phase", "string", ".status.phase"),
                      ("Paused", "boolean", ".spec.paused")),
}  # fmt: skip
_SHORT = {"MemberCluster": "mc", "SchedulingPolicy": "schedpol", "PropagationPolicy": "proppol", "CanaryRollout": "cro"}


def structural(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Object:
    """Turns a JSON schema of pydantic into the structural form that API servers take.

    Raises:
        ValueError: the schema has a form that has no structural counterpart.
    """
    if "$ref" in schema:
        named = structural(definitions[schema["$ref"].rsplit("/", 1)[1]], definitions)
        return {**named, **{k: schema[k] for k in ("description", "x-kubernetes-validations") if k in schema}}
    if "anyOf" in schema:
        return _any_of(schema, definitions)
    result: Object = {k: v for k, v in schema.items() if k in _KEEP}
    if "const" in schema:
        result["enum"] = [schema["const"]]
    for end in ("minimum", "maximum"):  # numbers in JSON schema, flags beside the bound in structural schemas
        exclusive = schema.get("exclusive" + end.capitalize())
        if exclusive is not None:
            result.update({end: exclusive, "exclusive" + end.capitalize(): True})
    if "items" in schema:
        result["items"] = structural(schema["items"], definitions)
    if "properties" in schema:
        result["properties"] = {n: structural(s, definitions) for n, s in schema["properties"].items()}
    extra = schema.get("additionalProperties")
    if isinstance(extra, Mapping):
        result["additionalProperties"] = structural(extra, definitions)
    elif extra is True:
        result.update(_ANYTHING)
    if "type" not in result and not result.get("x-kubernetes-preserve-unknown-fields"):
        raise ValueError(f"no structural form of {schema}")
    return result


def _any_of(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Object:
    """A type or null, a whole number or text, a number or text; nothing else occurs in our kinds."""
    options = [o for o in schema["anyOf"] if o.get("type") != "null"]
    head: Object = {k: schema[k] for k in ("description",) if k in schema}
    if len(options) < len(schema["anyOf"]):
        head["nullable"] = True
    types = {o.get("type") for o in options}
    if len(options) == 1:
        return {**structural(options[0], definitions), **head}
    if types == {"integer", "string"}:
        return {**head, "x-kubernetes-int-or-string": True}
    if types == {"number", "string"}:
        return {**head, **_ANYTHING}  # 70% or 0.7: no structural type has both; the controller checks it
    raise ValueError(f"no structural form of {schema}")


def crd(resource: Resource, model: type[BaseModel]) -> Object:
    """Returns the CustomResourceDefinition of one kind."""
    raw = model.model_json_schema(by_alias=True)
    definitions = raw.get("$defs", {})
    spec = structural(raw["properties"]["spec"], definitions)
    schema = {
        "type": "object",
        "description": raw.get("description", ""),
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": {"type": "object", **_ANYTHING},
        },
    }
    columns = [{"name": n, "type": t, "jsonPath": p} for n, t, p in _COLUMNS[resource.kind]]
    columns.append({"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"})
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": columns,
        "schema": {"openAPIV3Schema": schema},
    }
    names = {
        "kind": resource.kind,
        "listKind": f"{resource.kind}List",
        "plural": resource.plural,
        "singular": resource.kind.lower(),
        "shortNames": [_SHORT[resource.kind]],
        "categories": ["rebalancer"],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource.plural}.{GROUP}", "labels": _labels()},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "names": names,
            "versions": [version],
        },
    }


def crds() -> list[Object]:
    """Returns the CustomResourceDefinitions of all kinds that live on the hub."""
    return [crd(resource, KINDS[kind]) for kind, resource in RESOURCES.items()]


def rbac() -> list[Object]:
    """Returns namespace, account, roles and bindings; the hub's are harmless on a member and the other way round."""
    ours = [r.plural for r in RESOURCES.values()]
    policies = [r.plural for r in RESOURCES.values() if r.namespaced]
    everything = ["get", "list", "watch", "create", "update", "patch", "delete"]
    roles = [
        _role(HUB, [
            ([GROUP], ours, ["get", "list"]),
            ([GROUP], [f"{p}/status" for p in ours], ["update"]),
            ([GROUP], ["canaryrollouts"], ["patch"]),  # the finalizer that outlives a deletion half-way
        ]),
        _role(MEMBER, [
            (["apps"], ["deployments"], ["get", "list", "patch"]),
            (["apps"], ["deployments/scale"], ["get", "update"]),
            ([""], ["pods", "nodes", "resourcequotas"], ["list"]),
            (["autoscaling"], ["horizontalpodautoscalers"], ["list"]),
            (["policy"], ["poddisruptionbudgets"], ["list"]),
            (["events.k8s.io"], ["events"], ["create"]),
        ]),
        _role(ROLLOUTS, [
            (["apps"], ["deployments"], ["create", "delete"]),  # the canary's own Deployment
            (["apps"], ["replicasets"], ["list"]),
        ]),
        _role(VIEWER, [([GROUP], ours, ["get", "list", "watch"])],
              {"rbac.authorization.k8s.io/aggregate-to-view": "true"}),
        _role(EDITOR, [([GROUP], policies, everything), ([GROUP], ours, ["get", "list", "watch"])]),
        _role(ADMIN, [([GROUP], ours, everything)]),
        _system_role(),
    ]  # fmt: skip
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": ACCOUNT, "namespace": NAMESPACE, "labels": _labels()},
    }
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": _labels()}}
    bindings = [_binding("ClusterRole", name) for name in (HUB, MEMBER, ROLLOUTS)]
    return [namespace, account, *roles, *bindings, _binding("Role", HUB)]


def render_crds() -> str:
    """Returns all CustomResourceDefinitions as YAML documents."""
    return _render(crds())


def render_rbac() -> str:
    """Returns all rights as YAML documents."""
    return _render(rbac())


def _render(objects: list[Object]) -> str:
    # Without anchors: the documents share lists and labels, which a reader need not know.
    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    return "---\n".join(yaml.dump(o, Dumper=Plain, sort_keys=False, width=120) for o in objects)


def _labels() -> dict[str, str]:
    try:
        version = metadata.version("fleet-rebalancer")
    except metadata.PackageNotFoundError:  # run from a source tree
        version = "unknown"
    return {"app.kubernetes.io/name": ACCOUNT, "app.kubernetes.io/version": version.replace("+", "-")}


def _role(
    name: str, rules: list[tuple[list[str], list[str], list[str]]], labels: Mapping[str, str] | None = None
) -> Object:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name, "labels": {**_labels(), **(labels or {})}},
        "rules": [{"apiGroups": g, "resources": r, "verbs": v} for g, r, v in rules],
    }


def _system_role() -> Object:
    """Secrets and the lease in the rebalancer's own namespace only."""
    leases = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": HUB, "namespace": NAMESPACE, "labels": _labels()},
        "rules": [
            {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]},
            {**leases, "verbs": ["create"]},
            {**leases, "resourceNames": [ACCOUNT], "verbs": ["get", "update"]},
        ],
    }


def _binding(kind: str, role: str) -> Object:
    place = {"namespace": NAMESPACE} if kind == "Role" else {}
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": f"{kind}Binding",
        "metadata": {"name": role, **place, "labels": _labels()},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}],
    }
