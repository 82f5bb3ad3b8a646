"""The rows about metrics: what they add to a cycle of an operation, alone and beside a journal, and what a scrape costs, and a
look of the page."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from tempfile import TemporaryDirectory

from prometheus_client import CollectorRegistry, generate_latest

from purgatory import Observer
from purgatory.asgi._console._describe import describe, shown
from purgatory.bench._cases import Setting
from purgatory.bench._measure import BATCH, WARM_UP_ROUNDS, Contest, Measured
from purgatory.bench.micro._operation_rows import AnyPurgatory, Fetch, Log, Never, _on_this_thread, cycling
from purgatory.bench.micro._timer_rows import TIMEOUT
from purgatory.journal import Journal
from purgatory.metrics import Meter
from purgatory.metrics.prometheus import collector


async def metrics(setting: Setting) -> Measured:
    """What a meter adds to `cycle`, in microseconds, as the row of the journal has it."""
    return await _added(Meter(), setting)


async def journal_and_metrics(setting: Setting) -> Measured:
    """What a journal and a meter add together."""
    with TemporaryDirectory() as directory:
        async with Journal(directory) as observer:
            return await _added([observer, Meter()], setting)


async def _added(observer: Observer | Sequence[Observer], setting: Setting) -> Measured:
    async with AnyPurgatory(observer=observer) as watched, AnyPurgatory() as alone:
        contenders = cycling(watched), cycling(alone)
        added: list[float] = []
        for number, _ in enumerate([*range(WARM_UP_ROUNDS), *setting.rounds()]):
            ours, theirs = [await _on_this_thread(next(contender)) for contender in contenders]
            if number >= WARM_UP_ROUNDS:
                added.append((ours - theirs) / BATCH * 1e6)
    return Measured(Contest.alone(added))


async def scrape(pending: int, setting: Setting) -> Measured:
    """Read all metrics with Prometheus' client, in milliseconds, while operations are pending and others have ended."""
    registry = CollectorRegistry()

    def begin(meter: Meter, purgatory: AnyPurgatory) -> Callable[[], object]:
        registry.register(collector(meter, purgatories=purgatory))
        return lambda: generate_latest(registry)

    return await _read(pending, setting, begin)


async def look(pending: int, setting: Setting) -> Measured:
    """One look of the page at a purgatory, in milliseconds of the loop: all that it is told of it, as JSON."""

    def begin(meter: Meter, purgatory: AnyPurgatory) -> Callable[[], object]:
        return lambda: json.dumps(describe(purgatory, meter.snapshot(), shown))

    return await _read(pending, setting, begin)


async def _read(pending: int, setting: Setting, begin: Callable[[Meter, AnyPurgatory], Callable[[], object]]) -> Measured:
    """What it takes to read, while operations are pending and others have ended."""
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
    return Measured(Contest.alone(took))
