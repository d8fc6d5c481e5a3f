"""Raw documents, from files or from the hub, to frozen objects.

Every problem is one sentence with file, line, field, value, bound and the next step; all problems are reported at once.
"""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from rebalancer.api.base import API_VERSION, GROUP
from rebalancer.api.cluster import MemberCluster
from rebalancer.api.controller import RebalancerConfig
from rebalancer.api.policy import PropagationPolicy, SchedulingPolicy
from rebalancer.api.rollout import CanaryRollout
from rebalancer.errors import ConfigError

Kind = MemberCluster | SchedulingPolicy | PropagationPolicy | CanaryRollout | RebalancerConfig
KINDS: Mapping[str, type[Kind]] = {
    k.__name__: k for k in (MemberCluster, SchedulingPolicy, PropagationPolicy, CanaryRollout, RebalancerConfig)
}
MAX_FILE_BYTES = 8 * 1024 * 1024
PLANNED: Mapping[str, frozenset[str]] = {
    "MemberCluster": frozenset({
        "spec.connection.pull", "spec.price.egressGib", "spec.price.windows", "spec.capacity.elastic",
    }),
    "SchedulingPolicy": frozenset({
        "spec.windows", "spec.gang", "spec.dependsOn", "spec.nodeSelector", "spec.affinity", "spec.data.fromVolumes",
        "spec.demand.perRequest", "spec.migration.drain.query", "spec.migration.drain.max",
    }),
    "PropagationPolicy": frozenset({
        "spec.dependencies", "spec.overrides", "spec.onRemoval", "spec.resourceSelectors.wholeNamespace",
    }),
}  # fmt: skip
"""Fields of the full design that this version refuses, so that nobody relies on what is not honoured."""


@dataclass(frozen=True)
class Document:
    """One raw document with the lines of its fields.

    Attributes:
        where: file name or `hub`.
        data: the parsed mapping.
        lines: path of a field -> line, from 1; empty for documents of the hub.
    """

    where: str
    data: dict[str, Any]
    lines: Mapping[tuple[str | int, ...], int] = field(default_factory=dict)

    def at(self, path: tuple[str | int, ...]) -> str:
        """Returns `file:line` of a field, or of its nearest parent that has a line."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.lines:
                return f"{self.where}:{self.lines[path[:end]]}"
        return self.where


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


def _build(
    node: yaml.Node | None,
    path: tuple[str | int, ...],
    lines: dict[tuple[str | int, ...], int],
    loader: yaml.SafeLoader,
) -> Any:
    """Turns a YAML node into data and notes the line of each field."""
    if node is None:
        return None
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        result: dict[Hashable, Any] = {}
        loader.flatten_mapping(node)
        for key_node, value_node in node.value:
            key = loader.construct_object(key_node, deep=True)
            if key in result:
                raise yaml.constructor.ConstructorError(None, None, f"field {key!r} stands twice", key_node.start_mark)
            lines[(*path, key)] = key_node.start_mark.line + 1
            result[key] = _build(value_node, (*path, key), lines, loader)
        return result
    if isinstance(node, yaml.SequenceNode):
        return [_build(item, (*path, i), lines, loader) for i, item in enumerate(node.value)]
    return loader.construct_object(node, deep=True)


def parse(text: str, where: str) -> list[Document]:
    """Parses YAML documents.

    Raises:
        ConfigError: the text is no YAML, or a document is no mapping.
    """
    documents: list[Document] = []
    loader = yaml.SafeLoader(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            lines: dict[tuple[str | int, ...], int] = {}
            data = _build(node, (), lines, loader)
            if data is None:
                continue
            if not isinstance(data, dict):
                raise ConfigError(
                    [
                        f"{where}:{lines[()]}: a document must be a mapping with apiVersion, kind, metadata "
                        f"and spec, but is a {type(data).__name__}"
                    ]
                )
            documents.append(Document(where, data, lines))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise ConfigError(
            [
                f"{where}{line}: not valid YAML: {getattr(error, 'problem', None) or error}; "
                "check indentation and quotes there"
            ]
        ) from None
    finally:
        loader.dispose()
    return documents


def read_files(paths: Iterable[Path]) -> list[Document]:
    """Reads YAML files; a folder stands for its *.yaml and *.yml files in order of name.

    Raises:
        ConfigError: a path can't be read or holds no YAML.
    """
    documents: list[Document] = []
    problems: list[str] = []
    for path in paths:
        files = sorted(p for p in path.iterdir() if p.suffix in (".yaml", ".yml")) if path.is_dir() else [path]
        if not files:
            problems.append(f"{path}: the folder holds no *.yaml file; put the policies there or name another path")
        for file in files:
            try:
                if file.stat().st_size > MAX_FILE_BYTES:
                    problems.append(f"{file}: larger than {MAX_FILE_BYTES} bytes; split it")
                    continue
                documents += parse(file.read_text(encoding="utf-8"), str(file))
            except ConfigError as error:
                problems += error.problems
            except (OSError, UnicodeDecodeError) as error:
                problems.append(f"{file}: can't be read: {error}; check the path and its permissions")
    if problems:
        raise ConfigError(problems)
    return documents


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _fields(model: type[BaseModel], path: tuple[str | int, ...]) -> list[str]:
    """The field names that are known at a path of a kind."""
    current: Any = model
    for part in path:
        if isinstance(part, int):
            continue
        found = next((f for n, f in current.model_fields.items() if part in (n, f.alias)), None)
        if found is None:
            return []
        candidates = [found.annotation, *getattr(found.annotation, "__args__", ())]
        current = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)
        if current is None:
            return []
    return [f.alias or n for n, f in current.model_fields.items()]


def _sentence(document: Document, model: type[BaseModel], error: Any) -> str:
    """One problem in words: file, line, field, value, bound, next step."""
    path = tuple(error["loc"])
    dotted = ".".join(str(p) for p in path if not isinstance(p, int))
    name = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path).lstrip(".")
    where = f"{document.at(path)}: {name or 'document'}"
    if error["type"] == "extra_forbidden":
        if dotted in PLANNED.get(model.__name__, ()):
            return f"{where}: this field is designed but not supported in this version; remove it"
        known = _fields(model, path[:-1])
        near = difflib.get_close_matches(str(path[-1]), known, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
        return f"{where}: unknown field; {hint}"
    if error["type"] == "missing":
        return f"{where}: required, but not set; add it"
    message = error["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    value = "" if isinstance(error["input"], dict | BaseModel) else f" is {_short(error['input'])}"
    return f"{where}{value}: {message}"


def _kind_of(document: Document) -> type[Kind]:
    """Finds the class of a document.

    Raises:
        ConfigError: foreign group, other version or unknown kind.
    """
    version, kind = document.data.get("apiVersion"), document.data.get("kind")
    if version != API_VERSION:
        raise ConfigError(
            [
                f"{document.at(('apiVersion',))}: apiVersion is {_short(version)}: must be {API_VERSION}; "
                f"only objects of the group {GROUP} belong here"
            ]
        )
    if kind not in KINDS:
        near = difflib.get_close_matches(str(kind), KINDS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known kinds: {', '.join(KINDS)}"
        raise ConfigError([f"{document.at(('kind',))}: kind is {_short(kind)}: unknown; {hint}"])
    return KINDS[str(kind)]


def load(documents: Iterable[Document]) -> Config:
    """Checks all documents and returns the objects.

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
            problems += [_sentence(document, model, e) for e in error.errors()]
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
    if problems:
        raise ConfigError(problems)
    return _collect(objects)


