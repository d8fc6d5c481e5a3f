"""Clients, lanes and kubeconfigs against small servers of the test's own."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rebalancer.adapters.kubernetes import kubeconfigs
from rebalancer.adapters.kubernetes.actuator import KubernetesActuator
from rebalancer.adapters.kubernetes.clients import Clients, ClusterClient, hub_client
from rebalancer.adapters.kubernetes.events import BURST, KubernetesNotifier
from rebalancer.adapters.kubernetes.lanes import Lane
from rebalancer.api.cluster import MemberCluster
from rebalancer.api.controller import HubSpec
from rebalancer.core.policy import Policy
from rebalancer.errors import ClusterError, ConfigError

Reply = Callable[[BaseHTTPRequestHandler], None]


class Server:
    """Answers each request with the next reply; the last one stays."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)
        self.requests: list[tuple[str, str, str]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                server.requests.append((self.command, self.path, self.headers.get("Authorization", "")))
                reply = server.replies.pop(0) if len(server.replies) > 1 else server.replies[0]
                reply(self)

            do_GET = do_POST = handle_any  # noqa: N815  # the names that the base class calls

            def log_message(self, *args: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_address[1]}"

    def kubeconfig(self, folder: Path, token: str = "t") -> Path:
        return write(folder / "kubeconfig", self.url, {"token": token})


def write(path: Path, server: str, user: dict[str, Any]) -> Path:
    path.write_text(json.dumps(document(server, user)))
    return path


def document(server: str, user: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }


def answer(status: int, body: str, **headers: str) -> Reply:
    def reply(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body.encode())

    return reply


def hang_up(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True
    handler.connection.close()


def drip(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    try:
        for _ in range(60):
            handler.wfile.write(b"{" * 10)
            handler.wfile.flush()
            time.sleep(0.05)
    except OSError:
        pass


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    made: list[Server] = []

    def start(*replies: Reply) -> Server:
        made.append(Server(*replies))
        return made[-1]

    yield start
    for one in made:
        one.http.shutdown()
        one.http.server_close()


def get(client: ClusterClient, seconds: float = 2.0, method: str = "GET") -> bytes:
    body: dict[str, str] | None = None if method == "GET" else {}
    return client.request(method, "/x", until=time.monotonic() + seconds, body=body).body


def test_a_401_reads_the_token_anew_once(
    serve: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rebalancer.adapters.kubernetes.clients.RELOAD_GAP_S", 0.0)
    server = serve(answer(200, "1"), answer(401, "{}"), answer(200, "2"), answer(401, "{}"))
    (tmp_path / "token").write_text("old")
    client = hub_client(str(write(tmp_path / "k", server.url, {"tokenFile": "token"})))
    assert get(client) == b"1"
    (tmp_path / "token").write_text("new")
    assert get(client) == b"2"
    with pytest.raises(ClusterError) as caught:
        get(client)
    assert caught.value.kind == "unauthorized"
    assert [a for _, _, a in server.requests] == ["Bearer old", "Bearer old", *["Bearer new"] * 3]
    client.close()


def test_a_read_is_repeated_after_a_cut_but_a_write_never_is(serve: Callable[..., Server], tmp_path: Path) -> None:
    server = serve(hang_up, answer(200, "ok"), hang_up)
    client = hub_client(str(server.kubeconfig(tmp_path)))
    assert get(client) == b"ok"
    with pytest.raises(ClusterError) as caught:
        get(client, method="POST")
    assert caught.value.kind == "unreachable"
    assert [m for m, _, _ in server.requests] == ["GET", "GET", "POST"]


def test_a_throttled_read_waits_and_tries_once_more(serve: Callable[..., Server], tmp_path: Path) -> None:
    server = serve(answer(429, "{}", Retry_After="1"), answer(200, "ok"))
    assert get(hub_client(str(server.kubeconfig(tmp_path))), 4.0) == b"ok"


def test_a_server_that_drips_is_left_at_the_deadline(serve: Callable[..., Server], tmp_path: Path) -> None:
    client = hub_client(str(serve(drip).kubeconfig(tmp_path)))
    began = time.monotonic()
    with pytest.raises(ClusterError) as caught:
        get(client, 0.5)
    assert caught.value.kind == "timeout"
    assert time.monotonic() - began < 1.5


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (403, "forbidden"),
        (404, "not-found"),
        (409, "conflict"),
        (422, "invalid"),
        (500, "unreachable"),
        (302, "invalid"),
    ],
)
def test_refusals_have_their_kind_and_the_servers_words(
    serve: Callable[..., Server], tmp_path: Path, status: int, kind: str
) -> None:
    server = serve(answer(status, '{"message": "because\\n of this"}'))
    with pytest.raises(ClusterError, match=rf"hub: HTTP {status}: because of this") as caught:
        get(hub_client(str(server.kubeconfig(tmp_path))))
    assert caught.value.kind == kind


def test_what_answers_but_is_no_api_server_takes_nobody_along(serve: Callable[..., Server], tmp_path: Path) -> None:
    pages = serve(answer(200, "<html>Welcome</html>"))
    lists = serve(
        answer(200, '{"gitVersion": "v1", "metadata": {}, "items": [{"metadata": {}, "spec": {"replicas": "x"}}]}')
    )
    empty = serve(answer(200, '{"gitVersion": "v1", "metadata": {}, "items": null}'))
    files = {n: write(tmp_path / n, s.url, {}) for n, s in (("html", pages), ("odd", lists), ("empty", empty))}
    members = {n: a_member(kubeconfigPath=str(f)) for n, f in files.items()}
    clients = Clients(members)
    assert asyncio.run(clients.connect()) == {}
    state = asyncio.run(KubernetesActuator(members, clients).observe((Policy("p", pod_labels={"a": "b"}),), 1.0))
    assert "html: what answers is no API server" in state.clusters["html"].error
    assert "is no list of Kubernetes" in state.clusters["odd"].error
    assert (state.clusters["empty"].error, state.clusters["empty"].seen_s, state.clusters["empty"].nodes) == (
        "",
        1.0,
        (),
    )
    clients.close()


def test_nobody_listens(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"hub: .*refused") as caught:
        get(hub_client(str(write(tmp_path / "k", "http://127.0.0.1:9", {"token": "secret"}))))
    assert caught.value.kind == "unreachable"
    assert "secret" not in str(caught.value)


def a_member(**connection: str) -> MemberCluster:
    spec = {"region": "r", "connection": connection}
    raw = {"apiVersion": "rebalancer.dev/v1alpha1", "kind": "MemberCluster", "metadata": {"name": "eu"}, "spec": spec}
    return MemberCluster.model_validate(raw)


def test_at_start_every_bad_file_is_one_sentence(tmp_path: Path) -> None:
    good = write(tmp_path / "good", "http://x", {})
    (tmp_path / "list").write_text("[1]")
    (tmp_path / "broken").write_text("{a: [")
    members = {
        "a": a_member(kubeconfigPath=str(tmp_path / "none")),
        "b": a_member(kubeconfigPath=str(tmp_path / "list")),
        "c": a_member(kubeconfigPath=str(tmp_path / "broken")),
        "d": a_member(kubeconfigPath=str(good), context="other"),
        "e": a_member(kubeconfigPath=str(good), context="c"),
        "f": a_member(kubeconfigSecretRef="s"),
    }
    with pytest.raises(ConfigError) as caught:
        kubeconfigs.check_files(members)
    hub = HubSpec(kubeconfig_path=str(tmp_path / "no-hub"))
    with pytest.raises(ConfigError, match=r"RebalancerConfig: spec\.hub\.kubeconfigPath .*no such file"):
        kubeconfigs.check_files({"e": members["e"], "f": members["f"]}, hub)
    words = [
        ("a", "there is no such file"), ("b", "not a kubeconfig"), ("c", "not valid YAML"), ("d", "'other': not in"),
        ("f", "there is no hub"),
    ]  # fmt: skip
    assert len(caught.value.problems) == len(words)
    for problem, (name, text) in zip(caught.value.problems, words, strict=True):
        assert problem.startswith(f"MemberCluster {name}: spec.connection.")
        assert text in problem


@pytest.mark.parametrize("field", ["exec", "auth-provider", "tokenFile", "client-key"])
def test_a_secret_brings_data_only(field: str) -> None:
    raw = json.dumps(document("https://x", {field: {"command": "id"}})).encode()
    with pytest.raises(ClusterError, match=f"uses {field}, which a Secret must not"):
        kubeconfigs.from_secret("s", {"data": {"kubeconfig": base64.b64encode(raw).decode()}})


@pytest.mark.parametrize("data", [{}, {"kubeconfig": ""}, {"kubeconfig": "!"}, {"kubeconfig": "W10="}])
def test_a_secret_that_holds_no_kubeconfig_says_so(data: dict[str, str]) -> None:
    with pytest.raises(ClusterError, match="Secret rebalancer-system/s"):
        kubeconfigs.from_secret("s", {"data": data})


def test_a_lane_whose_call_hangs_takes_no_second_one() -> None:
    async def story() -> None:
        lane = Lane("eu", "read")
        release = threading.Event()
        with pytest.raises(ClusterError, match=r"no read within 0\.1 s"):
            await lane.run(release.wait, 0.1)
        with pytest.raises(ClusterError, match="an earlier read still hangs"):
            await lane.run(lambda: 1, 5.0)
        release.set()
        async with asyncio.timeout(2):
            while lane.busy:
                await asyncio.sleep(0.01)
        assert await lane.run(lambda: 2, 1.0) == 2
        with pytest.raises(ZeroDivisionError):
            await lane.run(lambda: 1 // 0, 1.0)
        assert await asyncio.gather(*(lane.run(lambda i=i: i, 2.0) for i in range(5))) == list(range(5))  # type: ignore[misc]  # mypy can't infer a lambda's default

    asyncio.run(story())


def test_events_are_said_once_within_bounds_and_failures_only_counted(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    server = serve(answer(403, "{}"), answer(201, "{}"))
    client = hub_client(str(server.kubeconfig(tmp_path)))

    async def story() -> KubernetesNotifier:
        notifier = KubernetesNotifier({"eu": client}, lambda workload, cluster: "uid", monotonic=lambda: 0.0)
        for _ in range(3):  # the first is denied, so the second may say it again
            await notifier.event("a/b", "eu", "cheaper", "x", warning=True, at_s=1000.0)
        for i in range(30):
            await notifier.event("a/b", "eu", "cheaper", f"x{i}", warning=False, at_s=1000.0)
        await notifier.event("a/b", "gone", "cheaper", "x", warning=False, at_s=1000.0)
        return notifier

    notifier = asyncio.run(story())
    written = int(BURST) - 1
    assert notifier.counts == {"written": written, "repeated": 1, "dropped": 30 - written + 1, "failed": 2}
    assert {p for _, p, _ in server.requests} == {"/apis/events.k8s.io/v1/namespaces/a/events"}
