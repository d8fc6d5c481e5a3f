"""A real Prometheus behind TLS, a password and client certificates: who gets in, and what is said to whom does not."""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from rebalancer.adapters.telemetry.access import Access
from rebalancer.adapters.telemetry.errors import AnswerError
from rebalancer.adapters.telemetry.transports import Httpx, PromApi
from tests.stack.fixtures import require
from tests.stack.metrics import Prometheus

pytestmark = [pytest.mark.stack]
KINDS = (PromApi, Httpx)
Kind = type[PromApi] | type[Httpx]
USER = "reader"
# The example of Prometheus' own documentation: the hash of the word "test", as bcrypt makes it.
WORD, HASH = "test", "$2b$12$hNf2lSsxfm0.i4a.1kVpSOVyBCfIB51VRjgBUyv6kdnyTlgWj81Ay"


@dataclass(frozen=True)
class Keys:
    """PEM files: a CA, what it signed for server and client, and a client of another CA."""

    folder: Path

    def file(self, name: str) -> str:
        return str(self.folder / name)


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def make_keys(folder: Path) -> Keys:
    keys = Keys(folder)
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "3"]
    for ca in ("ca", "other-ca"):
        _openssl("req", "-x509", *curve, "-subj", f"/CN={ca}", "-keyout", keys.file(f"{ca}.key"),
                 "-out", keys.file(f"{ca}.pem"))  # fmt: skip
    for name, ca, usage in (("server", "ca", "serverAuth"), ("client", "ca", "clientAuth"),
                            ("next-client", "ca", "clientAuth"), ("stranger", "other-ca", "clientAuth")):  # fmt: skip
        _openssl(
            "req", "-x509", *curve, "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1",
            "-addext", f"extendedKeyUsage={usage}", "-addext", "basicConstraints=critical,CA:FALSE",
            "-CA", keys.file(f"{ca}.pem"), "-CAkey", keys.file(f"{ca}.key"),
            "-keyout", keys.file(f"{name}.key"), "-out", keys.file(f"{name}.pem"),
        )  # fmt: skip
    (folder / "password").write_text(f"{WORD}\n")
    (folder / "wrong").write_text("guess\n")
    return keys


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Prometheus, Keys]]:
    require(("prometheus",))
    if shutil.which("openssl") is None:
        pytest.skip("openssl is needed to make the keys")
    folder = tmp_path_factory.mktemp("access")
    keys = make_keys(folder)
    trust = ssl.create_default_context(cafile=keys.file("ca.pem"))
    trust.load_cert_chain(keys.file("client.pem"), keys.file("client.key"))
    web = {
        "tls_server_config": {
            "cert_file": keys.file("server.pem"), "key_file": keys.file("server.key"),
            "client_auth_type": "RequireAndVerifyClientCert", "client_ca_file": keys.file("ca.pem"),
        },
        "basic_auth_users": {USER: HASH},
    }  # fmt: skip
    server = Prometheus("secured", folder / "prometheus", web=web, client={"verify": trust, "auth": (USER, WORD)})
    try:
        server.start()
        yield server, keys
    finally:
        server.stop()


def access(served: tuple[Prometheus, Keys]) -> Access:
    server, keys = served
    return Access(
        server.url, username=USER, password_file=keys.file("password"), ca_file=keys.file("ca.pem"),
        cert_file=keys.file("client.pem"), key_file=keys.file("client.key"), headers=(("X-Scope-OrgID", "a"),),
    )  # fmt: skip


def ask(kind: Kind, one: Access) -> float:
    async def run() -> float:
        transport = kind(one)
        try:
            answer = await transport.query("vector(7)", {"time": "1"}, 5.0)
            return float(answer.series[0].values[0])
        finally:
            await transport.close()

    return asyncio.run(run())


@pytest.mark.parametrize("kind", KINDS)
def test_who_has_certificate_password_and_ca_gets_in(kind: Kind, served: tuple[Prometheus, Keys]) -> None:
    assert ask(kind, access(served)) == 7.0


REFUSED = {
    "a wrong password": ({"password_file": "wrong"}, "auth", "refuses the credentials (HTTP 401)"),
    "no password": ({"username": ""}, "auth", "refuses the credentials (HTTP 401)"),
    "no client certificate": ({"cert_file": "", "key_file": ""}, "auth", "clientCertFile"),
    "a certificate of another CA": (
        {"cert_file": "stranger.pem", "key_file": "stranger.key"}, "auth", "clientCertFile",
    ),
    "a server whose CA is not trusted": ({"ca_file": "other-ca.pem"}, "unreachable", "set caFile of the backend"),
    "a key that does not fit": ({"key_file": "stranger.key"}, "auth", "can't be used"),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sentence", REFUSED)
def test_who_is_not_let_in_is_told_which_file_to_look_at(
    kind: Kind, sentence: str, served: tuple[Prometheus, Keys]
) -> None:
    changes, expected, words = REFUSED[sentence]
    _, keys = served
    named: dict[str, Any] = {key: keys.file(value) if value else "" for key, value in changes.items()}
    with pytest.raises(AnswerError) as got:
        ask(kind, replace(access(served), **named))
    # A server may hang up before its alert is read: then it can't be reached, and may be tried again.
    assert got.value.kind == expected or (words == "clientCertFile" and got.value.retry), str(got.value)
    assert words in str(got.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_certificate_that_was_rotated_is_taken_up_without_a_restart(
    kind: Kind, served: tuple[Prometheus, Keys], tmp_path: Path
) -> None:
    _, keys = served
    cert, key = tmp_path / "tls.crt", tmp_path / "tls.key"

    def put(name: str, at: float) -> None:
        for target, source in ((cert, f"{name}.pem"), (key, f"{name}.key")):
            shutil.copy(keys.file(source), target)
            os.utime(target, (at, at))

    async def run() -> list[str]:
        put("stranger", 1000.0)
        transport = kind(replace(access(served), cert_file=str(cert), key_file=str(key)))
        told = []
        for name, at in (("stranger", 1000.0), ("next-client", 2000.0), ("client", 3000.0)):
            put(name, at)
            try:
                await transport.query("vector(7)", {"time": "1"}, 5.0)
                told.append("in")
            except AnswerError as error:
                told.append(error.kind)
        await transport.close()
        return told

    first, *others = asyncio.run(run())
    assert first in ("auth", "unreachable")
    assert others == ["in", "in"]
