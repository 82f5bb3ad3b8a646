"""A loop in each of several threads, which others hammer: with orders from any thread, and with calls
that are wrong there. No order is lost, and a wrong call raises or reads something stale; the
interpreter stays sound. Without a GIL all of it happens at the same time, and with one the threads
change every 10 µs. The nightly run has these under ThreadSanitizer (.ci/free_threads)."""

import asyncio
import random
import sys
import threading
from asyncio import InvalidStateError
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue

import pytest
from helpers import THOROUGHNESS, Probe
from invariants import check

from purgatory import (
    COMPILED,
    OperationCancelled,
    Purgatory,
    ThresholdPurgatory,
    WheelTimer,
    WrongLoop,
)

LIMIT = 300.0  # seconds; no wait here ends by its deadline


@pytest.fixture(autouse=True)
def threads_change_often():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def run_all(*functions):
    """Calls each function in a thread of its own, and raises the first exception."""
    with ThreadPoolExecutor(len(functions)) as executor:
        calls = [executor.submit(function) for function in functions]
    for call in calls:
        call.result()


class Server:
    """A loop whose clients give orders to other threads, and wait for what those do."""

    def __init__(self, seed, rounds):
        self.random, self.rounds = random.Random(seed), rounds
        self.orders = SimpleQueue()
        self.flags, self.answered = set(), Counter()
        self.purgatory, self.thresholds = Purgatory(), ThresholdPurgatory()
        self.is_ready, self.has_ended = threading.Event(), threading.Event()

    def run(self):
        try:
            asyncio.run(self.main())
        finally:
            self.is_ready.set()
            self.has_ended.set()

    async def main(self):
        self.purgatory.check_and_complete("first use")
        assert not self.purgatory.try_complete_else_watch(operation := Probe(), ["first use"])
        assert operation.cancel() and self.thresholds.advance("first use", 1) == 0
        with suppress(TimeoutError):
            await self.thresholds.wait("first use", 2, 0.0)
        self.is_ready.set()
        await asyncio.gather(*[self.be_client(number) for number in range(20)])
        assert sum(self.answered.values()) == 20 * self.rounds
        check(self.purgatory, self.thresholds)
        statistics = self.purgatory.statistics()
        assert statistics.pending == statistics.watched == statistics.missed_triggers == 0
        assert await self.purgatory.aclose() == []

    async def be_client(self, number):
        for round_ in range(self.rounds):
            kind = self.random.choice(
                [self.predicate, self.query, self.operation, self.reply, self.level]
            )
            shared = self.random.random() < 0.5
            key = number % 3 if shared else ("own", number, round_)
            await kind(key, (number, round_))
            self.answered[kind.__name__] += 1

    async def predicate(self, key, name):
        self.orders.put(("check", key, name))
        await self.purgatory.wait_for(lambda: name in self.flags, [key, "more"], LIMIT)

    async def query(self, key, name):
        async def is_flagged():
            await asyncio.sleep(0)
            return name in self.flags

        self.orders.put(("check", key, name))
        await self.purgatory.wait_for(is_flagged, [key], LIMIT)

    async def operation(self, key, name):
        probe = Probe(
            LIMIT, name=name, trying=lambda each: setattr(each, "ready", name in self.flags)
        )
        self.orders.put(("check", key, name))
        assert await self.purgatory.wait(probe, ["more", key]) == name

    async def reply(self, _, name):
        with self.purgatory.expect(("reply", name), LIMIT) as reply:
            self.orders.put(("deliver", ("reply", name), name))
            assert await reply == name

    async def level(self, _, name):
        self.orders.put(("advance", ("level", name[0]), name[1]))
        assert await self.thresholds.wait(("level", name[0]), name[1], LIMIT) >= name[1]


