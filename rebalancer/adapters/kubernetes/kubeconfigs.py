"""MemberCluster.connection -> a client configuration: from a kubeconfig file with a context, or from a Secret."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import urllib3
import yaml
from kubernetes import client
from kubernetes.config import ConfigException, kube_config

from rebalancer.api.cluster import Connection, MemberCluster
from rebalancer.api.controller import HubSpec
from rebalancer.errors import ClusterError, ConfigError

POOL_SIZE = 10
"""Connections: four for writes, two for rollouts, one each for reads, Events and the lease, and one to spare."""
SECRET_NAMESPACE = "rebalancer-system"
SECRET_KEY = "kubeconfig"
MAX_BYTES = 1024 * 1024
_REGION = "topology.kubernetes.io/region"
_NODES, _ASK_S = 50, 5.0
"""How many nodes are asked for their region, and for how long (s)."""
# The client is not typed.
_load_file: Callable[..., None] = kube_config.load_kube_config
_load_dict: Callable[..., None] = kube_config.load_kube_config_from_dict
_LOCAL_FIELDS = ("exec", "auth-provider", "tokenFile", "client-certificate", "client-key", "certificate-authority")


def new_configuration(host: str | None = None) -> client.Configuration:
    """Returns a configuration without retries (retries are the caller's, within its deadline) and a small pool."""
    configuration = client.Configuration(host=host)
    configuration.retries = urllib3.Retry(0, redirect=0)
    configuration.connection_pool_maxsize = POOL_SIZE
    return configuration


def from_file(connection: Connection) -> client.Configuration:
    """Reads a kubeconfig file anew, with its token file if it names one.

    Raises:
        ClusterError: it can't be used.
    """
    configuration = new_configuration()
    path = str(Path(connection.kubeconfig_path).expanduser()) if connection.kubeconfig_path else None
    try:
        _load_file(
            config_file=path,
            context=connection.context or None,
            client_configuration=configuration,
            persist_config=False,
        )
    except (ConfigException, OSError, yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError) as error:
        where = path or "the default kubeconfig"
        raise ClusterError("invalid", f"kubeconfig {where} can't be used: {_line(error)}") from error
    return configuration


def from_secret(name: str, secret: Mapping[str, Any]) -> client.Configuration:
    """Reads a kubeconfig out of a Secret.

    Raises:
        ClusterError: it can't be used.
    """
    where = f"Secret {SECRET_NAMESPACE}/{name}"
    raw = (secret.get("data") or {}).get(SECRET_KEY)
    if not raw:
        raise ClusterError("invalid", f"{where} has no key {SECRET_KEY!r}")
    configuration = new_configuration()
    try:
        document = yaml.safe_load(base64.b64decode(raw)[:MAX_BYTES])
        _only_data(where, document)
        _load_dict(document, client_configuration=configuration, persist_config=False)
    except (ConfigException, OSError, yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ClusterError("invalid", f"{where}: its kubeconfig can't be used: {_line(error)}") from error
    return configuration


def _only_data(where: str, document: Any) -> None:
    """Refuses what would make the controller run programs or read files that the Secret's author names."""
    for part, field in (("users", "user"), ("clusters", "cluster")):
        for entry in document.get(part) or ():
            for name in _LOCAL_FIELDS:
                if name in (entry.get(field) or {}):
                    who = f"{where}: {field} {entry.get('name')!r}"
                    raise ClusterError("invalid", f"{who} uses {name}, which a Secret must not; inline it")


def check_files(members: Mapping[str, MemberCluster], hub: HubSpec | None = None) -> None:
    """Checks at start that every kubeconfig file that is named is there and has its context, the hub's too.

    Raises:
        ConfigError: one sentence per cluster whose file can't be used.
    """
    problems = []
    for name, member in sorted(members.items()):
        problem = _file_problem(member.spec.connection)
        if problem:
            problems.append(f"MemberCluster {name}: spec.connection.{problem}")
        if member.spec.connection.kubeconfig_secret_ref and hub is None:
            problems.append(
                f"MemberCluster {name}: spec.connection.kubeconfigSecretRef "
                f"{member.spec.connection.kubeconfig_secret_ref}: there is no hub to read it from; "
                "set spec.hub in RebalancerConfig"
            )
    if hub is not None:
        connection = Connection(kubeconfig_path=hub.kubeconfig_path, context=hub.context)
        if problem := _file_problem(connection):
            problems.append(f"RebalancerConfig: spec.hub.{problem}")
    if problems:
        raise ConfigError(problems)


def _file_problem(connection: Connection) -> str:
    if not connection.kubeconfig_path:
        return ""
    path = Path(connection.kubeconfig_path).expanduser()
    where = f"kubeconfigPath {connection.kubeconfig_path}"
    try:
        document = yaml.safe_load(path.read_bytes()[:MAX_BYTES])
    except FileNotFoundError:
        return f"{where}: there is no such file; put it there or name another"
    except OSError as error:
        return f"{where}: can't be read: {error.strerror}; check its permissions"
    except yaml.YAMLError as error:
        return f"{where}: not valid YAML: {_line(error)}"
    if not isinstance(document, dict) or document.get("kind") != "Config":
        return f"{where}: not a kubeconfig: its kind is not Config; name another file"
    contexts = [str(c.get("name")) for c in document.get("contexts") or () if isinstance(c, dict)]
    if connection.context and connection.context not in contexts:
        return f"context {connection.context!r}: not in {connection.kubeconfig_path}; it has {', '.join(contexts)}"
    return ""


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def contexts_of(path: str) -> dict[str, str]:
    """Returns the contexts of a kubeconfig file -> their cluster there.

    Raises:
        ClusterError: the file can't be used.
    """
    problem = _file_problem(Connection(kubeconfig_path=path))
    if problem:
        raise ClusterError("invalid", problem)
    document = yaml.safe_load(Path(path).expanduser().read_bytes()[:MAX_BYTES])
    found = [c for c in document.get("contexts") or () if isinstance(c, dict) and c.get("name")]
    return {str(c["name"]): str((c.get("context") or {}).get("cluster", "")) for c in found}


def region_of(path: str, context: str) -> str:
    """Returns the region that most nodes of a cluster name; empty if it can't be asked or they don't say."""
    try:
        configuration = from_file(Connection(kubeconfig_path=path, context=context))
        with client.ApiClient(configuration) as api:
            nodes = client.CoreV1Api(api).list_node(limit=_NODES, _request_timeout=_ASK_S).items
    except (ClusterError, client.ApiException, urllib3.exceptions.HTTPError, OSError, ValueError):
        return ""
    labels = (node.metadata.labels or {} for node in nodes if node.metadata is not None)
    named = Counter(one.get(_REGION, "") for one in labels)
    named.pop("", None)
    return str(named.most_common(1)[0][0]) if named else ""
