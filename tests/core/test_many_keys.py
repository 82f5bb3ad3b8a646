"""An iteration of the loop bounds registrations as well as operations: an operation that watches a
thousand keys costs as much to release as a thousand operations with one key."""

import asyncio
from math import inf
from time import process_time

import pytest
from helpers import Probe, Pulse, iterations, watch_all
from loops import on_virtual_time

from purgatory import Purgatory

OPERATIONS, KEYS = 128, 1000

MAX_RELEASED = 10_000 + KEYS
"""Registrations that an iteration may release; the last operation may exceed the budget."""


class Releases(Pulse):
    """Counts the registrations that each iteration of the loop has released."""

    def __init__(self, purgatory):
        self.purgatory, self.watched = purgatory, purgatory.watched
        super().__init__()

    def _beat(self):
        super()._beat()
        released, self.watched = self.watched - self.purgatory.watched, self.purgatory.watched
        if released:
            self.last = self.iteration
            self.marks[self.iteration] += released


async def by_check(purgatory, operations):
    for operation in operations:
        operation.ready = True
    purgatory.check_and_complete("key")


async def by_check_of_a_thread(purgatory, operations):
    for operation in operations:
        operation.ready = True
    purgatory.check_and_complete_threadsafe("key")


async def by_deadline(purgatory, operations):
    loop = asyncio.get_running_loop()
    loop._set_time(loop.time() + 10)


async def by_aclose(purgatory, operations):
    await purgatory.aclose()


async def by_acancel_for_key(purgatory, operations):
    await purgatory.acancel_for_key("key")


@on_virtual_time
@pytest.mark.parametrize(
    "end", [by_check, by_check_of_a_thread, by_deadline, by_aclose, by_acancel_for_key]
)
@pytest.mark.parametrize("shared", [True, False], ids=["shared keys", "keys of their own"])
async def test_iteration_releases_a_bounded_number_of_registrations(end, shared):
    purgatory = Purgatory()
    operations = [Probe(5) for _ in range(OPERATIONS)]
    for number, operation in enumerate(operations):
        own = range(KEYS - 1) if shared else range(number * KEYS, (number + 1) * KEYS - 1)
        watch_all(purgatory, [operation], ["key", *own])
    assert purgatory.watched == OPERATIONS * KEYS
    await iterations()
    releases = Releases(purgatory)
    await end(purgatory, operations)
    await iterations(100)
    assert sum(releases.marks.values()) == OPERATIONS * KEYS
    assert purgatory.pending == purgatory.watched == 0
    assert releases.busiest <= MAX_RELEASED


@on_virtual_time
async def test_many_key_operations_completed_by_hook_keep_order():
    ended = []
    async with Purgatory() as purgatory:
        operations = [
            Probe(name=number, completing=lambda operation: ended.append(operation.name))
            for number in range(40)
        ]
        watch_all(purgatory, operations, ["key", *range(KEYS)])
        for operation in operations:
            operation.ready = True
        purgatory.check_and_complete("key")
        await iterations(50)
        assert ended == list(range(40))


def test_watching_many_keys_costs_the_same_among_others():
    async def cost(others: int) -> float:
        async with Purgatory() as purgatory:
            watch_all(purgatory, [Probe() for _ in range(others)], range(KEYS))
            fastest = inf
            for _ in range(10):
                began = process_time()
                purgatory.try_complete_else_watch(Probe(), range(KEYS))
                fastest = min(fastest, process_time() - began)
            return fastest

    assert asyncio.run(cost(200)) < 5 * asyncio.run(cost(2))
