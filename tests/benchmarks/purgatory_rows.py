"""The rows of ``micro`` about `Purgatory` and `ThresholdPurgatory`, and about their observers."""

import asyncio
import gc
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import count, cycle, islice, repeat
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import harness
from benchmarks.harness import (
    BATCH,
    WARM_UP_ROUNDS,
    Batch,
    Contender,
    LoopName,
    Measured,
    Setting,
    compare,
    own_copy,
    run_on,
)
from benchmarks.timer_rows import (
    LATEST,
    SOONEST,
    TIMEOUT,
    not_yet_due,
    start_pending,
    starting_and_cancelling,
)
from purgatory import DelayedOperation, OperationCancelled, Purgatory, ThresholdPurgatory

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


async def complete_by_key(is_shared: bool, setting: Setting) -> Measured:
    """Construct a `Fetch`, watch it on its own key, or on one key of all, make its condition true,
    complete the key.

    Against the loop's `call_later` + `cancel`, which is the least that any timeout can cost on the
    loop.
    """
    async with AnyPurgatory() as purgatory:
        theirs = starting_and_cancelling(asyncio.get_running_loop().call_later)
        batch = _complete_together if is_shared else _complete_by_key
        return await compare(by_key(batch, purgatory), theirs, setting.rounds())


def by_key(batch: Callable[..., Any], purgatory: AnyPurgatory) -> Contender:
    """The contender whose batch completes operations with new keys."""
    log = Log()
    for first in count(1, BATCH):
        yield partial(batch, purgatory, log, range(first, first + BATCH))
        assert not purgatory.pending


async def _complete_by_key(purgatory: AnyPurgatory, log: Log, offsets: Iterable[int]) -> None:
    for offset in offsets:
        purgatory.try_complete_else_watch(Fetch(log, offset, TIMEOUT), (offset,))
        log.end = offset
        purgatory.check_and_complete(offset)


async def _complete_together(purgatory: AnyPurgatory, log: Log, offsets: range) -> None:
    for offset in offsets:
        purgatory.try_complete_else_watch(Fetch(log, offset, TIMEOUT), ("key",))
    log.end = offsets[-1]
    purgatory.check_and_complete("key")
    while purgatory.pending:
        await asyncio.sleep(0)


async def complete_shared(pending: int, setting: Setting) -> Measured:
    """Construct an operation, watch it on three of 100 keys that `pending` others share, complete
    it. Against the loop's `call_later` + `cancel`, with as many timers pending."""
    call_later = asyncio.get_running_loop().call_later
    names = [f"key-{number}" for number in range(SHARED_KEYS)]
    key_sets = [tuple(setting.random.sample(names, KEYS_OF_EACH)) for _ in range(BATCH)]
    async with AnyPurgatory() as purgatory:
        with not_yet_due(pending):
            start_pending(call_later, pending, setting)
            for keys in islice(cycle(key_sets), setting.size(pending)):
                purgatory.try_complete_else_watch(Never(SOONEST), keys)
            ours = repeat(partial(_complete_shared, purgatory, key_sets))
            return await compare(ours, starting_and_cancelling(call_later), setting.rounds())


async def _complete_shared(purgatory: AnyPurgatory, key_sets: Iterable[tuple[str, ...]]) -> None:
    for keys in key_sets:
        operation = Never(TIMEOUT)
        purgatory.try_complete_else_watch(operation, keys)
        operation.force_complete()


async def wait(setting: Setting) -> Measured:
    """Tasks each in `await purgatory.wait(...)`, completed key by key when all wait; per task, its
    creation included. Against tasks that each await a future under `asyncio.timeout`. The futures
    are at hand, without a look-up by key."""
    async with AnyPurgatory() as purgatory:
        ours, theirs = by_key(_wait_for_keys, purgatory), repeat(_wait_for_futures)
        return await compare(ours, theirs, setting.rounds(50))


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


async def memory(operations: int, setting: Setting) -> Measured:
    """Bytes per pending `Fetch`, each on an `int` key of its own: the growth of the resident
    memory of a new process."""
    operations = setting.size(operations)
    growth = harness.in_fresh_process(_resident_growth, setting.loop_name, operations)
    return Measured([growth / operations])


def _resident_growth(loop_name: LoopName, operations: int) -> int:
    async def grow() -> int:
        log, keys = Log(), list(range(1, operations + 1))
        async with AnyPurgatory() as purgatory:
            gc.collect()
            before = harness.resident_bytes()
            for key in keys:
                timeout = SOONEST + (LATEST - SOONEST) * key / operations
                purgatory.try_complete_else_watch(Fetch(log, key, timeout), (key,))
            gc.collect()
            after = harness.resident_bytes()
            assert purgatory.pending == operations
        return after - before

    return run_on(loop_name, grow())


