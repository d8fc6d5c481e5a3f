"""Where Prometheus and Thanos differ: parameters, and what Thanos says of its stores.

Thanos drops an unhealthy store from its answers without a warning, also with partial_response=false. So the configured
clusters are compared with the stores on every cycle.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

Kind = Literal["prometheus", "thanos"]
THANOS: Mapping[str, str] = {"dedup": "true", "partial_response": "false", "max_source_resolution": "0s"}
COARSER: tuple[tuple[str, float], ...] = (("5m", 300.0), ("1h", 3600.0))
"""What Thanos downsamples to: parameter and seconds."""
COARSE_STEPS = 4
"""Samples that a rate over downsampled data needs at least; over fewer it is empty."""


def params(kind: Kind, *, partly: bool = False, replica_labels: Sequence[str] = ()) -> dict[str, str | list[str]]:
    """Returns the parameters that go with every query; Prometheus ignores what it does not know, so it gets none.

    Args:
        kind: the backend's.
        partly: take what the other stores know when one fails a strict query; the answer then says partial.
        replica_labels: by which doubles are removed; without any, by what Thanos Query itself was started with.
    """
    if kind == "prometheus":
        return {}
    more: dict[str, str | list[str]] = {"partial_response": "true" if partly else "false"}
    if replica_labels:
        # The documentation says replicaLabels; the code reads the brackets.
        more["replicaLabels[]"] = list(replica_labels)
    return {**THANOS, **more}


def is_partial(warnings: tuple[str, ...]) -> bool:
    """Says whether warnings tell of missing parts; remarks on the query itself don't."""
    return any(not text.startswith("PromQL") for text in warnings)


@dataclass(frozen=True, slots=True)
class Store:
    """One store behind Thanos Query.

    Attributes:
        name: its address.
        labels: its label sets; a sidecar has one.
        error: why its last check failed; empty when healthy.
        checked_s: last good check, Unix seconds; NaN if never.
        newest_s: newest sample it can have, Unix seconds; infinite for a store that takes new ones.
    """

    name: str
    labels: tuple[Mapping[str, str], ...]
    error: str
    checked_s: float
    newest_s: float


def stores(data: object) -> tuple[Store, ...]:
    """Reads the data of /api/v1/stores: kind of store -> list of stores. What does not look like one is left out."""
    if not isinstance(data, dict):
        return ()
    entries = [entry for group in data.values() if isinstance(group, list) for entry in group]
    return tuple(_store(entry) for entry in entries if isinstance(entry, dict))


def _store(entry: Mapping[str, Any]) -> Store:
    sets = entry.get("labelSets")
    labels = tuple(dict(one) for one in sets if isinstance(one, dict)) if isinstance(sets, list) else ()
    millis = entry.get("maxTime")
    newest = float(millis) / 1000 if isinstance(millis, int | float) and 0 < millis < 2**62 else math.inf
    error = entry.get("lastError")
    return Store(str(entry.get("name", "")), labels, str(error) if error else "", _time(entry.get("lastCheck")), newest)


def _time(text: object) -> float:
    try:
        read = datetime.fromisoformat(str(text))
    except ValueError:
        return math.nan
    # A time without its zone would be read as the machine's local time: hours off, and fresh or stale by accident.
    at = read.timestamp() if read.tzinfo is not None else math.nan
    return at if at > 0 else math.nan


@dataclass(frozen=True, slots=True)
class StoreView:
    """What the stores say of one cluster.

    Attributes:
        healthy: at least one healthy store with recent data carries its label.
        detail: what is wrong, one clause; empty when healthy.
        since_s: last good check of its failing store; None if unknown.
    """

    healthy: bool
    detail: str = ""
    since_s: float | None = None


def of_cluster(found: tuple[Store, ...], label: tuple[str, str], now: float, max_age_s: float) -> StoreView | None:
    """Judges the stores of a cluster.

    Args:
        found: all stores.
        label: the cluster's label name and value.
        now: Unix seconds.
        max_age_s: how old a store's newest sample may be.

    Returns:
        None where a store does not name its clusters by that label (a receiver) and may have it, so that nothing
        follows.
    """
    name, value = label
    if not any(name in one for store in found for one in store.labels):
        return None
    own = [store for store in found if any(one.get(name) == value for one in store.labels)]
    if not own:
        # A receiver or a chained query takes samples of clusters that it does not name: then the samples must tell.
        unnamed = any(not store.error and not any(name in one for one in store.labels) for store in found)
        return None if unnamed else StoreView(False, "Thanos has no store with its label")
    good = [store for store in own if not store.error]
    if not good:
        checked = [store.checked_s for store in own if math.isfinite(store.checked_s)]
        return StoreView(False, f"its store {own[0].name} is unhealthy: {own[0].error}", max(checked, default=None))
    newest = max(store.newest_s for store in good)
    if now - newest > max_age_s and math.isfinite(newest):
        return StoreView(False, f"its store {good[0].name} has no sample since long", newest)
    return StoreView(True)
