"""`Purgatory.expect`: it accepts a reply from before the request is sent."""

import asyncio
import inspect

import pytest
from helpers import Listener, Probe, counts, iterations, outcome, watch_all
from loops import on_virtual_time

import purgatory as library
from purgatory import (
    OperationCancelled,
    OperationReused,
    OperationTimeout,
    Purgatory,
    PurgatoryClosed,
    Reply,
)


async def test_a_reply_before_the_await_is_kept(purgatory):
    with purgatory.expect("key", timeout=30) as reply:
        assert purgatory.deliver("key", "value") == 1
        assert purgatory.deliver("key", "second") == 0
        await iterations(3)
        assert await reply == await reply == "value"
    assert counts(purgatory, "pending", "watched", "completed") == (0, 0, 1)


async def test_a_reply_during_the_await_is_returned(purgatory):
    asyncio.get_running_loop().call_soon(purgatory.deliver, "key", None)
    with purgatory.expect("key") as reply:
        assert await reply is None
    assert await reply is None


async def test_leaving_the_block_leaves_nothing_behind(purgatory):
    with pytest.raises(ZeroDivisionError), purgatory.expect("key", timeout=30) as reply:
        assert counts(purgatory) == (1, 1, 1)
        raise ZeroDivisionError
    assert counts(purgatory) == (0, 0, 0)
    assert purgatory.deliver("key", "late") == 0
    assert isinstance(await outcome(reply), OperationCancelled)
    purgatory._check()


@on_virtual_time
async def test_the_deadline_counts_from_entering(purgatory):
    loop = asyncio.get_running_loop()
    reply = purgatory.expect("key", timeout=2)
    await asyncio.sleep(5)
    entered = loop.time()
    with reply:
        await asyncio.sleep(1.5)
        with pytest.raises(OperationTimeout, match=r"nothing was delivered to 'key' within 2 s"):
            await reply
        assert loop.time() == pytest.approx(entered + 2, abs=0.002)
        await asyncio.sleep(1)
        assert isinstance(await outcome(reply), OperationTimeout)
    assert purgatory.statistics().expired == 1


async def test_an_expired_reply_is_no_unretrieved_exception(purgatory, reports):
    with purgatory.expect("key", timeout=0):
        await iterations(5)
    assert reports == [] and purgatory.statistics().expired == 1


async def test_a_cancelled_await_may_be_repeated(purgatory):
    with purgatory.expect("key") as reply:
        awaiting = asyncio.create_task(outcome(reply))
        await iterations()
        awaiting.cancel()
        assert purgatory.deliver("key", "value") == 1
        assert isinstance(await awaiting, asyncio.CancelledError)
        assert await reply == "value"


async def test_a_cancelled_task_leaves_the_block(purgatory):
    async def ask():
        with purgatory.expect("key") as reply:
            return await reply

    asking = asyncio.create_task(ask())
    await iterations()
    asking.cancel()
    await asyncio.wait([asking])
    assert asking.cancelled() and purgatory.pending == 0


async def test_several_expect_one_value(purgatory):
    with purgatory.expect("key") as first, purgatory.expect("key") as second:
        assert purgatory.deliver("key", 7) == 2
        assert (await first, await second) == (7, 7)


async def test_a_value_delivered_in_a_hook_counts_once(purgatory):
    [hook] = watch_all(
        purgatory,
        [Probe(completing=lambda _: [purgatory.deliver("key", value) for value in (1, 2)])],
        ["other"],
    )
    with purgatory.expect("key") as reply:
        hook.force_complete()
        assert hook.result() == [1, 0]
    assert await reply == 1, "it has been counted before the block was left"


async def test_closing_ends_the_await():
    purgatory = Purgatory("letters")
    with purgatory.expect("key") as reply:
        awaiting = asyncio.create_task(outcome(reply))
        await iterations()
        await purgatory.aclose()
        assert isinstance(await awaiting, OperationCancelled)
    with pytest.raises(PurgatoryClosed, match="letters is closed"), purgatory.expect("key"):
        raise AssertionError


async def test_misuse_is_refused(purgatory):
    reply = purgatory.expect("key")
    assert isinstance(reply, Reply) and repr(reply) == "<Reply 'key' pending>"
    with pytest.raises(asyncio.InvalidStateError, match=r"cannot await <Reply 'key' pending>"):
        await reply
    with reply, pytest.raises(OperationReused):
        reply.__enter__()
    for timeout, error in ((float("nan"), ValueError), ("5", TypeError)):
        with pytest.raises(error):
            purgatory.expect("key", timeout)
    with pytest.raises(TypeError, match="unhashable"), purgatory.expect([]):
        raise AssertionError
    assert counts(purgatory) == (0, 0, 0)


async def test_an_observer_sees_one_receiver():
    listener = Listener()
    async with Purgatory(observer=listener) as purgatory:
        with purgatory.expect("key"):
            pass
        with purgatory.expect("key") as reply:
            purgatory.deliver("key", 1)
            await reply
    assert [(ended.kind, ended.state.value) for ended in listener.ended] == [
        ("Receiver", "cancelled"),
        ("Receiver", "completed"),
    ]


def test_signature_is_that_of_the_contract():
    parameters = inspect.signature(Purgatory.expect).parameters
    assert list(parameters) == ["self", "key", "timeout"] and "Reply" in library.__all__
