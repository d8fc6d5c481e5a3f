"""The two ways to ask: prometheus-api-client in worker threads for Prometheus, httpx for Thanos.

Both post the query in the body, keep warnings, never follow redirects, cap the body and have one total deadline;
neither requests nor httpx has one of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from socket import SHUT_RDWR, socket
from typing import Any, Protocol, cast

import httpx
import requests
from prometheus_api_client import PrometheusConnect
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, Retry
from urllib3.connection import HTTPConnection, HTTPSConnection

from rebalancer.adapters.telemetry import errors
from rebalancer.adapters.telemetry.access import Access
from rebalancer.adapters.telemetry.decode import Answer

MAX_BODY = 256 * 2**20
WORKERS = 4
"""Requests in flight per backend: more make a client that is bound by its CPU slower, not faster."""
_CHUNK = 2**18
_KEEP_ALIVE_S = 120.0


Form = Mapping[str, str | list[str]]
"""Fields of a request's body; a list is sent as the field several times."""


class Transport(Protocol):
    """One backend's API. Raises AnswerError only."""

    async def query(self, query: str, form: Form, deadline_s: float) -> Answer:
        """Posts to /api/v1/query."""

    async def query_range(self, query: str, form: Form, deadline_s: float) -> Answer:
        """Posts to /api/v1/query_range; the form has start, end and step."""

    async def get(self, path: str, deadline_s: float) -> tuple[int, bytes]:
        """Gets another path; returns status and body."""

    async def close(self) -> None:
        """Closes connections and threads."""


class Httpx:
    """Thanos (or any such API) through httpx.

    Args:
        access: where it is and how it lets us in.
        max_body: cap of a body, bytes.
    """

    def __init__(self, access: Access, max_body: int = MAX_BODY) -> None:
        self._access, self._url, self._max_body = access, access.url, max_body
        self._client: httpx.AsyncClient | None = None
        self._retired: httpx.AsyncClient | None = None
        self._stamp: tuple[float, ...] = ()

    async def query(self, query: str, form: Form, deadline_s: float) -> Answer:
        """See Transport."""
        return await self._ask("/api/v1/query", {"query": query, **form}, deadline_s)

    async def query_range(self, query: str, form: Form, deadline_s: float) -> Answer:
        """See Transport."""
        return await self._ask("/api/v1/query_range", {"query": query, **form}, deadline_s)

    async def get(self, path: str, deadline_s: float) -> tuple[int, bytes]:
        """See Transport."""
        response, body = await self._send("GET", path, None, deadline_s)
        return response.status_code, body

    async def close(self) -> None:
        """See Transport."""
        for client in (self._client, self._retired):
            if client is not None:
                await client.aclose()
        self._client = self._retired = None

    async def _ask(self, path: str, form: Form, deadline_s: float) -> Answer:
        response, body = await self._send("POST", path, form, deadline_s)
        headers = response.headers
        return errors.read(
            response.status_code, body, self._url + path,
            location=headers.get("location", ""), retry_after=headers.get("retry-after", ""),
        )  # fmt: skip

    async def _send(self, method: str, path: str, form: Form | None, deadline_s: float) -> tuple[httpx.Response, bytes]:
        url = self._url + path
        headers = self._access.request_headers()
        client = await self._connected()
        body = bytearray()
        try:
            async with (
                asyncio.timeout(deadline_s),
                client.stream(
                    method, url, data=dict(form) if form else None, headers=headers, timeout=deadline_s
                ) as response,
            ):
                async for chunk in response.aiter_raw(_CHUNK):
                    body += chunk
                    if len(body) > self._max_body:
                        raise errors.too_big(url, self._max_body)
        except (TimeoutError, httpx.ConnectTimeout, httpx.ReadTimeout, httpx.WriteTimeout, httpx.PoolTimeout) as error:
            raise errors.timeout(url, deadline_s) from error
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise errors.unreachable(url, f"{type(error).__name__}: {error}") from error
        return response, bytes(body)

    async def _connected(self) -> httpx.AsyncClient:
        """The client; a new one when a certificate was rotated, since httpx reads them once."""
        stamp = self._access.stamp()
        if self._client is None or stamp != self._stamp:
            # Plain HTTP needs no trust; loading the system's takes longer than a query.
            verify = self._access.ssl_context() if self._url.startswith("https:") else False
            limits = httpx.Limits(max_connections=WORKERS, keepalive_expiry=_KEEP_ALIVE_S)
            # The old client's requests under way go on; by the next rotation they have ended.
            old, self._retired = self._retired, self._client
            self._client, self._stamp = httpx.AsyncClient(verify=verify, trust_env=False, limits=limits), stamp
            if old is not None:
                await old.aclose()
        return self._client


