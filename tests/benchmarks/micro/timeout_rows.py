"""The rows about `timeout` and `wait_for`: the time saved by importing them from here and not from
asyncio."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import repeat

import purgatory
from benchmarks.cases import Setting
from benchmarks.measure import BATCH, Contender, Measured, compare, own_copy
from benchmarks.micro.timer_rows import TIMEOUT

Timeout = Callable[[float], AbstractAsyncContextManager[object]]
WaitFor = Callable[[Awaitable[None], float], Awaitable[None]]


async def enter_and_leave(setting: Setting) -> Measured:
    """`async with timeout(30): pass`, one after another in one task and one iteration of the
    loop."""
    sides: tuple[Timeout, Timeout] = (purgatory.timeout, asyncio.timeout)
    ours, theirs = (repeat(partial(own_copy(_enter_and_leave), timeout)) for timeout in sides)
    return await compare(ours, theirs, setting.rounds())


async def _enter_and_leave(timeout: Timeout) -> None:
    for _ in range(BATCH):
        async with timeout(TIMEOUT):
            pass


async def wait_for_an_iteration(setting: Setting) -> Measured:
    """`await wait_for(coroutine, 30)`, one after another in one task. Each coroutine yields to the
    loop once.

    So each timeout is pending during one iteration of the loop, in which it is the only one.
    """
    return await compare(
        waiting_for_an_iteration(purgatory.wait_for),
        waiting_for_an_iteration(asyncio.wait_for),
        setting.rounds(),
    )


def waiting_for_an_iteration(wait_for: WaitFor) -> Contender:
    return repeat(partial(own_copy(_wait_for_an_iteration), wait_for, own_copy(_yield_once)))


async def _wait_for_an_iteration(
    wait_for: WaitFor, yield_once: Callable[[], Awaitable[None]]
) -> None:
    for _ in range(BATCH):
        await wait_for(yield_once(), TIMEOUT)


async def _yield_once() -> None:
    await asyncio.sleep(0)
