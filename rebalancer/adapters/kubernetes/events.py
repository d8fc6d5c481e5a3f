"""The Notifier port: Events on the Deployments concerned, few enough that nobody has to filter them."""

from __future__ import annotations

import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from rebalancer.adapters.kubernetes import times
from rebalancer.adapters.kubernetes.clients import FIELD_MANAGER, ClusterClient
from rebalancer.errors import ClusterError

WINDOW_S = 600.0
"""The same words on the same object again within this time say nothing new."""
MAX_REMEMBERED = 4096
BURST = 20.0
PER_SECOND = 0.2
_NOTE, _REASON = 1024, 128


class KubernetesNotifier:
    """Writes Events; what can't be written is counted and never raised.

    Attributes:
        counts: written, repeated (within the window), dropped (by the rate), failed.
        last_failure: why the last one failed.
    """

    def __init__(
        self,
        clusters: Mapping[str, ClusterClient],
        uid_of: Callable[[str, str], str],
        *,
        deadline_s: float = 2.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes the members' clients and how a workload's uid in a cluster is found (kubectl describe asks by it)."""
        self._clusters = clusters
        self._uid_of = uid_of
        self._deadline_s = deadline_s
        self._monotonic = monotonic
        self._said: OrderedDict[tuple[str, ...], float] = OrderedDict()
        self._tokens: dict[str, tuple[float, float]] = {}
        self._serial = 0
        self.counts = {"written": 0, "repeated": 0, "dropped": 0, "failed": 0}
        self.last_failure = ""

    async def event(self, workload: str, cluster: str, reason: str, text: str, *, warning: bool, at_s: float) -> None:
        """Writes one Event on the workload's Deployment in the cluster."""
        client = self._clusters.get(cluster)
        if client is None:
            self._failed(f"{cluster}: no such cluster")
        elif self._repeats((cluster, workload, reason, text), at_s):
            self.counts["repeated"] += 1
        elif not self._may(cluster):
            self.counts["dropped"] += 1
            self._said.pop((cluster, workload, reason, text), None)  # nobody was told
        else:
            await self._write(client, cluster, workload, reason, text, warning, at_s)

    async def _write(
        self, client: ClusterClient, cluster: str, workload: str, reason: str, text: str, warning: bool, at_s: float
    ) -> None:
        body = self._body(cluster, workload, reason, text, warning, at_s)
        path = f"/apis/events.k8s.io/v1/namespaces/{body['metadata']['namespace']}/events"
        until = time.monotonic() + self._deadline_s
        try:
            await client.events.run(
                lambda: client.request("POST", path, until=until, body=body), self._deadline_s + 0.5
            )
            self.counts["written"] += 1
        except ClusterError as error:
            self._said.pop((cluster, workload, reason, text), None)  # it may be said again
            self._failed(str(error))

    def _failed(self, why: str) -> None:
        self.counts["failed"] += 1
        self.last_failure = why

    def _repeats(self, key: tuple[str, ...], at_s: float) -> bool:
        before = self._said.get(key)
        if before is not None and at_s - before < WINDOW_S:
            return True
        self._said[key] = at_s
        self._said.move_to_end(key)
        while len(self._said) > MAX_REMEMBERED:
            self._said.popitem(last=False)
        return False

    def _may(self, cluster: str) -> bool:
        now = self._monotonic()
        tokens, at = self._tokens.get(cluster, (BURST, now))
        tokens = min(BURST, tokens + (now - at) * PER_SECOND)
        self._tokens[cluster] = (tokens - 1 if tokens >= 1 else tokens, now)
        return tokens >= 1

    def _body(self, cluster: str, workload: str, reason: str, text: str, warning: bool, at_s: float) -> dict[str, Any]:
        namespace, _, name = workload.partition("/")
        self._serial += 1
        uid = self._uid_of(workload, cluster)
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": f"{name[:200]}.{int(at_s * 1e6):x}.{self._serial:x}", "namespace": namespace},
            "eventTime": times.to_text(at_s),
            "type": "Warning" if warning else "Normal",
            "reason": reason[:_REASON],
            "action": reason[:_REASON],
            "note": text if len(text) <= _NOTE else text[: _NOTE - 3] + "...",
            "reportingController": f"rebalancer.dev/{FIELD_MANAGER}",
            "reportingInstance": socket.gethostname()[:_REASON],
            "regarding": {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "namespace": namespace,
                "name": name,
                **({"uid": uid} if uid else {}),
            },
        }
