"""The recorded series of the probes -> the samples that the latency map is built from, with their true ages.

One instant query a cycle for values, one for times: an instant answer hides how old a sample is. What has vanished is
kept with growing age; the first cycle looks an hour back for it.
"""

from __future__ import annotations

from collections.abc import Mapping

from rebalancer.adapters.telemetry.backend import Backend
from rebalancer.adapters.telemetry.decode import Series
from rebalancer.adapters.telemetry.errors import AnswerError
from rebalancer.adapters.telemetry.gaps import Gaps
from rebalancer.adapters.telemetry.promql import LOOKBACK
from rebalancer.catalog import PAIR, RECORDED
from rebalancer.core.network import MapSettings, undirected

PREFIX = "pair:rebalancer_probe_"
ALL = f'{{__name__=~"{PREFIX}.*"}}'
SAMPLES = f"{PREFIX}samples:increase2m"
LAST_OK = f"{PREFIX}last_ok_age_seconds:min"
P50 = f"{PREFIX}rtt_seconds:p50_2m"
USUAL_EVERY_S, USUAL_RETRY_S = 3600.0, 600.0
"""A week's median hardly moves within the hour."""
_WEEK = f"{P50}[7d:30m]"
_DAY_OF_STEPS = 48
USUAL = f"quantile_over_time(0.5, {_WEEK}) and count_over_time({_WEEK}) >= {_DAY_OF_STEPS}"
"""The usual median of each pair that was measured for a day or more; in steps, because a week of raw samples of many
pairs is above a server's limit."""
RAW = "rebalancer_probe_probes_total"
RULES = "rules/rebalancer-recording.yaml (or -native.yaml where native histograms are scraped)"
_BY = ", ".join(PAIR)
Pair = tuple[str, str, str]
Sample = tuple[str, str, str, str]


def times(metric: str, *, back: bool) -> str:
    """Time of a recording's newest sample by pair; `back` also finds those that vanished within the hour."""
    now = f"max by ({_BY}) (timestamp({metric}))"
    return f"{now} or max by ({_BY}) (max_over_time(timestamp({metric}){LOOKBACK}))" if back else now


