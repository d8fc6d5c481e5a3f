"""What went wrong, in one sentence each: what, where, and what to do about it."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

from rebalancer.adapters.telemetry.decode import Answer, NotPrometheus, decode
from rebalancer.errors import TelemetryError

_LIMIT = 300
"""Characters of a server's own words that are repeated."""
_CLIENT_REFUSED = ("ALERT_CERTIFICATE_", "ALERT_BAD_CERTIFICATE", "ALERT_UNKNOWN_CA",
                   "ALERT_UNSUPPORTED_CERTIFICATE", "ALERT_ACCESS_DENIED", "ALERT_DECRYPT_ERROR")  # fmt: skip
"""TLS alerts by which a server refuses the client, as OpenSSL words them."""
_HUNG_UP = ("EOF occurred", "Connection reset", "Broken pipe", "ReadError", "WriteError", "RemoteProtocolError",
            "Connection aborted", "disconnected", "closed connection")  # fmt: skip


class AnswerError(TelemetryError):
    """No usable answer.

    Attributes:
        retry: whether the same request may be sent again.
        retry_after_s: what the server asked for; 0 if nothing.
        store: a store behind Thanos failed; the other stores may still answer.
    """

    def __init__(
        self, kind: str, message: str, *, retry: bool = False, retry_after_s: float = 0.0, store: bool = False
    ) -> None:
        """Keeps what a retry needs beside kind and sentence."""
        self.retry, self.retry_after_s, self.store = retry, retry_after_s, store
        super().__init__(kind, message)


def public(url: str) -> str:
    """Returns the URL without user, password and query."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return urlunsplit((parts.scheme, f"{host}:{parts.port}" if parts.port else host, parts.path, "", ""))


def timeout(url: str, seconds: float) -> AnswerError:
    """The total deadline passed."""
    return AnswerError(
        "timeout",
        f"{public(url)} gave no whole answer within {round(seconds, 1):g} s; "
        "raise timeout of the backend, or make the query cheaper with a recording rule.",
    )


def unreachable(url: str, detail: str, *, retry: bool = True) -> AnswerError:
    """No connection, or it broke."""
    said = _short(detail)
    if "CERTIFICATE_VERIFY_FAILED" in detail or "certificate verify failed" in detail:
        return AnswerError(
            "unreachable", f"the certificate of {public(url)} is not trusted ({said}); set caFile of the backend."
        )
    if any(word in detail.upper().replace(" ", "_") for word in _CLIENT_REFUSED):
        return AnswerError(
            "auth",
            f"{public(url)} refuses our certificate ({said}); set clientCertFile and clientKeyFile of the backend to "
            "one that its CA signed.",
        )
    # A server that refuses a client's certificate may hang up before its alert is read.
    hung_up = url.startswith("https:") and any(word in detail for word in _HUNG_UP)
    return AnswerError(
        "unreachable",
        f"{public(url)} can't be reached ({said}); check the URL, that the server runs and that the network allows it"
        f"{', and clientCertFile if it asks for certificates' if hung_up else ''}.",
        retry=retry,
    )


def too_big(url: str, limit: int) -> AnswerError:
    """The body passed the cap."""
    return AnswerError(
        "too-many-samples",
        f"the answer of {public(url)} is larger than {limit // 2**20} MiB; narrow the query with matchers.",
    )


def not_prometheus(url: str, detail: str) -> AnswerError:
    """Something else answers there."""
    return AnswerError(
        "not-prometheus",
        f"{public(url)} does not answer as Prometheus does ({_short(detail)}); set url of the backend to the address "
        "under which /api/v1/query is found, and bearerTokenFile if it stands behind a login.",
    )


def read(status: int, body: bytes, url: str, *, location: str = "", retry_after: str = "") -> Answer:
    """Reads an HTTP answer to a query.

    Args:
        status: HTTP status.
        body: the whole body.
        url: where it came from; userinfo is left out of messages.
        location: header of a redirect.
        retry_after: header of 429 and 503, seconds.

    Raises:
        AnswerError: there is no usable answer; kind and sentence say why.
    """
    if 300 <= status < 400:
        raise not_prometheus(url, f"HTTP {status}, a redirect to {public(location) or 'nowhere'}")
    if status in (401, 403):
        raise AnswerError(
            "auth",
            f"{public(url)} refuses the credentials (HTTP {status}); set bearerTokenFile or basicAuth of the "
            "backend, or let its account query metrics.",
        )
    try:
        answer = decode(body)
    except NotPrometheus as error:
        raise _foreign(status, str(error), url, retry_after) from error
    if status == 200 and answer.status == "success":
        return answer
    raise refused(status, answer.error_type, answer.error, url)


def refused(status: int, error_type: str, text: str, url: str) -> AnswerError:
    """The server's own error: by text as well as by type, since 422 is used for timeouts too."""
    low, said, where = text.lower(), _short(text), public(url)
    if _store_failed(low):
        return AnswerError("upstream", f"{where}: a store failed ({said}); bring it back.", store=True)
    if "maximum resolution" in low:
        return AnswerError("too-many-points", f"{where}: too many points at once ({said}); use a longer step.")
    if "too many samples" in low or "exceeds limit" in low or "chunks limit" in low or "series limit" in low:
        return AnswerError(
            "too-many-samples",
            f"{where}: the query reads too many samples ({said}); narrow it with matchers, or use a recording rule.",
        )
    if error_type in ("timeout", "canceled") or "deadline exceeded" in low or "timed out" in low or "canceled" in low:
        return AnswerError(
            "timeout",
            f"{where}: the query took too long ({said}); use a recording rule, or raise the backend's timeout.",
        )
    if error_type == "bad_data" or status == 422:
        return AnswerError("bad-query", f"{where} refuses the query ({said}); check the selector that is named in it.")
    return AnswerError("upstream", f"{where} failed ({error_type or status}: {said}); look at its log.")


def _store_failed(low: str) -> bool:
    return any(word in low for word in ("proxy series()", "rpc error", "receive series", "fetch series", "no store"))


def _foreign(status: int, begins: str, url: str, retry_after: str) -> AnswerError:
    if status == 429 or status in (502, 503, 504):
        wait = float(retry_after) if retry_after.isdigit() else 0.0
        return AnswerError(
            "upstream",
            f"{public(url)} is overloaded or not ready (HTTP {status}); look at the server and what stands before it.",
            retry=True,
            retry_after_s=wait,
        )
    if status >= 500:
        return AnswerError("upstream", f"{public(url)} failed (HTTP {status}: {_short(begins)}); look at its log.")
    return not_prometheus(url, f"HTTP {status}, beginning with {begins!r}" if begins else f"HTTP {status}, empty")


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _LIMIT else flat[: _LIMIT - 1] + "…"
