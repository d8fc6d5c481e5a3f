"""Both transports against servers that misbehave: one clear error each, always within the deadline."""

from __future__ import annotations

import asyncio
import base64
import threading
import time
from pathlib import Path

import pytest

from rebalancer.adapters.telemetry.access import Access
from rebalancer.adapters.telemetry.errors import AnswerError
from rebalancer.adapters.telemetry.transports import Httpx, PromApi, Transport
from tests.unit.adapters.telemetry.servers import (
    Behaviour,
    Server,
    always,
    cut,
    drip,
    drip_head,
    failure,
    hang,
    serving,
    success,
)

KINDS = (PromApi, Httpx)
Kind = type[PromApi] | type[Httpx]
DEADLINE_S = 0.6
LOGIN = b"<!DOCTYPE html><html><title>Sign in</title></html>"
STORE_DEAD = "expanding series: proxy Series(): rpc error: code = Aborted desc = receive series from Addr: 10.0.0.1"

FAULTS: dict[str, tuple[Behaviour, str, str]] = {
    "an HTML login page": (always(200, LOGIN, content_type="text/html"), "not-prometheus", "bearerTokenFile"),
    "a redirect to a login": (always(302, b"", location="http://login.test/?back=1"), "not-prometheus", "login.test/)"),
    "nothing under the path": (always(404, b"404 page not found"), "not-prometheus", "set url of the backend"),
    "no credentials": (always(401, b"Unauthorized"), "auth", "HTTP 401"),
    "forbidden": (always(403, b"{}"), "auth", "HTTP 403"),
    "a server that hangs": (hang, "timeout", "within"),
    "a body that drips": (drip, "timeout", "within"),
    "a head that drips": (drip_head, "timeout", "within"),
    "a body that is cut off": (cut, "unreachable", "can't be reached"),
    "200 with an error in it": (always(200, failure("bad_data", "parse error: x")), "bad-query", "parse error: x"),
    "a bad query": (always(400, failure("bad_data", "unexpected end of input")), "bad-query", "unexpected end"),
    "too many points": (
        always(400, failure("bad_data", "exceeded maximum resolution of 11,000 points per timeseries")),
        "too-many-points", "longer step",
    ),
    "too many samples": (
        always(422, failure("execution", "query processing would load too many samples into memory")),
        "too-many-samples", "matchers",
    ),
    "a timeout that is called execution": (
        always(422, failure("execution", "expanding series: context deadline exceeded")), "timeout", "recording rule",
    ),
    "a timeout": (always(503, failure("timeout", "query timed out in expression evaluation")), "timeout", "timed out"),
    "a dead store": (always(422, failure("execution", STORE_DEAD)), "upstream", "a store failed"),
    "an internal error": (always(500, failure("internal", "boom")), "upstream", "boom"),
    "overload": (always(503, b"upstream connect error"), "upstream", "HTTP 503"),
    "JSON of somebody else": (always(200, b'{"hello": [1, 2]}'), "not-prometheus", "hello"),
    "an empty body": (always(200, b""), "not-prometheus", "empty"),
}  # fmt: skip


async def _ask(transport: Transport, deadline_s: float = DEADLINE_S) -> object:
    try:
        return await transport.query("up", {"time": "1"}, deadline_s)
    finally:
        await transport.close()


def _fault(kind: Kind, server: Server) -> tuple[AnswerError, float]:
    began = time.monotonic()
    with pytest.raises(AnswerError) as caught:
        asyncio.run(_ask(kind(Access(server.url.replace("http://", "http://me:secret@")))))
    return caught.value, time.monotonic() - began


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sentence", FAULTS)
def test_a_fault_is_one_sentence_with_kind_url_and_next_step(kind: Kind, sentence: str) -> None:
    behaviour, expected, words = FAULTS[sentence]
    with serving(behaviour) as server:
        error, took = _fault(kind, server)
        address = f"127.0.0.1:{server.server_address[1]}"
    assert error.kind == expected, str(error)
    assert words in str(error)
    assert address in str(error)
    assert "secret" not in str(error)
    assert "\n" not in str(error)
    assert took < DEADLINE_S + 4, "the deadline is total: a drip would go on for 20 s"


