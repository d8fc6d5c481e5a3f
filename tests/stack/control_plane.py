"""One Kubernetes cluster's control plane from real programs; kwok plays its nodes and pods."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from tests.stack import audit, binaries, credentials, kwok
from tests.stack.api import Api, Object, path_of
from tests.stack.processes import Process, free_port, wait_for

_START_TIMEOUT_S = 60.0
_NO_CONTROLLERS = (
    "*,-node-ipam-controller,-service-lb-controller,-cloud-node-lifecycle-controller,-node-route-controller"
)


@dataclass(frozen=True)
class PlaneSpec:
    """How a plane is made.

    Attributes:
        name: Cluster name; also the kubeconfig's context.
        member: False for a hub, which has neither scheduler nor kwok.
        start_delay_s: From a pod's scheduling to its readiness, seconds.
        stop_delay_s: From a pod's deletion to its disappearance, seconds.
        apiserver_args: Added to the API server's, such as --max-requests-inflight=5.
        kcm_args: Added to the controller-manager's, such as --node-monitor-grace-period=10s.
    """

    name: str
    member: bool = True
    start_delay_s: float = 0.0
    stop_delay_s: float = 0.0
    apiserver_args: tuple[str, ...] = ()
    kcm_args: tuple[str, ...] = ()


@dataclass
class ControlPlane:
    """A plane and its parts; `start` brings it up, `stop` ends it. Parts are public: faults act on them by name."""

    spec: PlaneSpec
    folder: Path
    parts: dict[str, Process] = field(default_factory=dict)
    started_in_s: float = 0.0

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.server = f"https://127.0.0.1:{self.port}"
        self.credentials = credentials.make(self.folder)
        self.kubeconfig = self.kubeconfig_for(credentials.ADMIN)
        self.audit_log = self.folder / "audit.log"
        self.api = Api(self.server, self.credentials.tokens[credentials.ADMIN], self.credentials.ca)

    @property
    def name(self) -> str:
        """Cluster name."""
        return self.spec.name

    def kubeconfig_for(self, user: str, *, token: str = "", server: str = "") -> Path:
        """Writes a kubeconfig: of a user of the token file, or any token; `server` may name a proxy's address."""
        return credentials.kubeconfig(
            self.folder / f"{user}{'-proxied' if server else ''}.kubeconfig",
            context=self.spec.name,
            server=server or self.server,
            ca=self.credentials.ca,
            token=token or self.credentials.tokens[user],
        )

    def start(self, timeout_s: float = _START_TIMEOUT_S) -> ControlPlane:
        """Starts all parts and waits until the plane serves, makes accounts and, for a member, has kwok running.

        Raises:
            StackError: A part ended or the deadline passed; the message carries the part's last log lines.
        """
        began = time.monotonic()
        self._start_etcd()
        self._start_apiserver()
        self.wait_ready(timeout_s)
        self._start_controller_manager()
        if self.spec.member:
            self._start_scheduler()
            self._start_kwok()
        wait_for(
            lambda: self.api.get(path_of("ServiceAccount", "default", "default")),
            f"default ServiceAccount in {self.name}",
            timeout_s,
            owner=self.parts["kcm"],
        )
        self.started_in_s = time.monotonic() - began
        return self

    def wait_ready(self, timeout_s: float = _START_TIMEOUT_S) -> None:
        """Waits until the API server calls itself ready (seconds)."""
        wait_for(
            lambda: self.api.call("GET", "/readyz", timeout=2.0),
            f"ready API server {self.name}",
            timeout_s,
            poll_s=0.05,
            owner=self.parts["apiserver"],
        )

    def stop(self) -> None:
        """Kills all parts. No SIGTERM: the API server's graceful end takes over 20 s, and the data is a test's."""
        self.api.close()
        for part in ("kwok", "scheduler", "kcm", "apiserver", "etcd"):
            if part in self.parts:
                self.parts[part].resume()
                self.parts[part].kill()

    def _run(self, part: str, program: str, args: list[str]) -> None:
        argv = [binaries.path(program), *args]
        # Four planes share a small machine with the code under test: no part may take all of its cores for garbage.
        env = {"GOMAXPROCS": "2", "GOGC": "150"}
        self.parts[part] = Process(f"{self.name}/{part}", argv, self.folder / f"{part}.log", env).start()

    def _start_etcd(self) -> None:
        client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        self._etcd_url = client
        self._run(
            "etcd",
            "etcd",
            [
                f"--data-dir={self.folder / 'etcd'}",
                f"--listen-client-urls={client}",
                f"--advertise-client-urls={client}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=default={peer}",
                "--unsafe-no-fsync",
                "--log-level=warn",
            ],
        )

    def _start_apiserver(self) -> None:
        policy = self.folder / "audit-policy.json"
        policy.write_text(json.dumps(audit.POLICY))
        keys = self.credentials
        self._run(
            "apiserver",
            "kube-apiserver",
            [
                f"--etcd-servers={self._etcd_url}",
                "--bind-address=127.0.0.1",
                "--advertise-address=127.0.0.1",
                f"--secure-port={self.port}",
                f"--tls-cert-file={keys.ca}",
                f"--tls-private-key-file={keys.server_key}",
                f"--token-auth-file={keys.token_file}",
                "--authorization-mode=RBAC",
                "--endpoint-reconciler-type=none",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={keys.account_key}",
                f"--service-account-signing-key-file={keys.account_key}",
                "--service-cluster-ip-range=10.96.0.0/16",
                f"--audit-policy-file={policy}",
                f"--audit-log-path={self.audit_log}",
                "--profiling=false",
                *self.spec.apiserver_args,
            ],
        )

    def _start_controller_manager(self) -> None:
        self._run(
            "kcm",
            "kube-controller-manager",
            [
                f"--kubeconfig={self.kubeconfig_for('kcm')}",
                f"--service-account-private-key-file={self.credentials.account_key}",
                f"--root-ca-file={self.credentials.ca}",
                "--use-service-account-credentials",
                f"--controllers={_NO_CONTROLLERS}",
                "--leader-elect=false",
                "--secure-port=0",
                "--kube-api-qps=200",
                "--kube-api-burst=400",
                *self.spec.kcm_args,
            ],
        )

    def _start_scheduler(self) -> None:
        self._run(
            "scheduler",
            "kube-scheduler",
            [
                f"--kubeconfig={self.kubeconfig_for('scheduler')}",
                "--leader-elect=false",
                "--secure-port=0",
                "--kube-api-qps=200",
                "--kube-api-burst=400",
            ],
        )

    def _start_kwok(self) -> None:
        self.write_stages(self.spec.start_delay_s, self.spec.stop_delay_s)
        self._run(
            "kwok",
            "kwok",
            [
                f"--kubeconfig={self.kubeconfig_for('kwok')}",
                f"--config={self.folder / 'stages.yaml'}",
                "--manage-all-nodes=true",
                "--node-lease-duration-seconds=40",
            ],
        )

    def write_stages(self, start_delay_s: float, stop_delay_s: float) -> None:
        """Writes kwok's configuration; a running kwok reads it when restarted."""
        (self.folder / "stages.yaml").write_text(kwok.stages(start_delay_s, stop_delay_s))

    def set_start_delay(self, start_delay_s: float, stop_delay_s: float = 0.0) -> None:
        """Changes how long new pods take to become ready (seconds), by restarting kwok."""
        self.write_stages(start_delay_s, stop_delay_s)
        self.restart("kwok")

    def restart(self, *parts: str, timeout_s: float = _START_TIMEOUT_S) -> None:
        """Kills parts (if they still live) and starts them again on their data and ports, in the order given.

        Waits until the API server is ready. Node leases are dropped before kwok starts: its successor has another
        identity and would not touch a node before the old lease ends, 40 s later.
        """
        for part in parts:
            self.parts[part].kill()
        for part in parts:
            if part == "kwok":
                self.api.delete("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases")
            self.parts[part].start()
            if part == "apiserver":
                self.wait_ready(timeout_s)

    def add_nodes(
        self,
        count: int,
        *,
        cpu: str = "8",
        memory: str = "32Gi",
        pods: int = 110,
        labels: dict[str, str] | None = None,
        taints: list[dict[str, str]] | None = None,
        prefix: str = "node",
        timeout_s: float = 20.0,
    ) -> list[str]:
        """Makes nodes named `<cluster>-<prefix>-<n>` and waits until they are ready; returns their names."""
        names = [f"{self.name}-{prefix}-{index}" for index in range(count)]
        for name in names:
            self.api.create(kwok.node(name, cpu=cpu, memory=memory, pods=pods, labels=labels, taints=taints))
        wait_for(lambda: set(names) <= self.ready_nodes(), f"{count} ready nodes in {self.name}", timeout_s)
        return names

    def ready_nodes(self) -> set[str]:
        """Names of the nodes whose condition Ready is True."""
        return {item["metadata"]["name"] for item in self.api.items(path_of("Node")) if _is_ready(item)}

    def pods(self, namespace: str = "default", selector: str = "") -> list[Object]:
        """Pods of a namespace."""
        return self.api.items(path_of("Pod", "", namespace), labelSelector=selector)

    def ready_pods(self, namespace: str = "default", selector: str = "") -> list[Object]:
        """Pods that are Ready and not being deleted."""
        return [p for p in self.pods(namespace, selector) if _is_ready(p) and "deletionTimestamp" not in p["metadata"]]

    def wait_ready_pods(
        self, count: int, namespace: str = "default", selector: str = "", timeout_s: float = 30
    ) -> float:
        """Waits until exactly `count` pods are ready; returns how many seconds it took."""
        began = time.monotonic()
        what = f"{count} ready pods {selector} in {self.name}"
        wait_for(lambda: len(self.ready_pods(namespace, selector)) == count, what, timeout_s, poll_s=0.1)
        return time.monotonic() - began

    def audit(self, user: str = "", *, writes_only: bool = False) -> list[audit.Record]:
        """What was asked of the API server so far, by users whose name contains `user`."""
        return audit.read(self.audit_log, user=user, writes_only=writes_only)

    def service_account(
        self, name: str, *, cluster_role: str = "", namespace: str = "default", seconds: int = 3600, server: str = ""
    ) -> Path:
        """Makes a ServiceAccount, binds it to a ClusterRole cluster-wide, and returns a kubeconfig with its token.

        Args:
            name: Of the account; the audit log shows it as system:serviceaccount:<namespace>:<name>.
            cluster_role: Must exist; empty binds nothing.
            namespace: Made when it is not there.
            seconds: Life of the token, at least 600.
            server: Another address than the API server's own, such as a proxy's.
        """
        token = self.mint_token(name, cluster_role=cluster_role, namespace=namespace, seconds=seconds)
        return self.kubeconfig_for(f"sa-{name}", token=token, server=server)

    def mint_token(self, name: str, *, cluster_role: str = "", namespace: str = "default", seconds: int = 3600) -> str:
        """As `service_account`, but returns the bare token."""
        self.api.namespace(namespace)
        meta = {"name": name, "namespace": namespace}
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta}
        self.api.apply(account)
        if cluster_role:
            self.api.apply(_binding(name, namespace, cluster_role))
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": seconds},
        }
        answer = self.api.call("POST", path_of("ServiceAccount", name, namespace) + "/token", request)
        return str(answer["status"]["token"])


def _binding(name: str, namespace: str, cluster_role: str) -> Object:
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": f"{namespace}-{name}-{cluster_role}"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": cluster_role},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
    }


def _is_ready(obj: Object) -> bool:
    conditions = cast(list[dict[str, Any]], obj.get("status", {}).get("conditions") or [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def start_all(planes: list[ControlPlane]) -> None:
    """Starts planes at the same time; the first failure is raised when all have been tried."""
    with ThreadPoolExecutor(max_workers=len(planes) or 1) as pool:
        for done in [pool.submit(plane.start) for plane in planes]:
            done.result()
