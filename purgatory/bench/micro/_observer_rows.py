"""The rows about metrics: what they add to a cycle of an operation, alone and beside a journal, and what a scrape costs."""

import asyncio
import time
from collections.abc import Sequence
from tempfile import TemporaryDirectory

from prometheus_client import CollectorRegistry, generate_latest

from purgatory import Observer
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
    meter, registry = Meter(), CollectorRegistry()
    async with AnyPurgatory(observer=meter) as purgatory:
        registry.register(collector(meter, purgatories=purgatory))
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
            generate_latest(registry)
            took.append((time.thread_time() - start) * 1e3)
            await asyncio.sleep(0)
    return Measured(Contest.alone(took))
