"""What an iteration of the loop does is bounded in registrations as well as in operations: one that watches a thousand keys
costs as much to release as many that watch one."""

import asyncio

import pytest
from helpers import Probe, Pulse, iterations, watch_all
from loops import on_virtual_time

from purgatory import Purgatory

OPERATIONS, KEYS = 128, 1000

MAX_RELEASED = 10_000 + KEYS
"""Registrations that an iteration may release: the last operation may go beyond the budget."""


class Releases(Pulse):
    """Counts in each iteration of the loop how many registrations have gone since the one before."""

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
@pytest.mark.parametrize("end", [by_check, by_check_of_a_thread, by_deadline, by_aclose, by_acancel_for_key])
@pytest.mark.parametrize("shared", [True, False], ids=["shared keys", "keys of their own"])
async def test_what_an_iteration_of_the_loop_releases_is_bounded(end, shared):
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
async def test_operations_of_many_keys_that_a_hook_completes_are_still_completed_in_order():
    ended = []
    async with Purgatory() as purgatory:
        operations = [Probe(name=number, completing=lambda operation: ended.append(operation.name)) for number in range(40)]
        watch_all(purgatory, operations, ["key", *range(KEYS)])
        for operation in operations:
            operation.ready = True
        purgatory.check_and_complete("key")
        await iterations(50)
        assert ended == list(range(40))
