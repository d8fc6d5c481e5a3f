"""Who we are to a backend, and whom we trust: token, password, client certificate, headers, private CA.

Whatever is a secret comes from a file and is read for each request (certificates: for each connection), because it is
rotated in place. Errors name the file, never what is in it.
"""

from __future__ import annotations

import base64
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from rebalancer.adapters.telemetry import errors
from rebalancer.adapters.telemetry.errors import AnswerError
from rebalancer.api.controller import BackendSpec


@dataclass(frozen=True, slots=True)
class Access:
    """Where a backend is and how it lets us in.

    Attributes:
        url: base URL without a slash at its end.
        token_file: file with a bearer token; empty for none.
        username, password_file: HTTP basic authentication; empty for none.
        cert_file, key_file: PEM files of a client certificate; empty for none.
        ca_file: PEM file of the CA; empty for the system's.
        headers: sent with each request, such as X-Scope-OrgID.
    """

    url: str
    token_file: str = ""
    username: str = ""
    password_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    ca_file: str = ""
    headers: tuple[tuple[str, str], ...] = field(default=())

    def request_headers(self) -> dict[str, str]:
        """Returns the headers of one request.

        Raises:
            AnswerError: auth; a file holds no secret that could be sent.
        """
        # gzip costs the server more than the query does.
        headers = {**dict(self.headers), "Accept-Encoding": "identity", "Accept": "application/json"}
        if self.token_file:
            token = self._secret("bearerTokenFile", self.token_file)
            if not token.isascii() or " " in token:
                raise self._refused("bearerTokenFile", self.token_file, "holds no token; write the token only")
            headers["Authorization"] = f"Bearer {token}"
        elif self.username:
            password = self._secret("basicAuth.passwordFile", self.password_file)
            pair = base64.b64encode(f"{self.username}:{password}".encode()).decode("ascii")
            headers["Authorization"] = f"Basic {pair}"
        return headers

    def ssl_context(self) -> ssl.SSLContext:
        """Returns what new TLS connections are made with.

        Raises:
            AnswerError: unreachable or auth; a certificate file can't be used.
        """
        try:
            context = ssl.create_default_context(cafile=self.ca_file or None)
        except (OSError, ssl.SSLError) as error:
            raise AnswerError(
                "unreachable",
                f"caFile {self.ca_file} for {errors.public(self.url)} can't be used ({error}); name a PEM file.",
            ) from error
        if self.cert_file:
            try:
                context.load_cert_chain(self.cert_file, self.key_file or None, password=_no_password)
            except (OSError, ssl.SSLError, ValueError) as error:
                where = f"clientCertFile {self.cert_file} with clientKeyFile {self.key_file or self.cert_file}"
                raise AnswerError(
                    "auth", f"{where} for {errors.public(self.url)} can't be used ({error}); name a PEM certificate "
                    "and its key, without a passphrase."
                ) from error  # fmt: skip
        return context

    def stamp(self) -> tuple[float, ...]:
        """Returns what changes when a certificate file does; a file that can't be read counts as one state."""
        found = []
        for name in (self.ca_file, self.cert_file, self.key_file):
            try:
                found.append(Path(name).stat().st_mtime if name else 0.0)
            except OSError:
                found.append(-1.0)
        return tuple(found)

    def _secret(self, field_name: str, path: str) -> str:
        try:
            text = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise self._refused(field_name, path, f"can't be read ({error}); check the path and its permissions") from (
                error
            )
        if not text or not text.isprintable():
            raise self._refused(field_name, path, "is empty or holds several lines; write the secret only")
        return text

    def _refused(self, field_name: str, path: str, what: str) -> AnswerError:
        return AnswerError("auth", f"{field_name} {path} for {errors.public(self.url)} {what}.")


def _no_password() -> str:
    # Without a callback OpenSSL would ask on the terminal and wait.
    raise ValueError("the key is encrypted")


def of(spec: BackendSpec) -> Access:
    """Returns the access that a configuration describes."""
    basic = spec.basic_auth
    return Access(
        spec.url,
        token_file=spec.bearer_token_file,
        username=basic.username if basic is not None else "",
        password_file=basic.password_file if basic is not None else "",
        cert_file=spec.client_cert_file,
        key_file=spec.client_key_file,
        ca_file=spec.ca_file,
        headers=tuple(sorted(spec.headers.items())),
    )
