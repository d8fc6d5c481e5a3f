"""One kubernetes client per cluster: explicit timeouts, no hidden retries, rebuilt once on 401, closed at the end.

`ClusterClient.request` is for worker threads (see lanes.py). It bounds the whole request, body included: the client's
own timeouts bound one socket operation each, so a server that drips would hold a thread for ever.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import msgspec
import urllib3
from kubernetes import client
from kubernetes.client import rest

from rebalancer.adapters.kubernetes import kubeconfigs
from rebalancer.adapters.kubernetes.lanes import Lane
from rebalancer.adapters.kubernetes.structs import Version
from rebalancer.api.cluster import Connection, MemberCluster
from rebalancer.errors import ClusterError

MAX_BODY_BYTES = 64 * 1024 * 1024
CONNECT_S = 2.0
WRITE_SLOTS = 4
"""Writes of different workloads that run beside each other in one cluster."""
RELOAD_GAP_S = 5.0
"""A kubeconfig may run a program for its token, so it is not read anew more often than this."""
MERGE_PATCH = "application/merge-patch+json"
FIELD_MANAGER = "fleet-rebalancer"
_KINDS = {401: "unauthorized", 403: "forbidden", 404: "not-found", 409: "conflict", 410: "gone", 429: "throttled"}


class _Status(msgspec.Struct):
    message: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """The body of a good answer and the server's clock, Unix seconds; None if it does not tell."""

    body: bytes
    headers: Mapping[str, str]


