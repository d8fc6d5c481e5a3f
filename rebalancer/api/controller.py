"""RebalancerConfig: how the controller itself runs. A file only, never a custom resource."""

from __future__ import annotations

import re
from typing import Literal, Self
from urllib.parse import urlsplit
from zoneinfo import available_timezones

from pydantic import Field, field_validator, model_validator

from rebalancer.api.base import API_VERSION, Duration, Metadata, Model, Name

MAX_SLOTS = 50_000
"""Values a series: five weeks in minutes. It bounds memory and the forecast's time, which grow with it."""
CRON_BOUNDS = (("minute", 0, 59), ("hour", 0, 23), ("day of the month", 1, 31), ("month", 1, 12))


_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OURS = ("accept", "accept-encoding", "authorization", "connection", "content-length", "content-type", "host",
         "transfer-encoding")  # fmt: skip


class BasicAuthSpec(Model):
    """HTTP basic authentication; the password stands in a file, which is read for each request."""

    username: str = Field(min_length=1, pattern=r"^[^:\r\n]+$")
    password_file: str = Field(min_length=1)


class BackendSpec(Model):
    """One metrics backend; without `clusters` it is expected to know all of them."""

    type: Literal["prometheus", "thanos"] = "prometheus"
    url: str
    clusters: list[Name] = Field(default_factory=list)
    bearer_token_file: str = ""
    basic_auth: BasicAuthSpec | None = None
    client_cert_file: str = ""
    client_key_file: str = ""
    ca_file: str = ""
    headers: dict[str, str] = Field(default_factory=dict)
    replica_labels: list[str] = Field(default_factory=list)
    timeout: Duration = Field(default=10.0, ge=0.5, le=120)

    @field_validator("url")
    @classmethod
    def _http(cls, value: str) -> str:
        parts = urlsplit(value)
        try:
            usable = bool(parts.hostname) and (parts.port is None or parts.port > 0)
        except ValueError:
            usable = False
        if parts.scheme not in ("http", "https") or not usable or any(c.isspace() for c in value):
            raise ValueError("must be an http or https URL, for example http://thanos-query:9090")
        return value.rstrip("/")

    @field_validator("headers")
    @classmethod
    def _sendable(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            if not _HEADER_NAME.fullmatch(name) or not text.isascii() or not text.isprintable():
                raise ValueError(f"{name!r} is no header that can be sent; use a name such as X-Scope-OrgID and text")
            if name.lower() in _OURS:
                raise ValueError(f"{name} is set by the controller; use bearerTokenFile or basicAuth for credentials")
        return value

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.bearer_token_file and self.basic_auth is not None:
            raise ValueError("set bearerTokenFile or basicAuth, not both: a request carries one Authorization header")
        if self.client_key_file and not self.client_cert_file:
            raise ValueError("clientKeyFile needs clientCertFile beside it")
        tls = self.client_cert_file or self.ca_file
        if tls and not self.url.startswith("https:"):
            raise ValueError(f"{tls} has no effect on {self.url}; use an https URL")
        if self.replica_labels and self.type != "thanos":
            raise ValueError("replicaLabels is for Thanos, which removes doubles by them; set type: thanos")
        return self


class TelemetrySpec(Model):
    """Where metrics come from and how old they may be."""

    backends: list[BackendSpec] = Field(min_length=1)
    rate_window: Duration = Field(default=120.0, ge=5, le=3600)
    max_age: Duration = Field(default=120.0, ge=5, le=3600)
    late_samples: Duration = Field(default=300.0, ge=0, le=21600)
    history: Duration = Field(default=14 * 86400.0, ge=600, le=60 * 86400)
    history_step: Duration = Field(default=300.0, ge=10, le=3600)
    time_zones: dict[str, str] = Field(default_factory=dict)

    @field_validator("time_zones")
    @classmethod
    def _known_zones(cls, value: dict[str, str]) -> dict[str, str]:
        for region, zone in value.items():
            if zone not in available_timezones():
                raise ValueError(f"{region}: {zone!r} is no IANA time zone, for example Europe/Berlin")
        return value

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        slots = self.history / self.history_step
        if slots > MAX_SLOTS:
            raise ValueError(
                f"history ({self.history:g} s) in steps of historyStep ({self.history_step:g} s) is {slots:.0f} values "
                f"a series, at most {MAX_SLOTS} are read; lengthen historyStep or shorten history"
            )
        return self


class HubSpec(Model):
    """The hub whose custom resources are read and whose status is written."""

    kubeconfig_path: str = Field(min_length=1)
    context: str = ""


class CycleSpec(Model):
    """When the rebalancer plans: at an interval, and at the times of cron entries."""

    interval: Duration = Field(default=60.0, ge=1, le=86400)
    cron: list[str] = Field(default_factory=list)
    time_zone: str = "UTC"
    deadline: Duration = Field(default=45.0, ge=1, le=3600)

    @field_validator("time_zone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        if value not in available_timezones():
            raise ValueError("is no IANA time zone, for example UTC or Europe/Berlin")
        return value

    @field_validator("cron")
    @classmethod
    def _five_fields(cls, value: list[str]) -> list[str]:
        for entry in value:
            fields = entry.split()
            if len(fields) != 5:
                raise ValueError(f"{entry!r} has {len(fields)} fields; a cron entry has 5, for example 0 3 * * mon")
            if any(c.isdigit() for c in fields[4]):
                raise ValueError(f"{entry!r}: name weekdays (mon, tue-fri), because their numbers are not agreed on")
            for field, (name, low, high) in zip(fields, CRON_BOUNDS, strict=False):
                if any(not low <= int(n) <= high for n in re.findall(r"\d+", field.partition("/")[0])):
                    raise ValueError(f"{entry!r}: the {name} {field} is out of {low} to {high}")
            if fields[2] != "*" and fields[4] != "*":
                raise ValueError(
                    f"{entry!r}: set the day of the month or the weekday, not both: cron means or, not and"
                )
        return value


class NetworkSpec(Model):
    """Thresholds of link quality; defaults and sources in core.network."""

    enter_after: Duration = Field(default=60.0, ge=0, le=3600)
    leave_after: Duration = Field(default=300.0, ge=0, le=86400)
    poor_loss: float = Field(default=0.05, gt=0, lt=1)
    degraded_loss: float = Field(default=0.01, gt=0, lt=1)
    poor_rtt_factor: float = Field(default=3.0, gt=1, le=100)
    degraded_rtt_factor: float = Field(default=1.5, gt=1, le=100)
    poor_rtt_extra: Duration = Field(default=0.05, ge=0, le=60)
    degraded_rtt_extra: Duration = Field(default=0.02, ge=0, le=60)

    @model_validator(mode="after")
    def _poor_is_worse(self) -> Self:
        for name, poor, degraded in (
            ("Loss", self.poor_loss, self.degraded_loss),
            ("RttFactor", self.poor_rtt_factor, self.degraded_rtt_factor),
            ("RttExtra", self.poor_rtt_extra, self.degraded_rtt_extra),
        ):
            if poor < degraded:
                raise ValueError(
                    f"poor{name} ({poor:g}) is below degraded{name} ({degraded:g}), but poor is the worse of the two; "
                    "raise it, or lower the other"
                )
        return self


class ScalingSpec(Model):
    """How calmly replicas follow demand, as HPA's behavior; a policy may say its own stabilisation."""

    stabilization: Duration = Field(default=300.0, ge=0, le=86400)
    tolerance: float = Field(default=0.1, ge=0, le=1)
    cool_down: Duration = Field(default=600.0, ge=0, le=86400)


class RolloutTickSpec(Model):
    """How often rollouts are looked at."""

    interval: Duration = Field(default=2.0, ge=0.5, le=60)


class RebalancerConfigSpec(Model):
    """The spec of a RebalancerConfig."""

    telemetry: TelemetrySpec
    hub: HubSpec | None = None
    cycle: CycleSpec = CycleSpec()
    network: NetworkSpec = NetworkSpec()
    scaling: ScalingSpec = ScalingSpec()
    rollouts: RolloutTickSpec = RolloutTickSpec()
    listen: str = Field(default="127.0.0.1:8085", pattern=r"^[^:]+:\d{1,5}$")
    journal: str = ""

    @field_validator("listen")
    @classmethod
    def _port(cls, value: str) -> str:
        if int(value.rpartition(":")[2]) > 65535:
            raise ValueError("has a port above 65535; use host:port, for example 0.0.0.0:8085")
        return value


class RebalancerConfig(Model):
    """How the controller runs."""

    api_version: Literal["rebalancer.dev/v1alpha1"] = API_VERSION
    kind: Literal["RebalancerConfig"] = "RebalancerConfig"
    metadata: Metadata
    spec: RebalancerConfigSpec
