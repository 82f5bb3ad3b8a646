"""The rows about `ThresholdPurgatory`: that an advance costs what it completes, and not what waits for more."""

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

from purgatory import OperationCancelled, ThresholdPurgatory
from purgatory.bench._cases import Setting
from purgatory.bench._measure import BATCH, Contender, Measured, compare, own_copy

Offsets = ThresholdPurgatory[int, int]
Wait = tuple[int, int]
"""A key and a threshold."""

BEYOND = 10**9
"""A threshold that no row reaches."""


async def complete_one_of(waiters: int, setting: Setting) -> Measured:
    """Advance a key to the threshold of the next one of its many waiters; against a key that has only one.

    As many wait on both sides, so that the caches of the processor do not decide. They have no deadline: the timer's share,
    the same on both sides, would only dilute the ratio. The tasks run after the batch, as they do after an `advance`.
    """
    waiters = setting.size(waiters)
    waiting = waiters + BATCH
    async with Offsets() as crowded, Offsets() as roomy:
        ours = completing(crowded, waiters, lambda number: (0, number))
        theirs = completing(roomy, waiters, lambda number: (number % waiting, number // waiting + 1))
        await asyncio.sleep(0)  # after which all of them wait
        return await compare(ours, theirs, setting.rounds())


def completing(purgatory: Offsets, waiters: int, wait: Callable[[int], Wait]) -> Contender:
    """The contender whose batch completes the `BATCH` waits that came first, with an advance each."""
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
    """Advance a key below what its many waiters wait for; against a key that nobody waits for."""
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
    """Start a task for each of `waits`; they wait from the next turn of the loop on, and the purgatory keeps them alive."""

    async def wait(key: int, threshold: int) -> None:
        with suppress(OperationCancelled):
            await purgatory.wait(key, threshold)

    loop = asyncio.get_running_loop()
    for key, threshold in waits:
        loop.create_task(wait(key, threshold))  # noqa: RUF006
