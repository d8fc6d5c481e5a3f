"""What one replica can serve, learned from its CPU by its load.

CPU per ready replica is taken as idle + cost * load. Where the load varied enough to tell the two apart, the line says
how much load fits into the CPU that a replica may use. Until then all CPU counts as the load's, as for an HPA on CPU:
below the target that gives less capacity than there is, never more. Where CPU plainly does not follow the load, nobody
knows the capacity.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MIN_CORES = 0.01
"""Below this CPU use of a workload the ratio of load to CPU is noise."""
MIN_SAMPLES = 20.0
LONG_FADE, RECENT_FADE = 0.999, 0.9
"""Weight that samples keep from one to the next: the line rests on about a day of cycles of a minute, because load
takes hours to vary; what shows a new release at once on the last ten."""
LINE_R2 = 0.8
"""From this fit on a line is used: were all the rest an error of the load's measurement, it would still promise at most
an eighth too much at twice the usual load."""
FOLLOWS_R2, FOLLOWS_RATIO, MIN_SPREAD = 0.3, 0.5, 0.2
"""CPU does not follow the load where the fit is below the first, and surely less than the second, as a share of the CPU
at the usual load, is the load's. Load that deviates by less than the third of its mean cannot show it: that much may be
an error of its measurement."""
ERRORS = 3.0
"""Standard errors on either side; samples overlap in time, so that two would claim too much."""
MAX_ERROR_RATIO = 0.25
"""A line whose capacity is known less well is not used yet."""
NEW_COST_RATIO = 0.1
"""A line that misses the recent CPU by more belongs to an older release."""


@dataclass(frozen=True, slots=True)
class Moments:
    """Weighted samples of load x and CPU y per ready replica.

    Attributes:
        weight: sum of the weights, in samples.
        x, y: means, in demand units and cores.
        xx, xy, yy: sums of weighted products of the deviations from the means.
    """

    weight: float = 0.0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0
    yy: float = 0.0

    def add(self, load: float, cores: float, fade: float) -> Moments:
        """Takes a sample; those before it keep the share `fade` of their weight."""
        weight = self.weight * fade + 1.0
        dx, dy, left = load - self.x, cores - self.y, 1.0 - 1.0 / weight
        return Moments(
            weight, self.x + dx / weight, self.y + dy / weight,
            self.xx * fade + dx * dx * left, self.xy * fade + dx * dy * left, self.yy * fade + dy * dy * left,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Learned:
    """What was seen of a workload: over about a day, and recently."""

    long: Moments = Moments()
    recent: Moments = Moments()


@dataclass(frozen=True, slots=True)
class _Line:
    """Least squares through moments: cores = idle + cost * load.

    Attributes:
        r2: share of the CPU's variance that the load explains.
        noise: standard deviation of the CPU around the line, cores.
    """

    of: Moments
    cost: float
    idle: float
    r2: float
    noise: float

    def at(self, load: float) -> float:
        """CPU at a load."""
        return self.idle + self.cost * load

    def error(self, load: float) -> float:
        """Standard error of the CPU at a load, cores; it grows away from the loads that were seen."""
        return self.noise * math.sqrt(1.0 / self.of.weight + (load - self.of.x) ** 2 / self.of.xx)

    @property
    def trusted(self) -> bool:
        """Whether the fit is good enough to read anything off the line."""
        return self.cost > 0 and self.r2 >= LINE_R2

    @property
    def unrelated(self) -> bool:
        """Whether CPU does not follow the load, and the samples suffice to say so; a weak fit alone does not."""
        spread = math.sqrt(self.of.xx / self.of.weight)
        if (self.cost > 0 and self.r2 >= FOLLOWS_R2) or spread < MIN_SPREAD * self.of.x:
            return False
        steepest = self.cost + ERRORS * self.noise / math.sqrt(self.of.xx)
        return steepest < FOLLOWS_RATIO * self.of.y / self.of.x


def _line(of: Moments) -> _Line | None:
    """The line; None where samples are too few or their load was always the same."""
    if of.weight < MIN_SAMPLES or not of.xx > 1e-9 * of.weight * of.x * of.x:
        return None
    cost = of.xy / of.xx
    rest = max(0.0, of.yy - cost * of.xy)
    r2 = 1.0 - rest / of.yy if of.yy > 1e-12 * of.weight * of.y * of.y else 0.0
    return _Line(of, cost, of.y - cost * of.x, r2, math.sqrt(rest / (of.weight - 2.0)))


def learn(seen: Learned, load: float, cores: float) -> Learned:
    """Takes what one ready replica serves and uses at present.

    Args:
        seen: what was seen before.
        load: demand units per ready replica, above 0 and finite.
        cores: CPU per ready replica, above 0 and finite, of the same pods at the same time and not capped by a limit.

    Returns:
        What is known now. Where a trusted line misses the recent CPU, a release changed what a request costs, and only
        the recent samples remain.
    """
    long, recent = seen.long.add(load, cores, LONG_FADE), seen.recent.add(load, cores, RECENT_FADE)
    line = _line(long)
    if line is not None and line.trusted:
        missed = abs(recent.y - line.at(recent.x))
        noise = ERRORS * line.noise / math.sqrt(recent.weight)
        if missed > max(NEW_COST_RATIO * recent.y, noise):
            return Learned(recent, recent)
    return Learned(long, recent)


@dataclass(frozen=True, slots=True)
class Estimate:
    """What one replica can serve.

    Attributes:
        capacity: demand units at the target utilisation; NaN if unknown.
        told: how it is known, or why it is not; one line.
    """

    capacity: float
    told: str


def estimate(seen: Learned, usable: float) -> Estimate:
    """Says what one replica can serve.

    Args:
        seen: the samples.
        usable: CPU that a replica may use, cores: its request times the target utilisation; 0 without a request.

    Returns:
        The capacity of the line, at the safe end of its error but not below that of proportional CPU; of proportional
        CPU alone while the line is not known well enough; NaN without samples, without a request, where CPU does not
        follow the load, or where a replica uses more when idle than it may.
    """
    if not usable > 0:
        return Estimate(math.nan, "the pods request no CPU")
    if not seen.recent.weight:
        return Estimate(math.nan, "no cycle saw the CPU and the requests of all ready replicas yet")
    ratio = usable * seen.recent.x / seen.recent.y
    line = _line(seen.long)
    short = f"at least {MIN_SAMPLES:g} of a load that varies are needed"
    told = f"{seen.long.weight:.0f} samples, " + (f"R2 {line.r2:.2f}" if line else short)
    if line is not None and line.unrelated:
        need = f"a rise with R2 {FOLLOWS_R2:g} at least is needed"
        return Estimate(math.nan, f"CPU does not follow the load: {told}, {line.cost:.3g} cores per unit; {need}")
    if line is not None and line.trusted:
        if line.idle >= usable:
            return Estimate(math.nan, f"{line.idle:.3g} cores are used when idle, {usable:.3g} may be used ({told})")
        full = (usable - line.idle) / line.cost
        low = full - ERRORS * line.error(full) / line.cost
        if low >= (1.0 - MAX_ERROR_RATIO) * full:
            return Estimate(max(low, min(ratio, full)), f"CPU by load, {max(0.0, line.idle):.3g} cores idle ({told})")
    return Estimate(ratio, f"all CPU counts as the load's, since idle CPU can't be told from it yet ({told})")
