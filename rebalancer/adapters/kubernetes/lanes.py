"""Worker threads that can't pile up: the kubernetes client blocks, and a call that hangs must cost one thread only."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

from rebalancer.errors import ClusterError

T = TypeVar("T")


class Lane:
    """A few blocking calls at a time for one cluster; while they hang, the next one fails at once, not joining them."""

    def __init__(self, cluster: str, purpose: str, slots: int = 1) -> None:
        self.cluster = cluster
        self.purpose = purpose
        self._slots = slots
        self._busy = 0
        self._count = threading.Lock()
        self._turn = asyncio.Semaphore(slots)

    @property
    def busy(self) -> bool:
        """Whether all threads are taken by earlier calls."""
        return self._busy >= self._slots

    async def run(self, work: Callable[[], T], deadline_s: float) -> T:
        """Runs `work` in a thread; calls wait for their turn within their own deadline.

        Raises:
            ClusterError: `timeout`: no answer within the deadline, or an earlier call still hangs.
        """
        try:
            async with asyncio.timeout(deadline_s), self._turn:
                if self.busy:
                    raise ClusterError("timeout", f"{self.cluster}: an earlier {self.purpose} still hangs")
                return await self._start(work)
        except TimeoutError:
            raise ClusterError("timeout", f"{self.cluster}: no {self.purpose} within {deadline_s:g} s") from None

    def _start(self, work: Callable[[], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def tell(result: T | None, error: BaseException | None) -> None:
            if future.done():  # nobody waits any more
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]  # None only where T is None

        def thread() -> None:
            result, error = None, None
            try:
                result = work()
            except BaseException as caught:  # noqa: BLE001  # handed to the one who awaits
                error = caught
            with self._count:
                self._busy -= 1
            with contextlib.suppress(RuntimeError):  # the loop ended before the call did
                loop.call_soon_threadsafe(tell, result, error)

        with self._count:
            self._busy += 1
        # A daemon of its own and no pool: a pool joins its threads at exit, and one that hangs would hold up the end.
        threading.Thread(target=thread, name=f"{self.purpose}-{self.cluster}", daemon=True).start()
        return future