def obey(server):
    """Carries out orders of its clients."""
    purgatory, thresholds = server.purgatory, server.thresholds
    with suppress(Empty):
        for _ in range(20):
            what, key, value = server.orders.get(timeout=0.01)
            if what == "check":
                server.flags.add(value)
                purgatory.check_and_complete_threadsafe(key)
            elif what == "deliver":
                purgatory.deliver_threadsafe(key, value)
            else:
                thresholds.advance_threadsafe(key, value)


def call_wrongly(server):
    """Calls what belongs to another thread."""
    purgatory, thresholds = server.purgatory, server.thresholds
    for call in (
        lambda: purgatory.check_and_complete("key"),
        lambda: purgatory.cancel_for_key(1),
        lambda: purgatory.deliver(1, "value"),
        lambda: purgatory.fail_all(ValueError()),
        lambda: purgatory.try_complete_else_watch(Probe(LIMIT), [1]),
        lambda: thresholds.advance("key", 5),
        lambda: thresholds.fail("key", ValueError()),
    ):
        with pytest.raises(WrongLoop):
            call()
    assert repr(purgatory) and purgatory.pending >= 0 and purgatory.statistics()
    assert repr(thresholds) and thresholds.statistics()


def test_hammered_loops_lose_nothing():
    servers = [Server(seed, 50 * THOROUGHNESS) for seed in range(4)]

    def hammer():
        for server in servers:
            server.is_ready.wait()
        while not all(server.has_ended.is_set() for server in servers):
            for server in servers:
                obey(server)
                call_wrongly(server)

    run_all(*[server.run for server in servers], *[hammer] * 3)


READS = {
    "result": lambda operation, _: operation.result(),
    "state": lambda operation, _: (operation.state, operation.is_completed, operation.deadline),
    "repr": lambda operation, task: (repr(operation), repr(task)),
    "complete": lambda operation, _: operation.force_complete(),
    "cancel": lambda operation, task: (operation.cancel(), task.cancel()),
    "timer": lambda _, task: (task.when(), task.cancelled(), task.cancel()),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_wrong_calls_of_live_operations_are_harmless(read):
    current, ended = [], threading.Event()

    async def work():
        purgatory, timer = Purgatory(), WheelTimer()
        for _ in range(200 * THOROUGHNESS):
            probes = [Probe(LIMIT, completing=lambda _: [object()]) for _ in range(20)]
            for number, probe in enumerate(probes):
                purgatory.try_complete_else_watch(probe, [number % 5, "all", ("own", number)])
            tasks = [timer.call_later(LIMIT, print) for _ in probes]
            current[:] = zip(probes, tasks, strict=True)
            for probe in probes[::2]:
                probe.ready = True
            assert purgatory.check_and_complete("all") == 10
            assert all(probe.cancel() for probe in probes[1::2])
            assert all(task.cancel() for task in tasks)
            check(purgatory, timer)
            await asyncio.sleep(0)
        assert purgatory.pending == purgatory.watched == 0

    def run():
        try:
            asyncio.run(work())
        finally:
            ended.set()

    def read_all():
        while not ended.is_set():
            for operation, task in (*current,):
                with suppress(
                    RuntimeError, InvalidStateError, OperationCancelled
                ):  # WrongLoop, too
                    read(operation, task)

    run_all(run, read_all, read_all)


@pytest.mark.skipif(not COMPILED, reason="in plain Python two threads may find an operation new")
def test_operation_of_two_loops_has_one_home():
    operations = [Probe(LIMIT) for _ in range(300 * THOROUGHNESS)]
    together, won = threading.Barrier(2), Counter()

    async def watch(key):
        async with Purgatory() as purgatory:
            for operation in operations:
                together.wait()
                with suppress(RuntimeError):  # OperationReused
                    purgatory.try_complete_else_watch(operation, [key, "all"])
                    won[operation] += 1
            check(purgatory)
            assert purgatory.pending == len(purgatory.cancel_for_key("all"))

    run_all(*[lambda key=key: asyncio.run(watch(key)) for key in range(2)])
    assert list(won.values()) == [1] * len(operations)
