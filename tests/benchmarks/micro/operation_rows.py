"""The rows about `Purgatory`: the cost of waiting for a key, of completing, cancelling and
expiring, and of being pending."""

import asyncio
import gc
import random
from collections.abc import Hashable, Iterable, Sequence
from functools import partial
from itertools import count, islice, repeat
from itertools import cycle as cycle_of
from typing import Any

from benchmarks.cases import LoopName, Setting, run_on
from benchmarks.measure import (
    BATCH,
    Comparison,
    Contender,
    LoopProbe,
    Measured,
    Unmeasurable,
    compare,
    own_copy,
)
from benchmarks.micro.timer_rows import (
    LATEST,
    SOONEST,
    TIMEOUT,
    not_yet_due,
    start_pending,
    starting_and_cancelling,
)
from benchmarks.process import in_fresh_process, resident_bytes
from purgatory import DelayedOperation, Purgatory

SHARED_KEYS, KEYS_OF_EACH = 100, 3
"""As in Kafka's benchmark of its purgatory."""


class Log:
    """A log that grows; a `Fetch` waits until it is long enough."""

    __slots__ = ("end",)

    def __init__(self) -> None:
        self.end = 0


class Fetch(DelayedOperation[None]):
    """Waits until the log has reached an offset. Users write subclasses like this."""

    __slots__ = ("log", "offset")

    def __init__(self, log: Log, offset: int, timeout: float) -> None:
        super().__init__(timeout)
        self.log = log
        self.offset = offset

    def try_complete(self) -> bool:
        return self.log.end >= self.offset and self.force_complete()


class Never(DelayedOperation[None]):
    """Never completes: it waits until its deadline, or until it is cancelled."""

    __slots__ = ()

    def try_complete(self) -> bool:
        return False


AnyPurgatory = Purgatory[DelayedOperation[Any]]


async def cycle(setting: Setting) -> Measured:
    """Construct a `Fetch`, watch it on its own key, make its condition true, complete the key.

    Against the loop's `call_later` + `cancel`, which is the least that any timeout can cost on the
    loop.
    """
    async with AnyPurgatory() as purgatory:
        theirs = starting_and_cancelling(asyncio.get_running_loop().call_later)
        return await compare(cycling(purgatory), theirs, setting.rounds())


def cycling(purgatory: AnyPurgatory) -> Contender:
    log = Log()
    for first in count(1, BATCH):
        yield partial(_cycle, purgatory, log, range(first, first + BATCH))
        assert not purgatory.pending


async def _cycle(purgatory: AnyPurgatory, log: Log, offsets: Iterable[int]) -> None:
    for offset in offsets:
        purgatory.try_complete_else_watch(Fetch(log, offset, TIMEOUT), (offset,))
        log.end = offset
        purgatory.check_and_complete(offset)


async def cycle_shared(pending: int, setting: Setting) -> Measured:
    """Construct an operation, watch it on three of 100 keys that `pending` others share, complete
    it.

    Against the loop's `call_later` + `cancel`, with as many timers pending.
    """
    call_later = asyncio.get_running_loop().call_later
    names = [f"key-{number}" for number in range(SHARED_KEYS)]
    key_sets = [tuple(setting.random.sample(names, KEYS_OF_EACH)) for _ in range(BATCH)]
    async with AnyPurgatory() as purgatory:
        with not_yet_due(pending):
            start_pending(call_later, pending, setting)
            for keys in islice(cycle_of(key_sets), setting.size(pending)):
                purgatory.try_complete_else_watch(Never(SOONEST), keys)
            ours = repeat(partial(_cycle_shared, purgatory, key_sets))
            return await compare(ours, starting_and_cancelling(call_later), setting.rounds())


async def _cycle_shared(purgatory: AnyPurgatory, key_sets: Iterable[tuple[str, ...]]) -> None:
    for keys in key_sets:
        operation = Never(TIMEOUT)
        purgatory.try_complete_else_watch(operation, keys)
        operation.force_complete()


async def wait(setting: Setting) -> Measured:
    """Tasks each in `await purgatory.wait(...)`, completed key by key when all wait; per task, its
    creation included.

    Against tasks that each await a future under `asyncio.timeout`. The futures are at hand, without
    a look-up by key.
    """
    async with AnyPurgatory() as purgatory:
        return await compare(waiting_for_keys(purgatory), waiting_for_futures(), setting.rounds(50))


def waiting_for_keys(purgatory: AnyPurgatory) -> Contender:
    log = Log()
    for first in count(1, BATCH):
        yield partial(_wait_for_keys, purgatory, log, range(first, first + BATCH))
        assert not purgatory.pending


