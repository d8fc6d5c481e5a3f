"""Raw counters through one backend: every sample of every series since a time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Sequence

from rebalancer.adapters.telemetry import promql
from rebalancer.adapters.telemetry.backend import Backend
from rebalancer.adapters.telemetry.decode import Answer
from rebalancer.adapters.telemetry.errors import AnswerError
from rebalancer.adapters.telemetry.grid import duration
from rebalancer.adapters.telemetry.presence import Presence
from rebalancer.ports import Counter, CounterAnswer, Selection

MAX_BACK_S = 6 * 3600.0
"""How far back raw samples are read at most."""


async def read(
    backend: Backend,
    presence: Presence,
    selection: Selection,
    clusters: Sequence[str],
    since_s: float,
    now: float,
    deadline_s: float,
) -> CounterAnswer:
    """Reads both selectors of a selection; never raises.

    Args:
        backend: who is asked.
        presence: its memory of who was seen.
        selection: selectors of counters.
        clusters: clusters asked for, all of them served by the backend.
        since_s: oldest sample wanted, Unix seconds.
        now: Unix seconds.
        deadline_s: total deadline.
    """
    try:
        async with asyncio.timeout(deadline_s):
            return await _read(backend, presence, selection, clusters, since_s, now)
    except AnswerError as error:
        why = str(error)
    except TimeoutError:
        why = f"{backend.url} did not answer within {deadline_s:g} s"
    return CounterAnswer((), (), {name: presence.failed(name, why) for name in clusters}, (why,))


async def _read(
    backend: Backend, presence: Presence, selection: Selection, clusters: Sequence[str], since_s: float, now: float
) -> CounterAnswer:
    total, bad = promql.parse(selection.total), promql.parse(selection.bad)
    back = min(now - since_s, MAX_BACK_S)
    # A millisecond more, because newer servers leave the begin of a range out and older ones don't.
    window = duration(max(1.0, math.ceil(back * 1000 + 1) / 1000))
    matchers = backend.matchers(clusters)
    first, second = await asyncio.gather(
        *(backend.query(f"{selector.where(*matchers)}[{window}]", now) for selector in (total, bad))
    )
    series = tuple(tuple(_series(backend, answer, clusters, since_s)) for answer in (first, second))
    for one in series[0]:
        presence.note(str(total), one.labels["cluster"], one.labels.get("job", ""), one.times_s[-1])
    # Without any series it is worth one more query to know why: no traffic, no cluster label, or gone.
    look = await presence.look([total], now, narrow=bool(series[0]))
    views = presence.views(look, [str(total)], (*first.warnings, *second.warnings))
    errors = tuple(presence.problems(look))
    return CounterAnswer(series[0], series[1], {name: views[name] for name in clusters}, errors)


def _series(backend: Backend, answer: Answer, clusters: Sequence[str], since_s: float) -> Iterable[Counter]:
    for one in answer.series:
        cluster = backend.cluster_of(one.labels)
        inside = one.times_s >= since_s
        if cluster in clusters and inside.any():
            labels = {**one.labels, "cluster": cluster or ""}
            yield Counter(labels, tuple(one.times_s[inside].tolist()), tuple(one.values[inside].tolist()))
