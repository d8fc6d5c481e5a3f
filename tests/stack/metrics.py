"""Prometheus per cluster, Thanos over them, Alertmanager: the metrics side of the stack, from real programs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httpx

from tests.stack import binaries
from tests.stack.processes import Process, StackError, free_port, wait_for

_START_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Target:
    """One thing to scrape.

    Attributes:
        job: Job label.
        url: Where its metrics are, such as http://127.0.0.1:9000/eu-1/metrics.
        labels: Set on every series; `instance` may be among them, so that it does not change with the port.
        options: More of Prometheus' scrape configuration.
    """

    job: str
    url: str
    labels: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    def config(self, cluster: str, interval_s: float) -> dict[str, Any]:
        """The scrape configuration; `cluster` becomes a target label unless it is empty."""
        url = httpx.URL(self.url)
        labels = {**({"cluster": cluster} if cluster else {}), **self.labels}
        return {
            "job_name": self.job if not cluster else f"{self.job}-{cluster}",
            "metrics_path": url.path,
            "scheme": url.scheme,
            "scrape_interval": _duration(interval_s),
            "scrape_timeout": _duration(interval_s),
            "static_configs": [{"targets": [f"{url.host}:{url.port}"], "labels": {"job": self.job, **labels}}],
            **self.options,
        }


def _duration(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"


class Query:
    """Reads a Prometheus-like API (Prometheus or Thanos). Raises httpx.HTTPError, or StackError for a refused query."""

    def __init__(self, url: str, **client: Any) -> None:
        self.url = url
        self._client = httpx.Client(base_url=url, timeout=10.0, trust_env=False, **client)

    def get(self, path: str, **params: str) -> dict[str, Any]:
        """GETs an API path below /api/v1 and returns the whole answer."""
        answer = cast(dict[str, Any], self._client.get(f"/api/v1/{path}", params=params).json())
        if answer.get("status") != "success":
            raise StackError(f"{path} {params}: {answer}")
        return answer

    def vector(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Evaluates an instant query now; (labels, value) per series."""
        result = self.get("query", query=expression)["data"]["result"]
        return [(series["metric"], float(series["value"][1])) for series in result]

    def scalar(self, expression: str) -> float:
        """The only value of a query. Raises StackError unless there is exactly one series."""
        found = self.vector(expression)
        if len(found) != 1:
            raise StackError(f"{expression}: {len(found)} series instead of one")
        return found[0][1]

    def matrix(self, expression: str, start: float, end: float, step_s: float) -> list[dict[str, Any]]:
        """Evaluates a range query; the raw result list."""
        window = {"start": str(start), "end": str(end), "step": str(step_s)}
        result = self.get("query_range", query=expression, **window)["data"]["result"]
        return cast(list[dict[str, Any]], result)

    def close(self) -> None:
        """Closes its connections."""
        self._client.close()


class _Server:
    """What the servers here share: a process, a URL, readiness, an end."""

    def __init__(self, name: str, folder: Path, *, scheme: str = "http", client: dict[str, Any] | None = None) -> None:
        self.name = name
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        self.client = client or {}
        self.query = Query(self.url, **self.client)
        self.process: Process

    def _launch(self, argv: list[str]) -> None:
        self.process = Process(self.name, argv, self.folder / "log", {"GOMAXPROCS": "2"}).start()

    def wait_ready(self, timeout_s: float = _START_TIMEOUT_S) -> None:
        """Waits until /-/ready answers 200 (seconds)."""
        wait_for(
            lambda: httpx.get(f"{self.url}/-/ready", timeout=2.0, trust_env=False, **self.client).status_code == 200,
            f"ready {self.name}",
            timeout_s,
            owner=self.process,
        )

    def restart(self, timeout_s: float = _START_TIMEOUT_S) -> None:
        """Kills it, starts it again on the same data and port, and waits until it is ready."""
        self.process.restart()
        self.wait_ready(timeout_s)

    def stop(self) -> None:
        """Kills it."""
        self.query.close()
        if hasattr(self, "process"):
            self.process.resume()
            self.process.kill()