async def _wait_for_keys(purgatory: AnyPurgatory, log: Log, offsets: Iterable[int]) -> None:
    async def waiter(offset: int) -> None:
        await purgatory.wait(Fetch(log, offset, TIMEOUT), (offset,))

    tasks = [asyncio.create_task(waiter(offset)) for offset in offsets]
    await asyncio.sleep(0)  # after which all of them wait
    for offset in offsets:
        log.end = offset
        purgatory.check_and_complete(offset)
    for task in tasks:
        await task


def waiting_for_futures() -> Contender:
    while True:
        yield _wait_for_futures


async def _wait_for_futures() -> None:
    async def waiter(future: asyncio.Future[None]) -> None:
        async with asyncio.timeout(TIMEOUT):
            await future

    loop = asyncio.get_running_loop()
    futures: list[asyncio.Future[None]] = [loop.create_future() for _ in range(BATCH)]
    tasks = [asyncio.create_task(waiter(future)) for future in futures]
    await asyncio.sleep(0)  # after which all of them wait
    for future in futures:
        future.set_result(None)
    for task in tasks:
        await task


async def cancel_in_a_crowd(waiters: int, setting: Setting) -> Measured:
    """Cancel random operations that all wait for one key; against equally many operations that each
    have a key of their own.

    Equally many wait on both sides, so that the caches of the processor make no difference. They
    have no deadline: the cost of the timer is the same on both sides, and would only dilute the
    ratio.
    """
    waiters = setting.size(waiters)
    async with AnyPurgatory() as crowded, AnyPurgatory() as roomy:
        ours = cancelling(
            crowded, ["the one key"] * waiters, random.Random(seed := setting.random.random())
        )
        theirs = cancelling(roomy, range(waiters), random.Random(seed))
        return await compare(ours, theirs, setting.rounds())


def cancelling(purgatory: AnyPurgatory, keys: Sequence[Hashable], rng: random.Random) -> Contender:
    """The contender whose batch cancels `BATCH` random operations; an operation waits for each of
    `keys`."""

    def watched(key: Hashable) -> Never:
        operation = Never()
        purgatory.try_complete_else_watch(operation, (key,))
        return operation

    batch, waiting = own_copy(_cancel), [watched(key) for key in keys]
    while True:
        chosen = rng.sample(range(len(waiting)), BATCH)
        yield partial(batch, [waiting[index] for index in chosen])
        for index in chosen:
            waiting[index] = watched(keys[index])


async def _cancel(operations: Iterable[Never]) -> None:
    for operation in operations:
        operation.cancel()


async def burst(operations: int, setting: Setting) -> Measured:
    """Operations that wait for a key each and are due in one tick: the longest stall of the loop,
    in milliseconds.

    Measured from when all are watched until all have expired, so that the wheel's work ahead of
    the tick counts, too.
    """
    stalls = [await _max_stall(setting.size(operations)) for _ in setting.rounds(5)]
    return Measured(Comparison.alone([stall * 1e3 for stall in stalls]))


async def _max_stall(operations: int) -> float:
    """Watches operations that are all due at the same instant, and probes the loop while they
    expire."""
    loop = asyncio.get_running_loop()
    lead = 0.3 + 10e-6 * operations  # seconds to watch them in
    deadline = loop.time() + lead
    async with AnyPurgatory() as purgatory:
        for key in range(operations):
            purgatory.try_complete_else_watch(Never(deadline=deadline), (key,))
        gc.collect()  # garbage from making them is not the burst's
        await asyncio.sleep(0)
        if loop.time() > deadline:
            raise Unmeasurable(
                f"the machine was too busy: {operations:,} operations were not watched within "
                f"{lead:.1f} s"
            )
        with LoopProbe() as probe:
            while purgatory.pending:
                await asyncio.sleep(0)
    return probe.max_stall


async def memory(operations: int, setting: Setting) -> Measured:
    """Bytes per pending `Fetch`, each on an `int` key of its own: the growth of the resident
    memory of a process.

    Resident memory is the memory that the machine must have. The process is a new one, because
    memory that other rows have freed would be used again, and would not be seen to grow.
    """
    operations = setting.size(operations)
    growth = in_fresh_process(_resident_growth, setting.loop_name, operations)
    return Measured(Comparison.alone([growth / operations]))


def _resident_growth(loop_name: LoopName, operations: int) -> int:
    async def grow() -> int:
        log, keys = Log(), list(range(1, operations + 1))
        async with AnyPurgatory() as purgatory:
            gc.collect()
            before = resident_bytes()
            for key in keys:
                timeout = SOONEST + (LATEST - SOONEST) * key / operations
                purgatory.try_complete_else_watch(Fetch(log, key, timeout), (key,))
            gc.collect()
            after = resident_bytes()
            assert purgatory.pending == operations
        return after - before

    return run_on(loop_name, grow())
