"""Which agents of a cluster probe: two by rendezvous hash over the ready endpoints of one headless Service.

The others reflect only. The list comes from the own cluster's API server; when that is silent, the last one stands, so
that probing never depends on it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probes.topology import weight

ACTIVE_AGENTS = 2
REQUEST_DEADLINE_S = 5.0
ASK_EVERY_S = 15.0
MAX_ANSWER_OCTETS = 16 << 20
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
log = logging.getLogger("rebalancer-probe")


class ElectionError(Exception):
    """The list of agents can't be read; the message says why and what to do."""


@dataclass(frozen=True, slots=True, order=True)
class Endpoint:
    """One ready agent.

    Attributes:
        name: its pod's name, or its address where there is no pod.
        zone: its zone, empty if unknown.
    """

    name: str
    zone: str = ""


def elect(key: str, endpoints: Iterable[Endpoint], count: int = ACTIVE_AGENTS) -> tuple[str, ...]:
    """Returns the names of the agents that probe, the first choice first.

    The highest weight wins; the next ones come from zones that have none yet, as long as there are such. When an agent
    leaves, only its own place is filled anew.

    Args:
        key: what is elected for; another key spreads the choice differently.
        endpoints: the ready agents.
        count: how many may probe.
    """
    waiting = sorted(set(endpoints), key=lambda one: (weight(key, one.name), one.name), reverse=True)
    chosen: list[Endpoint] = []
    while waiting and len(chosen) < count:
        zones = {one.zone for one in chosen}
        best = next((one for one in waiting if one.zone not in zones), waiting[0])
        waiting.remove(best)
        chosen.append(best)
    return tuple(one.name for one in chosen)


def own_name() -> str:
    """Returns this agent's name: `POD_NAME`, else the host name, which is the pod's name without a host network."""
    return os.environ.get("POD_NAME") or socket.gethostname()


def ready_endpoints(document: Any) -> list[Endpoint]:
    """Returns the ready endpoints of an EndpointSliceList.

    Raises:
        ElectionError: it is none.
    """
    try:
        found = []
        for item in document["items"]:
            for one in item.get("endpoints") or []:
                # No condition means ready, says the API.
                if (one.get("conditions") or {}).get("ready") is not False:
                    name = (one.get("targetRef") or {}).get("name") or one["addresses"][0]
                    found.append(Endpoint(str(name), str(one.get("zone") or "")))
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ElectionError(f"the API server's answer is no EndpointSliceList ({error!r}).") from error
    return sorted(set(found))


def read_endpoints(service: str, account: Path = SERVICE_ACCOUNT) -> list[Endpoint]:
    """Asks the own cluster's API server for the ready endpoints of a Service; blocks for up to 5 s.

    Args:
        service: `namespace/name` of the headless Service.
        account: directory of the service account (token, ca.crt).

    Raises:
        ElectionError: no list was had.
    """
    namespace, _slash, name = service.partition("/")
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ElectionError("KUBERNETES_SERVICE_HOST is not set: run the agent in a pod, or leave `election` out.")
    selector = urllib.parse.urlencode({"labelSelector": f"kubernetes.io/service-name={name}", "resourceVersion": "0"})
    place = f"[{host}]" if ":" in host else host
    url = f"https://{place}:{port}/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?{selector}"
    try:
        # Read each time: a bound token is renewed on disk.
        token = (account / "token").read_text(encoding="utf-8").strip()
        context = ssl.create_default_context(cafile=str(account / "ca.crt"))
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=REQUEST_DEADLINE_S, context=context) as answer:
            document = json.loads(answer.read(MAX_ANSWER_OCTETS))
    except urllib.error.HTTPError as error:
        advice = "let its service account list endpointslices of discovery.k8s.io" if error.code == 403 else "try later"
        raise ElectionError(f"{service}: the API server says {error.code}; {advice}.") from error
    except (OSError, ValueError) as error:
        raise ElectionError(f"{service}: the API server can't be asked ({error}).") from error
    return ready_endpoints(document)


class Election:
    """Keeps in mind who probes; the last list stands while the API server is silent.

    Args:
        service: `namespace/name` of the headless Service.
        cluster: own cluster, the key of the choice.
    """

    def __init__(self, service: str, cluster: str) -> None:
        self.elected: tuple[str, ...] = ()
        self.name = own_name()
        self._service = service
        self._cluster = cluster
        self._said: str | None = None

    @property
    def won(self) -> bool:
        """Whether this agent is one of those that probe; not before the first list is known."""
        return self.name in self.elected

    async def follow(self, on_change: Callable[[], None]) -> None:
        """Asks every 15 s, for ever.

        Args:
            on_change: called after the elected changed.
        """
        while True:
            await self.ask(on_change)
            await asyncio.sleep(ASK_EVERY_S)

    async def ask(self, on_change: Callable[[], None]) -> None:
        """Asks once; a failure or an empty list changes nothing."""
        try:
            found = await asyncio.to_thread(read_endpoints, self._service)
            if not found:
                raise ElectionError(f"{self._service}: no agent is ready; is it the headless Service of the probes?")
        except ElectionError as error:
            self._say(f"election: {error} {', '.join(self.elected) or 'Nobody'} stays elected.")
            return
        elected = elect(self._cluster, found)
        if elected != self.elected:
            self.elected = elected
            self._say(f"election: {', '.join(elected)} of {len(found)} agents probe; this one is {self.name}.")
            on_change()

    def _say(self, words: str) -> None:
        if words != self._said:
            self._said = words
            log.warning("%s", words)