class Recordings:
    """What one backend has recorded about pairs; outlives the cycles.

    Args:
        backend: who is asked.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.gaps = Gaps(backend)
        self._known: dict[Sample, tuple[float, float]] = {}
        self._seeded = False
        self._usual: dict[tuple[str, str], float] = {}
        self._usual_due_s = 0.0

    async def read(self, now: float) -> tuple[dict[Sample, tuple[float, float]], list[str]]:
        """Reads all recordings.

        Args:
            now: Unix seconds.

        Returns:
            (recorded name, source, destination, proto) -> (value, age in s), and problems, a sentence each.
        """
        problems: list[str] = []
        try:
            if not self._seeded:
                # Tried once: what vanished before a restart is worth one look, not one every cycle.
                self._seeded = True
                problems += await self._seed(now)
            values = (await self._backend.query(ALL, now)).series
            found = (await self._backend.query(times(SAMPLES, back=False), now)).series if values else ()
            at = {_pair(one.labels): float(one.values[0]) for one in found}
            present, doubled = self._take(values, at, now)
            problems += doubled
            problems += await self.gaps.look({pair[:2]: one for pair, one in at.items() if pair[2] == "udp"}, now)
            if not values:
                problems.append(await self._why_nothing(now))
        except AnswerError as error:
            problems.append(f"network: {error}")
            present = set()
        return self._aged(present, now), problems

    async def usual(self, now: float) -> tuple[dict[tuple[str, str], float], list[str]]:
        """Reads what round trip is usual, once an hour; what was known stays while it can't be read.

        Args:
            now: Unix seconds.

        Returns:
            (pair, the lesser name first -> seconds), the larger where both directions are known; and problems.
        """
        if now < self._usual_due_s:
            return self._usual, []
        self._usual_due_s = now + USUAL_RETRY_S
        try:
            found = (await self._backend.query(USUAL, now)).series
        except AnswerError as error:
            return self._usual, [f"usual round trips, so that links are judged by loss only: {error}"]
        self._usual_due_s = now + USUAL_EVERY_S
        usual: dict[tuple[str, str], float] = {}
        for one in found:
            src, dst, proto = _pair(one.labels)
            value = float(one.values[0])
            if proto == "udp" and src and dst and 0.0 < value < float("inf"):
                pair = undirected(src, dst)
                usual[pair] = max(value, usual.get(pair, 0.0))
        self._usual = usual
        return usual, []

    def _take(self, values: tuple[Series, ...], at: Mapping[Pair, float], now: float) -> tuple[set[Sample], list[str]]:
        found, doubled = _single(values)
        present = set(found)
        for key in present:
            self._known[key] = (found[key], at.get(key[1:], now))
        if not doubled:
            return present, []
        name, src, dst, proto = min(doubled)
        return present, [
            f"{self._backend.url} has several series of {name} from {src} to {dst} ({proto}) that differ, "
            f"{len(doubled)} such in all; let one Prometheus per cluster record them, or set replicaLabels for Thanos."
        ]

    def _aged(self, present: set[Sample], now: float) -> dict[Sample, tuple[float, float]]:
        """Ages count from the sample; what is not recorded any more is older than the present may be."""
        settings = MapSettings()
        aged = {}
        for key, (value, at) in self._known.items():
            age = max(0.0, now - at)
            aged[key] = (value, age if key in present else max(age, settings.fresh_s + 1.0))
        self._known = {key: one for key, one in self._known.items() if now - one[1] <= 2 * settings.keep_s}
        return aged

    async def _seed(self, now: float) -> list[str]:
        """After a restart: the last values of the last hour, each pair's with the time of its last sample."""
        try:
            await self._look_back(now)
        except AnswerError as error:
            return [f"network of the last hour: {error}"]
        return []

    async def _look_back(self, now: float) -> None:
        last = (await self._backend.query(f"last_over_time({ALL}[1h])", now)).series
        if last:
            ends = {}
            for metric in (SAMPLES, LAST_OK):
                found = (await self._backend.query(times(metric, back=True), now)).series
                ends[metric] = {_pair(one.labels): float(one.values[0]) for one in found}
            ages = {_pair(one.labels): float(one.values[0]) for one in last if one.labels.get("__name__") == LAST_OK}
            for key, value in _single(last)[0].items():
                self._known[key] = (value, _end(key, ends, ages, now))

    async def _why_nothing(self, now: float) -> str:
        url = self._backend.url
        if (await self._backend.query(f"count({RAW})", now)).series:
            return (
                f"{url} has probes' counters but no recordings {PREFIX}*; load {RULES} "
                "into each cluster's Prometheus, else no latency is known."
            )
        return (
            f"{url} has no recordings {PREFIX}* and no probes' counters; run rebalancer-probe in each cluster, let "
            f"Prometheus scrape it, and load {RULES}."
        )


def _single(values: tuple[Series, ...]) -> tuple[dict[Sample, float], set[Sample]]:
    """Values by sample, and the samples of which there are several that differ: nobody knows which is true."""
    found: dict[Sample, set[float]] = {}
    for one in values:
        key = _key(one.labels)
        if key is not None:
            found.setdefault(key, set()).add(float(one.values[0]))
    doubled = {key for key, several in found.items() if len(several) > 1}
    return {key: min(several) for key, several in found.items() if key not in doubled}, doubled


def _end(key: Sample, ends: Mapping[str, Mapping[Pair, float]], ages: Mapping[Pair, float], now: float) -> float:
    """Time up to which a value held. Round trips end with the last good reply, the rest with the last evaluation."""
    pair = key[1:]
    last = ends[SAMPLES].get(pair, ends[LAST_OK].get(pair, now - MapSettings().keep_s))
    if "rtt" in key[0] or "jitter" in key[0]:
        return min(last, ends[LAST_OK].get(pair, last) - ages.get(pair, 0.0))
    return ends[LAST_OK].get(pair, last) if key[0] == LAST_OK else last


def _pair(labels: Mapping[str, str]) -> Pair:
    return labels.get("src_cluster", ""), labels.get("dst_cluster", ""), labels.get("proto", "")


def _key(labels: Mapping[str, str]) -> Sample | None:
    name = labels.get("__name__", "")
    return (name, *_pair(labels)) if name in RECORDED else None
