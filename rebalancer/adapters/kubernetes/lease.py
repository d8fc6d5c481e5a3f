"""The Lease port: who may write, by a coordination.k8s.io Lease in the hub and this process's own monotonic clock.

Two clocks never have to agree. A holder stops `renew_deadline_s` after it *sent* its last good renewal; another process
takes over only when it has watched the record stand still for the whole `duration_s`, which began later. So there is a
gap between the two, whatever the wall clocks say and however long a process was stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time
import uuid
from collections.abc import Callable
from typing import Any

import msgspec

from rebalancer.adapters.kubernetes import times
from rebalancer.adapters.kubernetes.clients import FIELD_MANAGER, ClusterClient
from rebalancer.adapters.kubernetes.lanes import Lane
from rebalancer.errors import ClusterError

_MANAGER = [("fieldManager", FIELD_MANAGER)]
NAMESPACE, LEASE = "rebalancer-system", "fleet-rebalancer"
_LEASES = "/apis/coordination.k8s.io/v1/namespaces"


def new_identity() -> str:
    """Returns a name that no other process has, a restarted one neither."""
    return f"{socket.gethostname()[:60]}_{uuid.uuid4().hex[:12]}"


class KubernetesLease:
    """Holds a Lease while `run` runs."""

    def __init__(
        self,
        client: ClusterClient,
        *,
        identity: str = "",
        name: str = LEASE,
        namespace: str = NAMESPACE,
        duration_s: float = 15.0,
        renew_deadline_s: float = 10.0,
        retry_s: float = 2.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes the hub's client and times.

        Raises:
            ValueError: retry_s < renew_deadline_s < duration_s does not hold.
        """
        if not retry_s < renew_deadline_s < duration_s:
            raise ValueError("retry_s < renew_deadline_s < duration_s must hold")
        self._client = client
        self.identity = identity or new_identity()
        self._name, self._namespace = name, namespace
        self._duration_s, self._deadline_s, self._retry_s = duration_s, renew_deadline_s, retry_s
        self._monotonic = monotonic
        self._lane = Lane(client.name, "lease call")
        self._until = float("-inf")
        self._watched: tuple[str, float] = ("", 0.0)
        self.transitions = 0
        self.problem = ""

    def is_leader(self) -> bool:
        """Says whether this process may write now; ask before every write."""
        return self._monotonic() < self._until

    async def run(self) -> None:
        """Acquires and renews until it is cancelled, then releases."""
        try:
            while True:
                await self._round()
                # Jitter, so that waiting processes don't all ask at once.
                await asyncio.sleep(self._retry_s * random.uniform(0.8, 1.2))  # no secret
        finally:
            await self.release()

    async def release(self) -> None:
        """Gives the Lease back if it is held, so that a successor need not wait; best effort."""
        held = self.is_leader()
        self._until = float("-inf")
        if held:
            with contextlib.suppress(ClusterError):
                await asyncio.shield(self._lane.run(self._give_back, self._retry_s))

    async def _round(self) -> None:
        sent = self._monotonic()
        try:
            held = await self._lane.run(self._try, self._deadline_s)
        except ClusterError as error:
            self.problem = str(error)
            if error.kind == "conflict":  # somebody else wrote it: not ours until we know better
                self._until = float("-inf")
            return
        self.problem = ""
        self._until = sent + self._deadline_s if held else float("-inf")

    @property
    def _path(self) -> str:
        return f"{_LEASES}/{self._namespace}/leases/{self._name}"

    def _call(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        until = time.monotonic() + min(self._retry_s * 2, self._deadline_s / 2)
        query = _MANAGER if body is not None else []
        answer = self._client.request(method, path, until=until, query=query, body=body)
        try:
            found: dict[str, Any] = msgspec.json.decode(answer.body, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise ClusterError("invalid", f"{self._client.name}: an answer that is no Lease: {error}") from error
        return found

    def _try(self) -> bool:
        """One attempt; returns whether the Lease is held after it."""
        try:
            lease = self._call("GET", self._path)
        except ClusterError as error:
            if error.kind != "not-found":
                raise
            meta = {"name": self._name, "namespace": self._namespace}
            body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta}
            self._call("POST", f"{_LEASES}/{self._namespace}/leases", {**body, "spec": self._spec({}, taken=True)})
            return True
        spec = lease.get("spec") or {}
        holder = str(spec.get("holderIdentity") or "")
        if holder != self.identity and holder and not self._stands_still(lease, spec):
            return False
        new = self._spec(spec, taken=holder != self.identity)
        self._call("PUT", self._path, {**lease, "spec": new})  # with the version that was read: one of us wins
        self.transitions = int(new["leaseTransitions"])
        return True

    def _stands_still(self, lease: dict[str, Any], spec: dict[str, Any]) -> bool:
        """Whether this process has watched the record unchanged for its whole duration."""
        version, now = str(lease["metadata"].get("resourceVersion", "")), self._monotonic()
        if self._watched[0] != version:
            self._watched = (version, now)
            return False
        return now - self._watched[1] > max(self._duration_s, float(spec.get("leaseDurationSeconds") or 0))

    def _spec(self, old: dict[str, Any], *, taken: bool) -> dict[str, Any]:
        now = times.to_text(time.time())  # for people only
        transitions = int(old.get("leaseTransitions") or 0)
        return {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": max(1, round(self._duration_s)),
            "acquireTime": now if taken else old.get("acquireTime", now),
            "renewTime": now,
            "leaseTransitions": transitions + 1 if taken else transitions,
        }

    def _give_back(self) -> None:
        lease = self._call("GET", self._path)
        spec = lease.get("spec") or {}
        if spec.get("holderIdentity") == self.identity:
            self._call("PUT", self._path, {**lease, "spec": {**spec, "holderIdentity": ""}})
