"""`Purgatory.expect`: it accepts a reply from before the request is sent."""

import asyncio

import pytest
from helpers import counts, iterations, outcome
from invariants import check
from loops import on_virtual_time

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
    check(purgatory)


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


async def test_a_cancelled_await_may_be_repeated(purgatory):
    with purgatory.expect("key") as reply:
        awaiting = asyncio.create_task(outcome(reply))
        await iterations()
        awaiting.cancel()
        assert purgatory.deliver("key", "value") == 1
        assert isinstance(await awaiting, asyncio.CancelledError)
        assert await reply == "value"


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
    assert counts(purgatory) == (0, 0, 0)
