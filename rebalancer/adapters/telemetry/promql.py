"""Selectors that a user wrote, and the queries around them. No text of a user gets into PromQL unparsed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from rebalancer.adapters.telemetry.errors import AnswerError
from rebalancer.adapters.telemetry.grid import duration

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_MATCHER = re.compile(
    r"""\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*(=~|!~|!=|=)\s*("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`[^`]*`)\s*(,|$)"""
)
CPU = "container_cpu_usage_seconds_total"
THROTTLED, PERIODS = "container_cpu_cfs_throttled_periods_total", "container_cpu_cfs_periods_total"
LIMITS = "kube_pod_container_resource_limits"
# <deployment>-<hash of the ReplicaSet>-<5 characters>; both use Kubernetes' alphabet without vowels.
POD_OF_DEPLOYMENT = "(.+)-[bcdf-hj-np-tv-xz24-9]{1,10}-[bcdf-hj-np-tv-xz24-9]{5}"
WORKLOAD = "rebalancer_workload"
"""Label that the queries make for the Deployment's name."""
LOOKBACK = "[1h:30s]"
"""How far back, and in which steps, the last sign of a vanished cluster is looked for."""


@dataclass(frozen=True, slots=True)
class Selector:
    """A parsed vector selector.

    Attributes:
        metric: may be empty if a matcher selects by __name__.
        matchers: (label, operator, quoted value).
    """

    metric: str
    matchers: tuple[tuple[str, str, str], ...] = ()

    def where(self, *more: tuple[str, str, str]) -> Selector:
        """Returns the selector with further matchers (label, operator, plain value)."""
        quoted = tuple((label, operator, quote(value)) for label, operator, value in more)
        return replace(self, matchers=self.matchers + quoted)

    def __str__(self) -> str:
        inner = ",".join(f"{label}{operator}{value}" for label, operator, value in self.matchers)
        return f"{self.metric}{{{inner}}}" if inner else self.metric


def quote(text: str) -> str:
    """Returns the text as a PromQL string."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def one_of(values: Iterable[str]) -> str:
    """Returns the regular expression (RE2) that fits exactly these values."""
    return "|".join(re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", value) for value in sorted(values))


def parse(text: str) -> Selector:
    """Parses `metric` or `metric{label="value",...}`.

    Raises:
        AnswerError: bad-query; it is anything else, such as an expression.
    """
    plain = text.strip()
    name = _NAME.match(plain)
    metric = name.group() if name else ""
    rest = plain[len(metric) :].strip()
    matchers: list[tuple[str, str, str]] = []
    if rest:
        if not (rest.startswith("{") and rest.endswith("}")):
            raise _refused(text)
        inner, at = rest[1:-1].strip(), 0
        while at < len(inner):
            found = _MATCHER.match(inner, at)
            if found is None:
                raise _refused(text)
            matchers.append((found.group(1), found.group(2), found.group(3)))
            at = found.end()
    if not metric and not any(m[0] == "__name__" and m[1] == "=" for m in matchers):
        raise _refused(text)
    return Selector(metric, tuple(matchers))


def _refused(text: str) -> AnswerError:
    return AnswerError(
        "bad-query",
        f'{text[:200]!r} is no selector of a counter; write it as metric{{label="value"}}, without functions.',
    )


def summed_rate(selector: Selector, by: Iterable[str], window_s: float) -> str:
    """Rates of a counter over the window, summed by labels; units of the counter per second."""
    return f"sum by ({', '.join(by)}) ({_rate(selector, window_s)})"


def cpu_rate(selector: Selector, by: Iterable[str], window_s: float) -> str:
    """Cores used by all pods of each Deployment, whose name comes from the pods'."""
    return f"sum by ({', '.join([*by, 'namespace', WORKLOAD])}) ({_named(_rate(selector, window_s))})"


def owned_rate(selector: Selector, by: Iterable[str], cluster: Iterable[str], window_s: float) -> str:
    """Rates of the pods' own counters, summed by labels and by the Deployment that owns the pod.

    Owners are those that kube-state-metrics tells at the time; a pod that it does not tell of is known by its name.
    """
    pod, replica_set = (", ".join([*cluster, "namespace", one]) for one in ("pod", "replicaset"))
    sets = f'label_replace(kube_replicaset_owner{{owner_kind="Deployment"}}, "{WORKLOAD}", "$1", "owner_name", "(.+)")'
    pods = 'label_replace(kube_pod_owner{owner_kind="ReplicaSet"}, "replicaset", "$1", "owner_name", "(.+)")'
    # Several kube-state-metrics tell the same; max makes one of them.
    owners = (
        f"max by ({pod}, {WORKLOAD}) (max by ({pod}, replicaset) ({pods}) * on ({replica_set}) group_left ({WORKLOAD}) "
        f"max by ({replica_set}, {WORKLOAD}) ({sets}))"
    )
    rate = _rate(selector, window_s)
    told = f"{rate} * on ({pod}) group_left ({WORKLOAD}) {owners}"
    return f"sum by ({', '.join([*by, WORKLOAD])}) ({told} or ({_named(rate)} unless on ({pod}) {owners}))"


