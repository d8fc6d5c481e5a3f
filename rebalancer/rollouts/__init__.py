"""The rollout tick: observe -> count -> decide -> write, every second or two, for every CanaryRollout.

It knows ports only; the simulated world runs the same tick with a plant in the place of the clusters. Order of
writes: an advance is stored first and done after, so that a killed controller never runs more than the status allows;
a rollback is done first and stored after, so that nothing delays it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from rebalancer.core.rollout import counters
from rebalancer.core.rollout.decision import Action, Decision
from rebalancer.core.rollout.machine import decide
from rebalancer.core.rollout.model import ClusterSeen, Metric, Observed, Sample, Spec, State
from rebalancer.core.rollout.ownership import holds, settle
from rebalancer.core.rollout.requests import ignored
from rebalancer.core.rollout.stored import Stored
from rebalancer.errors import ClusterError, RebalancerError
from rebalancer.ports import (
    Clock,
    CounterAnswer,
    Notifier,
    Outcome,
    RolloutActuator,
    RolloutStore,
    Selection,
    Telemetry,
)
from rebalancer.rollouts.memory import MemoryStore
from rebalancer.rollouts.report import Measure, RolloutReport, TickReport, ended

log = logging.getLogger("rebalancer")

OBSERVING = "only observing"
"""Problem of a rollout that nothing is written for: nobody said --act, or another controller holds the lease."""

__all__ = ["OBSERVING", "Limits", "Measure", "MemoryStore", "RolloutReport", "Rollouts", "TickReport"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Total deadlines of port calls, seconds.

    Attributes:
        late_s: how long a cluster is waited for whose last answer is still outstanding.
    """

    observe_s: float = 1.5
    late_s: float = 0.05
    counters_s: float = 2.0
    apply_s: float = 3.0
    save_s: float = 3.0


