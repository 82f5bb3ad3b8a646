"""The inbox alone: other threads put items, the loop receives them."""

import asyncio

import pytest
from helpers import Spy, in_thread, iterations
from loops import on_every_loop

from purgatory._core.loop import MAX_ITEMS, LoopTimingWheel, ThreadsafeInbox

pytestmark = on_every_loop


class Mailbox:
    """Receives items from an inbox, and records each batch."""

    def __init__(self) -> None:
        self.wheel = LoopTimingWheel(0.001)
        self.times: list[list[object]] = []
        self.inbox: ThreadsafeInbox[object] = ThreadsafeInbox(
            self.wheel, lambda items: self.times.append(list(items))
        )

    def bound(self):
        self.wheel.bind("receive")
        return self


async def test_burst_wakes_loop_once_and_arrives_in_order():
    spy = Spy(asyncio.get_running_loop())
    mailbox = Mailbox().bound()
    for item in ("a", "b", "a"):
        in_thread(mailbox.inbox.put, item)
    assert mailbox.times == [] and spy.calls["call_soon_threadsafe"] == 1
    await iterations(2)
    assert mailbox.times == [["a", "b", "a"]]
    mailbox.inbox.put("c")
    await iterations(2)
    assert mailbox.times == [["a", "b", "a"], ["c"]] and spy.calls["call_soon_threadsafe"] == 2


async def test_repeated_items_coalesce_until_they_are_received():
    mailbox = Mailbox().bound()
    for _ in range(1000):
        mailbox.inbox.put("a")
    assert len(mailbox.inbox) == 1
    await iterations(2)
    mailbox.inbox.put("a")
    await iterations(2)
    assert mailbox.times == [["a"], ["a"]]


async def test_each_iteration_receives_a_bounded_number():
    spy = Spy(asyncio.get_running_loop())
    mailbox = Mailbox().bound()
    for number in range(2 * MAX_ITEMS + 1):
        mailbox.inbox.put(number)
    await iterations(4)
    assert [len(items) for items in mailbox.times] == [MAX_ITEMS, MAX_ITEMS, 1]
    assert [item for items in mailbox.times for item in items] == list(range(2 * MAX_ITEMS + 1))
    assert spy.calls["call_soon_threadsafe"] == 1


@pytest.mark.parametrize("error", [ValueError(), SystemExit()])
async def test_items_survive_a_receiver_that_raises(error):
    def receive(items):
        for item in items:
            times.append(item)
            raise error

    times: list[object] = []
    messages = ThreadsafeInbox(Mailbox().bound().wheel, receive)
    for item in ("a", "b"):
        messages._items.append(item)
    for left in (1, 0):
        with pytest.raises(type(error)):
            messages._drain()
        assert len(messages) == left
    assert times == ["a", "b"]


async def test_items_put_while_receiving_arrive_next_iteration():
    def receive(items):
        times.append([*items])
        if more:
            messages.put(more.pop(0))

    times, more = [], ["second", "third"]
    messages = ThreadsafeInbox(Mailbox().bound().wheel, receive)
    messages.put("first")
    await iterations(5)
    assert times == [["first"], ["second"], ["third"]]


async def test_items_wait_for_the_first_loop():
    mailbox = Mailbox()
    in_thread(mailbox.inbox.put, "early")
    await iterations(2)
    assert mailbox.times == []
    mailbox.bound().inbox.rebind()
    assert mailbox.times == [["early"]]
    mailbox.inbox.rebind()
    assert len(mailbox.times) == 1, "received though nothing had come"


def test_a_closed_loop_drops_items():
    async def begin():
        mailbox.bound()

    mailbox = Mailbox()
    asyncio.run(begin())
    mailbox.inbox.put("late")
    assert len(mailbox.inbox) == 0 and mailbox.times == []


async def test_a_failed_wake_up_is_raised_and_repeated():
    loop = asyncio.get_running_loop()
    mailbox = Mailbox().bound()

    class Deaf:
        def is_closed(self):
            return False

        def call_soon_threadsafe(self, *_, context):
            raise RuntimeError("deaf")

    mailbox.wheel.loop = Deaf()
    with pytest.raises(RuntimeError, match="deaf"):
        mailbox.inbox.put("a")
    mailbox.wheel.loop = loop
    mailbox.inbox.put("b")
    await iterations(2)
    assert mailbox.times == [["a", "b"]]