class ClusterClient:
    """One API server with one identity."""

    def __init__(self, name: str, load: Callable[[], client.Configuration]) -> None:
        """Takes the cluster's name and how its configuration is read; nothing is read before the first request."""
        self.name = name
        self._load = load
        self._lock = threading.Lock()
        self._loaded_at: float | None = None
        self._stale = False
        # Refuses connections at once until it is loaded. Filled in place, so that those who hold it (rollouts) get
        # new credentials too.
        self.api = client.ApiClient(kubeconfigs.new_configuration("http://127.0.0.1:0"))
        self.reads = Lane(name, "read")
        self.writes = Lane(name, "write", WRITE_SLOTS)
        self.events = Lane(name, "event")

    @property
    def generation(self) -> float:
        """Changes whenever the configuration was read anew."""
        return self._loaded_at or 0.0

    def close(self) -> None:
        """Closes the connections."""
        self.api.rest_client.pool_manager.clear()

    def load(self, *, again: bool = False) -> bool:
        """Reads the configuration if it has not been read, or `again`; returns whether it was read now.

        Raises:
            ClusterError: it can't be used.
        """
        with self._lock:
            age = None if self._loaded_at is None else time.monotonic() - self._loaded_at
            if age is not None and not ((again or self._stale) and age >= RELOAD_GAP_S):
                return False
            try:
                configuration = self._load()
            except ClusterError as error:
                raise ClusterError(error.kind, f"{self.name}: {error}") from error
            old = self.api.rest_client
            self.api.configuration = configuration
            self.api.rest_client = rest.RESTClientObject(configuration)
            old.pool_manager.clear()
            self._loaded_at, self._stale = time.monotonic(), False
            return True

    def version(self, until: float) -> str:
        """Asks for the server's version; call it in a worker thread.

        Raises:
            ClusterError: no answer, or what answers is no API server.
        """
        body = self.request("GET", "/version", until=until).body
        try:
            return msgspec.json.decode(body, type=Version).git_version
        except (msgspec.MsgspecError, ValueError) as error:
            words = f"{self.name}: what answers is no API server: {error}; check the server of its kubeconfig"
            raise ClusterError("invalid", words) from error

    def request(
        self,
        method: str,
        path: str,
        *,
        until: float,
        query: Sequence[tuple[str, str]] = (),
        body: object = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> Answer:
        """Sends one request; call it in a worker thread.

        Args:
            method: HTTP method.
            path: path on the server.
            until: deadline by time.monotonic(), for everything.
            query: query parameters.
            body: encoded as JSON.
            content_type: of the body.
            accept: of the answer.

        Raises:
            ClusterError: anything but a 2xx answer within the deadline.
        """
        self.load()
        headers = {"Accept": accept, "Content-Type": content_type} if body is not None else {"Accept": accept}
        encoded = None if body is None else msgspec.json.encode(body)
        tries = 2 if method == "GET" else 1  # a write that may have happened is never sent again blindly
        for left in range(tries - 1, -1, -1):
            try:
                return self._once(method, path, list(query), dict(headers), encoded, until)
            except ClusterError as error:
                if error.kind == "unauthorized" and self.load(again=True):
                    return self._once(method, path, list(query), dict(headers), encoded, until)
                if not left or error.kind not in ("reset", "throttled") or not self._pause(error, until):
                    raise ClusterError("unreachable" if error.kind == "reset" else error.kind, str(error)) from error
        raise AssertionError("unreachable")  # the loop returns or raises

    @staticmethod
    def _pause(error: ClusterError, until: float) -> bool:
        """Waits as a throttling server asks, if that fits into the deadline."""
        wait_s = 1.0 if error.kind == "throttled" else 0.0
        if time.monotonic() + 2 * wait_s >= until:
            return False
        time.sleep(wait_s)
        return True

    def _once(
        self,
        method: str,
        path: str,
        query: list[tuple[str, str]],
        headers: dict[str, str],
        encoded: bytes | None,
        until: float,
    ) -> Answer:
        left = until - time.monotonic()
        if left <= 0.01:
            raise ClusterError("timeout", f"{self.name}: no time left for {method} {path}")
        method, url, headers, _, _ = self.api.param_serialize(
            method, path, query_params=query, header_params=headers, auth_settings=["BearerToken"]
        )
        timeout = urllib3.Timeout(connect=min(CONNECT_S, left), read=left)
        try:
            response = self.api.rest_client.pool_manager.request(
                method, url, body=encoded, headers=headers, timeout=timeout, preload_content=False
            )
            data = self._read(response, until)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise self._transport_error(error) from error
        if response.status >= 300:
            raise self._refused(response.status, data)
        return Answer(data, {k.lower(): v for k, v in response.headers.items()})

    def _read(self, response: Any, until: float) -> bytes:
        """Reads the body within the deadline and a size; on failure the connection is not used again."""
        chunks: list[bytes] = []
        size = 0
        try:
            # read1, because read and stream wait until their whole amount is there, however slowly it comes.
            while chunk := response.read1(256 * 1024):
                chunks.append(chunk)
                size += len(chunk)
                if time.monotonic() > until:
                    raise ClusterError("timeout", f"{self.name}: the answer took longer than the deadline")
                if size > MAX_BODY_BYTES:
                    raise ClusterError("invalid", f"{self.name}: an answer of more than {MAX_BODY_BYTES} bytes")
        except BaseException:
            response.close()
            raise
        response.release_conn()
        return b"".join(chunks)

    def _transport_error(self, error: Exception) -> ClusterError:
        cause = getattr(error, "reason", None) or error
        self._stale = True  # the address or the CA may have changed: read the kubeconfig again next time
        text = f"{self.name}: {type(cause).__name__}: {' '.join(str(cause).split())[:200]}"
        if isinstance(cause, urllib3.exceptions.TimeoutError) and not isinstance(
            cause, urllib3.exceptions.NewConnectionError
        ):
            return ClusterError("timeout", text)
        if isinstance(cause, urllib3.exceptions.ProtocolError | ConnectionResetError):
            return ClusterError("reset", text)
        return ClusterError("unreachable", text)

    def _refused(self, status: int, data: bytes) -> ClusterError:
        try:
            message = msgspec.json.decode(data, type=_Status).message
        except msgspec.MsgspecError:
            message = data[:100].decode("utf-8", "replace")
        kind = _KINDS.get(status, "unreachable" if status >= 500 else "invalid")
        return ClusterError(kind, f"{self.name}: HTTP {status}: {' '.join(message.split())[:300]}")


class Clients:
    """The clients of all member clusters and of the hub."""

    def __init__(self, members: Mapping[str, MemberCluster], hub: ClusterClient | None = None) -> None:
        """Takes the declared clusters; the hub is needed where a kubeconfig stands in a Secret."""
        self.hub = hub
        self.members = {n: ClusterClient(n, self._loader(m.spec.connection)) for n, m in sorted(members.items())}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes all connections, the hub's too."""
        for one in (*self.members.values(), *([self.hub] if self.hub else [])):
            one.close()

    async def connect(self, deadline_s: float = 5.0) -> dict[str, str]:
        """Reads all kubeconfigs, so that `apis` can be used; returns why by name where one can't be read."""
        problems: dict[str, str] = {}

        async def one(found: ClusterClient) -> None:
            try:
                await found.reads.run(found.load, deadline_s)
            except ClusterError as error:
                problems[found.name] = str(error)

        await asyncio.gather(*(one(c) for c in (*self.members.values(), *([self.hub] if self.hub else []))))
        return problems

    def apis(self) -> dict[str, client.ApiClient]:
        """Returns the bare clients by member, for rollouts; they get new credentials in place, by `observe`."""
        return {name: one.api for name, one in self.members.items()}

    def _loader(self, connection: Connection) -> Callable[[], client.Configuration]:
        if not connection.kubeconfig_secret_ref:
            return lambda: kubeconfigs.from_file(connection)
        name = connection.kubeconfig_secret_ref

        def load() -> client.Configuration:
            if self.hub is None:
                raise ClusterError(
                    "invalid", f"kubeconfigSecretRef {name} needs a hub; set spec.hub in RebalancerConfig"
                )
            path = f"/api/v1/namespaces/{kubeconfigs.SECRET_NAMESPACE}/secrets/{name}"
            answer = self.hub.request("GET", path, until=time.monotonic() + CONNECT_S)
            return kubeconfigs.from_secret(name, msgspec.json.decode(answer.body))

        return load


def hub_client(kubeconfig_path: str, context: str = "") -> ClusterClient:
    """Returns the hub's client."""
    connection = Connection(kubeconfig_path=kubeconfig_path, context=context)
    return ClusterClient("hub", lambda: kubeconfigs.from_file(connection))
