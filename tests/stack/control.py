"""JSON over HTTP between a test and the stack's own helper processes (emulator, relay)."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

import httpx

JSON = dict[str, Any]
Text = tuple[int, str]
Handler = Callable[[str, JSON], JSON | Text]
"""Takes the path and the posted document; returns a document, or (status, text)."""


def serve(port: int, handlers: Mapping[str, Handler]) -> ThreadingHTTPServer:
    """Serves on 127.0.0.1 in a background thread. Keys are `METHOD /prefix`; the longest that fits wins.

    A handler that raises KeyError, TypeError or ValueError answers 400 with the message.
    """
    order = sorted(handlers, key=len, reverse=True)

    class Door(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer("GET")

        def do_POST(self) -> None:
            self._answer("POST")

        def _answer(self, method: str) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            raw = self.rfile.read(length)
            found = next((key for key in order if f"{method} {self.path}".startswith(key)), None)
            status, body, kind = 404, "no such path", "text/plain"
            if found:
                try:
                    result = handlers[found](self.path, json.loads(raw) if raw else {})
                except (KeyError, TypeError, ValueError) as error:
                    result = (400, f"{type(error).__name__}: {error}")
                if isinstance(result, tuple):
                    status, body = result
                    kind = "text/plain; version=0.0.4; charset=utf-8"
                else:
                    status, body, kind = 200, json.dumps(result), "application/json"
            data = body.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class' name
            """A scrape a second is not news."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Door)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="control", daemon=True).start()
    return server


class Client:
    """The test's end. Raises ValueError with the helper's message when it refuses a document."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._client = httpx.Client(base_url=url, timeout=10.0, trust_env=False)

    def get(self, path: str) -> JSON:
        """GETs a document."""
        return self._checked(self._client.get(path))

    def post(self, path: str, document: JSON) -> JSON:
        """POSTs a document and returns the answer."""
        return self._checked(self._client.post(path, json=document))

    def text(self, path: str) -> str:
        """GETs text, whatever its status."""
        return self._client.get(path).text

    def close(self) -> None:
        """Closes its connections."""
        self._client.close()

    @staticmethod
    def _checked(response: httpx.Response) -> JSON:
        if response.status_code != 200:
            raise ValueError(f"{response.url}: {response.status_code} {response.text}")
        return cast(JSON, response.json())
