"""Where the stack's programs are. They are found, not assumed: `make stack` builds them."""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.stack.processes import StackError

HERE = Path(__file__).parent
HOW = "the test stack is not built: run `make stack` (8 to 20 min, once), or set REBALANCER_STACK_DIR"


@dataclass(frozen=True)
class Tool:
    """One program to build.

    Attributes:
        name: File name of the program.
        package: Go package of its main function.
        module: Folder with the go.mod that pins it.
        ldflags: Linker settings besides -s -w.
        tags: Go build tags.
    """

    name: str
    package: str
    module: str
    ldflags: str = ""
    tags: str = ""


# Without a version kubectl cannot parse its own, and the servers report v0.0.0.
_KUBERNETES = " ".join(
    f"-X k8s.io/component-base/version.{key}={value}"
    for key, value in (("gitVersion", "v1.36.3"), ("gitMajor", "1"), ("gitMinor", "36"))
)
_VERSION = "-X github.com/prometheus/common/version.Version="

TOOLS = (
    Tool("etcd", "go.etcd.io/etcd/server/v3", "kubernetes"),
    Tool("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver", "kubernetes", _KUBERNETES),
    Tool("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager", "kubernetes", _KUBERNETES),
    Tool("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler", "kubernetes", _KUBERNETES),
    Tool("kubectl", "k8s.io/kubernetes/cmd/kubectl", "kubernetes", _KUBERNETES),
    Tool("kwok", "sigs.k8s.io/kwok/cmd/kwok", "kubernetes"),
    Tool("prometheus", "github.com/prometheus/prometheus/cmd/prometheus", "metrics", _VERSION + "3.9.1"),
    Tool("promtool", "github.com/prometheus/prometheus/cmd/promtool", "metrics", _VERSION + "3.9.1"),
    Tool("alertmanager", "github.com/prometheus/alertmanager/cmd/alertmanager", "metrics", _VERSION + "0.30.0"),
    # Without slicelabels the sidecar builds and then panics at its first answer.
    Tool("thanos", "github.com/thanos-io/thanos/cmd/thanos", "metrics", _VERSION + "0.42.2", "slicelabels"),
)
KUBERNETES = tuple(tool.name for tool in TOOLS if tool.module == "kubernetes")
METRICS = tuple(tool.name for tool in TOOLS if tool.module == "metrics")


@cache
def fingerprint(module: str) -> str:
    """Hash of all that decides what a module's programs are: go.mod, go.sum and the build flags."""
    digest = hashlib.sha256()
    for name in ("go.mod", "go.sum"):
        digest.update((HERE / module / name).read_bytes())
    digest.update(repr([tool for tool in TOOLS if tool.module == module]).encode())
    return digest.hexdigest()[:16]


def target_dir(module: str) -> Path:
    """Folder that `build` fills for a module: REBALANCER_STACK_DIR, else the user's cache folder."""
    if chosen := os.environ.get("REBALANCER_STACK_DIR"):
        return Path(chosen)
    cache_root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache_root / "fleet-rebalancer" / "stack" / fingerprint(module)


def find(name: str) -> Path | None:
    """Finds one of the stack's programs, or returns None."""
    tool = next(tool for tool in TOOLS if tool.name == name)
    folders = [target_dir(tool.module)]
    if tool.module == "kubernetes" and (assets := os.environ.get("KUBEBUILDER_ASSETS")):
        folders.insert(0, Path(assets))
    return next((folder / name for folder in folders if os.access(folder / name, os.X_OK)), None)


def missing(names: tuple[str, ...] = KUBERNETES + METRICS) -> tuple[str, ...]:
    """Names of the programs that are not there."""
    return tuple(name for name in names if find(name) is None)


def stamp(module: str) -> Path:
    """File beside a module's programs that says which fingerprint they were built from."""
    return target_dir(module) / f".{module}.fingerprint"


def outdated() -> tuple[str, ...]:
    """Programs `build` made from another go.mod or with other flags; what somebody else put there is trusted."""
    modules = {tool.module for tool in TOOLS}
    old = {m for m in modules if stamp(m).exists() and stamp(m).read_text() != fingerprint(m)}
    return tuple(tool.name for tool in TOOLS if tool.module in old)


def path(name: str) -> str:
    """Path of a program. Raises StackError that says how to get it."""
    if found := find(name):
        return str(found)
    raise StackError(f"{name}: {HOW}")


def prometheus_242() -> Path | None:
    """Debian's Prometheus 2.42, which many still run: REBALANCER_PROMETHEUS_242, else `prometheus` on PATH."""
    named = os.environ.get("REBALANCER_PROMETHEUS_242") or shutil.which("prometheus")
    return Path(named) if named and os.access(named, os.X_OK) else None
