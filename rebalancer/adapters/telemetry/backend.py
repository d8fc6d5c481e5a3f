"""One backend: its dialect, its transport, the clusters it serves, retries and the count of queries."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from urllib.parse import urlsplit

from rebalancer.adapters.telemetry import access, dialect, errors
from rebalancer.adapters.telemetry.decode import Answer, NotPrometheus, decode_data
from rebalancer.adapters.telemetry.errors import AnswerError
from rebalancer.adapters.telemetry.grid import Grid, duration, split
from rebalancer.adapters.telemetry.promql import one_of
from rebalancer.adapters.telemetry.transports import WORKERS, Form, Httpx, PromApi, Transport
from rebalancer.api.controller import BackendSpec

Counts = Callable[[str, str, float], None]
"""(backend, outcome, seconds) of each query; the outcome is ok, partial or the kind of a TelemetryError."""
Send = Callable[[Form, float], Awaitable[Answer]]
Label = tuple[str, str]
ATTEMPTS = 3
LONG = 2
"""Range queries in flight: a backfill takes memory for each, and leaves room for what has to be known now."""
_BACKOFF_S = 0.2
_PARTLY_S = 30.0
"""After a store failed, strict queries are not tried again for this long."""


def transport_of(spec: BackendSpec) -> Transport:
    """Prometheus is asked through prometheus-api-client, Thanos through httpx."""
    kind = PromApi if spec.type == "prometheus" else Httpx
    return kind(access.of(spec))


class Backend:
    """One metrics backend.

    Args:
        spec: where it is and what it is.
        labels: cluster -> (label name, value) of its series, for each cluster that this backend serves.
        counts: told of each query.
        transport: how it is asked; None for what fits its type.
    """

    def __init__(
        self,
        spec: BackendSpec,
        labels: Mapping[str, Label],
        counts: Counts | None = None,
        transport: Transport | None = None,
    ) -> None:
        self.spec, self.labels, self.kind = spec, dict(labels), spec.type
        self.url = errors.public(spec.url)
        self.name = urlsplit(self.url).netloc
        self.by = tuple(sorted({name for name, _ in labels.values()}))
        self._named: dict[Label, str] = {pair: name for name, pair in reversed(list(labels.items()))}
        self._transport = transport if transport is not None else transport_of(spec)
        self._counts = counts
        self._gate = asyncio.Semaphore(WORKERS)
        self._long = asyncio.Semaphore(LONG)
        self._partly_until = float("-inf")

    @property
    def clusters(self) -> tuple[str, ...]:
        """Names of the clusters that it serves."""
        return tuple(self.labels)

    @property
    def alone(self) -> bool:
        """Whether it serves one cluster by declaration: then series without a cluster label are that cluster's."""
        return len(self.labels) == 1 and bool(self.spec.clusters)

    def matchers(self, clusters: Iterable[str] | None = None) -> tuple[tuple[str, str, str], ...]:
        """Returns the matchers that leave other clusters out; none where labels of several names are in use."""
        wanted = [self.labels[name] for name in (clusters if clusters is not None else self.labels)]
        if self.alone or len(self.by) != 1:
            return ()
        return ((self.by[0], "=~", one_of(value for _, value in wanted)),)

    def cluster_of(self, labels: Mapping[str, str]) -> str | None:
        """Returns the cluster of a series: empty if it carries no cluster label, None if it is not one of ours."""
        found = [(label, labels[label]) for label in self.by if labels.get(label)]
        for pair in found:
            if pair in self._named:
                return self._named[pair]
        if found:
            return None
        return next(iter(self.labels)) if self.alone else ""

    async def query(self, query: str, at_s: float, resolution: str = "0s") -> Answer:
        """Evaluates an instant query.

        Args:
            query: the expression.
            at_s: time of evaluation, Unix seconds.
            resolution: the coarsest data that Thanos may use.

        Raises:
            AnswerError: no usable answer within the deadline.
        """

        async def send(more: Form, left: float) -> Answer:
            form = {"time": f"{at_s:.3f}", **more, **self._coarse(resolution)}
            return await self._transport.query(query, form, left)

        return await self._ask(send)

    async def query_range(self, query: str, grid: Grid, resolution: str = "0s") -> tuple[Answer, ...]:
        """Evaluates a query on a grid, in as many parts as the limit of points asks for.

        Args:
            query: the expression.
            grid: where it is evaluated.
            resolution: the coarsest data that Thanos may use.

        Raises:
            AnswerError: no usable answer of one of the parts within its deadline.
        """
        answers = []
        for part in split(grid):
            form = {"start": f"{part.start_s:.3f}", "end": f"{part.end_s:.3f}", "step": f"{part.step_s:.3f}"}

            async def send(more: Form, left: float, form: Form = form) -> Answer:
                return await self._transport.query_range(query, {**form, **more, **self._coarse(resolution)}, left)

            async with self._long:
                answers.append(await self._ask(send))
        return tuple(answers)

    async def stores(self) -> tuple[dialect.Store, ...] | None:
        """Returns what Thanos says of its stores; None of a Prometheus, which has none.

        Raises:
            AnswerError: no usable answer.
        """
        if self.kind != "thanos":
            return None
        return dialect.stores(await self.get("/api/v1/stores"))

    async def get(self, path: str) -> object:
        """Returns the data of another endpoint.

        Raises:
            AnswerError: no usable answer; kind not-prometheus also where there is no such path.
        """
        url = self.spec.url + path

        async def ask() -> object:
            status, body = await self._transport.get(path, self.spec.timeout)
            if status != 200:
                errors.read(status, body, url)
                raise errors.not_prometheus(url, f"HTTP {status}")
            try:
                return decode_data(body)
            except NotPrometheus as error:
                raise errors.not_prometheus(url, f"it begins with {error}") from error

        began = time.monotonic()
        try:
            async with self._gate:
                data = await ask()
        except AnswerError as error:
            self._count(error.kind, began)
            raise
        self._count("ok", began)
        return data

    async def close(self) -> None:
        """Closes its connections and threads."""
        await self._transport.close()

    def _coarse(self, resolution: str) -> dict[str, str]:
        return {"max_source_resolution": resolution} if self.kind == "thanos" else {}

    async def _ask(self, send: Send) -> Answer:
        partly = self.kind == "thanos" and time.monotonic() < self._partly_until
        try:
            return await self._counted(send, partly)
        except AnswerError as error:
            if partly or self.kind != "thanos" or not error.store:
                raise
        # A strict query fails as a whole for one dead store; the others' clusters go on, and the answer says partial.
        self._partly_until = time.monotonic() + _PARTLY_S
        return await self._counted(send, True)

    async def _counted(self, send: Send, partly: bool) -> Answer:
        began = time.monotonic()
        try:
            async with self._gate:
                answer = await self._with_retries(send, partly)
        except AnswerError as error:
            self._count(error.kind, began)
            raise
        if partly and not answer.warnings:
            self._partly_until = float("-inf")
        self._count("partial" if dialect.is_partial(answer.warnings) else "ok", began)
        return answer

    async def _with_retries(self, send: Send, partly: bool) -> Answer:
        end = time.monotonic() + self.spec.timeout
        for attempt in range(ATTEMPTS):
            left = max(0.05, end - time.monotonic())
            more: Form = {
                "timeout": duration(left),
                **dialect.params(self.kind, partly=partly, replica_labels=self.spec.replica_labels),
            }
            try:
                return await send(more, left)
            except AnswerError as error:
                pause = max(error.retry_after_s, _BACKOFF_S * 2**attempt) * random.uniform(0.5, 1.0)
                if not error.retry or attempt == ATTEMPTS - 1 or time.monotonic() + pause >= end:
                    raise
            await asyncio.sleep(pause)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _count(self, outcome: str, began: float) -> None:
        if self._counts is not None:
            self._counts(self.name, outcome, time.monotonic() - began)


def backends(
    specs: Iterable[BackendSpec], labels: Mapping[str, Label], counts: Counts | None = None
) -> tuple[Backend, ...]:
    """Builds all backends; one that names no clusters serves all of them."""
    made = []
    for spec in specs:
        names = spec.clusters or list(labels)
        made.append(Backend(spec, {name: labels[name] for name in names if name in labels}, counts))
    return tuple(made)
