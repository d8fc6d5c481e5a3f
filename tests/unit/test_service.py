"""Who leads: of several controllers one writes, and one that only observes never stands in its way."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from rebalancer.service import Service


def leading(*, act: bool, hub: bool) -> tuple[bool, bool]:
    """Returns (whether the lease is asked for, whether it leads before it has it)."""

    async def run() -> tuple[bool, bool]:
        service = Service(cast("Any", None), act=act)
        client = SimpleNamespace(name="hub", api=None) if hub else None
        world = cast("Any", SimpleNamespace(hub_client=client))
        service._world = world
        lease = service._begin_lease(world)
        if lease is not None:
            lease.cancel()
            await asyncio.gather(lease, return_exceptions=True)
        return lease is not None, service._leading()

    return asyncio.run(run())


def test_one_that_only_observes_takes_no_lease_and_never_leads_on_a_hub() -> None:
    assert leading(act=False, hub=True) == (False, False)


def test_one_that_acts_asks_for_the_lease_and_does_not_lead_before_it_has_it() -> None:
    assert leading(act=True, hub=True) == (True, False)


def test_without_a_hub_there_is_nobody_to_agree_with() -> None:
    assert leading(act=True, hub=False) == (False, True)
    assert leading(act=False, hub=False) == (False, True)
