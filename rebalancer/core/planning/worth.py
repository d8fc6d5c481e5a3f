"""What the room that a replica leaves is worth to those who wait for it, in whole replicas.

Shadow prices tell it of fractions of replicas: where only a whole one makes a difference they are often 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rebalancer.core import placement
from rebalancer.core.planning.actions import FORCED
from rebalancer.core.planning.draft import Draft, Room
from rebalancer.core.planning.step import exchanges
from rebalancer.core.planning.target import Aim
from rebalancer.core.planning.terms import move_dollars, terms

EPSILON = 1e-6
Changes = dict[str, dict[str, int]]
Amounts = tuple[Mapping[str, float], Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class _Short:
    """A cluster in which less is free than comes, of cores or of bytes.

    Attributes:
        kind: 0 cores, 1 bytes.
        lack: how much of it is not free.
        left: how much of it others leave.
        coming: workloads of which replicas come.
    """

    kind: int
    lack: float
    left: float
    coming: list[str]


def awaited(
    drafts: Mapping[str, Draft], free: Amounts, target: Aim, rows: Iterable[str]
) -> dict[tuple[str, str], Room]:  # fmt: skip
    """(workload, cluster) -> who waits for the room that it leaves there, and what others would lose if it stayed.

    Others wait where less is free than the target brings. If somebody stayed, those who gain least by their places
    would have to do without as many of them as would not fit.

    Args:
        drafts: by workload.
        free: (cores, bytes) by cluster; a cluster that is missing does not bind.
        target: where everything should stand.
        rows: workloads of which replicas come anywhere.
    """
    items, found = target.items, target.solution.items
    more = {w: {c: found[w].replicas[c] - n for c, n in d.now.items()} for w, d in drafts.items()}
    shorts = _shorts(items, more, free, [w for w in rows if items[w].gives])
    own = {w: _own(items[w], drafts[w], target) for s in shorts.values() for w in s.coming}
    leaving = [(w, c) for w, changes in more.items() for c, n in changes.items() if n < 0 and c in shorts]
    most, worth = sum(max(0.0, gain) for gain in own.values()), dict[tuple[str, str], float]()
    # Who waits may leave room to others in turn; such a chain is no longer than there are clusters that lack room.
    for _ in range(len(shorts) + 1):
        net = dict(own)
        for (workload, cluster), value in worth.items():
            if workload in net:
                # Around a ring a gain would count at each pass; nobody loses more than all gain together.
                net[workload] = min(most, net[workload] - more[workload][cluster] * value)
        queues = {c: _queue(s, c, items, more, net) for c, s in shorts.items()}
        before, worth = worth, {(w, c): _lost(shorts[c], queues[c], -more[w][c], items[w]) for w, c in leaving}
        if worth == before:
            break
    first = {c: max(s.coming, key=lambda w: _urgency(drafts[w])) for c, s in shorts.items()}
    return {(w, c): Room(first[c], value) for (w, c), value in worth.items()}


def _shorts(
    items: Mapping[str, placement.Item], more: Changes, free: Amounts, rows: Iterable[str]
) -> dict[str, _Short]:
    """Clusters in which less is free than comes; of what they lack, the kind that they lack most of."""
    coming: dict[str, list[str]] = {}
    for workload in rows:
        for cluster, count in more[workload].items():
            if count > 0:
                coming.setdefault(cluster, []).append(workload)
    result = {}
    for cluster, many in coming.items():
        lacks = []
        for kind in (0, 1):
            need = sum(more[w][cluster] * _size(items[w], kind) for w in many)
            lack = need - free[kind].get(cluster, need)
            lacks.append((lack / need if need > 0 else 0.0, kind, lack))
        share, kind, lack = max(lacks)
        if share > EPSILON:
            left = sum(max(0, -changes.get(cluster, 0)) * _size(items[w], kind) for w, changes in more.items())
            result[cluster] = _Short(kind, lack, left, many)
    return result


def _size(item: placement.Item, kind: int) -> float:
    return item.memory if kind else item.cpu


def _own(item: placement.Item, draft: Draft, target: Aim) -> float:
    """$/h that a workload gains by its place in the target; 0 where replicas become fewer at the same time.

    A replica that must leave has no place where it is.
    """
    found = target.solution.items[draft.workload]
    growth = sum(found.replicas.values()) - sum(draft.now.values())
    if growth < 0:
        return 0.0
    before = sum(terms(item, draft, placement.evaluate(item, draft.now)).values())
    after = sum(terms(item, draft, found).values())
    forced = sum(max(0, n - found.replicas[c]) for c, n in draft.now.items() if draft.leave.get(c, "") in FORCED)
    return (
        before
        - after
        - move_dollars(exchanges(draft, target.solution))
        + (growth + forced) * placement.unplaced_dollars(item)
    )


def _queue(
    short: _Short, cluster: str, items: Mapping[str, placement.Item], more: Changes, net: Mapping[str, float]
) -> list[tuple[float, float, int]]:
    """(size, $/h each, replicas) of what comes, first what gains least by its room."""
    found = []
    for workload in sorted(short.coming):
        size, come = _size(items[workload], short.kind), more[workload]
        if size > 0:
            found.append((size, max(0.0, net[workload]) / sum(n for n in come.values() if n > 0), come[cluster]))
    return sorted(found, key=lambda f: f[1] / f[0])


def _lost(short: _Short, queue: Iterable[tuple[float, float, int]], count: int, item: placement.Item) -> float:
    """$/h that others would lose by each of `count` replicas if none of these left the cluster; at least 0."""
    lack = count * _size(item, short.kind) - max(0.0, short.left - short.lack)
    lost = 0.0
    for size, each, most in queue:
        if lack <= EPSILON * size:
            break
        number = min(most, math.ceil(lack / size - EPSILON))
        lost, lack = lost + number * each, lack - number * size
    return lost / count


def _urgency(draft: Draft) -> tuple[bool, int]:
    return draft.wanted.replicas > sum(draft.now.values()), draft.policy.priority
