"""Tiny HTTP servers that misbehave as no real Prometheus can be made to."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

Behaviour = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """One request; its form, headers and path are kept by the server."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        self._do({})

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length", 0))
        body = self.rfile.read(length)
        self.server.bodies.append(body)
        form = parse_qs(body.decode())
        self._do({name: values[0] for name, values in form.items()})

    def _do(self, form: dict[str, str]) -> None:
        self.form = form
        self.server.requests.append((self.path, form, dict(self.headers)))
        try:
            self.server.behaviour(self)
        except OSError:
            self.close_connection = True

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        """Sends a whole answer."""
        self.send_response(status)
        for name, value in {"content-type": "application/json", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: Any) -> None:
        """Stays quiet."""


class Server(ThreadingHTTPServer):
    """Remembers what was asked; `ended` wakes those who hang."""

    daemon_threads = True

    def __init__(self, behaviour: Behaviour) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.behaviour = behaviour
        self.requests: list[tuple[str, dict[str, str], dict[str, str]]] = []
        self.bodies: list[bytes] = []
        self.ended = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *_args: Any) -> None:
        """Clients that give up are part of the tests."""


@contextmanager
def serving(behaviour: Behaviour) -> Iterator[Server]:
    server = Server(behaviour)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.ended.set()
        server.shutdown()
        server.server_close()
        thread.join(5)


def success(result: list[Any], kind: str = "vector", **more: Any) -> bytes:
    return json.dumps({"status": "success", "data": {"resultType": kind, "result": result}, **more}).encode()


def failure(error_type: str, text: str) -> bytes:
    return json.dumps({"status": "error", "errorType": error_type, "error": text}).encode()


def always(status: int, body: bytes, **headers: str) -> Behaviour:
    return lambda handler: handler.answer(status, body, **headers)


def hang(handler: Handler) -> None:
    handler.server.ended.wait(20)


def drip(handler: Handler) -> None:
    """A good head, then a byte now and then, for ever."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n")
    _drip(handler)


def drip_head(handler: Handler) -> None:
    """A head that never ends."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nx-long: ")
    _drip(handler)


def _drip(handler: Handler) -> None:
    for _ in range(400):
        if handler.server.ended.wait(0.05):
            return
        handler.wfile.write(b"x")
        handler.wfile.flush()


def cut(handler: Handler) -> None:
    """Promises more than it sends."""
    handler.wfile.write(b'HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{"status":')
    handler.close_connection = True
