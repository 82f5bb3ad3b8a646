"""The rows about observers: the cost that a journal and metrics add to a cycle of an operation, and
the cost of reading metrics."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from tempfile import TemporaryDirectory

from prometheus_client import CollectorRegistry, generate_latest

from benchmarks.cases import Setting
from benchmarks.measure import BATCH, WARM_UP_ROUNDS, Batch, Comparison, Measured
from benchmarks.micro.operation_rows import AnyPurgatory, Fetch, Log, Never, cycling
from benchmarks.micro.timer_rows import TIMEOUT
from purgatory import Observer
from purgatory.metrics import Meter
from purgatory.metrics.prometheus import collector


async def journal(setting: Setting) -> Measured:
    """The cost that a journal adds to `cycle`, in microseconds: the difference in CPU time of the
    loop's own thread.

    The thread of the journal, which writes the files meanwhile, is not counted: it uses another
        core.
    """
    from purgatory.journal import Journal  # there is no pyarrow for PyPy

    with TemporaryDirectory() as directory:
        async with Journal(directory) as observer:
            return await _added(observer, setting)


async def metrics(setting: Setting) -> Measured:
    """The cost that a meter adds to `cycle`, in microseconds."""
    return await _added(Meter(), setting)


async def journal_and_metrics(setting: Setting) -> Measured:
    """The cost that a journal and a meter add together."""
    from purgatory.journal import Journal  # there is no pyarrow for PyPy

    with TemporaryDirectory() as directory:
        async with Journal(directory) as observer:
            return await _added([observer, Meter()], setting)


async def _added(observer: Observer | Sequence[Observer], setting: Setting) -> Measured:
    async with AnyPurgatory(observer=observer) as observed, AnyPurgatory() as alone:
        contenders = cycling(observed), cycling(alone)
        added: list[float] = []
        for number, _ in enumerate([*range(WARM_UP_ROUNDS), *setting.rounds()]):
            ours, theirs = [
                await _seconds_on_this_thread(next(contender)) for contender in contenders
            ]
            if number >= WARM_UP_ROUNDS:
                added.append((ours - theirs) / BATCH * 1e6)
    return Measured(Comparison.alone(added))


async def _seconds_on_this_thread(batch: Batch) -> float:
    start = time.thread_time()
    await batch()
    spent = time.thread_time() - start
    await asyncio.sleep(0)
    return spent


async def scrape(pending: int, setting: Setting) -> Measured:
    """Read all metrics with Prometheus' client, in milliseconds, while operations are pending and
    others have ended."""
    registry = CollectorRegistry()

    def begin(meter: Meter, purgatory: AnyPurgatory) -> Callable[[], object]:
        registry.register(collector(meter, purgatories=purgatory))
        return lambda: generate_latest(registry)

    return await _read(pending, setting, begin)


async def snapshot(pending: int, setting: Setting) -> Measured:
    """One snapshot of a purgatory for the page, in milliseconds of the loop: all that the page
    shows of it, as JSON."""
    from purgatory.console._describe import (
        describe,
        shown,
    )  # older checkouts have it elsewhere

    def begin(meter: Meter, purgatory: AnyPurgatory) -> Callable[[], object]:
        return lambda: json.dumps(describe(purgatory, meter.snapshot(), shown))

    return await _read(pending, setting, begin)


async def _read(
    pending: int, setting: Setting, begin: Callable[[Meter, AnyPurgatory], Callable[[], object]]
) -> Measured:
    """The cost of reading, while operations are pending and others have ended."""
    meter = Meter()
    async with AnyPurgatory(observer=meter) as purgatory:
        read = begin(meter, purgatory)
        for key in range(setting.size(pending)):
            purgatory.try_complete_else_watch(Never(TIMEOUT), (-key,))
        log = Log()
        for offset in range(1, BATCH):
            purgatory.try_complete_else_watch(Fetch(log, offset, TIMEOUT), ("log",))
            log.end = offset
            purgatory.check_and_complete("log")
        took: list[float] = []
        for _ in setting.rounds(100):
            start = time.thread_time()
            read()
            took.append((time.thread_time() - start) * 1e3)
            await asyncio.sleep(0)
    return Measured(Comparison.alone(took))
