"""The journal: history for people, in SQLite. Recovery never reads it."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from rebalancer.errors import RebalancerError

KEEP_ROWS = 100_000
TIMEOUT_S = 2.0


class SqliteJournal:
    """Appends entries in a thread of its own; a journal that can't be written is counted and never stops a cycle."""

    def __init__(self, path: str) -> None:
        """Takes the file; `:memory:` keeps nothing."""
        self.failures = 0
        self.error = ""
        self._path = path
        self._thread = ThreadPoolExecutor(1, "journal")
        self._connection: sqlite3.Connection | None = None

    async def check(self) -> None:
        """Opens the file, so that a wrong path is found at the start.

        Raises:
            RebalancerError: it can't be opened.
        """
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._open)
        except sqlite3.Error as error:
            raise RebalancerError(
                f"spec.journal: {self._path} can't be opened: {error}; name a file in a folder that can be written"
            ) from None

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = sqlite3.connect(self._path, timeout=TIMEOUT_S)
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute(
                "CREATE TABLE IF NOT EXISTS entries (id INTEGER PRIMARY KEY, at_s REAL NOT NULL, kind TEXT NOT NULL,"
                " workload TEXT NOT NULL, text TEXT NOT NULL, data TEXT NOT NULL)"
            )
        return self._connection

    def _append(self, row: tuple[float, str, str, str, str]) -> None:
        connection = self._open()
        with connection:
            cursor = connection.execute(
                "INSERT INTO entries (at_s, kind, workload, text, data) VALUES (?,?,?,?,?)", row
            )
            connection.execute("DELETE FROM entries WHERE id <= ?", ((cursor.lastrowid or 0) - KEEP_ROWS,))

    async def write(self, at_s: float, kind: str, workload: str, text: str, data: Mapping[str, object]) -> None:
        """Appends one entry."""
        row = (at_s, kind, workload, text, json.dumps(data, sort_keys=True, default=str))
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._append, row)
            self.error = ""
        except sqlite3.Error as error:
            self._connection = None  # opened anew next time: the disk may have room again
            self.failures += 1
            self.error = f"{self._path}: the journal can't be written: {error}; free space or name another file"

    def close(self) -> None:
        """Closes the file."""
        if self._connection is not None:
            self._thread.submit(self._connection.close).result(TIMEOUT_S)
        self._thread.shutdown()
