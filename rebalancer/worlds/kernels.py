"""Compiles the large solver beside a running controller: plans are exact in batches until it is done."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace

from rebalancer.core.placement import SMALL_FLEET, compile_kernels
from rebalancer.cycle import Cycle, CycleReport

_COMMAND = "from rebalancer.core.placement import compile_kernels; compile_kernels()"
COMPILE_S = 1800.0
"""It takes one to two minutes on a busy core."""


class Kernels:
    """The state of the compilation for one world."""

    def __init__(self, cycle: Cycle) -> None:
        """Nothing is compiled before a cycle has shown a large fleet."""
        self._cycle = cycle
        self._task: asyncio.Task[None] | None = None
        self.problem = ""

    def look(self, report: CycleReport) -> None:
        """Begins to compile once a cycle has seen more workloads than the exact solver takes at once."""
        if self._task is None and len(report.snapshot.placements) > SMALL_FLEET:
            self._task = asyncio.create_task(self._compile())

    async def _compile(self) -> None:
        # Another process first, because compiling holds the interpreter for a minute; it leaves its result on disk.
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _COMMAND, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(COMPILE_S):
                _, error = await process.communicate()
        except TimeoutError:
            self.problem = f"the large solver was not compiled within {COMPILE_S:.0f} s, plans are made in batches"
            return
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            lines = error.decode(errors="replace").strip().splitlines() or [f"exit code {process.returncode}"]
            self.problem = f"the large solver is not compiled, plans are made in batches: {lines[-1]}"
            return
        await asyncio.to_thread(compile_kernels)
        settings = self._cycle.settings
        self._cycle.settings = replace(settings, plan=replace(settings.plan, kernels=True))

    async def close(self) -> None:
        """Ends a compilation under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
