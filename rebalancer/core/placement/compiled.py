"""Where the kernels meet numba: the one decorator, and the arrays that every kernel works on.

Importing this module imports numba, which takes about a second; nothing that a small fleet uses may do so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
B1 = npt.NDArray[np.bool_]

_F = TypeVar("_F", bound=Callable[..., Any])

BIG = 1e18
EPS = 1e-9


def compiled(function: _F) -> _F:
    """Compiles a kernel at its first call; the machine code is kept for the next process where there is a place."""
    return _compiled(function)


def inner(function: _F) -> _F:
    """Compiles a kernel that only kernels call and that makes no arrays.

    Without counts of references: some thirty arrays are handed on at each call, and counting them, which is atomic,
    took a third of the time.
    """
    return _compiled(function, _nrt=False)


def _compiled(function: _F, **options: Any) -> _F:
    try:
        return cast(_F, numba.njit(cache=True, nogil=True, error_model="numpy", **options)(function))
    except RuntimeError:
        # Neither NUMBA_CACHE_DIR, nor the package's own directory, nor the user's cache can be written.
        return cast(_F, numba.njit(nogil=True, error_model="numpy", **options)(function))


class Jobs(NamedTuple):
    """Workloads as the kernels see them; every array is by workload.

    Attributes:
        replicas: wanted in total.
        demand: (W, O) replica equivalents by origin; sums to at most `replicas`.
        cpu, memory: what one replica takes of the two resources; 0 takes nothing.
        unplaced: $/h for a replica without a place.
        start, stop: $/h for a replica that is added, and for one that is removed.
        budget: most replicas that may be added.
        min_clusters, min_regions: spread that is asked for.
        share: most replicas in one cluster before SHORTFALL is paid for each.
        spot: most replicas in spot clusters.
        peak: $/h per replica of the largest cluster.
        gang: fewest replicas that may start; 0 where any number may.
        leaving: whether room that its replicas leave counts at once; else only what starts takes room.
    """

    replicas: I64
    demand: F64
    cpu: F64
    memory: F64
    unplaced: F64
    start: F64
    stop: F64
    budget: F64
    min_clusters: I64
    min_regions: I64
    share: I64
    spot: I64
    peak: F64
    gang: I64
    leaving: B1


class Near(NamedTuple):
    """The clusters each workload chooses from, in compressed rows: those of w are first[w] up to first[w + 1].

    Attributes:
        cluster: index of the cluster.
        run: $/h per replica.
        serve: (entries, O) $/h per replica equivalent of each origin.
        stay: replicas there now that may stay.
        fixed: whether they must, and nothing may be added.
        add: most replicas that may be added.
        floor: fewest replicas that the policy asks for there.
    """

    first: I64
    cluster: I32
    run: F32
    serve: F32
    stay: I32
    fixed: B1
    add: I32
    floor: I32


class Sites(NamedTuple):
    """Clusters: region index, and whether they may vanish."""

    region: I64
    spot: B1


class Scratch(NamedTuple):
    """One workload on the table; k columns are clusters, column k is `unplaced`; the last origin is idle capacity."""

    x: F64
    new: F64
    flow: F64
    serve: F64
    demand: F64
    open: F64
    need: F64
    stay_price: F64
    new_price: F64
    stay: F64
    low: F64
    add: F64
    high: F64
    floor: F64
    slope: F64
    at: F64
    of: F64
    via_at: I64
    via_of: I64
    cluster: I64
    region: I64
    spot: B1
    regions: F64
    bound: F64
    best: F64
    limits: F64


BUDGET, CLUSTERS, REGIONS, SHARE, SPOT, PEAK = range(6)
"""Places in `Scratch.limits`."""


@compiled
def scratch(columns: int, origins: int, regions: int) -> Scratch:
    """Makes room for a workload of up to `columns` clusters and `origins` origins."""
    k, n = columns + 1, origins + 1
    return Scratch(
        np.zeros(k), np.zeros(k), np.zeros((n, k)), np.zeros((n, k)), np.zeros(n), np.zeros(k), np.zeros(n),
        np.zeros(k), np.zeros(k), np.zeros(k), np.zeros(k), np.zeros(k), np.zeros(k), np.zeros(k), np.zeros(k),
        np.zeros(k), np.zeros(n), np.zeros(k, np.int64), np.zeros(n, np.int64), np.zeros(k, np.int64),
        np.zeros(k, np.int64), np.zeros(k, np.bool_), np.zeros(regions), np.zeros((k, k)), np.zeros(k), np.zeros(6),
    )  # fmt: skip
