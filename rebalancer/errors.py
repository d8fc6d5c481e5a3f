"""The exception tree. Every message says what, where, the value, the bound and the next step."""

from __future__ import annotations


class RebalancerError(Exception):
    """Root of everything this product raises on purpose."""


class ConfigError(RebalancerError):
    """What the user wrote can't be used.

    Attributes:
        problems: one sentence per problem, each with file, line and field.
    """

    def __init__(self, problems: list[str]) -> None:
        """Keeps the problems and joins them to one message."""
        self.problems = list(problems)
        super().__init__("\n".join(self.problems))


class TelemetryError(RebalancerError):
    """A metrics backend gave no usable answer.

    Attributes:
        kind: bad-query, too-many-points, too-many-samples, timeout, upstream, auth, not-prometheus or unreachable.
    """

    def __init__(self, kind: str, message: str) -> None:
        """Keeps the kind beside the sentence."""
        self.kind = kind
        super().__init__(message)


class ClusterError(RebalancerError):
    """A member cluster or the hub did not do what was asked.

    Attributes:
        kind: unreachable, timeout, forbidden, unauthorized, conflict, not-found, invalid or throttled.
    """

    def __init__(self, kind: str, message: str) -> None:
        """Keeps the kind beside the sentence."""
        self.kind = kind
        super().__init__(message)
