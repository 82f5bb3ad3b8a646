"""Hooks run in the context (`contextvars`) of the code that caused them, including hooks deferred
to later iterations of the loop."""

import asyncio
from contextvars import ContextVar, copy_context

from helpers import Probe, iterations, watch_all
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


@on_virtual_time
async def test_crowded_predicate_is_called_in_checkers_context(purgatory):
    values = []

    def predicate():
        return values and who()

    tasks = [asyncio.create_task(purgatory.wait_for(predicate, ["key"])) for _ in range(MANY)]
    await iterations(2)
    values.append(True)
    in_context_of("checker", purgatory.check_and_complete, "key")
    assert set(await asyncio.gather(*tasks)) == {"checker"}
