"""Where the fleet should stand: the optimum as if replicas that leave made room at once, as far as nodes allow that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rebalancer.core import placement
from rebalancer.core.model import Unknown
from rebalancer.core.planning.draft import Draft
from rebalancer.core.planning.ground import Ground
from rebalancer.core.planning.weigh import item
from rebalancer.core.room import Shape

ROUNDS = 3
"""So often the fleet is solved, each time without the places that turned out to be none."""
SHAPES = 64
"""So many shapes of what may leave are looked at in each cluster, the most frequent ones."""
Amounts = dict[str, float]


@dataclass(frozen=True, slots=True)
class Aim:
    """A target and what it was found with.

    Attributes:
        solution: of all workloads.
        items: what the solver was given, by workload.
        room: (cores, bytes) by cluster, with what those use who give room.
        warm: what the next solution may start from.
    """

    solution: placement.Solution
    items: dict[str, placement.Item]
    room: tuple[Amounts, Amounts]
    warm: placement.Warm | None


def aim(drafts: Mapping[str, Draft], ground: Ground, warm: placement.Warm | None) -> Aim:
    """The optimum that the moves work towards.

    Args:
        drafts: by workload.
        ground: common ground.
        warm: where the solver may start from.
    """
    settings = ground.settings
    items, free = {w: item(d, ground) for w, d in drafts.items()}, ground.free()
    if placement.joint(len(items), kernels=settings.kernels):
        items = {w: replace(i, gives=_gives(drafts[w])) for w, i in items.items()}
        standing = _standing(items, drafts)
        known: dict[tuple[str, Shape], int] = {}
        items = {w: _open(i, drafts[w], ground, standing, known) for w, i in items.items()}
    for _ in range(ROUNDS):
        room = _with_own(free, items, drafts)
        solution, warm = placement.solve(
            list(items.values()), *room, kernels=settings.kernels, warm=warm, seed=settings.seed
        )
        changed = _unfit(items, solution, drafts, ground)
        for workload in _own_need(items, solution):
            changed[workload] = replace(changed.get(workload, items[workload]), gives=False, max_exchanges=0)
        if not changed:
            break
        items |= changed
    return Aim(solution, items, room, warm)


def _gives(draft: Draft) -> bool:
    """Whether others may count on what the workload leaves: not where nothing of it will be done now."""
    return not draft.hold and not draft.policy.observe_only


def _standing(items: Mapping[str, placement.Item], drafts: Mapping[str, Draft]) -> dict[str, dict[Shape, int]]:
    """Cluster -> shape -> replicas that stand on ordinary nodes and may leave them."""
    found: dict[str, dict[Shape, int]] = {}
    for workload, one in items.items():
        for cluster in one.clusters if one.gives else ():
            kind = drafts[workload].shapes[cluster]
            if one.now[cluster] and cluster not in one.frozen and kind.plain and not kind.tolerations:
                here = found.setdefault(cluster, {})
                here[kind] = here.get(kind, 0) + one.now[cluster]
    return {c: dict(sorted(here.items(), key=lambda p: -p[1])[:SHAPES]) for c, here in found.items()}


def _open(
    one: placement.Item, draft: Draft, ground: Ground, standing: Mapping[str, Mapping[Shape, int]],
    known: dict[tuple[str, Shape], int],
) -> placement.Item:  # fmt: skip
    """Lets replicas into clusters where others may make room for them, node by node; `known` keeps how many fit."""
    wider = {}
    for cluster in one.roomless | {c for c, why in draft.barred.items() if why == "no-room"}:
        kind = draft.shapes[cluster]
        if cluster in one.frozen or cluster in one.leave or not kind.plain:
            continue
        key = cluster, kind
        if key not in known:
            known[key] = sum(count * other.times(kind) for other, count in standing.get(cluster, {}).items())
        most = one.replicas if _in_one_piece(ground, cluster) else min(one.replicas, one.add_max[cluster] + known[key])
        wider[cluster] = ground.within_quota(cluster, draft.workload, kind, most)
    return replace(one, add_max={**one.add_max, **wider}) if wider else one


def _in_one_piece(ground: Ground, cluster: str) -> bool:
    space = ground.rooms[cluster]
    return not isinstance(space, Unknown) and space.in_one_piece


def _with_own(
    free: tuple[Amounts, Amounts], items: Mapping[str, placement.Item], drafts: Mapping[str, Draft]
) -> tuple[Amounts, Amounts]:
    """Adds what is used by those who give room, and what moves in flight are about to leave."""
    cpu, memory = dict(free[0]), dict(free[1])
    for workload, one in items.items():
        for cluster in one.clusters:
            going = max(0, drafts[workload].placements[cluster].wanted - one.now[cluster])
            count = going + (one.now[cluster] if one.gives and cluster not in one.frozen else 0)
            if count and cluster in cpu:
                cpu[cluster] += count * one.cpu
                memory[cluster] += count * one.memory
    return cpu, memory


def _own_need(items: Mapping[str, placement.Item], solution: placement.Solution) -> list[str]:
    """Workloads that would leave room to others although they are short of replicas: all that they have, they keep."""
    found = []
    for workload, one in items.items():
        placed = solution.items[workload]
        if one.gives and placed.unplaced > 0:
            leaves = any(placed.replicas[c] < n for c, n in one.now.items() if c not in one.leave)
            found += [workload] if leaves else []
    return found


def _unfit(
    items: Mapping[str, placement.Item], solution: placement.Solution, drafts: Mapping[str, Draft], ground: Ground
) -> dict[str, placement.Item]:
    """Items without the places that are none: together the nodes have the room, but no node has it in one piece.

    A replica that comes takes room in one piece, or the place of one that leaves and is at least as large.
    """
    coming: dict[str, list[tuple[Shape, str, int]]] = {}
    leaving: dict[str, dict[Shape, int]] = {}
    for workload, one in items.items():
        found = solution.items[workload].replicas
        for cluster in one.clusters if found != one.now else ():
            more, kind = found[cluster] - one.now[cluster], drafts[workload].shapes[cluster]
            if more > 0 and kind.plain and _in_one_piece(ground, cluster):
                continue
            if more > 0 and (more := more - ground.fits(cluster, kind, drafts[workload].lead_s)) > 0:
                coming.setdefault(cluster, []).append((kind, workload, more))
            elif more < 0 and one.gives and kind.plain and not kind.tolerations:
                here = leaving.setdefault(cluster, {})
                here[kind] = here.get(kind, 0) - more
    result: dict[str, placement.Item] = {}
    for cluster, many in coming.items():
        blocks = leaving.get(cluster, {})
        for kind, workload, extra in sorted(many, key=lambda m: (-m[0].cpu, -m[0].memory, m[1])):
            without = _fill(blocks, kind, extra)
            if without:
                one = result.get(workload, items[workload])
                most = solution.items[workload].replicas[cluster] - one.now[cluster] - without
                result[workload] = replace(one, add_max={**one.add_max, cluster: most})
    return result


def _fill(blocks: dict[Shape, int], kind: Shape, count: int) -> int:
    """Takes the places of what leaves, smallest first; returns how many replicas get none."""
    for other in sorted(blocks, key=lambda s: (s.cpu, s.memory)):
        times = other.times(kind)
        if count <= 0 or times == 0:
            continue
        used = min(blocks[other], -(-count // times))
        blocks[other] -= used
        count -= used * times
    return max(0, count)
