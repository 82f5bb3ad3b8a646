"""A burst does not stall the loop: each iteration does bounded work, the rest follows in order; and
nothing costs more because much is pending. What has ended is freed at once."""

import asyncio
import gc
import weakref
from itertools import pairwise
from math import inf
from time import process_time

import pytest
from helpers import (
    Broken,
    Listener,
    Probe,
    Pulse,
    collector,
    iterations,
    outcome,
    profiled,
    raiser,
    start_waits,
    watch_all,
)
from invariants import MAX_PER_ITERATION, check
from loops import on_virtual_time

import purgatory as library
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


# Memory


class Weak:
    """Something that a weak reference can watch."""


def freed_by(purgatory, key):
    """Ways to use and end something, each of which returns what has to be free afterwards."""

    async def check():
        [one] = watch_all(purgatory, [Probe(1)], [key, "second"])
        one.ready = True
        assert purgatory.check_and_complete(key) == 1
        return one

    async def ended(method):
        [one] = watch_all(purgatory, [Probe(1)], [key])
        assert getattr(one, method)()
        return one

    async def cancel_key():
        watch_all(purgatory, [one := Probe(1)], [key])
        assert purgatory.cancel_for_key(key) == [one]
        return one

    async def expiry():
        watch_all(purgatory, [one := Probe(1)], [key, "second"])
        await asyncio.sleep(2)
        return one

    async def wait():
        one = Probe(1)
        assert await purgatory.wait(one, [key]) == ""
        return one

    async def cancelled_wait():
        task = asyncio.create_task(outcome(purgatory.wait(one := Probe(1), [key])))
        await iterations()
        task.cancel()
        await task
        return one

    async def predicate():
        def fail():
            raise Broken

        assert isinstance(await outcome(purgatory.wait_for(fail, [key])), Broken)
        return fail

    async def timer():
        argument, wheel = Weak(), WheelTimer()
        wheel.call_later(1, id, argument).cancel()
        wheel.call_later(1, id, argument)
        await asyncio.sleep(2)
        return argument

    async def tracker():
        id_ = Weak()
        with IdleTracker(1, raiser(Broken()), observer=Listener()) as ids:
            ids.touch(id_)
            await asyncio.sleep(2)
            ids._observers = None
            ids.touch(other := Weak())
            ids.remove(other)
        return other

    async def timeout():
        async with library.timeout(30) as limit:
            pass
        return limit

    async def threshold():
        async with ThresholdPurgatory() as thresholds:
            tasks = await start_waits(thresholds, *[(key, n, n and 1) for n in range(40)])
            thresholds.advance(key, 5)
            thresholds.fail(key, Broken(), above=20)
            tasks[15].cancel()
            thresholds.forget(key)
            await asyncio.gather(*tasks)
            return tasks[10]

    async def reply():
        with purgatory.expect(key, 5) as reply:
            purgatory.deliver(key, value := Weak())
            assert await reply is value
        return value

    async def fail():
        error = WeakError()

        async def expected():
            with purgatory.expect(key, 5) as reply:
                await reply

        for wait in (
            purgatory.receive(key, 5),
            expected(),
            purgatory.wait_for(bool, [key], 5),
            purgatory.wait_for(lambda: asyncio.sleep(0), [key], 5),
            purgatory.wait_for(lambda: asyncio.sleep(60), [key], 5),
        ):
            task = asyncio.create_task(outcome(wait))
            await iterations(2)
            assert purgatory.fail(key, error) == 1
            assert await task is error
            error.with_traceback(None)
        return error

    return {
        **{f.__name__: f for f in (check, cancel_key, expiry, wait, cancelled_wait, predicate)},
        **{f.__name__: f for f in (timer, tracker, timeout, threshold, reply, fail)},
        "force_complete": lambda: ended("force_complete"),
        "cancel": lambda: ended("cancel"),
    }


class WeakError(Exception):
    """Has weak references, as all exceptions of a class in Python."""


@on_virtual_time
@pytest.mark.cpython
@pytest.mark.parametrize("observer", [None, Listener()], ids=["unobserved", "observed"])
@pytest.mark.parametrize("way", freed_by(None, None))
async def test_what_has_ended_is_freed_without_collector(way, observer, reports):
    key, reports[:] = Weak(), []
    async with Purgatory(observer=observer) as purgatory:
        with collector(is_on=False):
            reference = weakref.ref(await freed_by(purgatory, key)[way]())
            for log in (observer.ended, observer.checks) if observer else ():
                log.clear()
            key = weakref.ref(key)
            await iterations(4)
            reports.clear()
            assert (reference(), key()) == (None, None)
            assert gc.collect() == 0 or way in (
                "timer",
                "tracker",
                "threshold",
            )  # themselves cycles
        check(purgatory)


@pytest.mark.cpython
async def test_many_purgatories_leave_nothing(recwarn):
    references = []
    for _ in range(3):
        async with Purgatory() as purgatory, ThresholdPurgatory() as thresholds:
            await purgatory.wait(Probe(ready=True), ["key"])
            thresholds.advance("key", 1)
        references += [weakref.ref(purgatory), weakref.ref(thresholds)]
    del purgatory, thresholds
    await iterations(3)
    gc.collect()
    assert {reference() for reference in references} == {None} and not recwarn
