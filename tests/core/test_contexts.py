"""Hooks run in the context (`contextvars`) of the code that caused them, including hooks deferred
to later iterations of the loop; predicates in the context of their wait."""

import asyncio
from contextvars import ContextVar, copy_context

import pytest
from helpers import Probe, in_thread, iterations, watch_all
from loops import on_virtual_time

from purgatory import OperationState

MANY = 2000
"""Enough operations that trying or completing them takes several iterations of the loop."""

caller = ContextVar("caller", default="nobody")


def in_context_of(name, function, *args):
    """Calls the function in a context with `caller` set to `name`."""

    def call():
        caller.set(name)
        return function(*args)

    return copy_context().run(call)


def who(_=None):
    return caller.get()


@on_virtual_time
async def test_hooks_of_check_run_in_checkers_context(purgatory):
    tried = []
    operations = watch_all(purgatory, [Probe(completing=who, ready=False) for _ in range(MANY)])
    for operation in operations:
        operation.ready, operation.trying = True, lambda _: tried.append(who())
    in_context_of("checker", purgatory.check_and_complete, "key")
    await iterations(20)
    assert {operation.state for operation in operations} == {OperationState.COMPLETED}
    assert [operation.result() for operation in operations] == ["checker"] * MANY
    assert tried == ["checker"] * MANY


@on_virtual_time
async def test_deferred_hooks_keep_the_context_that_caused_them(purgatory):
    groups = {
        name: watch_all(purgatory, [Probe(completing=who) for _ in range(MANY)], [name])
        for name in ("one", "two")
    }

    def complete_all(_):
        for name, operations in groups.items():
            for operation in operations:
                in_context_of(name, operation.force_complete)

    await purgatory.wait(Probe(ready=True, completing=complete_all), ["key"])
    await iterations(40)
    for name, operations in groups.items():
        assert {operation.result() for operation in operations[MANY // 2 :]} == {name}


async def check(purgatory, values):
    values.append(True)
    in_context_of("checker", purgatory.check_and_complete, "key")


async def check_in_thread(purgatory, values):
    values.append(True)
    in_context_of("checker", in_thread, purgatory.check_and_complete_threadsafe, "key")


async def miss_the_trigger(purgatory, values):
    values.append(True)


@on_virtual_time
@pytest.mark.parametrize("ending", [check, check_in_thread, miss_the_trigger])
@pytest.mark.parametrize("number", [1, 2, MANY])
@pytest.mark.parametrize("is_asynchronous", [False, True])
async def test_predicate_runs_in_context_of_its_wait(purgatory, is_asynchronous, number, ending):
    values = []

    def predicate():
        return values and who()

    async def query():
        return predicate()

    async def wait(name):
        caller.set(name)
        return await purgatory.wait_for(query if is_asynchronous else predicate, ["key"], 60)

    names = [f"wait {index}" for index in range(number)]
    tasks = [asyncio.create_task(wait(name)) for name in names]
    await iterations(2)
    await ending(purgatory, values)
    assert await asyncio.gather(*tasks) == names
