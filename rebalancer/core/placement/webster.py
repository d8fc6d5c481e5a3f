"""Division by fixed weights, without an optimiser: Webster's (Sainte-Lague) method with floors and caps.

Each next replica goes to the cluster with the largest weight / (2 * replicas + 1). Unlike the largest remainder it is
monotone: one replica more in total takes none away anywhere (Balinski and Young, "Fair Representation", 1982).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def divide(
    total: int,
    weights: npt.NDArray[np.float64],
    *,
    floors: npt.NDArray[np.int64] | None = None,
    caps: npt.NDArray[np.int64] | None = None,
    order: Sequence[int] | None = None,
) -> npt.NDArray[np.int64]:
    """Divides replicas.

    Args:
        total: replicas to divide, at least 0.
        weights: (C,) at least 0; a cluster of weight 0 gets its floor only.
        floors: (C,) fewest; they are given even if their sum is above `total`.
        caps: (C,) most; None is unbounded. A cap below the floor counts as the floor.
        order: on ties the cluster with fewer replicas comes first, then the one that stands earlier here; by default
            as numbered.

    Returns:
        (C,) replicas; their sum is below `total` only where the caps leave no place.

    Raises:
        ValueError: a negative total or weight, or one that is not a number.
    """
    if total < 0:
        raise ValueError(f"total is {total}: must be at least 0")
    if not (np.isfinite(weights).all() and (weights >= 0).all()):
        raise ValueError(f"weights are {weights.tolist()}: each must be a number of at least 0")
    count = len(weights)
    result = np.zeros(count, np.int64) if floors is None else np.array(floors, np.int64)
    most = np.full(count, np.iinfo(np.int64).max) if caps is None else np.maximum(caps, result)
    rank = {c: i for i, c in enumerate(order if order is not None else range(count))}

    def seat(c: int) -> tuple[float, int, int, int]:
        return (-weights[c] / (2 * result[c] + 1), int(result[c]), rank[c], c)

    heap = [seat(c) for c in range(count) if weights[c] > 0 and result[c] < most[c]]
    heapq.heapify(heap)
    for _ in range(total - int(result.sum())):
        if not heap:
            break
        c = heapq.heappop(heap)[3]
        result[c] += 1
        if result[c] < most[c]:
            heapq.heappush(heap, seat(c))
    return result
