"""How given replicas serve demand best: a transportation problem of a few origins and clusters, without a solver.

Successive shortest paths as in Ford and Fulkerson; a fleet of a thousand workloads asks for it some thousand times a
cycle, so it has no overhead to pay.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

EPS = 1e-9


def best(
    demand: Mapping[str, float], replicas: Mapping[str, int], serve: Mapping[tuple[str, str], float], lost: float
) -> dict[tuple[str, str], float]:
    """Splits traffic.

    Args:
        demand: origin -> replica equivalents.
        replicas: cluster -> replicas.
        serve: (origin, cluster) -> $/h per replica equivalent.
        lost: $/h for a replica equivalent that nobody serves; dearer ways are not taken.

    Returns:
        (origin, cluster) -> replica equivalents served there.
    """
    origins = [o for o, d in demand.items() if d > EPS]
    clusters = [c for c, n in replicas.items() if n > 0]
    need = [demand[o] for o in origins]
    free = [float(replicas[c]) for c in clusters]
    cost = [[serve[o, c] for c in clusters] for o in origins]
    flow = [[0.0] * len(clusters) for _ in origins]
    while True:
        found = _path(need, free, cost, flow)
        if found is None or found[0] >= lost:
            break
        _, path = found
        amount = min(need[path[0][0]], free[path[-1][1]])
        # Every second step of the way gives a cluster back that its predecessor used.
        back = [(path[i + 1][0], path[i][1]) for i in range(len(path) - 1)]
        amount = min([amount, *(flow[r][c] for r, c in back)])
        for r, c in path:
            flow[r][c] += amount
        for r, c in back:
            flow[r][c] -= amount
        need[path[0][0]] -= amount
        free[path[-1][1]] -= amount
    return {
        (o, c): flow[r][j] for r, o in enumerate(origins) for j, c in enumerate(clusters) if flow[r][j] > 1e-7
    }  # fmt: skip


def _path(
    need: list[float], free: list[float], cost: list[list[float]], flow: list[list[float]]
) -> tuple[float, list[tuple[int, int]]] | None:
    """The cheapest way from an origin in need to a free replica: (its cost, its (origin, cluster) steps)."""
    rows, columns = range(len(need)), range(len(free))
    # Against the largest cost, or rounding would find ever cheaper circles.
    least = 1e-12 * max(1.0, max((abs(c) for row in cost for c in row), default=0.0))
    at = [0.0 if free[c] > EPS else math.inf for c in columns]
    of = [math.inf for _ in rows]
    via_of, via_at = [-1 for _ in rows], [-1 for _ in columns]
    # A cheapest way has no circle, so that so many rounds find it.
    for _ in range(2 * (len(rows) + len(columns))):
        changed = False
        for r in rows:
            for c in columns:
                if at[c] + cost[r][c] < of[r] - least:
                    of[r], via_of[r], changed = at[c] + cost[r][c], c, True
        for c in columns:
            for r in rows:
                if flow[r][c] > EPS and of[r] - cost[r][c] < at[c] - least:
                    at[c], via_at[c], changed = of[r] - cost[r][c], r, True
        if not changed:
            break
    start = min((r for r in rows if need[r] > EPS), key=lambda r: of[r], default=-1)
    if start < 0 or math.isinf(of[start]):
        return None
    path, r = [], start
    for _ in range(len(rows) + len(columns)):
        c = via_of[r]
        path.append((r, c))
        if via_at[c] < 0:
            return of[start], path
        r = via_at[c]
    return None
