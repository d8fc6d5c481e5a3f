"""`rebalancer init`: what it writes loads, names what it found, and marks what needs a look."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from rebalancer import config
from rebalancer.adapters.telemetry.discover import Discovered, matching
from rebalancer.adapters.telemetry.recipes import RECIPES
from rebalancer.api.controller import BackendSpec
from rebalancer.cli import main
from rebalancer.init import Member, merge, render
from tests.unit.adapters.telemetry.servers import Handler, always, serving, success

SPEC = BackendSpec(url="http://thanos:9090")
CONTEXTS = {"eu-1": "one", "gke_shop_us-east4_us-1": "two", "dev": "three"}


def kubeconfig(folder: Path, *names: str) -> Path:
    path = folder / "kubeconfig"
    entry = {"cluster": "x", "user": "x"}
    path.write_text(yaml.safe_dump({
        "kind": "Config", "users": [{"name": "x", "user": {"token": "t"}}],
        "clusters": [{"name": "x", "cluster": {"server": "http://127.0.0.1:9"}}],
        "contexts": [{"name": name, "context": entry} for name in names],
    }))  # fmt: skip
    return path


MATCHES = {
    "the same name": ("eu-1", CONTEXTS, "eu-1"),
    "as a part of a longer one": ("us-1", CONTEXTS, "gke_shop_us-east4_us-1"),
    "the cluster of the kubeconfig": ("three", CONTEXTS, "dev"),
    "no part of another name": ("eu", {"eu-1": "x", "neu": "y"}, ""),
    "none of several": ("us-1", {"a/us-1": "x", "b/us-1": "y"}, ""),
    "text, not an expression": ("u.-1", CONTEXTS, ""),
}


@pytest.mark.parametrize("sentence", MATCHES)
def test_a_cluster_gets_the_context(sentence: str) -> None:
    name, contexts, expected = MATCHES[sentence]
    assert matching(name, contexts) == expected


def test_clusters_of_metrics_and_kubeconfig_are_joined() -> None:
    found = Discovered("thanos", "cluster", {"eu-1": "europe-west1", "us-1": "", "Ap_1": ""})
    assert merge(found, CONTEXTS, {"eu-1": "elsewhere", "gke_shop_us-east4_us-1": "us-east4", "dev": ""}) == [
        Member("eu-1", "eu-1", "eu-1", "europe-west1"),
        Member("us-1", "us-1", "gke_shop_us-east4_us-1", "us-east4"),
        Member("ap-1", "Ap_1", "", ""),
        Member("dev", "", "dev", ""),
    ]


FOUND: dict[str, Discovered] = {
    "everything": Discovered("thanos", "k8s_cluster", {"eu-1": "europe: west", "yes": ""}, RECIPES),
    "nothing": Discovered("prometheus", missing=("room: scrape kube-state-metrics",)),
}


@pytest.mark.parametrize("sentence", FOUND)
def test_what_is_written_loads_as_it_stands(sentence: str) -> None:
    found = FOUND[sentence]
    text = render(SPEC, found, merge(found, CONTEXTS, {}), "~/.kube/config")
    loaded = config.load(config.parse(text, "rebalancer.yaml"))
    assert loaded.controller is not None
    [backend] = loaded.controller.spec.telemetry.backends
    assert (backend.url, backend.type) == (SPEC.url, found.kind)
    assert len(loaded.clusters) >= 3
    for name in found.regions:
        assert loaded.clusters[name].metrics_label() == (found.label, name)
    told = [line for line in text.splitlines() if "LOOK" in line]
    assert any("no series carries a cluster label" in line for line in told) == (not found.label)
    assert all(any(text in line for line in told) for text in found.missing)


def test_the_policy_that_it_suggests_loads_once_its_marks_are_taken_away() -> None:
    for recipe in (None, *(one for one in RECIPES if one.query)):
        text = render(SPEC, Discovered("thanos", recipes=(recipe,) if recipe else ()), [], "x")
        commented = text.partition("# ---\n")[2]
        policy = "\n".join(line.removeprefix("# ") for line in commented.splitlines())
        [loaded] = config.load(config.parse(policy, "policy.yaml")).policies.values()
        assert loaded.resolve().demand.query == (recipe.query if recipe else "")


def fleet(handler: Handler) -> None:
    query = handler.form.get("query", "")
    result: list[dict[str, Any]] = []
    if handler.path.startswith("/api/v1/stores"):
        handler.answer(404, b"404 page not found")
        return
    if "(up)" in query:
        result = [{"cluster": "eu-1"}, {"cluster": "us-1"}, {"k8s_cluster": "x"}]
    elif "kube_node_labels" in query:
        result = [{"cluster": "eu-1", "label_topology_kubernetes_io_region": "europe-west1"}]
    elif "nginx_ingress" in query:
        result = [{"__name__": "nginx_ingress_controller_requests"}]
    elif "container_cpu" in query:
        result = [{}]
    handler.answer(200, success([{"metric": one, "value": [1, "3"]} for one in result]))


def test_init_writes_what_it_discovers_and_overwrites_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, file = tmp_path / "rebalancer.yaml", kubeconfig(tmp_path, "eu-1", "us-1")
    with serving(fleet) as server:
        argv = ["init", server.url, "--kubeconfig", str(file), "--out", str(out)]
        assert main(argv) == 0
        assert "2 clusters" in capsys.readouterr().out
        assert main(argv) == 1
    assert "is there already and is not overwritten" in capsys.readouterr().err
    loaded = config.load(config.read_files([out]))
    assert {name: one.spec.region for name, one in loaded.clusters.items()} == {"eu-1": "europe-west1", "us-1": "us-1"}
    text = out.read_text()
    assert "query: nginx_ingress_controller_requests" in text
    assert "not found there: room" in text
    assert "not found there: the pods' CPU" not in text


@pytest.mark.parametrize(
    ("url", "words"),
    [("localhost:9090", "must be an http or https URL"), ("http://127.0.0.1:9", "can't be reached")],
)
def test_a_backend_that_cannot_be_asked_is_one_sentence(
    url: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rebalancer.yaml"
    assert main(["init", url, "--kubeconfig", str(kubeconfig(tmp_path)), "--out", str(out)]) == 1
    assert words in capsys.readouterr().err
    assert not out.exists()


def test_a_kubeconfig_that_is_none_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(fleet) as server:
        assert main(["init", server.url, "--kubeconfig", str(tmp_path / "no"), "--out", str(tmp_path / "o")]) == 1
    assert "there is no such file" in capsys.readouterr().err
    with serving(always(401, b"")) as server:
        assert main(["init", server.url, "--kubeconfig", str(tmp_path / "no"), "--out", str(tmp_path / "o")]) == 1
    assert "refuses the credentials" in capsys.readouterr().err