class Rollouts:
    """Drives all rollouts of a world. One instance per world; its caches may be lost at any time."""

    def __init__(
        self,
        store: RolloutStore,
        actuator: RolloutActuator,
        telemetry: Telemetry,
        clock: Clock,
        clusters: Callable[[], Mapping[str, Mapping[str, str]]],
        notifier: Notifier | None = None,
        *,
        acting: Callable[[], bool] = lambda: True,
        limits: Limits | None = None,
    ) -> None:
        """Takes the ports.

        Args:
            store: rollouts and their status.
            actuator: the clusters.
            telemetry: raw counters.
            clock: gives `now`.
            clusters: declared clusters with their labels, read at every tick.
            notifier: Events.
            acting: asked before every write: `--act` is given and the lease is ours.
            limits: deadlines.
        """
        self._store, self._actuator, self._telemetry = store, actuator, telemetry
        self._clock, self._clusters, self._notifier = clock, clusters, notifier
        self._acting, self._limits = acting, limits or Limits()
        self._cursors: dict[str, dict[counters.Key, counters.Cursor]] = {}
        self._last: dict[tuple[str, str], ClusterSeen] = {}
        self._late: dict[tuple[str, str], asyncio.Task[ClusterSeen]] = {}
        self._told: dict[str, str] = {}
        self._alone = asyncio.Lock()
        self._failures: dict[str, int] = {}

    async def tick(self) -> TickReport:
        """Ticks every rollout once, side by side; a tick that is called meanwhile waits for the end of this one.

        Raises:
            RebalancerError: the store can't be read; nothing was done.
        """
        async with self._alone:
            return await self._tick()

    async def _tick(self) -> TickReport:
        now = self._clock.now()
        every = settle(await self._store.load())
        return TickReport(now, tuple(await asyncio.gather(*(self._apart(one, now) for one in every))))

    async def close(self) -> None:
        """Gives up observations that are still outstanding."""
        for task in self._late.values():
            task.cancel()
        await asyncio.gather(*self._late.values(), return_exceptions=True)
        self._late.clear()

    async def _apart(self, stored: Stored, now: float) -> RolloutReport:
        """Ticks one rollout so that whatever goes wrong in it stays its own problem."""
        key = stored.spec.key
        try:
            report = await self._one(stored, now)
        # Broad on purpose: a mistake of ours, or an object of a form nobody thought of, must not leave the canaries of
        # all other rollouts without anybody who rolls them back.
        except Exception as error:  # noqa: BLE001  # one must not stop the others
            text = f"its tick failed: {type(error).__name__}: {error}"
            self._failures[key] = self._failures.get(key, 0) + 1
            self._tell_once(key, text)
            return RolloutReport(stored.spec, stored.status, problem=text)
        if self._told.pop(key, ""):
            log.warning("rollout %s: ticks again, after %d ticks that failed", key, self._failures.pop(key))
        return report

    def _tell_once(self, key: str, text: str) -> None:
        """Logs what is being handled with its place in the code, once as long as it stays the same."""
        if self._told.get(key) != text:
            self._told[key] = text
            log.exception("rollout %s: %s", key, text)

    async def _one(self, stored: Stored, now: float) -> RolloutReport:
        if stored.waits:
            return await self._wait(stored)
        if not stored.guarded and not stored.deleting and self._acting():
            # First of all: a rollout that vanished half-way would leave its canary and paused Deployments behind.
            guarded = await self._within(self._store.guard(stored), "the finalizer could not be written in time")
            problem = "" if guarded.ok else f"its finalizer can't be written: {guarded.detail}"
            return RolloutReport(stored.spec, stored.status, problem=problem)
        observed = await self._observe(stored)
        samples, moved = await self._samples(stored, observed, now)
        decision = decide(stored.spec, stored.status, observed, samples, now)
        decision = replace(decision, status=replace(decision.status, problem=stored.problem))
        return await self._carry_out(stored, decision, moved, now)

    async def _wait(self, stored: Stored) -> RolloutReport:
        """Nothing is decided: the problem goes into the status, and one that left nothing anywhere may be deleted."""
        report = RolloutReport(stored.spec, stored.status, problem=stored.problem, blind=stored.blind)
        if stored.blind or not self._acting():
            return report
        if stored.deleting and not holds(stored):
            released = await self._within(self._store.release(stored), "the finalizer could not be removed in time")
            return replace(report, saved=released)
        status = replace(stored.status, problem=stored.problem, observed_generation=stored.spec.generation)
        asked = stored.request
        if asked is not None and asked.id != status.handled_request:
            # Acknowledged, or it would be done at a time when nobody expects it any more.
            text = ignored(status, asked.verb, "this rollout waits")
            status = replace(status, handled_request=asked.id, message=text)
        if status == stored.status:
            return report
        saved = await self._within(self._store.save(stored, status), "the status could not be written in time")
        return replace(report, status=status if saved.ok else stored.status, saved=saved)

    async def _observe(self, stored: Stored) -> Observed:
        declared = self._clusters()
        names = sorted(declared)
        seen = await asyncio.gather(*(self._look(stored.spec, name) for name in names))
        return Observed(dict(zip(names, seen, strict=True)), declared, stored.request, stored.deleting)

    async def _look(self, spec: Spec, cluster: str) -> ClusterSeen:
        """Reads one cluster; one that hung before is not waited for again until its answer is there."""
        key = (spec.key, cluster)
        task, patience = self._late.pop(key, None), self._limits.late_s
        if task is None or task.done():
            if task is not None and not task.cancelled():
                task.exception()  # too old to be used, but it must not be reported as never retrieved
            task = asyncio.ensure_future(self._actuator.observe(spec, cluster))
            patience = self._limits.observe_s
        done, _ = await asyncio.wait({task}, timeout=patience)
        if not done:
            self._late[key] = task
            return ClusterSeen(cluster, reachable=False, error="no answer in time")
        try:
            seen = task.result()
        except ClusterError as error:
            return ClusterSeen(cluster, reachable=False, error=str(error))
        # Broad on purpose: an object of a form nobody thought of must not keep a rollback out of the other clusters.
        except Exception as error:  # noqa: BLE001  # one must not stop the others
            text = f"can't be understood: {type(error).__name__}: {error}"
            self._tell_once(f"{spec.key} in {cluster}", text)
            return ClusterSeen(cluster, reachable=False, error=text)
        self._last[key] = seen
        return seen

    async def _samples(
        self, stored: Stored, observed: Observed, now: float
    ) -> tuple[list[Sample], dict[counters.Key, counters.Cursor]]:
        """Reads and counts all metrics; a backend that fails is a gap everywhere."""
        status = stored.status
        if not status.active or status.state is State.ROLLING_BACK:
            self._cursors.pop(stored.spec.key, None)
            return [], {}
        names = [n for b in status.batches for n in b.clusters if n in observed.clusters]
        answers = await asyncio.gather(*(self._read(stored, m, names, now) for m in stored.spec.metrics))
        samples: list[Sample] = []
        moved: dict[counters.Key, counters.Cursor] = {}
        cursors = self._cursors.get(stored.spec.key, {})
        for metric, answer in zip(stored.spec.metrics, answers, strict=True):
            for name in names:
                # The API server may be out of sight while its metrics are not: the last known hashes serve then.
                seen = observed.clusters[name]
                seen = seen if seen.reachable else self._last.get((stored.spec.key, name), seen)
                after = status.sampled_s.get(f"{name}/{metric.name}")
                cluster = status.clusters.get(name)
                since = cluster.ready_since_s if cluster is not None else None
                one, more = counters.sample(metric, answer, seen, status.revision, after, cursors, now, since)
                samples.append(one)
                moved.update(more)
        return samples, moved

    async def _read(self, stored: Stored, metric: Metric, names: Sequence[str], now: float) -> counters.Answer:
        status = stored.status
        ends = [t for k, t in status.sampled_s.items() if k.partition("/")[2] == metric.name]
        cold = stored.spec.key not in self._cursors
        since = counters.read_from(ends, status.started_s, now, cold=cold)
        selection = Selection(metric.total, metric.bad, metric.version_label)
        try:
            async with asyncio.timeout(self._limits.counters_s):
                answer = await self._telemetry.counters(selection, names, since, now)
        except TimeoutError:
            return counters.Answer((), (), dict.fromkeys(names, "the metrics backend did not answer in time"))
        except RebalancerError as error:
            return counters.Answer((), (), dict.fromkeys(names, str(error)))
        return counters.Answer(answer.total, answer.bad, _gaps(answer, names))

    async def _carry_out(
        self, stored: Stored, decision: Decision, moved: dict[counters.Key, counters.Cursor], now: float
    ) -> RolloutReport:
        status = decision.status
        if not self._acting():
            return RolloutReport(stored.spec, stored.status, problem=stored.problem or OBSERVING)
        outcomes: tuple[tuple[Action, Outcome], ...] = ()
        if decision.act_first:
            outcomes = await self._act(stored.spec, decision.actions)
        saved = None
        if status != stored.status:
            saved = await self._within(self._store.save(stored, status), "the status could not be written in time")
            if not saved.ok:
                return RolloutReport(stored.spec, stored.status, outcomes, saved)
        if status.active:
            # Counted only now: had the status been lost, the same requests would have to count again.
            self._cursors.setdefault(stored.spec.key, {}).update(moved)
        if not decision.act_first:
            outcomes = await self._act(stored.spec, decision.actions)
        await self._tell(stored.spec, decision, now)
        if decision.released:
            saved = await self._within(self._store.release(stored), "the finalizer could not be removed in time")
        return ended(RolloutReport(stored.spec, status, outcomes, saved, problem=stored.problem), stored.status)

    async def _within(self, writing: Awaitable[Outcome], late: str) -> Outcome:
        try:
            async with asyncio.timeout(self._limits.save_s):
                return await writing
        except TimeoutError:
            return Outcome("unreachable", late)

    async def _act(self, spec: Spec, actions: Sequence[Action]) -> tuple[tuple[Action, Outcome], ...]:
        """Clusters side by side; in one cluster in order, stopping at the first failure."""
        by_cluster: defaultdict[str, list[Action]] = defaultdict(list)
        for action in actions:
            by_cluster[action.cluster].append(action)
        done = await asyncio.gather(*(self._act_in(spec, mine) for mine in by_cluster.values()))
        return tuple(one for many in done for one in many)

    async def _act_in(self, spec: Spec, actions: Sequence[Action]) -> list[tuple[Action, Outcome]]:
        out: list[tuple[Action, Outcome]] = []
        for action in actions:
            if not self._acting():
                out.append((action, Outcome("forbidden", "the lease was lost")))
                break
            try:
                async with asyncio.timeout(self._limits.apply_s):
                    outcome = await self._actuator.apply(spec, action)
            except TimeoutError:
                outcome = Outcome("unreachable", "no answer in time")
            except ClusterError as error:
                outcome = Outcome("failed", str(error))
            except Exception as error:  # noqa: BLE001  # as where clusters are read
                outcome = Outcome("failed", f"{type(error).__name__}: {error}")
                self._tell_once(f"{spec.key} in {action.cluster}", outcome.detail)
            out.append((action, outcome))
            if not outcome.ok:
                break
        return out

    async def _tell(self, spec: Spec, decision: Decision, now: float) -> None:
        if self._notifier is None:
            return
        for e in decision.events:
            await self._notifier.event(spec.workload_key, e.cluster, e.reason, e.text, warning=e.warning, at_s=now)


def _gaps(answer: CounterAnswer, names: Sequence[str]) -> dict[str, str]:
    """Says which clusters' parts of an answer are not complete; one that is not named in the answer is not seen."""
    out = {}
    for name in names:
        view = answer.views.get(name)
        if view is None:
            out[name] = "; ".join(answer.errors[:2]) or "not part of the answer"
        elif not view.complete:
            out[name] = view.detail or f"the view is {view.state}"
    return out
