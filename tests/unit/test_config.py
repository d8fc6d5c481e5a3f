"""Bad input: one sentence with file, line, field, value, bound and next step; never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rebalancer.config import Config, from_hub, load, load_each, parse, read_files
from rebalancer.core.model import Effect, Toleration
from rebalancer.core.policy import STRATEGY_WEIGHTS, Policy
from rebalancer.errors import ConfigError

EXAMPLE = """\
apiVersion: rebalancer.dev/v1alpha1
kind: SchedulingPolicy
metadata: {name: latency-sensitive-policy}
spec:
  podSelector: {matchLabels: {app: my-realtime-api}}
  strategy: {type: LatencyFirst}            # LatencyFirst | DataLocality | CostOptimized | Weighted
  tolerations:
    - {key: network-quality, operator: Equal, value: poor, effect: NoSchedule}
"""
POLICY = """\
apiVersion: rebalancer.dev/v1alpha1
kind: SchedulingPolicy
metadata: {name: web}
spec:
  podSelector: {matchLabels: {app: web}}
  strategy: {type: LatencyFirst}
"""
CLUSTER = """\
apiVersion: rebalancer.dev/v1alpha1
kind: MemberCluster
metadata: {name: eu-1}
spec:
  region: eu
  connection: {context: eu-1}
"""
CONTROLLER = """\
apiVersion: rebalancer.dev/v1alpha1
kind: RebalancerConfig
metadata: {name: main}
spec:
  telemetry:
    backends:
      - {url: "http://thanos:9090"}
"""
ROLLOUT = """\
apiVersion: rebalancer.dev/v1alpha1
kind: CanaryRollout
metadata: {name: web}
spec:
  workloadRef: {name: web}
  strategy: {canary: {steps: [{setWeight: 100}]}}
  placement:
    waves: [{name: first, clusters: [eu-9]}]
