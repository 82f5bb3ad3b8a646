"""A burst does not stall the loop: each iteration does bounded work, the rest follows in order; and
nothing costs more because much is pending. That nothing is left is tested in `tests/test_soak.py`."""

import asyncio
from itertools import pairwise
from math import inf
from time import process_time

import pytest
from helpers import (
    Broken,
    Probe,
    Pulse,
    iterations,
    outcome,
    profiled,
    start_waits,
    watch_all,
)
from invariants import MAX_PER_ITERATION, check
from loops import on_virtual_time

from purgatory import IdleTracker, Purgatory, ThresholdPurgatory, WheelTimer

BURST = 5 * MAX_PER_ITERATION + 7


class Bursts:
    """Each method starts a burst of `BURST` units of work; each unit calls `mark`, with its number
    where the order is promised."""

    def __init__(self, mark):
        self.mark, self.loop = mark, asyncio.get_running_loop()
        self.purgatory, self.thresholds, self.timer = (
            Purgatory(),
            ThresholdPurgatory(),
            WheelTimer(),
        )
        self.tracker = IdleTracker(1, mark)
        self.kept = []

    def watch(self, keys=lambda number: ["key"], **options):
        options = {"completing": lambda one: self.mark(one.name), "ready": False} | options
        made = [Probe(name=number, **options) for number in range(BURST)]
        for number, operation in enumerate(made):
            self.purgatory.try_complete_else_watch(operation, keys(number))
        return made

    def ready(self, **options):
        for operation in self.watch(**options):
            operation.ready = True

    async def check(self):
        self.ready()
        assert self.purgatory.check_and_complete("key") == MAX_PER_ITERATION

    async def check_in_vain(self):
        for operation in self.watch():
            operation.trying = lambda one: self.mark(one.name)
        assert self.purgatory.check_and_complete("key") == 0

    async def check_by_thread(self):
        self.ready()
        self.purgatory.check_and_complete_threadsafe("key")

    async def checks_by_thread(self):
        self.ready(keys=lambda number: [number])
        for number in range(BURST):
            self.purgatory.check_and_complete_threadsafe(number)

    async def expiries_of_one_key(self):
        self.watch(timeout=1)
        self.loop._set_time(2)

    async def expiries_of_own_keys(self):
        self.watch(timeout=1, keys=lambda number: [number])
        self.loop._set_time(2)

    async def completions_by_hook(self):
        made = self.watch()
        Probe(completing=lambda _: [one.force_complete() for one in made]).force_complete()

    async def completions_by_first_try(self):
        made = self.watch()
        first = Probe(trying=lambda _: [one.force_complete() for one in made], name="first")
        first.ready = True
        assert self.purgatory.try_complete_else_watch(first, ["first"])
        assert first.result() == "first"

    async def chain(self):
        made = self.watch(keys=lambda number: [number])
        for one, following in pairwise(made):
            one.completing = lambda one, it=following: (self.mark(one.name), it.force_complete())
        made[0].force_complete()

    async def chain_of_purgatories(self):
        made = [Probe(None, name=number, ready=False) for number in range(BURST)]
        self.kept = [Purgatory(str(number)) for number in range(BURST)]

        def complete(one):
            self.mark(one.name)
            if one.name + 1 < BURST:
                made[one.name + 1].ready = True
                self.kept[one.name + 1].check_and_complete("key")

        for purgatory, one in zip(self.kept, made, strict=True):
            one.completing = complete
            purgatory.try_complete_else_watch(one, ["key"])
        made[0].ready = True
        self.kept[0].check_and_complete("key")

    async def cancellations(self):
        self.watched(self.watch())
        self.kept = [asyncio.ensure_future(self.purgatory.acancel_for_key("key"))]

    async def closing(self):
        self.watched(self.watch(keys=lambda number: [number, "key"]))
        self.kept = [asyncio.ensure_future(self.purgatory.aclose())]

    def watched(self, operations):
        async def awaits(one):
            await outcome(one)
            self.mark(one.name)

        self.tasks = [asyncio.create_task(awaits(one)) for one in operations]

    async def delivery(self):
        async def receive(number):
            assert await self.purgatory.receive("key") == "value"
            self.mark(number)

        self.kept = [asyncio.create_task(receive(number)) for number in range(BURST)]
        await iterations(2)
        assert self.purgatory.deliver("key", "value") == BURST

    async def advance(self, end=None):
        async def wait(number):
            await outcome(self.thresholds.wait("key", number // 3))
            self.mark(number)

        self.kept = [asyncio.create_task(wait(number)) for number in range(BURST)]
        await iterations(2)
        if end is None:
            assert self.thresholds.advance("key", BURST) == BURST

    async def failing_thresholds(self):
        await self.advance("fail")
        assert self.thresholds.fail("key", Broken()) == BURST

    async def closing_thresholds(self):
        await self.advance("aclose")
        self.kept.append(asyncio.ensure_future(self.thresholds.aclose()))

    async def values_of_threads(self):
        async def wait(number):
            await self.thresholds.wait(number, 1)
            self.mark(number)

        self.kept = [asyncio.create_task(wait(number)) for number in range(BURST)]
        await iterations(2)
        for number in range(BURST):
            self.thresholds.advance_threadsafe(number, 1)
            self.thresholds.advance_threadsafe(number, 0)  # too low by then

    async def timers(self):
        for number in range(BURST):
            self.timer.call_later(1, self.mark, number)
        self.loop._set_time(2)

    async def idle(self):
        for number in range(BURST):
            self.tracker.touch(number)
        self.loop._set_time(2)


BURSTS = [
    name for name in vars(Bursts) if name[0] != "_" and name not in {"watch", "ready", "watched"}
]


@on_virtual_time
@pytest.mark.parametrize("burst", BURSTS)
async def test_burst_takes_several_iterations_in_order(burst):
    marks, pulses = [], []

    def mark(number):
        pulses or pulses.append(Pulse())
        pulses[0].mark()
        marks.append(number)

    bursts = Bursts(mark)
    await getattr(bursts, burst)()
    await asyncio.sleep(3)
    while len(marks) < BURST:
        await asyncio.sleep(0)
    assert marks == list(range(BURST))
    limit = 2 * MAX_PER_ITERATION if "chain" in burst or "closing" in burst else MAX_PER_ITERATION
    assert pulses[0].busiest <= limit
    assert len(pulses[0].marks) <= 3 * BURST / MAX_PER_ITERATION + 3
    check(bursts.purgatory, bursts.thresholds, bursts.timer, bursts.tracker)
    assert burst != "check_in_vain" or len(bursts.purgatory.cancel_for_key("key")) == BURST
    assert bursts.purgatory.pending == bursts.thresholds.pending == bursts.timer.size == 0
    for each in bursts.kept:
        await each.aclose() if isinstance(each, Purgatory) else await each


# Registrations count as well


@on_virtual_time
@pytest.mark.parametrize("end", ["check", "thread", "deadline", "aclose", "acancel_for_key"])
@pytest.mark.parametrize("shared", [True, False], ids=["shared keys", "keys of their own"])
async def test_iteration_releases_a_bounded_number_of_registrations(end, shared):
    purgatory, left, keys, loop = Purgatory(), [], 1000, asyncio.get_running_loop()
    operations = [Probe(5, name=number) for number in range(64)]
    for one in operations:
        own = range(keys - 1) if shared else range(one.name * keys, (one.name + 1) * keys - 1)
        watch_all(purgatory, [one], ["key", *own])
        one.ready = end in ("check", "thread")
    left.append(purgatory.watched)

    async def look():
        while purgatory.watched:
            await iterations()
            left.append(purgatory.watched)

    looking = asyncio.create_task(look())
    await iterations()
    if end == "deadline":
        loop._set_time(loop.time() + 10)
    elif end == "check":
        purgatory.check_and_complete("key")
    elif end == "thread":
        purgatory.check_and_complete_threadsafe("key")
    else:
        await getattr(purgatory, end)(*["key"] * (end != "aclose"))
    await looking
    assert left[0] == 64 * keys and purgatory.pending == 0
    assert max(before - after for before, after in pairwise(left)) <= 10_000 + keys


# Cost, counted in calls


COSTS = {
    "watch": lambda one, ops, new, keys: one.try_complete_else_watch(new, keys),
    "cancel first": lambda one, ops, new, keys: ops[0].cancel(),
    "cancel middle": lambda one, ops, new, keys: ops[len(ops) // 2].cancel(),
    "force last": lambda one, ops, new, keys: ops[-1].force_complete(),
    "pending": lambda one, ops, new, keys: (one.pending, one.watched, one.statistics()),
}


@on_virtual_time
@pytest.mark.parametrize("spread", [True, False], ids=["own keys", "one hot key"])
async def test_operation_cost_ignores_number_of_pending_operations(spread):
    async def costs(pending):
        async with Purgatory() as purgatory:
            operations = [Probe(30, name=number) for number in range(pending)]
            for one in operations:
                purgatory.try_complete_else_watch(one, [one.name if spread else "hot"])
            keys = ["new" if spread else "hot"]
            return [
                profiled(lambda work=work: work(purgatory, operations, Probe(30), keys))
                for work in COSTS.values()
            ]

    assert await costs(10) == await costs(5000)


async def test_touch_and_advance_cost_ignores_others():
    with IdleTracker(3600, print) as tracker:
        costs = []
        for tracked in (1, 5000):
            for id_ in range(tracked):
                tracker.touch(id_)
            costs.append(profiled(lambda: tracker.touch(0)))
        assert costs[0] == costs[1] <= 8
    async with ThresholdPurgatory() as thresholds:
        tasks, costs = [], []
        for others in (0, 5000):
            tasks += await start_waits(thresholds, *[("key", 10**6 + n) for n in range(others)])
            tasks += await start_waits(thresholds, ("key", value := 1 + 2 * others))
            costs.append(profiled(lambda value=value: thresholds.advance("key", value)))
            costs.append(profiled(lambda value=value: thresholds.advance("key", value + 1)))
        assert costs[2] <= costs[0] + 8 and costs[3] == costs[1]


async def test_watching_many_keys_costs_the_same_among_others():
    async with Purgatory() as few, Purgatory() as many:
        watch_all(few, [Probe() for _ in range(2)], range(1000))
        watch_all(many, [Probe() for _ in range(200)], range(1000))
        fastest = dict.fromkeys((few, many), inf)
        for purgatory in 10 * [few, many]:  # in turn, so that a busy machine slows both
            began = process_time()
            purgatory.try_complete_else_watch(Probe(), range(1000))
            fastest[purgatory] = min(fastest[purgatory], process_time() - began)
        assert fastest[many] < 5 * fastest[few]