class Prometheus(_Server):
    """One Prometheus.

    Args:
        name: Folder and log name.
        folder: Where its data goes.
        cluster: Its external label and the target label of all it scrapes; empty for a global one.
        interval_s: Scrape and rule interval, seconds.
        rule_files: Rule files to load.
        alertmanager_url: Where its alerts go.
        program: Another Prometheus than the built one, such as Debian's 2.42.
        web: Its web configuration (TLS and credentials); `client` then says how the harness itself gets in.
        client: Arguments of httpx.Client.
        config: More of its configuration, such as remote_write.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        cluster: str = "",
        interval_s: float = 1.0,
        rule_files: Iterable[Path] = (),
        alertmanager_url: str = "",
        program: Path | None = None,
        web: dict[str, Any] | None = None,
        client: dict[str, Any] | None = None,
        config: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(name, folder, scheme="https" if web and "tls_server_config" in web else "http", client=client)
        self.web, self.more = web, config or {}
        self.cluster = cluster
        self.interval_s = interval_s
        self.rule_files = [str(path.resolve()) for path in rule_files]
        self.alertmanager_url = alertmanager_url
        self.program = str(program) if program else binaries.path("prometheus")
        self.targets: dict[str, list[Target]] = {}
        self.data = folder / "data"

    def scrape(self, *targets: Target, cluster: str = "") -> None:
        """Adds targets; a global Prometheus names the cluster of each, which becomes their `cluster` label."""
        self.targets.setdefault(cluster or self.cluster, []).extend(targets)

    def write_config(self) -> Path:
        """Writes its configuration (JSON is YAML)."""
        config: dict[str, Any] = {
            "global": {
                "scrape_interval": _duration(self.interval_s),
                "scrape_timeout": _duration(self.interval_s),
                "evaluation_interval": _duration(self.interval_s),
            },
            "rule_files": self.rule_files,
            "scrape_configs": [
                target.config(cluster, self.interval_s) for cluster, group in self.targets.items() for target in group
            ],
        }
        if self.cluster:
            config["global"]["external_labels"] = {"cluster": self.cluster, "replica": "a"}
        if self.alertmanager_url:
            host = httpx.URL(self.alertmanager_url)
            config["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [f"{host.host}:{host.port}"]}]}]}
        path = self.folder / "prometheus.yaml"
        path.write_text(json.dumps({**config, **self.more}, indent=1))
        return path

    def backfill(self, openmetrics: Path, timeout_s: float = 120.0) -> None:
        """Imports an OpenMetrics file as blocks; before the start only. Raises StackError when promtool refuses."""
        command = [binaries.path("promtool"), "tsdb", "create-blocks-from", "openmetrics"]
        command += ["--max-block-duration=24h", "--quiet", str(openmetrics), str(self.data)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
        if done.returncode:
            raise StackError(f"promtool: {done.stderr[-2000:]}")

    def start(self, timeout_s: float = _START_TIMEOUT_S) -> Prometheus:
        """Starts it and waits until it is ready."""
        argv = [
            self.program,
            f"--config.file={self.write_config()}",
            f"--storage.tsdb.path={self.data}",
            "--storage.tsdb.retention.time=60d",
            # A sidecar refuses a Prometheus that compacts on its own; with equal bounds it never does.
            "--storage.tsdb.min-block-duration=2h",
            "--storage.tsdb.max-block-duration=2h",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--web.enable-lifecycle",
            # An alert that fires before Alertmanager was discovered is lost until it is sent again.
            "--rules.alert.resend-delay=2s",
            "--log.level=warn",
        ]
        if self.web is not None:
            web = self.folder / "web.yaml"
            web.write_text(json.dumps(self.web))
            argv.append(f"--web.config.file={web}")
        self._launch(argv)
        self.wait_ready(timeout_s)
        return self

    def reload(self) -> None:
        """Writes the configuration anew and makes it read it; raises StackError when it refuses."""
        self.write_config()
        answer = httpx.post(f"{self.url}/-/reload", timeout=10.0, trust_env=False)
        if answer.status_code != 200:
            raise StackError(f"{self.name} refused its configuration: {answer.text}")


class Thanos(_Server):
    """A component of Thanos: sidecar, receive, store or rule, with what its flags need.

    Args:
        kind: The subcommand.
        folder: Where its data goes.
        arguments: Its flags besides those of its addresses.
        name: What its log is called; thanos and the subcommand if not given.
    """

    def __init__(self, kind: str, folder: Path, *arguments: str, name: str = "") -> None:
        super().__init__(name or f"thanos-{kind}", folder)
        self.kind, self.arguments = kind, arguments
        self.grpc = f"127.0.0.1:{free_port()}"

    def start(self, timeout_s: float = _START_TIMEOUT_S) -> Thanos:
        """Starts it and waits until it is ready."""
        argv = [
            binaries.path("thanos"),
            self.kind,
            f"--grpc-address={self.grpc}",
            f"--http-address=127.0.0.1:{self.port}",
            "--log.level=warn",
            *self.arguments,
        ]
        self._launch(argv)
        self.wait_ready(timeout_s)
        return self


class Sidecar(Thanos):
    """A Thanos sidecar; its Prometheus must be ready, else it tries again only 30 s later."""

    def __init__(self, prometheus: Prometheus, folder: Path) -> None:
        flags = (f"--prometheus.url={prometheus.url}", f"--tsdb.path={prometheus.data}")
        super().__init__("sidecar", folder, *flags, name=f"{prometheus.name}-sidecar")


class ThanosQuery(_Server):
    """Thanos Query over endpoints (host:port of sidecars, or of proxies in front of them)."""

    def __init__(self, folder: Path, endpoints: list[str], *, extra_args: tuple[str, ...] = ()) -> None:
        super().__init__("thanos-query", folder)
        self.endpoints = endpoints
        self.extra_args = extra_args

    def start(self, timeout_s: float = _START_TIMEOUT_S) -> ThanosQuery:
        """Starts it and waits until it sees every endpoint, all of them sidecars."""
        self.start_without_waiting(timeout_s)
        self.wait_stores(len(self.endpoints), timeout_s)
        return self

    def start_without_waiting(self, timeout_s: float = _START_TIMEOUT_S) -> ThanosQuery:
        """Starts it and waits until it is ready, whatever it sees yet."""
        argv = [
            binaries.path("thanos"),
            "query",
            f"--http-address=127.0.0.1:{self.port}",
            f"--grpc-address=127.0.0.1:{free_port()}",
            "--query.replica-label=replica",
            "--log.level=warn",
            *(f"--endpoint={endpoint}" for endpoint in self.endpoints),
            *self.extra_args,
        ]
        self._launch(argv)
        self.wait_ready(timeout_s)
        return self

    def wait_stores(self, count: int, timeout_s: float = _START_TIMEOUT_S) -> None:
        """Waits until exactly `count` sidecars are seen healthy."""
        wait_for(
            lambda: len(self.healthy_stores()) == count, f"{count} stores of Thanos", timeout_s, owner=self.process
        )

    def healthy_stores(self) -> list[str]:
        """Clusters whose sidecar answers."""
        stores = self.query.get("stores")["data"].get("sidecar") or []
        healthy = [store for store in stores if not store["lastError"]]
        return sorted(labels["cluster"] for store in healthy for labels in store["labelSets"])


class Alertmanager(_Server):
    """Alertmanager with one webhook receiver, or none that is heard."""

    def __init__(self, folder: Path, *, webhook_url: str = "") -> None:
        super().__init__("alertmanager", folder)
        self.webhook_url = webhook_url

    def start(self, timeout_s: float = _START_TIMEOUT_S) -> Alertmanager:
        """Starts it and waits until it is ready."""
        receiver: dict[str, Any] = {"name": "test"}
        if self.webhook_url:
            receiver["webhook_configs"] = [{"url": self.webhook_url, "send_resolved": True}]
        route = {"receiver": "test", "group_by": ["..."], "group_wait": "100ms", "group_interval": "1s"}
        path = self.folder / "alertmanager.yaml"
        path.write_text(json.dumps({"route": route, "receivers": [receiver]}))
        argv = [
            binaries.path("alertmanager"),
            f"--config.file={path}",
            f"--storage.path={self.folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--cluster.listen-address=",
            "--log.level=warn",
        ]
        self._launch(argv)
        self.wait_ready(timeout_s)
        return self

    def alerts(self) -> list[dict[str, Any]]:
        """The alerts it holds now."""
        answer = httpx.get(f"{self.url}/api/v2/alerts", timeout=5.0, trust_env=False)
        return cast(list[dict[str, Any]], answer.json())