"""


def read(text: str) -> Config:
    return load(parse(text, "fleet.yaml"))


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(text)
    return caught.value.problems


BACKENDS: dict[str, tuple[str, str]] = {
    "two ways to say who we are": (
        "bearerTokenFile: t, basicAuth: {username: u, passwordFile: p}", "set bearerTokenFile or basicAuth, not both",
    ),
    "a key without its certificate": ("clientKeyFile: k", "clientKeyFile needs clientCertFile"),
    "certificates without TLS": ("caFile: ca.pem", "ca.pem has no effect on http://thanos:9090; use an https URL"),
    "a header of ours": ("headers: {Authorization: Bearer x}", "use bearerTokenFile or basicAuth for credentials"),
    "a header that breaks the line": ('headers: {X-A: "b\\r\\nc"}', "is no header that can be sent"),
    "replicas of a Prometheus": ("replicaLabels: [replica]", "set type: thanos"),
}  # fmt: skip


@pytest.mark.parametrize("sentence", BACKENDS)
def test_a_backend_that_nobody_could_use_is_refused(sentence: str) -> None:
    fields, words = BACKENDS[sentence]
    [problem] = problems(CONTROLLER.replace('"http://thanos:9090"', f'"http://thanos:9090", {fields}'))
    assert problem.startswith("fleet.yaml:7: spec.telemetry.backends[0]")
    assert words in problem


def test_the_smallest_policy_of_the_documentation_loads_as_it_stands() -> None:
    (spec,) = read(EXAMPLE).policies.values()
    policy = spec.resolve()
    assert policy.key == "default/latency-sensitive-policy"
    assert policy.weights == STRATEGY_WEIGHTS["LatencyFirst"]
    assert policy.tolerations == (Toleration("network-quality", "Equal", "poor", Effect.NO_SCHEDULE),)
    assert policy == Policy(
        "latency-sensitive-policy", pod_labels={"app": "my-realtime-api"}, tolerations=policy.tolerations
    )


def test_a_policy_may_be_as_calm_as_an_hpa_both_ways() -> None:
    calm = "  behavior: {scaleUp: {stabilization: 3m}, scaleDown: {stabilization: 15m}}\n"
    (found,) = read(POLICY + calm).policies.values()
    policy = found.resolve()
    assert (policy.scale_up_stabilization_s, policy.scale_down_stabilization_s) == (180.0, 900.0)
    (found,) = read(POLICY).policies.values()
    policy = found.resolve()
    assert (policy.scale_up_stabilization_s, policy.scale_down_stabilization_s) == (0.0, None)


def test_all_kinds_load_from_one_file() -> None:
    found = read("---\n".join([EXAMPLE, CLUSTER, CONTROLLER]))
    assert list(found.clusters) == ["eu-1"]
    assert found.clusters["eu-1"].metrics_label() == ("cluster", "eu-1")
    assert found.controller is not None


GOLDEN: dict[str, tuple[str, str]] = {
    "a typo": (POLICY + "  replica: {min: 1}\n", "fleet.yaml:7: spec.replica: unknown field; did you mean replicas?"),
    "a typo further down": (
        POLICY + "  replicas:\n    mim: 1\n", "fleet.yaml:8: spec.replicas.mim: unknown field; did you mean min?"
    ),
    "a field like no other": (
        POLICY + "  spread: {xyzzy: 1}\n",
        "fleet.yaml:7: spec.spread.xyzzy: unknown field; known here: minClusters, minRegions, maxShare",
    ),
    "a duration without unit": (
        POLICY + "  forecast: {lead: 5}\n",
        "fleet.yaml:7: spec.forecast.lead is 5: must be a duration with its unit, for example 90s, 10m or 1h30m",
    ),
    "a duration that is too long": (
        POLICY + "  forecast: {lead: 3h}\n", "fleet.yaml:7: spec.forecast.lead is '3h': must be at most 7200s"
    ),
    "a window for growth that is too long": (
        POLICY + "  behavior: {scaleUp: {stabilization: 2h}}\n",
        "fleet.yaml:7: spec.behavior.scaleUp.stabilization is '2h': must be at most 3600s",
    ),
    "no replica may ever start": (
        CLUSTER + "  capacity: {maxStartsPerCycle: 0}\n",
        "fleet.yaml:7: spec.capacity.maxStartsPerCycle is 0: must be at least 1",
    ),
    "a percentage without its sign": (
        POLICY + "  targetUtilization: 70\n",
        "fleet.yaml:7: spec.targetUtilization is 70: must be a percentage, for example 70%, or a ratio between 0 and 1",
    ),
    "a percentage out of bounds": (
        POLICY + "  targetUtilization: 99%\n", "fleet.yaml:7: spec.targetUtilization is '99%': must be at most 95%"
    ),
    "a ratio out of bounds": (
        POLICY + "  targetUtilization: 0.99\n", "fleet.yaml:7: spec.targetUtilization is 0.99: must be at most 0.95"
    ),
    "min above max": (
        POLICY + "  replicas: {min: 5, max: 3}\n",
        "fleet.yaml:7: spec.replicas: min 5 is above max 3; lower min or raise max",
    ),
    "min above max in each cluster": (
        POLICY + "  perCluster: {min: 5, max: 3}\n",
        "fleet.yaml:7: spec.perCluster: min 5 is above max 3; lower min or raise max",
    ),
    "a negative number": (
        POLICY + "  replicas: {min: -1}\n", "fleet.yaml:7: spec.replicas.min is -1: must be at least 0"
    ),
    "a word for a number": (
        POLICY + "  replicas: {min: two}\n",
        "fleet.yaml:7: spec.replicas.min is 'two': must be a valid integer, unable to parse string as an integer",
    ),
    "a count of nothing known": (
        POLICY + "  budget: {maxMovesPerHour: lots}\n",
        "fleet.yaml:7: spec.budget.maxMovesPerHour is 'lots': "
        "must be a whole number of replicas or a percentage, for example 3 or 10%",
    ),
    "not a number": (
        POLICY + "  capacityPerReplica: .nan\n", "fleet.yaml:7: spec.capacityPerReplica is nan: must be a finite number"
    ),
    "no end": (
        POLICY + "  capacityPerReplica: .inf\n",
        "fleet.yaml:7: spec.capacityPerReplica is inf: must be a finite number",
    ),
    "an unknown strategy": (
        POLICY.replace("LatencyFirst", "Fastest"),
        "fleet.yaml:6: spec.strategy.type is 'Fastest': "
        "must be 'LatencyFirst', 'DataLocality', 'CostOptimized' or 'Weighted'",
    ),
    "an unknown effect": (
        POLICY + "  tolerations:\n    - {key: a, effect: NoShedule}\n",
        "fleet.yaml:8: spec.tolerations[0].effect is 'NoShedule': must be 'NoSchedule' or 'NoExecute'",
    ),
    "two ways to select": (
        POLICY + "  workloadRef: {name: web}\n",
        "fleet.yaml:4: spec: set exactly one of podSelector and workloadRef",
    ),
    "a workload of another namespace": (
        POLICY.replace("podSelector: {matchLabels: {app: web}}", "workloadRef: {name: web, namespace: other}"),
        "fleet.yaml:1: document: spec.workloadRef.namespace is 'other', but a policy places workloads of its own "
        "namespace 'default'; move the policy there",
    ),
    "two policies for one workload": (
        POLICY + "---\n" + POLICY.replace("name: web}", "name: web2}"),
        "fleet.yaml:10: selects the same workloads as the policy at fleet.yaml:3; "
        "a workload has one policy, remove one of the two",
    ),
    "a policy twice": (
        POLICY + "---\n" + POLICY.replace("app: web", "app: other"),
        "fleet.yaml:10: SchedulingPolicy default/web stands at fleet.yaml:3 already; remove one of the two",
    ),
    "two controllers": (
        CONTROLLER + "---\n" + CONTROLLER.replace("main", "second"),
        "fleet.yaml:11: RebalancerConfig stands at fleet.yaml:3 already; "
        "one says how the controller runs, remove the other",
    ),
    "a foreign group": (
        POLICY.replace("rebalancer.dev/v1alpha1", "policy.karmada.io/v1alpha1"),
        "fleet.yaml:1: apiVersion is 'policy.karmada.io/v1alpha1': must be rebalancer.dev/v1alpha1; "
        "only objects of the group rebalancer.dev belong here",
    ),
    "a later version": (
        POLICY.replace("v1alpha1", "v1"),
        "fleet.yaml:1: apiVersion is 'rebalancer.dev/v1': must be rebalancer.dev/v1alpha1; "
        "only objects of the group rebalancer.dev belong here",
    ),
    "an unknown kind": (
        POLICY.replace("SchedulingPolicy", "ShedulingPolicy"),
        "fleet.yaml:2: kind is 'ShedulingPolicy': unknown; did you mean SchedulingPolicy?",
    ),
    "no kind": (
        POLICY.replace("kind: SchedulingPolicy\n", ""),
        "fleet.yaml:1: kind is None: unknown; known kinds: MemberCluster, SchedulingPolicy, PropagationPolicy, "
        "CanaryRollout, RebalancerConfig",
    ),
    "a kind that is no word": (
        POLICY.replace("kind: SchedulingPolicy", "kind: [a]"),
        "fleet.yaml:2: kind is ['a']: unknown; known kinds: MemberCluster, SchedulingPolicy, PropagationPolicy, "
        "CanaryRollout, RebalancerConfig",
    ),
    "a field twice": (
        POLICY + "  paused: true\n  paused: false\n",
        "fleet.yaml:8: not valid YAML: field 'paused' stands twice; check indentation and quotes there",
    ),
    "an open bracket": (
        POLICY + "  paused: [\n",
        "fleet.yaml:8: not valid YAML: expected the node content, but found '<stream end>'; "
        "check indentation and quotes there",
    ),
    "a tab": (
        POLICY + "\tpaused: true\n",
        "fleet.yaml:7: not valid YAML: found character '\\t' that cannot start any token; "
        "check indentation and quotes there",
    ),
    "a date that is none": (
        POLICY + "  paused: 2001-99-99\n",
        "fleet.yaml:8: not valid YAML: month must be in 1..12; check indentation and quotes there",
    ),
    "more clusters than there are": (
        CLUSTER + "---\n" + POLICY + "  spread: {minClusters: 5}\n",
        "fleet.yaml:14: spec.spread.minClusters is 5, but only eu-1 may hold it; lower it or allow more",
    ),
    "more regions than there are": (
        CLUSTER + "---\n" + POLICY + "  spread: {minRegions: 2}\n",
        "fleet.yaml:14: spec.spread.minRegions is 2, but only clusters in eu may hold it; lower it or allow more",
    ),
    "more replicas than its clusters may hold": (
        CLUSTER + "---\n" + POLICY + "  replicas: {min: 4}\n  perCluster: {max: 3}\n",
        "fleet.yaml:14: spec.replicas.min is 4, but perCluster.max 3 in eu-1 leaves 3; lower it or allow more",
    ),
    "more replicas in each of its clusters than there may be": (
        CLUSTER + "---\n" + CLUSTER.replace("eu-1", "us-1") + "---\n"
        + POLICY + "  replicas: {max: 5}\n  perCluster: {min: 3}\n",
        "fleet.yaml:22: spec.perCluster.min is 3, in eu-1, us-1 together 6, but replicas.max is 5; "
        "lower it or raise replicas.max",
    ),
    "shares that leave some replicas without a cluster": (
        CLUSTER + "---\n" + CLUSTER.replace("eu-1", "us-1") + "---\n" + POLICY + "  spread: {maxShare: 40%}\n",
        "fleet.yaml:21: spec.spread.maxShare is 40%, in eu-1, us-1 together 80% of the replicas; "
        "raise it or allow more clusters",
    ),
    "data that is there more than once": (
        POLICY + "  data: {clusters: [{name: a, share: 0.7}, {name: b, share: 0.5}]}\n",
        "fleet.yaml:7: spec.data: the shares of data.clusters sum to 1.2, but must not to more than 1",
    ),
    "a propagation to a cluster that nobody has": (
        CLUSTER + "---\n" + POLICY.replace("SchedulingPolicy", "PropagationPolicy").split("spec:")[0]
        + "spec:\n  resourceSelectors: [{kind: Deployment}]\n  placement: {clusterNames: [eu-9]}\n",
        "fleet.yaml:13: no MemberCluster is called 'eu-9'; did you mean eu-1?",
    ),
    "a number that is none": (
        POLICY + "  paused: !!float ''\n",
        "fleet.yaml:8: not valid YAML: string index out of range; check indentation and quotes there",
    ),
    "a flag that is none": (
        POLICY + "  paused: !!bool zz\n",
        "fleet.yaml:8: not valid YAML: 'zz'; check indentation and quotes there",
    ),
    "a field whose name is a list": (
        POLICY + "  ? [a]\n  : b\n",
        "fleet.yaml:7: not valid YAML: a field's name must be a word; check indentation and quotes there",
    ),
    "a field whose name is a number": (POLICY + "  1: 2\n", "fleet.yaml:7: spec[1] is 2: keys should be strings"),
    "an alias to nothing": (
        POLICY + "  paused: *x\n",
        "fleet.yaml:7: not valid YAML: found undefined alias 'x'; check indentation and quotes there",
    ),
    "an alias to itself": (
        POLICY + "  tolerations: &a [*a]\n",
        "fleet.yaml:7: not valid YAML: too many or too deep fields (aliases?); check indentation and quotes there",
    ),
    "a byte that is no text": (
        POLICY + "  paused: \0\n",
        "fleet.yaml: not valid YAML: unacceptable character #x0000: special characters are not allowed in "
        '"<unicode string>", position 171; check indentation and quotes there',
    ),
    "a required field is missing": (
        POLICY.replace("  strategy: {type: LatencyFirst}\n", ""),
        "fleet.yaml:4: spec.strategy: required, but not set; add it",
    ),
    "an empty spec": (
        POLICY.partition("spec:")[0] + "spec:\n", "fleet.yaml:4: spec is None: must be a mapping of fields"
    ),
    "no mapping at all": (
        "hello\n",
        "fleet.yaml:1: a document must be a mapping with apiVersion, kind, metadata and spec, but is a str",
    ),
    "a residency that no cluster fulfils": (
        CLUSTER + "---\n" + POLICY
        + "  residency: {regions: [eu], clusterSelector: {matchLabels: {compliance: gdpr}}}\n",
        "fleet.yaml:14: no MemberCluster (eu-1) fulfils spec.residency (regions eu; compliance=gdpr) together; "
        "relax one of them",
    ),
    "residency and propagation that share no cluster": (
        CLUSTER + "---\n" + CLUSTER.replace("eu-1", "us-1").replace("region: eu", "region: us") + "---\n"
        + POLICY.replace("podSelector: {matchLabels: {app: web}}", "workloadRef: {name: web}")
        + "  residency: {regions: [eu]}\n---\n"
        + "apiVersion: rebalancer.dev/v1alpha1\nkind: PropagationPolicy\nmetadata: {name: web}\nspec:\n"
        + "  resourceSelectors: [{kind: Deployment, name: web}]\n  placement: {clusterNames: [us-1]}\n",
        "fleet.yaml:21: no MemberCluster (eu-1, us-1) fulfils spec.residency (regions eu) and PropagationPolicy web at "
        "fleet.yaml:28 (clusterNames us-1) together; relax one of them",
    ),
    "a gang above the most replicas there may be": (
        POLICY + "  gang: {minAvailable: 8}\n  replicas: {min: 2, max: 6}\n",
        "fleet.yaml:4: spec: gang.minAvailable 8 is above replicas.max 6; lower the one or raise the other",
    ),
    "a gang that is to be spread": (
        POLICY + "  gang: {minAvailable: 8}\n  spread: {minClusters: 2}\n",
        "fleet.yaml:4: spec: gang.minAvailable 8 keeps all replicas in one cluster, but spread.minClusters is 2",
    ),
    "a dependency that stands nowhere": (
        POLICY + "  dependsOn: [{service: db}]\n",
        "fleet.yaml:7: spec.dependsOn[0]: set exactly one of clusters and workloadRef: where the service stands",
    ),
    "a window whose schedule never fires": (
        POLICY + '  windows: [{schedule: "0 0 31 2 *", duration: 1h, freeze: true}]\n',
        "fleet.yaml:7: spec.windows[0].schedule is '0 0 31 2 *': is no cron schedule that ever fires "
        "(Bad day-of-month), for example `0 22 * * 1-5`",
    ),
    "a window of seconds": (
        POLICY + '  windows: [{schedule: "* * * * * *", duration: 1h, freeze: true}]\n',
        "fleet.yaml:7: spec.windows[0].schedule is '* * * * * *': must have five fields: minute, hour, day of month, "
        "month, day of week",
    ),
    "a window in a zone that is none": (
        POLICY + '  windows: [{schedule: "0 0 * * *", timeZone: Mars/Olympus, duration: 1h, freeze: true}]\n',
        "fleet.yaml:7: spec.windows[0].timeZone is 'Mars/Olympus': 'Mars/Olympus' is no IANA time zone, for example "
        "Europe/Berlin",
    ),
    "a window that changes nothing": (
        POLICY + '  windows: [{schedule: "0 0 * * *", duration: 1h}]\n',
        "fleet.yaml:7: spec.windows[0]: a window must change something: strategy, weights, minReplicas, freeze or "
        "originFactors",
    ),
    "a window that wants more than the most": (
        POLICY + '  replicas: {max: 5}\n  windows: [{schedule: "0 0 * * *", duration: 1h, minReplicas: 6}]\n',
        "fleet.yaml:4: spec: windows[0].minReplicas 6 is above replicas.max 5",
    ),
    "a field that is planned": (
        POLICY + "  affinity: {}\n",
        "fleet.yaml:7: spec.affinity: this field is designed but not supported in this version; remove it",
    ),
    "a planned field further down": (
        POLICY + "  migration: {drain: {query: up}}\n",
        "fleet.yaml:7: spec.migration.drain.query: "
        "this field is designed but not supported in this version; remove it",
    ),
    "a planned field of a cluster": (
        CLUSTER.replace("{context: eu-1}", "{pull: true}"),
        "fleet.yaml:6: spec.connection.pull: this field is designed but not supported in this version; remove it",
    ),
    "a cluster that nobody knows": (
        CLUSTER + "---\n" + POLICY + "  data: {clusters: [{name: eu-2, share: 1.0}]}\n",
        "fleet.yaml:14: no MemberCluster is called 'eu-2'; did you mean eu-1?",
    ),
    "a backend for a cluster that nobody knows": (
        CLUSTER + "---\n" + CONTROLLER.replace('"http://thanos:9090"', '"http://thanos:9090", clusters: [mars]'),
        "fleet.yaml:14: no MemberCluster is called 'mars'; known: eu-1",
    ),
    "a wave of a cluster that nobody knows": (
        CLUSTER + "---\n" + ROLLOUT,
        "fleet.yaml:15: no MemberCluster is called 'eu-9'; did you mean eu-1?",
    ),
    "poor links that are better than degraded ones": (
        CONTROLLER + "  network: {poorLoss: 0.005}\n",
        "fleet.yaml:8: spec.network: poorLoss (0.005) is below degradedLoss (0.01), but poor is the worse of the two; "
        "raise it, or lower the other",
    ),
    "more history than can be read": (
        CONTROLLER + "    history: 30d\n    historyStep: 10s\n",
        "fleet.yaml:5: spec.telemetry: history (2.592e+06 s) in steps of historyStep (10 s) is 259200 values a series, "
        "at most 50000 are read; lengthen historyStep or shorten history",
    ),
    "a URL that is none": (
        CONTROLLER.replace("http://thanos:9090", "thanos:9090"),
        "fleet.yaml:7: spec.telemetry.backends[0].url is 'thanos:9090': "
        "must be an http or https URL, for example http://thanos-query:9090",
    ),
    "a region where no cluster stands": (
        CLUSTER + "---\n" + POLICY + "  residency: {regions: [eu, eur]}\n",
        "fleet.yaml:14: no MemberCluster stands in the region 'eur'; did you mean eu?",
    ),
    "the size of answers that nobody counts": (
        POLICY + "  demand: {responseKib: 12}\n",
        "fleet.yaml:7: spec.demand: responseKib needs demand.query: of the pods' CPU nobody knows how many answers it "
        "gave",
    ),
    "a negative share": (
        POLICY + "  demand: {originShares: {eu: -1, us: 2}}\n",
        "fleet.yaml:7: spec.demand: originShares of eu must not be below 0",
    ),
    "a minimum in each cluster above the maximum of all": (
        POLICY + "  replicas: {max: 3}\n  perCluster: {min: 4}\n",
        "fleet.yaml:4: spec: perCluster.min 4 is above replicas.max 3",
    ),
    "a region in a time zone that is none": (
        CONTROLLER + "    timeZones: {eu: Mars/Olympus}\n",
        "fleet.yaml:8: spec.telemetry.timeZones: eu: 'Mars/Olympus' is no IANA time zone, for example Europe/Berlin",
    ),
    "a time zone that is none": (
        CONTROLLER + "  cycle: {timeZone: Mars/Olympus}\n",
        "fleet.yaml:8: spec.cycle.timeZone is 'Mars/Olympus': is no IANA time zone, for example UTC or Europe/Berlin",
    ),
    "a minute that no clock has": (
        CONTROLLER + '  cycle: {cron: ["61 * * * *"]}\n',
        "fleet.yaml:8: spec.cycle.cron: '61 * * * *': the minute 61 is out of 0 to 59",
    ),
    "a port that no host has": (
        CONTROLLER + "  listen: 127.0.0.1:99999\n",
        "fleet.yaml:8: spec.listen is '127.0.0.1:99999': "
        "has a port above 65535; use host:port, for example 0.0.0.0:8085",
    ),
    "our own taint": (
        CLUSTER + "  taints: [{key: network-quality, effect: NoSchedule}]\n",
        "fleet.yaml:7: spec.taints[0]: network-quality is set by the controller from measurements; use another key",
    ),
    "no way to reach a cluster": (
        CLUSTER.replace("{context: eu-1}", "{}"),
        "fleet.yaml:6: spec.connection: set one of kubeconfigPath, context or kubeconfigSecretRef",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", GOLDEN)
def test_each_mistake_is_one_exact_sentence(case: str) -> None:
    text, sentence = GOLDEN[case]
    assert problems(text) == [sentence]


def test_all_mistakes_are_told_at_once() -> None:
    found = problems(POLICY + "  replica: 1\n  priority: x\n---\n" + POLICY.replace("LatencyFirst", "Fastest"))
    assert len(found) == 3


def test_aliases_that_multiply_end_early() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    (found,) = problems("\n".join(lines))
    assert "too many or too deep fields" in found


def test_a_merged_field_may_be_overridden() -> None:
    text = POLICY + "  replicas: &r {min: 3, max: 9}\n  perCluster:\n    <<: *r\n    min: 1\n"
    (spec,) = read(text).policies.values()
    assert (spec.resolve().cluster_min, spec.resolve().cluster_max) == (1, 9)


def test_empty_documents_are_left_out() -> None:
    assert list(read(f"---\n---\n{POLICY}---\n").policies) == ["default/web"]


def test_files_and_folders_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe9\n")
    paths = [tmp_path / "missing.yaml", tmp_path / "empty", tmp_path / "latin.yaml"]
    with pytest.raises(ConfigError) as caught:
        read_files(paths)
    assert caught.value.problems == [
        f"{paths[0]}: can't be read: No such file or directory; check the path and its permissions",
        f"{paths[1]}: the folder holds no *.yaml file; put the policies there or name another path",
        f"{paths[2]}: is not UTF-8 (byte 3); save it as UTF-8",
    ]


def test_a_folder_stands_for_its_files_in_order_of_name(tmp_path: Path) -> None:
    for name, text in (("b.yaml", CLUSTER), ("a.yml", POLICY), ("c.txt", "nonsense: [")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert [Path(d.where).name for d in read_files([tmp_path])] == ["a.yml", "b.yaml"]


def test_objects_of_the_hub_are_named_by_kind_and_name() -> None:
    raw = {"apiVersion": "rebalancer.dev/v1alpha1", "kind": "SchedulingPolicy",
           "metadata": {"name": "web", "namespace": "shop", "managedFields": []},
           "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "strategy": {"type": "LatencyFist"}}}  # fmt: skip
    with pytest.raises(ConfigError, match=r"hub SchedulingPolicy shop/web: spec\.strategy\.type is 'LatencyFist'"):
        load(from_hub([raw]))


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ["strategy", "replicas", "perCluster", "forecast", "demand", "tolerations", "spread", "budget", "migration",
          "targetUtilization", "data", "residency", "steering", "paused", "capacityPerReplica"]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), json_like, max_size=4))
def test_whatever_stands_in_a_policy_it_loads_or_is_told_in_sentences(spec: dict[str, object]) -> None:
    base = {"podSelector": {"matchLabels": {"app": "web"}}, "strategy": {"type": "LatencyFirst"}}
    kind = {"apiVersion": "rebalancer.dev/v1alpha1", "kind": "SchedulingPolicy", "metadata": {"name": "web"}}
    document = {**kind, "spec": {**base, **spec}}
    try:
        load(from_hub([document]))
    except ConfigError as error:
        assert all("\n" not in p and p.startswith("hub SchedulingPolicy") for p in error.problems)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60))
def test_whatever_stands_in_a_file_it_is_parsed_or_told_in_one_sentence(text: str) -> None:
    try:
        parse(text, "f.yaml")
    except ConfigError as error:
        assert len(error.problems) == 1
        assert "\n" not in error.problems[0]


def test_a_running_controller_keeps_a_policy_that_asks_for_more_clusters_than_are_left() -> None:
    documents = parse(POLICY + "  spread: {minClusters: 5}\n---\n" + CLUSTER, "hub")
    config, problems = load_each(documents)
    assert (list(config.policies), problems) == (["default/web"], [])
