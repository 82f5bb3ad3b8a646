"""`Purgatory.fail` and `fail_all`: waits end with the caller's exception, each once."""

import asyncio

import pytest
from helpers import Broken, Listener, Probe, iterations, outcome, watch_all
from invariants import check
from loops import on_virtual_time

from purgatory import Cause, OperationState, Purgatory, WrongLoop


@pytest.fixture
def lost():
    """The caller's error; it keeps its last traceback alive, so each test has its own."""
    return ConnectionError("the connection is lost")


async def later():
    await asyncio.sleep(60)


def waits(purgatory, key):
    """A wait of each kind for `key`."""

    async def expected():
        with purgatory.expect(key, 30) as reply:
            return await reply

    return [
        purgatory.wait_for(bool, [key], 30),
        purgatory.wait_for(lambda: asyncio.sleep(0), [key, "another"], 30),
        purgatory.wait_for(later, [key], 30),
        purgatory.receive(key, 30),
        purgatory.wait(Probe(30), [key, "another"]),
        expected(),
    ]


@on_virtual_time
@pytest.mark.parametrize("observed", [False, True])
@pytest.mark.parametrize("is_all", [False, True])
async def test_every_kind_of_wait_raises_the_error(is_all, observed, reports, lost):
    listener = Listener()
    async with Purgatory(observer=listener if observed else None) as purgatory:
        failing = [asyncio.create_task(outcome(each)) for each in waits(purgatory, "lost")]
        staying = asyncio.create_task(outcome(purgatory.receive("staying")))
        await iterations(3)
        pending = purgatory.pending
        assert pending == len(failing) + 1
        count = purgatory.fail_all(lost) if is_all else purgatory.fail("lost", lost)
        assert count == len(failing) + is_all
        assert purgatory.pending == pending - count
        assert await asyncio.gather(*failing) == [lost] * len(failing)
        assert asyncio.get_running_loop().time() == 0
        check(purgatory)
        assert purgatory.fail("lost", lost) == 0
        purgatory.deliver("staying", "value")
        assert await staying == (lost if is_all else "value")
        assert purgatory.statistics().cancelled == count
    assert not reports
    if observed:
        ended = [each for each in listener.ended if each.exception is lost]
        assert len(ended) == count
        assert {(each.cause, each.state) for each in ended} == {
            (Cause.FAILED, OperationState.CANCELLED)
        }


@on_virtual_time
async def test_operation_that_is_not_awaited_keeps_the_error(purgatory, reports, lost):
    [operation] = watch_all(purgatory, [Probe(5)])
    assert purgatory.fail("key", lost) == 1
    await iterations(5)
    assert operation.state is OperationState.CANCELLED and "complete" not in operation.calls
    for _ in range(2):
        with pytest.raises(ConnectionError):
            await operation
    assert reports == []


@on_virtual_time
@pytest.mark.parametrize("call", [Purgatory.fail, Purgatory.fail_all])
async def test_refused_error_changes_nothing(purgatory, call, lost):
    [operation] = watch_all(purgatory, [Probe(5)])
    key = ["key"] if call is Purgatory.fail else []
    for bad in (Broken, "lost", None):
        with pytest.raises(TypeError, match="it is not an instance of an exception"):
            call(purgatory, *key, bad)
    with pytest.raises(WrongLoop):
        await asyncio.to_thread(call, purgatory, *key, lost)
    assert purgatory.pending == 1 and operation.state is OperationState.PENDING
    operation.cancel()
