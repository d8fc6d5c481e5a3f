"""Ready -> Suspect -> Lost: one clock per cluster, kept across restarts, and a brake for the whole fleet.

If most clusters vanish at once the fault is more likely ours (network, credentials) than theirs; then nothing is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rebalancer.core.model import Sight

SUSPECT_AFTER_S = 30.0
"""As Karmada's and the node controller's grace: a restart of an API server behind a load balancer takes less."""
BRAKE_RATIO = 0.5
EPISODE_S = 3600.0
"""Sight that lasts shorter than this does not end a loss: a cluster that comes and goes is out all the while."""


@dataclass(frozen=True, slots=True)
class Clock:
    """When a cluster was last seen, and since when it is seen again without a break.

    Attributes:
        seen_s: last good answer, or the time of the first look if it never answered.
        back_s: begin of the present unbroken sight; None while out of sight.
        gone_s: begin of the last loss, or of the row of losses with only short sight between; None if there was none.
    """

    seen_s: float
    back_s: float | None = None
    gone_s: float | None = None


def tick(clocks: Mapping[str, Clock], seen: Mapping[str, float | None], now: float) -> dict[str, Clock]:
    """Moves the clocks on.

    Args:
        clocks: by cluster, from the last cycle or from status.
        seen: by configured cluster, its last good answer; None if it never answered.
        now: time.
    """
    result = {}
    for cluster, answer in seen.items():
        old = clocks.get(cluster)
        last = answer if answer is not None else (old.seen_s if old else now)
        if now - last > SUSPECT_AFTER_S:
            result[cluster] = Clock(last, None, _begin(old, last))
        elif old is None:
            result[cluster] = Clock(last, last if answer is not None else None)
        else:
            result[cluster] = Clock(last, old.back_s if old.back_s is not None else last, old.gone_s)
    return result


def _begin(old: Clock | None, last: float) -> float:
    """When the present loss began; a loss before it counts as the same one where the sight between was short."""
    if old is None or old.gone_s is None:
        return last
    short = old.back_s is None or last - old.back_s < EPISODE_S
    return old.gone_s if short else last


def braked(clocks: Mapping[str, Clock], now: float) -> bool:
    """Says whether so many clusters are out of sight that none may count as lost."""
    out = sum(1 for c in clocks.values() if now - c.seen_s > SUSPECT_AFTER_S)
    return len(clocks) > 1 and out / len(clocks) > BRAKE_RATIO


def judge(clock: Clock, lost_after_s: float, now: float, *, brake: bool) -> Sight:
    """Says how well a cluster is seen.

    Args:
        clock: its clock.
        lost_after_s: by policy.
        now: time.
        brake: whether the fleet brake holds; then nothing is lost.
    """
    age = now - clock.seen_s
    if age <= SUSPECT_AFTER_S:
        return Sight.READY
    return Sight.LOST if age > lost_after_s and not brake else Sight.SUSPECT


def trusted_again(clock: Clock, lost_after_s: float, failback_after_s: float, now: float) -> bool:
    """Says whether new replicas may go there: never lost, or back for long enough."""
    if clock.back_s is None:
        return False
    was_lost = clock.gone_s is not None and clock.back_s - clock.gone_s > lost_after_s
    return not was_lost or now - clock.back_s >= failback_after_s
