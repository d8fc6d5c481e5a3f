"""What is wrong with a document, in one sentence: file, line, field, value, bound and the next step."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from rebalancer.config.documents import Document

PLANNED: Mapping[str, frozenset[str]] = {
    "MemberCluster": frozenset({
        "spec.connection.pull", "spec.edge", "spec.probe",
    }),
    "SchedulingPolicy": frozenset({
        "spec.nodeSelector", "spec.affinity", "spec.data.fromVolumes",
        "spec.demand.perRequest", "spec.migration.drain.query", "spec.migration.drain.max",
    }),
    "PropagationPolicy": frozenset({
        "spec.dependencies", "spec.overrides", "spec.onRemoval", "spec.resourceSelectors.wholeNamespace",
    }),
}  # fmt: skip
"""Fields of the full design that this version refuses, so that nobody relies on what is not honoured."""


def short(value: object) -> str:
    """A value as it is shown in a sentence."""
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


def sentence(document: Document, model: type[BaseModel], error: Any) -> str:
    """One problem in words: file, line, field, value, bound, next step."""
    path = tuple(error["loc"])
    dotted = ".".join(str(p) for p in path if not isinstance(p, int))
    name = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path).lstrip(".")
    name = name if name.isprintable() else repr(name)
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
    written = _written(document, path, error["input"])
    value = "" if isinstance(written, dict | list | BaseModel) else f" is {short(written)}"
    return f"{where}{value}: {_message(error, written)}"


def _written(document: Document, path: tuple[str | int, ...], given: object) -> object:
    """The value as it stands in the document, before units were taken off."""
    value: Any = document.data
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return given
    return value


def _message(error: Any, written: object) -> str:
    """What is wrong with a value and what is allowed, bounds in the unit that the user wrote."""
    if error["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return "must be a mapping of fields"
    words = {"greater_than_equal": "at least", "less_than_equal": "at most", "greater_than": "above"}
    if error["type"] in words:
        (bound,) = error["ctx"].values()
        unit = "s" if isinstance(written, str) and not written.endswith("%") else ""
        text = f"{bound * 100:g}%" if isinstance(written, str) and written.endswith("%") else f"{bound:g}{unit}"
        return f"must be {words[error['type']]} {text}"
    message = str(error["msg"]).removeprefix("Value error, ").replace("Input should be", "must be")
    return message[0].lower() + message[1:]
