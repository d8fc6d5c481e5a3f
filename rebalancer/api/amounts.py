"""How much of a workload is wanted: where demand is read, and how its number of replicas follows it."""

from __future__ import annotations

import math
import re
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from rebalancer.api.base import Duration, Model
from rebalancer.core.policy import SETTINGS

_COUNTER = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*(\{[^{}]*\})?")


def setting(path: str) -> Any:
    """A numeric field with default, bounds and description from the one table of settings."""
    row = SETTINGS[path]
    return Field(default=row.default, ge=row.low, le=row.high, description=f"Default: {row.why}.")


class DemandSpec(Model):
    """Where demand comes from; by default the pods' CPU, with an unknown origin."""

    query: str = ""
    workload_label: str = Field(default="service", pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$")
    origin_label: str = Field(default="", pattern=r"^([a-zA-Z_][a-zA-Z0-9_]*)?$")
    origin: Literal["entryCluster"] | None = None
    origin_shares: dict[str, float] = Field(default_factory=dict)
    response_kib: float = Field(default=0.0, ge=0, le=1 << 30, description="Mean size of an answer; 0 costs no egress.")

    @field_validator("query")
    @classmethod
    def _counter(cls, value: str) -> str:
        if value and not _COUNTER.fullmatch(value):
            raise ValueError(
                'must be the selector of a counter, for example ingress_requests_total{env="prod"}; '
                "rate and sum are added by the rebalancer"
            )
        return value

    @model_validator(mode="after")
    def _one_origin(self) -> DemandSpec:
        if sum(map(bool, (self.origin_label, self.origin, self.origin_shares))) > 1:
            raise ValueError("set one of originLabel, origin or originShares")
        if self.response_kib and not self.query:
            raise ValueError("responseKib needs demand.query: of the pods' CPU nobody knows how many answers it gave")
        if self.origin_label and not self.query:
            raise ValueError("originLabel needs demand.query: the pods' CPU carries no origin")
        below = [region for region, share in self.origin_shares.items() if not share >= 0]
        if below:
            raise ValueError(f"originShares of {', '.join(sorted(below))} must not be below 0")
        if self.origin_shares and not math.isclose(sum(self.origin_shares.values()), 1.0, abs_tol=0.01):
            raise ValueError(f"originShares must sum to 1, but sum to {sum(self.origin_shares.values()):g}")
        return self


class ReplicasSpec(Model):
    """Bounds of the total."""

    min: int = setting("replicas.min")
    max: int | None = setting("replicas.max")

    @model_validator(mode="after")
    def _ordered(self) -> ReplicasSpec:
        if self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}; lower min or raise max")
        return self


class PerClusterSpec(ReplicasSpec):
    """Bounds in each cluster."""

    min: int = setting("perCluster.min")


class ForecastSpec(Model):
    """Which quantile of the forecast is planned for, and how far ahead."""

    quantile: float = setting("forecast.quantile")
    lead: Duration | None = setting("forecast.lead")


class ScaleUpSpec(Model):
    """How calmly replicas are added."""

    stabilization: Duration = setting("behavior.scaleUp.stabilization")


class ScaleDownSpec(Model):
    """How calmly replicas are taken away."""

    stabilization: Duration | None = setting("behavior.scaleDown.stabilization")


class BehaviorSpec(Model):
    """How calmly replicas follow demand, as an HPA's behavior."""

    scale_up: ScaleUpSpec = ScaleUpSpec()
    scale_down: ScaleDownSpec = ScaleDownSpec()
