"""Commands that look at real clusters and metrics: check, plan, explain, network, run, record, rollout."""

from __future__ import annotations

import argparse
import asyncio
import sys
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

from rich.console import Console

from rebalancer import config as cfg
from rebalancer.core.policy import Policy
from rebalancer.cycle import CycleReport
from rebalancer.errors import ConfigError, RebalancerError
from rebalancer.report import plan as report
from rebalancer.report.forecast import told
from rebalancer.worlds.live import Live, LiveWorld, open_world, read

MARKS = {"ok": "ok", "degraded": "degraded", "missing": "MISSING"}


def dispatch(arguments: argparse.Namespace, paths: Sequence[Path]) -> int:
    """Runs one of the commands; returns the exit code."""
    live = read(cfg.read_files(paths))
    match arguments.command:
        case "run":
            from rebalancer import service

            return service.main(live, act=arguments.act)
        case "check":
            return asyncio.run(_check(live))
        case "record":
            return asyncio.run(_record(live, arguments.out))
        case "rollout":
            return asyncio.run(_rollout(live, arguments.verb, arguments.name, full=arguments.full))
        case "forecast":
            found = asyncio.run(_first_cycle(live))
            print(told(found.forecast, found.history, arguments.workload, arguments.output))
            return 0
        case "explain":
            return asyncio.run(_explain(live, arguments.workload))
        case "network":
            return asyncio.run(_network(live, arguments.cluster, arguments.output))
        case _:
            return asyncio.run(_plan(live, arguments.output))


@asynccontextmanager
async def _opened(live: Live) -> AsyncIterator[LiveWorld]:
    world = await open_world(live, lambda: False)
    try:
        yield world
    finally:
        await world.close()


async def _first_cycle(live: Live) -> CycleReport:
    """One cycle that changes nothing; that nobody acts is said once by the command, not for each action.

    Raises:
        RebalancerError: no metrics backend gave a usable answer.
    """
    async with _opened(live) as world:
        found = await world.run_cycle()
        idle = _idle(world.policies(), found)
    _unusable(found.outcome, found.errors)
    return replace(
        found, plan=report.without_observe_only(found.plan), errors=(*world.problems, *idle, *found.errors)
    )  # fmt: skip


def _idle(policies: Mapping[str, Policy], found: CycleReport) -> list[str]:
    """A sentence for each policy that selects nothing, as far as every cluster was seen and nothing is in dispute."""
    states = found.snapshot.clusters
    if any(state.seen_s is None or state.error for state in states.values()) or found.errors:
        return []
    used = set(found.snapshot.policies.values())
    return [
        f"policy {key}: selects no Deployment of namespace {policy.namespace} in {', '.join(sorted(states))}; correct "
        "its podSelector or workloadRef, or deploy what it is for"
        for key, policy in sorted(policies.items()) if key not in used
    ]  # fmt: skip


async def _plan(live: Live, output: str) -> int:
    found = await _first_cycle(live)
    if output == "json":
        print(report.as_json(found.plan, found.errors))
    else:
        Console(soft_wrap=not sys.stdout.isatty()).print(report.render(found.plan, found.errors))
    return report.exit_code(found.plan) or (3 if found.errors else 0)


def _unusable(outcome: str, errors: Sequence[str]) -> None:
    """Without any metrics there is nothing to plan with; that is an error of the setup, not a plan.

    Raises:
        RebalancerError: with what every backend said.
    """
    if outcome == "failed":
        # Demand and network fail for one reason; it is told once.
        told = {e.partition(": ")[2] or e: e for e in reversed(errors)}
        raise RebalancerError(
            "\n".join(reversed(told.values())) or "no metrics backend gave a usable answer; run `rebalancer check`"
        )


