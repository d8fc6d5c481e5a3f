"""A tiny HTTP server for scrapes: GET only, one answer per connection, every read with a deadline."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

READ_DEADLINE_S = 5.0
MAX_HEADER_OCTETS = 16_384
MAX_CONNECTIONS = 64


class Response(NamedTuple):
    """An answer.

    Attributes:
        status: HTTP status with its phrase.
        content_type: of the body.
        body: octets.
    """

    status: str
    content_type: str
    body: bytes


Handler = Callable[[str], Response]
"""Takes the value of the Accept header (lower case), returns the answer."""


def text(body: str, status: str = "200 OK") -> Response:
    """Returns a plain text answer."""
    return Response(status, "text/plain; charset=utf-8", body.encode())


class Server:
    """Serves fixed paths.

    Args:
        routes: path -> handler.
    """

    def __init__(self, routes: Mapping[str, Handler]) -> None:
        self._routes = dict(routes)
        self._server: asyncio.Server | None = None
        self._open = 0

    async def start(self, host: str, port: int) -> None:
        """Begins to listen.

        Raises:
            OSError: the address can't be bound.
        """
        self._server = await asyncio.start_server(self._serve, host, port, limit=MAX_HEADER_OCTETS)

    def close(self) -> None:
        """Stops to listen."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= MAX_CONNECTIONS:
                async with asyncio.timeout(READ_DEADLINE_S):
                    response, head_only = self._answer(await reader.readuntil(b"\r\n\r\n"))
                    self._write(writer, response, head_only=head_only)
                    await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a broken client is its own problem
        finally:
            self._open -= 1
            with contextlib.suppress(OSError):
                writer.close()

    def _answer(self, head: bytes) -> tuple[Response, bool]:
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        if len(words) != 3 or words[0] not in ("GET", "HEAD"):
            return text("only GET is served here\n", "405 Method Not Allowed"), False
        handler = self._routes.get(words[1].partition("?")[0])
        if handler is None:
            paths = " ".join(sorted(self._routes))
            return text(f"not found; served are {paths}\n", "404 Not Found"), False
        accept = next((line[7:].strip().lower() for line in lines if line[:7].lower() == "accept:"), "")
        return handler(accept), words[0] == "HEAD"

    @staticmethod
    def _write(writer: asyncio.StreamWriter, response: Response, *, head_only: bool) -> None:
        head = (
            f"HTTP/1.1 {response.status}\r\nContent-Type: {response.content_type}\r\n"
            f"Content-Length: {len(response.body)}\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode("latin-1") + (b"" if head_only else response.body))
