"""Regular time grids: gaps, held values, sums by origin.

A counter that does not exist in a cluster that is seen means no traffic; a cluster that is not seen means a gap. A gap
is bridged by the last known value for a bounded time, and is NaN after that; it is never zero.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from rebalancer.core.model import TOTAL, Bools, Demand, Floats, History

HOLD_S = 900.0
"""How long a cluster's last known demand stands in for a missing one: three slots of the default grid."""


def presence(keys: Sequence[tuple[str, str, str]], values: Floats) -> dict[str, Bools]:
    """Says for each cluster in which slots it was seen at all.

    Args:
        keys: (workload, origin, cluster) per row.
        values: shape (rows, slots), NaN where absent.

    Returns:
        cluster -> bool array of shape (slots,).
    """
    seen: dict[str, Bools] = {}
    for row, (_, _, cluster) in enumerate(keys):
        there = ~np.isnan(values[row])
        seen[cluster] = seen[cluster] | there if cluster in seen else there
    return seen


def fill(values: Floats, seen: Bools, hold_slots: int) -> Floats:
    """Completes one row: zero where the cluster was seen without the series, the held value in short gaps, else NaN.

    Args:
        values: shape (slots,), NaN where absent.
        seen: shape (slots,), whether the cluster was seen in the slot.
        hold_slots: how many slots a last known value stands in.

    Returns:
        shape (slots,); NaN where unknown.
    """
    filled = np.where(np.isnan(values) & seen, 0.0, values)
    known = ~np.isnan(filled)
    index = np.where(known, np.arange(len(filled)), -1)
    last = np.maximum.accumulate(index)
    age = np.arange(len(filled)) - last
    usable = (last >= 0) & (age <= hold_slots)
    return np.where(usable, filled[np.maximum(last, 0)], np.nan)


def assemble(
    keys: Sequence[tuple[str, str, str]],
    values: Floats,
    start_s: float,
    step_s: float,
    hold_s: float = HOLD_S,
    complete: Collection[str] = (),
    peaks: Mapping[str, Floats] | None = None,
) -> History:
    """Sums rows by (workload, origin) and by workload, holding short gaps.

    A slot of a sum is NaN as soon as one of its parts that ever had data is unknown there. Origins are means, which say
    how demand is shared; a workload's total is the slot's peak, which replicas must serve.

    Args:
        keys: (workload, origin, cluster) per row; origin empty where unknown.
        values: shape (rows, slots).
        start_s: time of the first slot.
        step_s: slot length.
        hold_s: how long a last known value stands in.
        complete: clusters that are seen well now; one of them without any series at the end has no traffic there.
        peaks: workload -> shape (slots,), a slot's peak relative to its mean; what is NaN or below 1 counts as 1.

    Returns:
        The history; origin rows only where the origin is known, a TOTAL row for each workload.
    """
    seen = presence(keys, values)
    for cluster in complete:
        if cluster in seen and seen[cluster].any():
            seen[cluster] = seen[cluster] | _after_last(seen[cluster])
    hold_slots = int(hold_s // step_s)
    sums: dict[tuple[str, str], Floats] = {}
    for row, (workload, origin, cluster) in enumerate(keys):
        filled = fill(values[row], seen[cluster], hold_slots)
        before_birth = np.isnan(filled) & ~np.logical_or.accumulate(seen[cluster])
        part = np.where(before_birth, 0.0, filled)
        for key in ((workload, origin), (workload, TOTAL)) if origin else ((workload, TOTAL),):
            sums[key] = sums[key] + part if key in sums else part
    for workload, ratio in (peaks or {}).items():
        if (workload, TOTAL) in sums:
            sums[workload, TOTAL] = sums[workload, TOTAL] * np.fmax(ratio, 1.0)
    slots = values.shape[1] if values.ndim == 2 else 0
    any_seen = np.logical_or.accumulate(np.any(list(seen.values()), axis=0)) if seen else np.zeros(slots, dtype=bool)
    ordered = tuple(sorted(sums))
    stacked = np.array([np.where(any_seen, sums[key], np.nan) for key in ordered]).reshape(len(ordered), slots)
    return History(start_s, step_s, ordered, stacked)


def _after_last(seen: Bools) -> Bools:
    """The slots after the last one that was seen."""
    result: Bools = np.arange(len(seen)) > len(seen) - 1 - np.argmax(seen[::-1])
    return result


def current(
    keys: Sequence[tuple[str, str, str]],
    values: Floats,
    latest: Floats,
    units: Mapping[str, str],
    unseen: Mapping[str, float | None],
    as_of_s: float,
    step_s: float,
    hold_s: float = HOLD_S,
) -> dict[str, Demand]:
    """Returns the demand now; the part of clusters that are out of sight is their last known one.

    Args:
        keys: (workload, origin, cluster) per row.
        values: shape (rows, slots), the history up to now.
        latest: shape (rows,), demand over the last minutes; NaN where absent.
        units: workload -> unit.
        unseen: clusters whose view is not complete -> since when.
        as_of_s: time of `latest`.
        step_s: slot length of `values`.
        hold_s: how long a last known value stands in.
    """
    seen = presence(keys, values)
    hold_slots = int(hold_s // step_s)
    rows: dict[str, list[int]] = {}
    for row, (workload, _, _) in enumerate(keys):
        rows.setdefault(workload, []).append(row)
    result: dict[str, Demand] = {}
    for workload, members in rows.items():
        total, by_origin, served, known = 0.0, dict[str, float](), dict[tuple[str, str], float](), False
        for row in members:
            _, origin, cluster = keys[row]
            value = latest[row]
            if np.isnan(value):
                held = fill(values[row], seen[cluster], hold_slots)
                value = held[-1] if cluster in unseen and len(held) else 0.0
            if np.isnan(value):
                continue
            known = True
            total += float(value)
            served[origin, cluster] = served.get((origin, cluster), 0.0) + float(value)
            if origin:
                by_origin[origin] = by_origin.get(origin, 0.0) + float(value)
        # A cluster out of sight is named even if it has no series of this workload: nobody can know that.
        result[workload] = Demand(
            unit=units.get(workload, "requests/s"),
            total=total if known else float("nan"),
            by_origin=by_origin,
            served=served,
            missing=tuple(sorted(unseen)),
            as_of_s=as_of_s,
        )
    return result
