"""Keeps the target list in step with its file, off the loop: parsed and compared in a thread, applied in small batches.

An unusable file leaves the old list in force, for a day: after that nobody knows whether these targets still want to be
probed, so probing stops (fail closed) until there is a list again. The reflector goes on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

from probes.config import AgentConfig
from probes.mesh import Mesh
from probes.targets import Diff, Target, TargetError, diff, load_targets
from probes.topology import choose

MAX_LIST_AGE_S = 24 * 3600.0
log = logging.getLogger("rebalancer-probe")


class Watched:
    """Tells whether a file was replaced since it was last asked for.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen = self._look()

    @property
    def there(self) -> bool:
        """Whether the file existed when it was last asked for."""
        return self._seen is not None

    def changed(self) -> bool:
        """Returns whether it is another file now than at the last call."""
        before, self._seen = self._seen, self._look()
        return before != self._seen

    def _look(self) -> tuple[int, int, int] | None:
        # A ConfigMap or Secret volume is swapped by a symbolic link, so the inode tells more than the time.
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns


class TargetList:
    """The target list in force.

    Args:
        config: names the file.
        mesh: what is kept in step.
    """

    def __init__(self, config: AgentConfig, mesh: Mesh) -> None:
        self.ok = False
        self.read_at_s: float | None = None
        self.expired = False
        self._config = config
        self._mesh = mesh
        self._file = Watched(config.targets_file)
        self._known_s = time.monotonic()
        self._task: asyncio.Task[None] | None = None

    def poll(self, now_s: float) -> None:
        """Starts a reload when the file was replaced; stops probing when there was no usable one for a day.

        Args:
            now_s: monotonic time.
        """
        if self._task is not None and not self._task.done():
            return
        if self._task is None or self._file.changed():
            self._task = asyncio.ensure_future(self._reload())
        elif self.ok and self._file.there:
            self._known_s = now_s  # unchanged and still there is as good as read again
        elif now_s - self._known_s > MAX_LIST_AGE_S and not self.expired:
            self.expired = True
            log.error(
                "%s: no usable target list for %.0f h; probing stops until there is one.",
                self._config.targets_file,
                MAX_LIST_AGE_S / 3600,
            )
            self._task = asyncio.ensure_future(self._apply(diff(self._mesh.targets, ())))

    def close(self) -> None:
        """Stops a reload under way."""
        if self._task is not None:
            self._task.cancel()

    async def _reload(self) -> None:
        before = self._mesh.targets
        try:
            await self._apply(await asyncio.to_thread(self._compare, before))
        except (TargetError, RuntimeError) as error:  # the latter: neither a thread nor a session id can be had
            self.ok = False
            log.error("%s The %d targets before stay in force.", error, len(before))
            return
        self.ok, self.expired = True, False
        self.read_at_s, self._known_s = time.time(), time.monotonic()
        log.info("%d targets in force", len(self._mesh.targets))

    def _compare(self, before: list[Target]) -> Diff:
        config = self._config
        return diff(before, choose(load_targets(config.targets_file), config.cluster, config.region))

    async def _apply(self, change: Diff) -> None:
        for _batch in self._mesh.applying(change):
            await asyncio.sleep(0)  # probes and answers go on in between