def _collect(objects: Mapping[tuple[str, str], tuple[Kind, Document]]) -> Config:
    parsed = {key: o for key, (o, _) in objects.items()}
    controllers = [o for o in parsed.values() if isinstance(o, RebalancerConfig)]
    if len(controllers) > 1:
        raise ConfigError(
            [f"{len(controllers)} RebalancerConfig documents; one says how the controller runs, remove the others"]
        )
    return Config(
        controller=controllers[0] if controllers else None,
        clusters={k[1]: o for k, o in parsed.items() if isinstance(o, MemberCluster)},
        policies={k[1]: o for k, o in parsed.items() if isinstance(o, SchedulingPolicy)},
        propagation={k[1]: o for k, o in parsed.items() if isinstance(o, PropagationPolicy)},
        rollouts={k[1]: o for k, o in parsed.items() if isinstance(o, CanaryRollout)},
    )


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
        if isinstance(parsed, SchedulingPolicy) and parsed.spec.data:
            named = [(("spec", "data", "clusters", i, "name"), c.name) for i, c in enumerate(parsed.spec.data.clusters)]
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


def from_hub(raw: Iterable[dict[str, Any]]) -> list[Document]:
    """Wraps custom resources of the hub as documents; their file is `hub` with kind and name."""
    return [
        Document(
            f"hub {d.get('kind')} {d.get('metadata', {}).get('namespace', '')}/{d.get('metadata', {}).get('name')}", d
        )
        for d in raw
    ]


def load_each(documents: Iterable[Document]) -> tuple[Config, list[str]]:
    """Checks documents one by one, for a running controller: a bad one is left out with its sentences, others go on.

    Returns:
        (the objects that are good, one sentence per problem).
    """
    good: list[Document] = []
    problems: list[str] = []
    for document in documents:
        try:
            load([*good, document])
        except ConfigError as error:
            problems += error.problems
        else:
            good.append(document)
    return load(good), problems
