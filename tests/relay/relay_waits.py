"""What tests of relays wait for."""

import asyncio
from collections.abc import Callable

from purgatory.relay import Relay


async def until(condition: Callable[[], bool]) -> None:
    """Polls. What hangs is ended with the test's loop."""
    while not condition():
        await asyncio.sleep(0.01)


async def knows(relay: Relay, *keys: str) -> None:
    """Until somebody waits for each of these keys, and the relay has read its version."""
    followed = relay._follower.followed
    await until(lambda: all(key in followed and followed[key].version is not None for key in keys))


def set_timeout(relay: Relay, seconds: float) -> None:
    """Sets the timeout of an open relay. One that had it from the beginning might not open in time on a busy machine."""
    assert relay._sync is not None
    relay._timeout = relay._sync._timeout = seconds