async def observed(has_journal: bool, has_meter: bool, setting: Setting) -> Measured:
    """Microseconds that observers add to `complete_by_key`: the difference in CPU time of the
    loop's own thread. The journal's thread, which writes the files meanwhile, uses another core."""
    from purgatory.metrics import Meter

    observers: list[Any] = [Meter()] * has_meter
    if not has_journal:
        return await _added(observers, setting)
    from purgatory.journal import Journal  # there is no pyarrow for PyPy

    with TemporaryDirectory() as directory:
        async with Journal(directory) as journal:
            return await _added([journal, *observers], setting)


async def _added(observers: list[Any], setting: Setting) -> Measured:
    async with AnyPurgatory(observer=observers) as watched, AnyPurgatory() as alone:
        contenders = [by_key(_complete_by_key, each) for each in (watched, alone)]
        for _ in range(WARM_UP_ROUNDS):
            for each in contenders:
                await next(each)()
        added: list[float] = []
        for _ in setting.rounds():
            ours, theirs = [await _seconds_on_this_thread(next(each)) for each in contenders]
            added.append((ours - theirs) / BATCH * 1e6)
    return Measured(added)


async def _seconds_on_this_thread(batch: Batch) -> float:
    start = time.thread_time()
    await batch()
    spent = time.thread_time() - start
    await asyncio.sleep(0)
    return spent


async def scrape(pending: int, setting: Setting) -> Measured:
    """Read all metrics with Prometheus' client, in milliseconds, while operations are pending and
    others have ended."""
    from prometheus_client import CollectorRegistry, generate_latest

    from purgatory.metrics import Meter
    from purgatory.metrics.prometheus import collector

    async def generate() -> None:
        generate_latest(registry)

    registry, meter = CollectorRegistry(), Meter()
    async with AnyPurgatory(observer=meter) as purgatory:
        registry.register(collector(meter, purgatories=purgatory))
        for key in range(setting.size(pending)):
            purgatory.try_complete_else_watch(Never(TIMEOUT), (-key,))
        await _complete_by_key(purgatory, Log(), range(1, BATCH))
        took = [await _seconds_on_this_thread(generate) * 1e3 for _ in setting.rounds(100)]
    return Measured(took)


Offsets = ThresholdPurgatory[int, int]


async def complete_one_of(waiters: int, setting: Setting) -> Measured:
    """Advance a key with many waiters to the threshold of the next one; against a key with a single
    waiter. Equally many wait on both sides, so that the caches of the processor make no difference,
    and without a deadline, whose cost would only dilute the ratio."""
    waiting = setting.size(waiters) + BATCH
    numbers = (
        ((0, number) for number in count(1)),
        (divmod(number, waiting)[::-1] for number in count(waiting)),
    )
    async with Offsets() as crowded, Offsets() as roomy:
        sides = []
        for purgatory, waits in zip((crowded, roomy), numbers, strict=True):
            start_waiting(purgatory, first := list(islice(waits, waiting)))
            sides.append(completing(purgatory, first, waits))
        await asyncio.sleep(0)  # after which all of them wait
        return await compare(*sides, setting.rounds())


def completing(
    purgatory: Offsets, waits: list[tuple[int, int]], more: Iterator[tuple[int, int]]
) -> Contender:
    """The contender whose batch completes the first `BATCH` waits, with one advance for each."""
    batch = own_copy(_advance)
    while True:
        completed = purgatory.statistics().completed
        yield partial(batch, purgatory, waits[:BATCH])
        assert purgatory.statistics().completed == completed + BATCH
        # They begin to wait after the next batch, which does not need them yet.
        start_waiting(purgatory, new := list(islice(more, BATCH)))
        waits = [*waits[BATCH:], *new]


async def _advance(purgatory: Offsets, values: Sequence[tuple[int, int]]) -> None:
    advance = purgatory.advance
    for key, value in values:
        advance(key, value)


def start_waiting(purgatory: Offsets, waits: Iterable[tuple[int, int]]) -> None:
    """Starts a task for each of `waits`: a key and a threshold. They wait from the next iteration
    of the loop on; the purgatory keeps them alive."""

    async def wait(key: int, threshold: int) -> None:
        with suppress(OperationCancelled):
            await purgatory.wait(key, threshold)

    loop = asyncio.get_running_loop()
    for key, threshold in waits:
        loop.create_task(wait(key, threshold))  # noqa: RUF006
