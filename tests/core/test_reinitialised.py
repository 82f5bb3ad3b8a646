"""`__init__` called again: refused while the operation is in use, and then nothing changes."""

import asyncio

import pytest
from helpers import Probe, iterations, outcome

from purgatory import DelayedOperation, OperationReused, OperationState, Purgatory

PENDING, COMPLETED, EXPIRED, CANCELLED = OperationState


class Recorder:
    def __init__(self):
        self.states = []

    def operation_ended(self, ended):
        self.states.append(ended.state)

    def key_checked(self, key, tried, completed): ...


class Again(DelayedOperation):
    """Calls its `__init__` again in one of its hooks."""

    def __init__(self, where, timeout=None):
        super().__init__(timeout)
        self.where, self.refusals = where, 0

    def again(self, where):
        if where in self.where:
            try:
                super().__init__(1.0)
            except OperationReused:
                self.refusals += 1

    def try_complete(self):
        if "cancel" in self.where:
            self.cancel()
        self.again("try")
        if "complete" in self.where:
            self.force_complete()
            self.again("claimed")
            return True
        return False

    def on_complete(self):
        self.again("on_complete")
        return "result"

    def on_expiration(self):
        self.again("on_expiration")


@pytest.mark.parametrize("timeout", [None, 30.0])
@pytest.mark.parametrize("kwargs", [{}, {"timeout": 1.0}, {"deadline": 5.0}])
@pytest.mark.parametrize("keys", [["a"], ["a", "b"]])
async def test_init_of_pending_operation_is_refused(timeout, kwargs, keys):
    async with asyncio.timeout(5):
        purgatory = Purgatory()
        operation, other = Probe(timeout), Probe()
        for each in (operation, other):
            purgatory.try_complete_else_watch(each, keys)
        deadline = operation.deadline
        with pytest.raises(OperationReused, match="being watched"):
            DelayedOperation.__init__(operation, **kwargs)
        assert operation.deadline == deadline and purgatory.pending == 2
        purgatory._check()
        assert await purgatory.aclose() == [operation, other]
        assert purgatory.pending == purgatory.watched == 0


@pytest.mark.parametrize("observed", [False, True])
@pytest.mark.parametrize(
    ("where", "state"),
    [
        (("try",), EXPIRED),
        (("try", "cancel"), CANCELLED),
        (("complete", "claimed"), COMPLETED),
        (("complete", "on_complete"), COMPLETED),
        (("on_expiration",), EXPIRED),
    ],
)
async def test_init_in_hook_is_refused(where, state, observed):
    recorder = Recorder()
    purgatory = Purgatory(observer=recorder if observed else None)
    operation = Again(where, 0)
    assert purgatory.try_complete_else_watch(operation, ["key"]) is True
    await iterations()
    assert operation.refusals == 1 and operation.state is state
    assert recorder.states == [state] * observed
    assert purgatory.pending == purgatory.watched == 0
    purgatory._check()


async def test_init_of_awaited_operation_is_refused():
    operation = Probe(name="result")
    waiting = asyncio.create_task(outcome(operation))
    await iterations()
    with pytest.raises(OperationReused, match="in use"):
        operation.__init__()
    assert operation.force_complete()
    assert await waiting == "result"
    operation.__init__(name="again")
    assert operation.state is PENDING


def test_init_of_unwatched_operation_may_be_repeated():
    operation = Probe(5.0)
    operation.__init__(7.0)
    assert operation._op_timeout == 7.0
