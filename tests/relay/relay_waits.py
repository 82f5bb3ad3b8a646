"""Conditions that tests of relays wait for."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from helpers import until
from servers import TIMEOUT

from purgatory import RelayUnavailable
from purgatory.relay import Relay


async def knows(relay: Relay, *keys: str) -> None:
    """Waits until each key has a waiter and the relay has read its version."""
    follower = relay._follower
    followed = follower.followed

    def is_known(key: str) -> bool:
        has_waiter = key in followed and key not in follower.idle
        return has_waiter and follower._version(followed[key]) is not None

    await until(lambda: all(map(is_known, keys)))


async def started(relay: Relay, key: str, seen: int) -> asyncio.Task[int]:
    """A task that waits, for which the relay has read the version of the key."""
    task = asyncio.create_task(relay.wait(key, seen))
    await knows(relay, key)
    return task


@asynccontextmanager
async def pair(url: str, **options: Any) -> AsyncIterator[tuple[Relay, Relay]]:
    """Two relays on one store, without a resync that would find the tested change."""
    options = {"resync": TIMEOUT, "timeout": TIMEOUT} | options
    async with Relay(url, **options) as here, Relay(url, **options) as there:
        yield here, there


async def set_timeout(relay: Relay, seconds: float) -> None:
    """Sets the timeout of an open relay, and waits for reads and probes that use the old one.

    A relay that is opened with a short timeout might not open in time on a busy machine.
    """
    sync = relay._sync
    assert sync is not None
    relay._client.timeout = seconds

    def is_idle() -> bool:
        probing = sync._listen_timeout
        return relay._follower._in_flight is None and probing is not None and probing.when() is None

    await until(is_idle)


def recorded(owner: Any, name: str) -> list[Any]:
    """The first arguments of the calls of a coroutine method from now on."""
    calls, method = [], getattr(owner, name)

    async def call(first: Any, *rest: Any) -> Any:
        calls.append(first)
        return await method(first, *rest)

    setattr(owner, name, call)
    return calls


async def refused(url: str, match: str) -> None:
    """Checks that no relay opens there, and that it says so without another attempt: those would
    last longer than a test."""
    with pytest.raises((ValueError, RelayUnavailable), match=match) as caught:
        async with Relay(url, timeout=10 * TIMEOUT):
            pass
    assert "secret" not in str(caught.value)


async def bumped(relay: Relay, key: str) -> int:
    """Retries `bump` until the store can be reached."""
    while True:
        try:
            return await relay.bump(key)
        except RelayUnavailable:
            pass
