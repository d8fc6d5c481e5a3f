"""What all kinds share: strict models with camelCase fields, durations and quantities."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Final, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator
from pydantic.alias_generators import to_camel

from rebalancer.core.model import Window

GROUP: Final = "rebalancer.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = "rebalancer.dev/v1alpha1"

_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?")
_UNITS_S = (86400.0, 3600.0, 60.0, 1.0)


class Model(BaseModel):
    """Base of all kinds: camelCase in YAML, unknown fields are errors, values are immutable."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, allow_inf_nan=False
    )


def parse_duration(value: object) -> float:
    """Turns `90s`, `10m`, `1h30m` into seconds.

    Raises:
        ValueError: the value is no duration; the message names the form.
    """
    if isinstance(value, str):
        match = _DURATION.fullmatch(value.strip())
        if match and any(match.groups()):
            return sum(float(part) * unit for part, unit in zip(match.groups(), _UNITS_S, strict=True) if part)
    raise ValueError("must be a duration with its unit, for example 90s, 10m or 1h30m")


def parse_percent(value: object) -> float:
    """Turns `70%` or a plain ratio in [0, 1] into a ratio.

    Raises:
        ValueError: the value is neither.
    """
    if isinstance(value, str) and value.strip().endswith("%"):
        try:
            return float(value.strip()[:-1]) / 100.0
        except ValueError:
            pass
    elif isinstance(value, int | float) and not isinstance(value, bool) and 0.0 <= value <= 1.0:
        return float(value)
    raise ValueError("must be a percentage, for example 70%, or a ratio between 0 and 1")


def parse_count_or_percent(value: object) -> int | str:
    """Takes a whole number of replicas or a percentage string, as Kubernetes' IntOrString.

    Raises:
        ValueError: the value is neither, or negative.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str) and re.fullmatch(r"\d+(\.\d+)?%", value.strip()):
        return value.strip()
    raise ValueError("must be a whole number of replicas or a percentage, for example 3 or 10%")


Duration = Annotated[float, BeforeValidator(parse_duration, json_schema_input_type=str)]
Percent = Annotated[float, BeforeValidator(parse_percent, json_schema_input_type=str | float)]
CountOrPercent = Annotated[int | str, BeforeValidator(parse_count_or_percent, json_schema_input_type=int | str)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]


class Metadata(Model):
    """Object metadata; what we don't use is accepted, because the API server adds to it."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="allow", frozen=True)

    name: Name
    namespace: str = "default"
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    generation: int = 0
    uid: str = ""
    resource_version: str = ""


class WindowSpec(Model):
    """A time that comes again: it begins when the cron schedule fires in the time zone, and lasts for the duration."""

    schedule: str
    time_zone: str = "UTC"
    duration: Duration = Field(ge=60, le=7 * 86_400)

    @field_validator("schedule")
    @classmethod
    def _cron(cls, value: str) -> str:
        if len(value.split()) != 5:
            raise ValueError("must have five fields: minute, hour, day of month, month, day of week")
        try:
            next(CronSim(value, datetime(2024, 1, 1, tzinfo=UTC)))
        except (CronSimError, StopIteration) as error:
            raise ValueError(f"is no cron schedule that ever fires ({error}), for example `0 22 * * 1-5`") from None
        return value

    @field_validator("time_zone")
    @classmethod
    def _zone(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        except (ZoneInfoNotFoundError, ValueError):
            raise ValueError(f"{value!r} is no IANA time zone, for example Europe/Berlin") from None
        return value

    def window(self) -> Window:
        """Returns the window as the core knows it."""
        return Window(self.schedule, ZoneInfo(self.time_zone), self.duration)


class LabelSelector(Model):
    """A selector by equality, as Kubernetes' matchLabels."""

    match_labels: dict[str, str] = Field(min_length=1)


class WorkloadRef(Model):
    """Names one workload."""

    api_version: Literal["apps/v1"] = "apps/v1"
    kind: Literal["Deployment"] = "Deployment"
    name: Name
    namespace: str | None = None
