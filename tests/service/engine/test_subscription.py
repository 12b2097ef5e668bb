"""Wake-ups merge; what was accepted meanwhile is not lost."""

import asyncio

from headstart.engine.subscription import Subscription


async def test_wake_ups_between_two_waits_are_one_and_keep_all_ids():
    subscription = Subscription(lambda _: None)
    subscription.wake(("a",))
    subscription.wake(("b", "c"))
    await subscription.changed()
    assert subscription.take_accepted() == ["a", "b", "c"]
    waiting = asyncio.ensure_future(subscription.changed())
    await asyncio.sleep(0)
    assert not waiting.done()
    subscription.wake(())
    await waiting
    assert subscription.take_accepted() == []


async def test_closing_tells_its_owner_and_ends_a_wait():
    closed = []
    subscription = Subscription(closed.append)
    waiting = asyncio.ensure_future(subscription.changed())
    await asyncio.sleep(0)
    subscription.close()
    await waiting
    assert closed == [subscription]
