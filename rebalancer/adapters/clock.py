"""The system clock."""

from __future__ import annotations

import asyncio
import time


class SystemClock:
    """Wall time of this machine."""

    def now(self) -> float:
        """Returns Unix seconds."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Waits."""
        await asyncio.sleep(seconds)
