"""`Relay.deliver` and `receive`, on each kind of store: a reply reaches its waiter, in any
process. Failures of servers are in `test_outages`."""

import asyncio
import time
from typing import Any

import pytest
from asgi_requests import Request
from failing_store import FOREVER, FailingStore
from helpers import until
from relay_waits import recorded, set_timeout
from servers import TIMEOUT, on_both_loops

from purgatory import OperationTimeout, RelayUnavailable
from purgatory.asgi import Ending, LongPolls, Outcome
from purgatory.relay import Relay


async def receives(relay: Relay, count: int = 1) -> None:
    """Waits until `count` keys are received here, and their first reads are over."""
    await until(lambda: len(relay._values.waiters) == count and relay._values.calls.task is None)


def is_idle(relay: Relay) -> bool:
    return not relay._values.waiters and not relay._replies.watched


@on_both_loops
async def test_reply_reaches_all_who_receive_it_anywhere(relay):
    async with relay() as here, relay() as there:
        tasks = [asyncio.create_task(each.receive("a", TIMEOUT)) for each in (here, there) * 3]
        await receives(here)
        await receives(there)
        assert await here.deliver("a", b"paid\0", ttl=FOREVER) is True
        assert await asyncio.gather(*tasks) == [b"paid\0"] * 6
        assert await there.deliver("a", b"refused", ttl=FOREVER) is False
        for each in (here, there):
            assert await each.receive("a", TIMEOUT) == b"paid\0"
            assert await each.receive("a", 0) == b"paid\0"
            assert is_idle(each)
            assert await each.version("a") == 0


@on_both_loops
@pytest.mark.parametrize("timeout", [0.1, 0, -1])
async def test_receive_times_out_without_a_reply(file_relay, timeout):
    async with file_relay() as relay:
        begun = time.monotonic()
        match = r"'b'.*nothing was delivered" if timeout <= 0 else "'b'"
        with pytest.raises(OperationTimeout, match=match):
            await relay.receive("b", timeout)
        assert time.monotonic() >= begun + timeout and is_idle(relay)


async def test_poll_receives_a_reply_from_the_relay(file_relay):
    polls, relay = LongPolls(signals=(), max_wait=TIMEOUT), file_relay()

    async def poll(wait: float) -> Outcome[bytes]:
        outcomes: list[Outcome[bytes]] = []

        async def handler(scope: Any, receive: Any, send: Any) -> None:
            outcomes.append(await polls.poll(scope).receive(relay, "a"))
            await outcomes[0].send(send)

        await Request(polls.middleware(handler), f"wait={wait}".encode()).done()
        return outcomes[0]

    with pytest.raises(RuntimeError, match="use it in `async with`"):
        await poll(1)
    async with relay:
        assert (await poll(0)).ending is Ending.DEADLINE
        waiting = asyncio.create_task(poll(TIMEOUT))
        await receives(relay)
        await relay.deliver("a", b"paid", ttl=FOREVER)
        for outcome in (await waiting, await poll(0), await poll(TIMEOUT)):
            assert (outcome.ending, outcome.value) == (Ending.SATISFIED, b"paid")
    refused = await poll(1)
    assert (refused.ending, refused.status) == (Ending.STOPPING, 503)


async def test_cancelled_receive_leaves_nothing_behind(relay):
    async with relay() as here, relay() as there:
        for iterations in range(8):
            task = asyncio.create_task(here.receive("a"))
            for _ in range(iterations):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert is_idle(here)
        await until(lambda: here._values.calls.task is None)
        assert not here._values.calls._queue
        assert await there.deliver("a", b"value", ttl=FOREVER)
        assert await here.receive("a", TIMEOUT) == b"value"


async def test_resync_recovers_lost_message(relay, monkeypatch):
    async with relay(resync=0.3) as here, relay() as there:
        on_settled = here._values.on_settled
        deaf = lambda keys=(): None if keys else on_settled()  # noqa: E731
        monkeypatch.setattr(here._values, "on_settled", deaf)
        values = {f"a{n}": b"%d" % n for n in range(150)}
        tasks = [asyncio.create_task(here.receive(key, TIMEOUT)) for key in values]
        await receives(here, 150)
        await asyncio.gather(*(there.deliver(*item, ttl=FOREVER) for item in values.items()))
        assert await asyncio.gather(*tasks) == [*values.values()]


async def test_deliveries_of_one_iteration_are_few_writes(file_relay):
    async with file_relay() as relay:
        batches = recorded(relay._store, "settle")
        calls = [relay.deliver(f"a{n % 250}", b"%d" % n, ttl=FOREVER) for n in range(500)]
        assert sum(await asyncio.gather(*calls)) == 250
        sizes = [*map(len, batches)]
        assert max(sizes) == 100 and sum(sizes) == 500
        batches.clear()
        calls = [relay.deliver(f"b{n}", bytes(1 << 19), ttl=FOREVER) for n in range(4)]
        assert all(await asyncio.gather(*calls))
        assert [*map(len, batches)] == [2, 2]


# Lost answers


@pytest.mark.parametrize(
    "failures", [["before"], ["after"], ["after", "after", "before"], ["before", "after"]]
)
async def test_delivery_whose_answer_was_lost_is_true_once(tmp_path, failures):
    store: Any = FailingStore(tmp_path, settle=list(failures))
    async with (
        Relay(store, timeout=TIMEOUT) as failing,
        Relay(f"file://{tmp_path}", timeout=TIMEOUT) as other,
    ):
        assert await failing.deliver("a", b"first", ttl=FOREVER) is True
        assert await other.deliver("a", b"second", ttl=FOREVER) is False
        store.failures["settle"] = list(failures)
        assert await failing.deliver("a", b"third", ttl=FOREVER) is False
        assert await other.receive("a", 0) == b"first"


async def test_unanswered_delivery_is_reported_as_perhaps_made(tmp_path):
    async def deliver(failure: str, match: str) -> None:
        store: Any = FailingStore(tmp_path, settle=[failure] * 1_000)
        async with Relay(store, timeout=TIMEOUT) as relay:
            await set_timeout(relay, 2.0)
            with pytest.raises(RelayUnavailable, match=match):
                await relay.deliver(failure, b"", ttl=FOREVER)

    ends = {
        "before": r"gave no answer within 2\.0 s: nothing was written$",
        "after": "(the answer was lost|no answer .*), and it was perhaps delivered$",
        "hangs": "perhaps delivered$",
        "refused": r"'refused': no permission$",
    }
    await asyncio.gather(*(deliver(*item) for item in ends.items()))


async def test_store_without_deliveries_says_so(tmp_path):
    store: Any = FailingStore(tmp_path, without="settle")
    async with Relay(store, timeout=TIMEOUT) as relay:
        with pytest.raises(TypeError, match=r"deliver to 'a': .* takes no deliveries"):
            await relay.deliver("a", b"", ttl=1)
        with pytest.raises(TypeError, match=r"receive 'a': .* takes no deliveries"):
            await relay.receive("a")