@pytest.mark.parametrize("behaviour", [hang, drip, drip_head])
def test_the_worker_thread_ends_with_the_deadline(behaviour: Behaviour) -> None:
    with serving(behaviour) as server:
        _fault(PromApi, server)
        end = time.monotonic() + 2
        while any(t.name.startswith("prometheus") for t in threading.enumerate()):
            assert time.monotonic() < end, "the thread still waits for the server"
            threading.Event().wait(0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_a_body_over_the_cap_is_not_read_to_its_end(kind: Kind) -> None:
    with serving(always(200, success([]) + b" " * 10_000)) as server, pytest.raises(AnswerError, match="larger") as got:
        asyncio.run(_ask(kind(Access(server.url), max_body=2000)))
    assert got.value.kind == "too-many-samples"


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_listening_is_unreachable_and_may_be_tried_again(kind: Kind) -> None:
    with serving(hang) as server:
        url = server.url
    with pytest.raises(AnswerError) as got:
        asyncio.run(_ask(kind(Access(url))))
    assert (got.value.kind, got.value.retry) == ("unreachable", True)
    assert "refused" in str(got.value) or "attempts failed" in str(got.value)


@pytest.mark.parametrize("kind", KINDS)
def test_the_form_goes_in_the_body_and_the_answer_keeps_its_warnings(kind: Kind) -> None:
    body = success([{"metric": {"a": "b"}, "value": [1.5, "+Inf"]}], warnings=["half"], infos=["hint"])
    with serving(always(200, body)) as server:
        answer = asyncio.run(_ask(kind(Access(server.url))))
        [(path, form, headers)] = server.requests
    assert path == "/api/v1/query"
    assert form == {"query": "up", "time": "1"}
    assert headers["Accept-Encoding"] == "identity"
    assert answer.warnings == ("half",)  # type: ignore[attr-defined]  # an Answer
    assert answer.infos == ("hint",)  # type: ignore[attr-defined]  # an Answer
    assert answer.series[0].values.tolist() == [float("inf")]  # type: ignore[attr-defined]  # an Answer


@pytest.mark.parametrize("kind", KINDS)
def test_a_range_keeps_fractions_of_seconds(kind: Kind) -> None:
    async def ask(transport: Transport) -> None:
        await transport.query_range("up", {"start": "10.250", "end": "20.500", "step": "0.250"}, 2.0)
        await transport.close()

    with serving(always(200, success([], "matrix"))) as server:
        asyncio.run(ask(kind(Access(server.url))))
        [(path, form, _)] = server.requests
    assert path == "/api/v1/query_range"
    assert form == {"query": "up", "start": "10.250", "end": "20.500", "step": "0.250"}


@pytest.mark.parametrize("kind", KINDS)
def test_the_token_is_read_again_for_each_request(kind: Kind, tmp_path: Path) -> None:
    token = tmp_path / "token"

    async def ask(url: str) -> None:
        transport = kind(Access(url, token_file=str(token)))
        for text in ("one\n", "two"):
            token.write_text(text)
            await transport.query("up", {}, 2.0)
        await transport.close()

    with serving(always(200, success([]))) as server:
        asyncio.run(ask(server.url))
        assert [headers["Authorization"] for _, _, headers in server.requests] == ["Bearer one", "Bearer two"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("content", [None, "two words", "a\x01b"])
def test_a_token_file_that_holds_no_token_is_named(kind: Kind, tmp_path: Path, content: str | None) -> None:
    token = tmp_path / "token"
    if content is not None:
        token.write_text(content)
    with pytest.raises(AnswerError, match="bearerTokenFile") as got:
        asyncio.run(_ask(kind(Access("http://127.0.0.1:1", token_file=str(token)))))
    assert got.value.kind == "auth"


@pytest.mark.parametrize("kind", KINDS)
def test_a_ca_file_that_is_missing_is_named(kind: Kind, tmp_path: Path) -> None:
    with pytest.raises(AnswerError, match="nowhere"):
        asyncio.run(_ask(kind(Access("https://127.0.0.1:1", ca_file=str(tmp_path / "nowhere.pem")))))


@pytest.mark.parametrize("kind", KINDS)
def test_a_password_is_read_again_and_sent_with_the_tenants_header(kind: Kind, tmp_path: Path) -> None:
    password = tmp_path / "password"

    async def ask(url: str) -> None:
        transport = kind(
            Access(url, username="me", password_file=str(password), headers=(("X-Scope-OrgID", "team-a|team-b"),))
        )
        for text in ("one\n", "tw:o é"):
            password.write_text(text, encoding="utf-8")
            await transport.query("up", {}, 2.0)
        await transport.close()

    with serving(always(200, success([]))) as server:
        asyncio.run(ask(server.url))
        sent = [headers for _, _, headers in server.requests]
    pairs = [base64.b64decode(headers["Authorization"].removeprefix("Basic ")).decode() for headers in sent]
    assert pairs == ["me:one", "me:tw:o é"]
    assert {headers["X-Scope-OrgID"] for headers in sent} == {"team-a|team-b"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_list_in_the_form_is_sent_as_a_field_several_times(kind: Kind) -> None:
    async def ask(transport: Transport) -> None:
        await transport.query("up", {"replicaLabels[]": ["a", "b"]}, 2.0)
        await transport.close()

    with serving(always(200, success([]))) as server:
        asyncio.run(ask(kind(Access(server.url))))
        assert server.bodies == [b"query=up&replicaLabels%5B%5D=a&replicaLabels%5B%5D=b"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_certificate_that_cannot_be_read_is_named(kind: Kind, tmp_path: Path) -> None:
    cert = tmp_path / "client.pem"
    cert.write_text("no certificate")
    with pytest.raises(AnswerError, match=r"clientCertFile .*client\.pem") as got:
        asyncio.run(_ask(kind(Access("https://127.0.0.1:1", cert_file=str(cert)))))
    assert got.value.kind == "auth"