async def _explain(live: Live, workload: str) -> int:
    found = await _first_cycle(live)
    plan = found.plan
    try:
        lines = report.explain(plan, workload)
    except KeyError:
        known = ", ".join(sorted(plan.workloads)) or "none"
        dark = [name for name, state in sorted(found.snapshot.clusters.items()) if state.seen_s is None]
        unseen = f"; {', '.join(dark)} could not be seen, so that more may be there" if dark else ""
        named = "" if "/" in workload else "; write it as namespace/name"
        raise RebalancerError(f"{workload}: no policy selects such a workload{named}; known: {known}{unseen}") from None
    print("\n".join(lines))
    return 0


async def _network(live: Live, cluster: str | None, output: str) -> int:
    from rebalancer.report import network

    async with _opened(live) as world:
        known = ", ".join(sorted(world.config.clusters))
        if cluster is not None and cluster not in world.config.clusters:
            raise RebalancerError(f"{cluster}: no such cluster; known: {known}")
        now = world.clock.now()
        found, (carried, unread) = await asyncio.gather(world.telemetry.network(now), world.telemetry.throughput(now))
    errors = (*found.errors, *unread)
    if output == "json":
        print(network.as_json(found.map, carried, errors, cluster))
    else:
        console = Console(width=None if sys.stdout.isatty() else network.FILE_WIDTH)
        console.print(network.render(found.map, carried, errors, cluster, width=console.width))
    return 0 if any(cell.state != "unknown" for cell in found.map.cells.values()) else 3


async def _record(live: Live, out: Path) -> int:
    async with _opened(live) as world:
        count = await world.record(out)
    print(f"{out}: {count} series")
    return 0


async def _check(live: Live) -> int:
    async with _opened(live) as world:
        rights, metrics, hub = await asyncio.gather(
            world.actuator.check(rollouts=bool(world.config.rollouts)),
            world.telemetry.check(world.policies()),
            world.check_hub(),
        )
    bad = 0
    for one in metrics:
        bad += one.state != "ok"
        _finding(MARKS[one.state], f"{one.what} {one.name}", one.sentence, one.degrades, one.next_step)
    for mistake in world.mistakes:
        bad += 1
        _finding("degraded", "hub", mistake, "this object is left out", "correct it there")
    for right in (*hub, *rights):
        bad += not right.ok
        _finding(
            "ok" if right.ok else "MISSING",
            "hub" if right.cluster == "hub" else f"cluster {right.cluster}",
            right.what,
            "",
            right.detail,
        )
    print("everything is in place" if not bad else f"{bad} findings; the rest is ok")
    unusable = any(f.state == "missing" and f.what == "backend" for f in metrics)
    return 1 if unusable else 3 if bad else 0


def _finding(mark: str, what: str, sentence: str, degrades: str, next_step: str) -> None:
    """Prints one finding, and under it what it degrades and what to do."""
    print(f"{mark:9}{what}: {sentence}")
    for label, text in (("degrades", degrades), ("next", next_step)):
        if text and mark != "ok":
            print(f"{'':9}{label}: {text}")


async def _rollout(live: Live, verb: str, name: str | None, *, full: bool) -> int:
    from rebalancer.core.rollout.model import Verb
    from rebalancer.core.rollout.verbs import render_list, render_status

    if verb != "list" and not name:
        raise ConfigError([f"rollout {verb}: name the rollout as namespace/name; `rebalancer rollout list` shows them"])
    async with _opened(live) as world:
        stored = {s.spec.key: (s.spec, replace(s.status, problem=s.problem)) for s in await world.stored_rollouts()}
        if verb == "list":
            print("\n".join(render_list(list(stored.values()))))
            return 0
        assert name is not None  # checked above
        if name not in stored:
            known = ", ".join(sorted(stored)) or "none"
            raise RebalancerError(f"{name}: no such CanaryRollout; known: {known}")
        if verb == "get":
            print("\n".join(render_status(*stored[name])))
            return 0
        await world.ask(name, cast(Verb, verb), uuid.uuid4().hex[:12], full=full)
        print(f"{verb} of {name} is asked for; `rebalancer rollout get {name}` shows when it is done")
        return 0
