"""The rows about `ThresholdPurgatory`: the cost of an advance depends on the operations that it
completes, not on the others."""

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

from benchmarks.cases import Setting
from benchmarks.measure import BATCH, Contender, Measured, compare, own_copy
from purgatory import OperationCancelled, ThresholdPurgatory

Offsets = ThresholdPurgatory[int, int]
Wait = tuple[int, int]
"""A key and a threshold."""

BEYOND = 10**9
"""A threshold that no row reaches."""


async def complete_one_of(waiters: int, setting: Setting) -> Measured:
    """Advance a key with many waiters to the threshold of the next one; against a key with a single
    waiter.

    Equally many wait on both sides, so that the caches of the processor make no difference. They
    have no deadline: the cost of the timer is the same on both sides, and would only dilute the
    ratio. The tasks run after the batch, as after an `advance`.
    """
    waiters = setting.size(waiters)
    waiting = waiters + BATCH
    async with Offsets() as crowded, Offsets() as roomy:
        ours = completing(crowded, waiters, lambda number: (0, number))
        theirs = completing(
            roomy, waiters, lambda number: (number % waiting, number // waiting + 1)
        )
        await asyncio.sleep(0)  # after which all of them wait
        return await compare(ours, theirs, setting.rounds())


def completing(purgatory: Offsets, waiters: int, wait: Callable[[int], Wait]) -> Contender:
    """The contender whose batch completes the first `BATCH` waits, with one advance for each."""
    waits = list(map(wait, range(1, waiters + BATCH + 1)))
    start_waiting(purgatory, waits)
    return _completing(purgatory, waits, map(wait, itertools.count(len(waits) + 1)))


def _completing(purgatory: Offsets, waits: list[Wait], more: Iterable[Wait]) -> Contender:
    batch, more = own_copy(_advance), iter(more)
    while True:
        chosen, waits[:BATCH] = waits[:BATCH], []
        completed = purgatory.statistics().completed
        yield partial(batch, purgatory, chosen)
        assert purgatory.statistics().completed == completed + BATCH
        # They begin to wait after the next batch, which does not need them yet.
        waits += (new := list(itertools.islice(more, BATCH)))
        start_waiting(purgatory, new)


async def advance_below(waiters: int, setting: Setting) -> Measured:
    """Advance a key to values that are too low for its many waiters; against a key without
    waiters."""
    async with Offsets() as crowded, Offsets() as empty:
        start_waiting(crowded, [(0, BEYOND + number) for number in range(setting.size(waiters))])
        await asyncio.sleep(0)  # after which all of them wait
        return await compare(advancing(crowded), advancing(empty), setting.rounds())


def advancing(purgatory: Offsets) -> Contender:
    """The contender whose batch advances a key `BATCH` times, by one."""
    batch = own_copy(_advance)
    for first in itertools.count(1, BATCH):
        yield partial(batch, purgatory, [(0, value) for value in range(first, first + BATCH)])


async def _advance(purgatory: Offsets, values: Sequence[tuple[int, int]]) -> None:
    advance = purgatory.advance
    for key, value in values:
        advance(key, value)


def start_waiting(purgatory: Offsets, waits: Iterable[Wait]) -> None:
    """Starts a task for each of `waits`. They wait from the next iteration of the loop on; the
    purgatory keeps them alive."""

    async def wait(key: int, threshold: int) -> None:
        with suppress(OperationCancelled):
            await purgatory.wait(key, threshold)

    loop = asyncio.get_running_loop()
    for key, threshold in waits:
        loop.create_task(wait(key, threshold))  # noqa: RUF006