def peak(short: str, mean: str, step_s: float, every_s: float) -> str:
    """The largest value of a rate over short windows within a slot, relative to the rate over the whole slot.

    Args:
        short: the rate over short windows.
        mean: the rate over the slot, with the same labels.
        step_s: slot length.
        every_s: distance of the looks.
    """
    return f"max_over_time(({short})[{duration(step_s)}:{duration(every_s)}]) / ({mean})"


def throttled(stopped: Selector, periods: Selector, by: Iterable[str], window_s: float) -> str:
    """Share of the scheduler's periods in which each Deployment's containers were throttled."""
    labels = ", ".join([*by, "namespace", WORKLOAD])
    parts = (f"sum by ({labels}) ({_named(_rate(one, window_s))})" for one in (stopped, periods))
    return " / ".join(parts)


def at_limit(selector: Selector, limits: Selector, by: Iterable[str], window_s: float) -> str:
    """Used share of the CPU limit: mean over a Deployment's pods, of the container that is nearest to its limit."""
    ours, container = [*by, "namespace", WORKLOAD], ", ".join([*by, "namespace", "pod", "container"])
    use = f"sum by ({container}) ({_rate(selector, window_s)}) / on ({container}) max by ({container}) ({limits})"
    return f"max by ({', '.join(ours)}) (avg by ({', '.join([*ours, 'container'])}) ({_named(use)}))"


def either(parts: Mapping[str, str]) -> str:
    """Several expressions in one query; the label `kind` tells whose a series is."""
    return " or ".join(_kind(expression, kind) for kind, expression in parts.items())


def _rate(selector: Selector, window_s: float) -> str:
    return f"rate({selector}[{duration(window_s)}])"


def _named(expression: str) -> str:
    return f'label_replace({expression}, "{WORKLOAD}", "$1", "pod", "{POD_OF_DEPLOYMENT}")'


def size(selector: Selector, by: str, window_s: float) -> str:
    """Series now and samples of the window, by one label (`kind` tells which)."""
    series, samples = f"count by ({by}) ({selector})", f"count_over_time({selector}[{duration(window_s)}])"
    return either({"series": series, "samples": f"sum by ({by}) ({samples})"})


def newest(selector: Selector, by: Iterable[str], *, back: bool = False) -> str:
    """Time of the newest sample by labels, which an instant answer hides; `back` looks an hour back for it."""
    time = f"timestamp({selector})"
    return f"max by ({', '.join(by)}) ({f'max_over_time({time}{LOOKBACK})' if back else time})"


def presence(up: Selector, by: Iterable[str], jobs: Iterable[str]) -> str:
    """Time of the last good scrape by labels, and how many targets of some jobs fail now (`kind` seen, down).

    A target that has failed for an hour is not counted: somebody took it away and left it in the list.
    """
    labels, of = ", ".join(by), up.where(("job", "=~", one_of(jobs)))
    seen = f"max by ({labels}) (timestamp({up}) and ({up} == 1))"
    down = f"count by ({labels}) (({of} == 0) and (max_over_time({of}[1h]) == 1))"
    return either({"seen": seen, "down": down})


def presence_back(up: Selector, by: Iterable[str]) -> str:
    """Time of the last good scrape in the last hour, by labels."""
    return f"max by ({', '.join(by)}) (max_over_time((timestamp({up}) and ({up} == 1)){LOOKBACK}))"


def room(by: Iterable[str], matchers: tuple[tuple[str, str, str], ...]) -> str:
    """Allocatable and requested CPU and memory by labels, of nodes that are not cordoned (`kind` tells which)."""
    labels = list(by)
    both = ("resource", "=~", "cpu|memory")
    cordoned = Selector("kube_node_spec_unschedulable").where(*matchers)
    parts = {}
    for kind, metric in (("allocatable", "kube_node_status_allocatable"),
                         ("requested", "kube_pod_container_resource_requests")):  # fmt: skip
        of = Selector(metric).where(both, *matchers)
        usable = f"{of} unless on ({', '.join([*labels, 'node'])}) ({cordoned} == 1)"
        parts[kind] = f"sum by ({', '.join([*labels, 'resource'])}) ({usable})"
    return either(parts)


def _kind(expression: str, kind: str) -> str:
    return f'label_replace({expression}, "kind", "{kind}", "", "")'
