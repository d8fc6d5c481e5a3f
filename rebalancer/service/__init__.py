"""The long-running controller: APScheduler jobs that call the world, leader lease, health, /metrics."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable
from datetime import datetime
from zoneinfo import ZoneInfo

from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_MAX_INSTANCES, EVENT_JOB_MISSED, JobEvent
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

from rebalancer.adapters.exporter import Door, Exporter
from rebalancer.adapters.kubernetes.lease import KubernetesLease
from rebalancer.core.model import Plan, Sight
from rebalancer.cycle import CycleReport
from rebalancer.errors import RebalancerError
from rebalancer.report.plan import summary
from rebalancer.rollouts import OBSERVING, TickReport
from rebalancer.service import measures, status
from rebalancer.worlds.live import Live, LiveWorld, open_world

log = logging.getLogger("rebalancer")
CAUSES = {EVENT_JOB_MISSED: "misfire", EVENT_JOB_MAX_INSTANCES: "overlap", EVENT_JOB_ERROR: "error"}
STOP_S = 20.0
"""How long a running cycle may end itself at a stop; what is left is finished by the next controller."""
TOLD_REFUSALS = 20
"""So many new refusals a cycle are named in the log; a fleet that loses its sight has one per workload."""
STALL_FACTOR = 3.0
"""After so many intervals without a cycle, or a tick of the rollouts, /healthz says so."""
TICK_STALL_S = 30.0
"""Rollouts tick every second or two: a short outage of the hub is no stall yet."""


class Service:
    """Runs one live world until it is told to stop."""

    def __init__(self, live: Live, *, act: bool) -> None:
        """Takes the checked files.

        Args:
            live: the files.
            act: whether what is planned is carried out.
        """
        self._live, self._act = live, act
        self._exporter = Exporter()
        self._lease: KubernetesLease | None = None
        self._world: LiveWorld | None = None
        self._planning = asyncio.Lock()
        self._ticking = asyncio.Lock()
        self._last_s: float | None = None
        self._ticked_s: float | None = None
        self._started_s = 0.0
        self._failure = ""
        self._told: dict[str, str] = {}
        self._once: dict[str, str] = {}
        self._refused: set[tuple[str, str, str]] = set()

    def _leading(self) -> bool:
        """Whether this controller is the one that writes; with a hub, one that only observes never is."""
        world = self._world
        if self._lease is None:
            return self._act or world is None or world.hub_client is None
        return self._lease.is_leader()

    def _may_act(self) -> bool:
        return self._act and self._leading()

    def _count(self, backend: str, outcome: str, seconds: float) -> None:
        labels = {"backend": backend, "outcome": outcome}
        self._exporter.add("queries_total", labels)
        self._exporter.observe("query_duration_seconds", seconds, labels)

    def health(self) -> tuple[bool, str]:
        """Says whether cycles and the rollouts' ticks run, in one sentence."""
        world = self._world
        if world is None:
            return False, "starting"
        interval = self._live.spec.cycle.interval
        limit = STALL_FACTOR * max(interval, self._live.spec.cycle.deadline)
        age = world.clock.now() - (self._last_s or self._started_s)
        if age > limit:
            return False, f"no cycle for {age:.0f} s, at most {limit:.0f} s are usual; {self._failure or 'see the log'}"
        limit = max(STALL_FACTOR * self._live.spec.rollouts.interval, TICK_STALL_S)
        since = world.clock.now() - (self._ticked_s or self._started_s)
        if since > limit:
            return False, f"no rollout tick ended well for {since:.0f} s, at most {limit:.0f} s are usual; see the log"
        return True, f"ok, last cycle {age:.0f} s ago" if self._last_s else "ok, first cycle under way"

    async def run(self) -> int:
        """Runs until SIGTERM or SIGINT.

        Raises:
            RebalancerError: at the start only: configuration, hub, or address.
        """
        door = Door(self._live.spec.listen, self._exporter, self.health)
        self._world = world = await open_world(self._live, self._may_act, self._count)
        try:
            await world.journal.check()
            await world.demand_usable()
        except RebalancerError:
            await world.close()
            raise
        self._started_s = world.clock.now()
        measures.begin(self._exporter, acting=self._act)
        door.open()
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for one in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(one, stop.set)
        lease = self._begin_lease(world)
        scheduler = self._schedule()
        mode = "acting" if self._act else "observing only; start with --act to carry plans out"
        log.info("started, %s; metrics at http://%s/metrics", mode, door.address)
        scheduler.start()
        try:
            await stop.wait()
        finally:
            # Shutting the scheduler down cancels what runs, so first nothing new begins, and what runs ends: it holds
            # its lock, and waiting for both locks is waiting for its end.
            scheduler.remove_all_jobs()
            try:
                async with asyncio.timeout(STOP_S), self._planning, self._ticking:
                    pass
            except TimeoutError:
                log.warning("a cycle did not end within %s s; the next controller goes on from there", STOP_S)
            scheduler.shutdown(wait=False)
            if lease is not None:
                lease.cancel()
                await asyncio.gather(lease, return_exceptions=True)
            await world.close()
            door.close()
        log.info("stopped")
        return 0

    def _begin_lease(self, world: LiveWorld) -> asyncio.Task[None] | None:
        if world.hub_client is None:
            self._exporter.set("leader", 1.0)
            return None
        if not self._act:
            # One that only observes must not keep the lease from one that acts.
            return None
        self._lease = KubernetesLease(world.hub_client)
        return asyncio.create_task(self._lease.run())

    def _schedule(self) -> AsyncIOScheduler:
        """Interval, cron and rollout jobs; each at most once at a time, late ones run once."""
        cycle, rollouts = self._live.spec.cycle, self._live.spec.rollouts
        zone = ZoneInfo(cycle.time_zone)
        scheduler = AsyncIOScheduler(timezone=zone)
        scheduler.add_listener(self._missed, EVENT_JOB_MISSED | EVENT_JOB_MAX_INSTANCES | EVENT_JOB_ERROR)

        def add(job: Callable[[], Awaitable[None]], trigger: object, name: str, grace_s: float) -> None:
            scheduler.add_job(job, trigger, id=name, coalesce=True, max_instances=1,
                              misfire_grace_time=max(1, round(grace_s)))  # fmt: skip

        add(self._cycle, IntervalTrigger(seconds=cycle.interval, timezone="UTC"), "cycle", cycle.interval / 2)
        scheduler.modify_job("cycle", next_run_time=datetime.now(zone))
        for i, entry in enumerate(cycle.cron):
            add(self._cycle, CronTrigger.from_crontab(entry, timezone=zone), f"cron-{i}", 300.0)
        add(self._tick, IntervalTrigger(seconds=rollouts.interval, timezone="UTC"), "rollouts", rollouts.interval / 2)
        return scheduler

    def _missed(self, event: JobEvent) -> None:
        job = event.job_id.partition("-")[0]
        self._exporter.add("schedule_missed_total", {"job": job, "cause": CAUSES[event.code]})

    async def _cycle(self) -> None:
        """One cycle; a failure is counted and told, and the next one tries again."""
        world = self._world
        assert world is not None  # jobs begin after the world
        if self._planning.locked():
            self._exporter.add("cycles_total", {"outcome": "skipped"})
            return
        async with self._planning:
            self._exporter.set("leader", float(self._leading()))
            try:
                report = await world.run_cycle()
                await self._write_status(world, report)
            except RebalancerError as error:
                self._failure = str(error)
                self._exporter.add("cycles_total", {"outcome": "failed"})
                log.error("cycle failed: %s", error)
                return
            self._last_s = world.clock.now()
            world.kernels.look(report)
            measures.of_cycle(self._exporter, report, world.policies())
            self._tell(world, report)

    def _changed(self, what: str, sentence: str) -> None:
        """Tells a standing problem once, and again when it changes or ends."""
        if self._once.get(what, "") != sentence:
            self._once[what] = sentence
            log.warning("%s: %s", what, sentence or "works again")

    def _tell(self, world: LiveWorld, report: CycleReport) -> None:
        self._changed("journal", world.journal.error)
        self._changed("placement", world.kernels.problem)
        if self._lease is not None:
            waits = "" if self._leading() else self._lease.problem or "another controller holds it"
            self._changed("lease", waits)
        seconds = sum(report.durations_s.values())
        log.info("cycle %s in %.2f s: %s", report.outcome, seconds, summary(report.plan))
        self._tell_refusals(report.plan)
        for line in (*world.problems, *report.errors):
            log.warning("%s", line)
        for cluster, view in report.snapshot.views.items():
            if not view.complete:
                log.warning("view of %s is %s: %s", cluster, view.state, view.detail)
        for done in report.done:
            level = logging.INFO if done.outcome.ok else logging.WARNING
            if done.outcome.ok and done.step is not done.action.steps[-1]:
                log.debug("%s: %s", done.action.workload, done.step)
                continue
            text = f"{done.action.kind} ({done.action.reason}) {done.action.explanation}"
            log.log(level, "%s: %s: %s %s", done.action.workload, text, done.outcome.kind, done.outcome.detail)
        for action in report.withheld:
            log.info("%s: would %s (%s) %s", action.workload, action.kind, action.reason, action.explanation)

    def _tell_refusals(self, plan: Plan) -> None:
        """Names each refusal when it begins; one that stands is not repeated every cycle."""
        now = {(r.workload, r.cluster, r.reason): r.detail for r in plan.refusals}
        new = [key for key in now if key not in self._refused]
        self._refused = set(now)
        for key in new[:TOLD_REFUSALS]:
            workload, cluster, reason = key
            log.info("%s%s refused (%s) %s", workload, f" in {cluster}" if cluster else "", reason, now[key])
        if len(new) > TOLD_REFUSALS:
            log.info("and %d more refusals; rebalancer plan shows all", len(new) - TOLD_REFUSALS)

    async def _tick(self) -> None:
        world = self._world
        assert world is not None  # jobs begin after the world
        if self._ticking.locked():
            return
        async with self._ticking:
            try:
                report = await world.tick()
            except RebalancerError as error:
                log.error("rollout tick failed: %s", error)
                return
            self._ticked_s = world.clock.now()
            measures.of_tick(self._exporter, report)
            self._tell_rollouts(report)

    def _tell_rollouts(self, report: TickReport) -> None:
        """Names each rollout's state when it changes."""
        for one in report.rollouts:
            problem = "waits for the lease" if one.problem == OBSERVING and self._act else one.problem
            if self._told.get(one.spec.key) != one.status.shown + problem:
                self._told[one.spec.key] = one.status.shown + problem
                log.info("rollout %s %s: %s", one.spec.key, one.status.shown, problem or one.status.message)

    async def _write_status(self, world: LiveWorld, report: CycleReport) -> None:
        """Writes status to the hub; only the leader does, and a failure is told, not raised."""
        if world.hub is None or not self._leading():
            return
        plan, memory = report.plan, world.cycle.memory.plan
        writes = [
            world.write_status("SchedulingPolicy", p.metadata.namespace, p.metadata.name,
                               status.of_policy(plan, key, p.metadata.generation))
            for key, p in world.config.policies.items() if ("SchedulingPolicy", key) in world.on_hub
        ]  # fmt: skip
        taints = dict(memory.network.taints)
        writes += [
            world.write_status("MemberCluster", "", name, status.of_cluster(
                state, plan.sight.get(name, Sight.SUSPECT), memory.clocks[name], taints, report.at_s))
            for name, state in report.snapshot.clusters.items() if ("MemberCluster", name) in world.on_hub
        ]  # fmt: skip
        for outcome in await asyncio.gather(*writes, return_exceptions=True):
            if isinstance(outcome, RebalancerError):
                log.warning("status: %s", outcome)
            elif isinstance(outcome, BaseException):
                raise outcome
            elif not outcome.ok:
                log.warning("status: %s %s", outcome.kind, outcome.detail)


def main(live: Live, *, act: bool) -> int:
    """Runs the controller in the foreground; returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    for noisy in ("apscheduler", "httpx", "httpcore", "urllib3", "kubernetes"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    return asyncio.run(Service(live, act=act).run())