class _Watch(threading.local):
    """The socket that this thread waits for, so that a timer can end the wait."""

    sock: socket | None = None


_watch = _Watch()


class _PlainConnection(HTTPConnection):
    """Remembers its socket for the deadline."""

    def request(self, *args: Any, **kwargs: Any) -> None:
        """Connects first, so that the socket is known before anything is waited for."""
        if self.sock is None:
            self.connect()
        _watch.sock = self.sock
        super().request(*args, **kwargs)


class _TlsConnection(HTTPSConnection):
    """Remembers its socket for the deadline."""

    def request(self, *args: Any, **kwargs: Any) -> None:
        """As above."""
        if self.sock is None:
            self.connect()
        _watch.sock = self.sock
        super().request(*args, **kwargs)


class _PlainPool(HTTPConnectionPool):
    ConnectionCls = _PlainConnection


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


class _Adapter(HTTPAdapter):
    """No retries, a pool as large as there are workers, and connections that know the deadline."""

    def __init__(self) -> None:
        super().__init__(pool_connections=1, pool_maxsize=WORKERS, max_retries=Retry(0, read=False), pool_block=True)
        self.stamp: tuple[float, ...] | None = None
        self._own(None)

    def renew(self, context: ssl.SSLContext, stamp: tuple[float, ...]) -> None:
        """Makes new connections with this context; requests under way end on the old ones."""
        self._own(context)
        self.stamp = stamp

    def _own(self, context: ssl.SSLContext | None) -> None:
        # The context carries trust and client certificate; requests' own `verify` and `cert` would be added to it.
        self.init_poolmanager(1, WORKERS, block=True, **({"ssl_context": context} if context is not None else {}))
        self.poolmanager.pool_classes_by_scheme = {"http": _PlainPool, "https": _TlsPool}

    def cert_verify(self, conn: Any, url: Any, verify: Any, cert: Any) -> None:
        """Leaves a pool as its context made it."""


@contextlib.contextmanager
def _until(end: float) -> Iterator[threading.Event]:
    """Cuts this thread's connection when the time (monotonic, s) has come; the event says that it was cut."""
    cut, done, lock = threading.Event(), threading.Event(), threading.Lock()
    mine = _watch.__dict__
    _watch.sock = None

    def end_wait() -> None:
        with lock:
            sock = mine.get("sock")
            if not done.is_set():
                cut.set()
                if sock is not None:
                    with contextlib.suppress(OSError):
                        sock.shutdown(SHUT_RDWR)

    timer = threading.Timer(max(0.0, end - time.monotonic()), end_wait)
    timer.daemon = True
    timer.start()
    try:
        yield cut
    finally:
        with lock:
            done.set()
        timer.cancel()
        _watch.sock = None


