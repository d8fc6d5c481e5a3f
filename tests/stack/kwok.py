"""What kwok plays on a member: how nodes and pods become ready, and how tests make them fail.

Faults are a label on the node or a label on the pod (so also in a pod template), key `rebalancer.dev/fault`:
`not-ready` (nodes), `crashloop` and `unready` (pods). Taking the label away heals. The annotation
`rebalancer.dev/start-delay` on a pod ("15s") overrides the plane's own start delay.
"""

from __future__ import annotations

import json
from typing import Any

FAULT = "rebalancer.dev/fault"
START_DELAY = "rebalancer.dev/start-delay"
_FAULT_KEY = f'.metadata.labels["{FAULT}"]'
_READY_KEY = '.status.conditions.[] | select( .type == "Ready" ) | .status'
_ALIVE = {"key": ".metadata.deletionTimestamp", "operator": "DoesNotExist"}
_ACTIVE = {"key": ".status.phase", "operator": "In", "values": ["Pending", "Running"]}

_NODE_STATUS = """
{{ $now := Now }}
{{ $name := .metadata.name }}
conditions:
{{ range NodeConditions }}
- lastHeartbeatTime: {{ $now | Quote }}
  lastTransitionTime: {{ $now | Quote }}
  message: {{ .message | Quote }}
  reason: {{ .reason | Quote }}
  status: {{ if eq .type "Ready" }}"READY"{{ else }}{{ .status | Quote }}{{ end }}
  type: {{ .type | Quote }}
{{ end }}
addresses:
- address: {{ NodeIP | Quote }}
  type: InternalIP
- address: {{ $name | Quote }}
  type: Hostname
nodeInfo:
  architecture: amd64
  bootID: ""
  containerRuntimeVersion: kwok
  kernelVersion: kwok
  kubeProxyVersion: kwok
  kubeletVersion: v1.36.3
  machineID: ""
  operatingSystem: linux
  osImage: ""
  systemUUID: ""
phase: Running
"""

_POD_STATUS = """
{{ $now := Now }}
conditions:
- {lastTransitionTime: {{ $now | Quote }}, status: "True", type: Initialized}
- {lastTransitionTime: {{ $now | Quote }}, status: "READY", type: Ready}
- {lastTransitionTime: {{ $now | Quote }}, status: "READY", type: ContainersReady}
containerStatuses:
{{ range .spec.containers }}
- image: {{ .image | Quote }}
  name: {{ .name | Quote }}
  ready: IS_READY
  restartCount: RESTARTS
  state:
    STATE
{{ end }}
{{ with NodeIPsWith .spec.nodeName }}
hostIP: {{ index . 0 | Quote }}
hostIPs:
{{ range . }}
- ip: {{ . | Quote }}
{{ end }}
{{ end }}
{{ with PodIPsWith .spec.nodeName ( or .spec.hostNetwork false ) ( or .metadata.uid "" ) ( or .metadata.name "" ) ( or .metadata.namespace "" ) }}
podIP: {{ index . 0 | Quote }}
podIPs:
{{ range . }}
- ip: {{ . | Quote }}
{{ end }}
{{ end }}
phase: Running
startTime: {{ $now | Quote }}
"""  # noqa: E501 - one template expression

_RUNNING = "running: {startedAt: {{ $now | Quote }}}"
_CRASHED = "waiting: {reason: CrashLoopBackOff, message: back-off restarting failed container}"


def stages(start_delay_s: float, stop_delay_s: float = 0.0) -> str:
    """The Stage objects of one plane, as kwok's config file.

    Args:
        start_delay_s: From a pod's scheduling to its readiness, in seconds.
        stop_delay_s: From a pod's deletion to its disappearance, in seconds.
    """
    healthy = {"key": _FAULT_KEY, "operator": "NotIn", "values": ["crashloop", "unready", "not-ready"]}
    not_ready = {"key": _READY_KEY, "operator": "NotIn", "values": ["True"]}
    documents = [
        _stage("node-ready", "Node", [healthy, not_ready], status=_node_status(True)),
        _stage("node-not-ready", "Node", [_fault("not-ready"), _ready()], status=_node_status(False)),
        _stage(
            "pod-ready",
            "Pod",
            [_ALIVE, _ACTIVE, healthy, not_ready],
            status=_pod_status(True, 0, _RUNNING),
            delay={
                "durationMilliseconds": round(start_delay_s * 1000),
                "durationFrom": {"expressionFrom": f'.metadata.annotations["{START_DELAY}"]'},
            },
        ),
        _stage("pod-unready", "Pod", [_ALIVE, _fault("unready"), _not_running()], _pod_status(False, 0, _RUNNING)),
        _stage("pod-lose-ready", "Pod", [_ALIVE, _fault("unready"), _ready()], _pod_status(False, 0, _RUNNING)),
        _stage("pod-crash", "Pod", [_ALIVE, _fault("crashloop"), _not_crashed()], _pod_status(False, 3, _CRASHED)),
        _stage(
            "pod-delete",
            "Pod",
            [{"key": ".metadata.deletionTimestamp", "operator": "Exists"}],
            delay={"durationMilliseconds": round(stop_delay_s * 1000)},
            delete=True,
        ),
    ]
    return "\n---\n".join(json.dumps(document) for document in documents) + "\n"


def _fault(name: str) -> dict[str, Any]:
    return {"key": _FAULT_KEY, "operator": "In", "values": [name]}


def _ready() -> dict[str, Any]:
    return {"key": _READY_KEY, "operator": "In", "values": ["True"]}


def _not_running() -> dict[str, Any]:
    return {"key": ".status.phase", "operator": "In", "values": ["Pending"]}


def _not_crashed() -> dict[str, Any]:
    key = ".status.containerStatuses.[].state.waiting.reason"
    return {"key": key, "operator": "NotIn", "values": ["CrashLoopBackOff"]}


def _node_status(ready: bool) -> str:
    return _NODE_STATUS.replace("READY", str(ready))


def _pod_status(ready: bool, restarts: int, state: str) -> str:
    text = _POD_STATUS.replace("IS_READY", str(ready).lower()).replace("READY", str(ready))
    return text.replace("RESTARTS", str(restarts)).replace("STATE", state)


def _stage(
    name: str,
    kind: str,
    conditions: list[dict[str, Any]],
    status: str = "",
    *,
    delay: dict[str, Any] | None = None,
    delete: bool = False,
) -> dict[str, Any]:
    following: dict[str, Any] = {"delete": True} if delete else {"statusTemplate": status}
    spec: dict[str, Any] = {
        "resourceRef": {"apiGroup": "v1", "kind": kind},
        "selector": {"matchExpressions": conditions},
        "next": following,
    }
    if delay:
        spec["delay"] = delay
    return {"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "Stage", "metadata": {"name": name}, "spec": spec}


def node(
    name: str,
    *,
    cpu: str = "8",
    memory: str = "32Gi",
    pods: int = 110,
    labels: dict[str, str] | None = None,
    taints: list[dict[str, str]] | None = None,
) -> dict[str, Any]:
    """A Node object for kwok to play: capacity and allocatable are given, readiness comes from the stages."""
    room = {"cpu": cpu, "memory": memory, "pods": str(pods)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        "spec": {"taints": taints or []},
        "status": {"capacity": room, "allocatable": room},
    }
