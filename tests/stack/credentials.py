"""Keys and identities of one control plane: its CA, its token file, and kubeconfig files."""

from __future__ import annotations

import json
import secrets
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.stack.processes import StackError

# Users of the token file. Only the first is for tests; each component has its own name so that the audit log tells
# them apart. All are system:masters: what is tested is the product's rights, not Kubernetes' own.
ADMIN = "test-admin"
COMPONENTS = ("kcm", "scheduler", "kwok", "emulator")


@dataclass(frozen=True)
class Credentials:
    """Files of one plane's keys, and the tokens by user."""

    folder: Path
    tokens: dict[str, str]

    @property
    def ca(self) -> Path:
        """The serving certificate, which is its own authority."""
        return self.folder / "server.crt"

    @property
    def server_key(self) -> Path:
        """Key of the serving certificate."""
        return self.folder / "server.key"

    @property
    def account_key(self) -> Path:
        """Key that signs ServiceAccount tokens."""
        return self.folder / "account.key"

    @property
    def token_file(self) -> Path:
        """What --token-auth-file reads."""
        return self.folder / "tokens.csv"


def make(folder: Path) -> Credentials:
    """Makes EC keys, a serving certificate for 127.0.0.1 and random tokens. Raises StackError without openssl."""
    if shutil.which("openssl") is None:
        raise StackError("openssl is needed to make the test control planes' keys")
    made = Credentials(folder, {user: secrets.token_hex(16) for user in (ADMIN, *COMPONENTS)})
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    extensions = (
        "subjectAltName=IP:127.0.0.1,DNS:localhost,DNS:kubernetes.default.svc",
        "keyUsage=critical,digitalSignature,keyCertSign",
        "extendedKeyUsage=serverAuth",
    )
    command = ["openssl", "req", "-x509", *curve, "-days", "30", "-subj", "/CN=test-apiserver"]
    command += ["-keyout", str(made.server_key), "-out", str(made.ca)]
    for extension in extensions:
        command += ["-addext", extension]
    _run(command)
    rotate_account_key(made)
    lines = [f'{token},{user},{user},"system:masters"' for user, token in made.tokens.items()]
    made.token_file.write_text("\n".join(lines) + "\n")
    return made


def rotate_account_key(credentials: Credentials) -> None:
    """Makes a new signing key: after a restart of the API server, every older ServiceAccount token is refused."""
    _run(["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(credentials.account_key)])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    if done.returncode:
        raise StackError(f"{' '.join(command[:3])}: {done.stderr.strip()}")


def kubeconfig(path: Path, *, context: str, server: str, ca: Path, token: str, namespace: str = "default") -> Path:
    """Writes a kubeconfig file (as JSON, which every YAML reader takes) that only its owner can read."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": context,
        "clusters": [{"name": context, "cluster": {"server": server, "certificate-authority": str(ca)}}],
        "users": [{"name": context, "user": {"token": token}}],
        "contexts": [
            {"name": context, "context": {"cluster": context, "user": context, "namespace": namespace}},
        ],
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(document, indent=1))
    return path