class _Parsed(requests.Response):
    """A response whose JSON is our own parser's answer, so that the library hands it through with its warnings."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.status_code = 200
        self._answer = answer

    def json(self, **_kwargs: Any) -> Any:
        """Returns what the library takes apart."""
        return {"data": {"result": self._answer}}


class _Session(requests.Session):
    """What prometheus-api-client lacks: form in the body, errors with their text, a cap, a total deadline."""

    def __init__(self, access: Access, max_body: int) -> None:
        super().__init__()
        self.trust_env = False
        self._access, self._max_body, self._lock = access, max_body, threading.Lock()
        super().mount("http://", _Adapter())
        super().mount("https://", _Adapter())

    def mount(self, prefix: str | bytes, adapter: Any) -> None:
        """Keeps the own adapter: the library mounts one with retries that hide the server's words."""
        if prefix in ("http://", "https://") and not isinstance(self.adapters.get(str(prefix)), _Adapter):
            super().mount(prefix, adapter)

    def request(self, method: Any, url: Any, **kwargs: Any) -> _Parsed:  # type: ignore[override]  # named as the library does
        """Posts `params` as the body and reads the answer; `timeout` is the total deadline in s."""
        status, headers, body = self.send_by(str(method), str(url), kwargs.get("params"), float(kwargs["timeout"]))
        return _Parsed(
            errors.read(
                status,
                body,
                str(url),
                location=headers.get("location", ""),
                retry_after=headers.get("retry-after", ""),
            )
        )

    def send_by(self, method: str, url: str, form: Any, deadline_s: float) -> tuple[int, Mapping[str, str], bytes]:
        """Sends and reads everything within the deadline (s); raises AnswerError."""
        headers = self._access.request_headers()
        self._trust(url)
        end = time.monotonic() + deadline_s
        with _until(end) as cut:
            try:
                with super().request(
                    method, url, data=form, headers=headers, stream=True, allow_redirects=False,
                    timeout=(deadline_s, deadline_s),
                ) as response:  # fmt: skip
                    body = self._body(response, url)
            except (requests.Timeout, TimeoutError) as error:
                raise errors.timeout(url, deadline_s) from error
            except (requests.RequestException, OSError, ValueError) as error:
                if cut.is_set():
                    raise errors.timeout(url, deadline_s) from error
                raise errors.unreachable(url, _cause(error)) from error
            if cut.is_set():
                raise errors.timeout(url, deadline_s)
        return response.status_code, response.headers, body

    def _trust(self, url: str) -> None:
        """Has certificates read anew for new connections once they were rotated."""
        adapter = cast(_Adapter, self.get_adapter(url))
        stamp = self._access.stamp()
        if url.startswith("https:") and adapter.stamp != stamp:
            with self._lock:
                adapter.renew(self._access.ssl_context(), stamp)

    def _body(self, response: requests.Response, url: str) -> bytes:
        body = bytearray()
        for chunk in response.iter_content(_CHUNK):
            body += chunk
            if len(body) > self._max_body:
                raise errors.too_big(url, self._max_body)
        return bytes(body)


def _cause(error: BaseException) -> str:
    """The innermost words: requests and urllib3 wrap them three times."""
    deepest: BaseException = error
    for _ in range(5):
        inner = getattr(deepest, "reason", None) or (deepest.args[0] if deepest.args else None)
        if not isinstance(inner, BaseException):
            break
        deepest = inner
    return str(deepest).rpartition("): ")[2] or str(deepest) or type(deepest).__name__


class PromApi:
    """Prometheus through prometheus-api-client in bounded worker threads; arguments as Httpx."""

    def __init__(self, access: Access, max_body: int = MAX_BODY) -> None:
        self._url = access.url
        self._session = _Session(access, max_body)
        self._client = PrometheusConnect(access.url, session=self._session, retry=Retry(0), method="POST")
        self._threads = ThreadPoolExecutor(WORKERS, thread_name_prefix="prometheus")

    async def query(self, query: str, form: Form, deadline_s: float) -> Answer:
        """See Transport."""

        def ask(left_s: float) -> Answer:
            return cast(Answer, self._client.custom_query(query, params=dict(form), timeout=left_s))

        return cast(Answer, await self._run(ask, "/api/v1/query", deadline_s))

    async def query_range(self, query: str, form: Form, deadline_s: float) -> Answer:
        """See Transport."""
        # The library rounds the times to seconds and then lets `params` win, which carry them exactly.
        start, end = (datetime.fromtimestamp(float(str(form[key])), UTC) for key in ("start", "end"))

        def ask(left_s: float) -> Answer:
            found = self._client.custom_query_range(query, start, end, form["step"], params=dict(form), timeout=left_s)
            return cast(Answer, found)

        return cast(Answer, await self._run(ask, "/api/v1/query_range", deadline_s))

    async def get(self, path: str, deadline_s: float) -> tuple[int, bytes]:
        """See Transport."""

        def ask(left_s: float) -> tuple[int, bytes]:
            status, _headers, body = self._session.send_by("GET", self._url + path, None, left_s)
            return status, body

        return cast(tuple[int, bytes], await self._run(ask, path, deadline_s))

    async def close(self) -> None:
        """See Transport."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._session.close()

    async def _run(self, ask: Any, path: str, deadline_s: float) -> Any:
        """Runs in a thread; the thread ends by itself, also where nobody waits for it any more."""
        end = time.monotonic() + deadline_s

        def within() -> Any:
            left_s = end - time.monotonic()
            if left_s <= 0:
                raise errors.timeout(self._url + path, deadline_s)
            return ask(left_s)

        try:
            async with asyncio.timeout(deadline_s + 0.25):
                return await asyncio.get_running_loop().run_in_executor(self._threads, within)
        except TimeoutError as error:
            raise errors.timeout(self._url + path, deadline_s) from error
