"""The way from other threads to the loop, by itself."""

import asyncio

import pytest
from helpers import Spy, in_thread, iterations
from loops import on_every_loop

from purgatory._loop import inbox as inbox_module
from purgatory._loop.inbox import ThreadsafeInbox
from purgatory._wheel.loop_wheel import LoopTimingWheel

pytestmark = on_every_loop


class Mailbox:
    """Receives through an inbox, and notes what came each time."""

    def __init__(self) -> None:
        self.wheel = LoopTimingWheel(0.001)
        self.times: list[list[object]] = []
        self.coalesced: list[int] = []
        self.inbox: ThreadsafeInbox[object] = ThreadsafeInbox(
            self.wheel, lambda items: self.times.append(list(items)), self.coalesce
        )

    def coalesce(self, items):
        self.coalesced.append(len(items))
        return dict.fromkeys(items)

    def bound(self):
        self.wheel.bind("receive")
        return self


async def test_what_comes_before_the_loop_wakes_is_received_at_once_in_order_and_once():
    spy = Spy(asyncio.get_running_loop())
    mailbox = Mailbox().bound()
    for item in ("a", "b", "a"):
        in_thread(mailbox.inbox.put, item)
    assert mailbox.times == [] and spy.calls["call_soon_threadsafe"] == 1
    await iterations(2)
    assert mailbox.times == [["a", "b"]]
    mailbox.inbox.put("c")
    await iterations(2)
    assert mailbox.times == [["a", "b"], ["c"]] and spy.calls["call_soon_threadsafe"] == 2


async def test_what_is_put_while_others_are_received_is_received_in_the_next_iteration():
    def receive(items):
        times.append([*items])
        if more:
            messages.put(more.pop(0))

    times, more = [], ["second", "third"]
    messages = ThreadsafeInbox(Mailbox().bound().wheel, receive, list)
    messages.put("first")
    await iterations(5)
    assert times == [["first"], ["second"], ["third"]]


async def test_before_there_is_a_loop_they_wait_for_one():
    mailbox = Mailbox()
    in_thread(mailbox.inbox.put, "early")
    await iterations(2)
    assert mailbox.times == []
    mailbox.bound().inbox.rebind()
    assert mailbox.times == [["early"]]
    mailbox.inbox.rebind()
    assert len(mailbox.times) == 1, "received though nothing had come"


def test_after_the_loop_is_closed_they_are_lost_and_nothing_is_kept():
    async def begin():
        mailbox.bound()

    mailbox = Mailbox()
    asyncio.run(begin())
    mailbox.inbox.put("late")
    assert not mailbox.inbox._items and mailbox.times == []


async def test_those_that_say_the_same_are_coalesced_before_the_loop_wakes(monkeypatch):
    monkeypatch.setattr(inbox_module, "COALESCE_ABOVE", 4)
    mailbox = Mailbox().bound()
    mailbox.inbox._coalesce_above = 4
    for number in range(1000):
        mailbox.inbox.put(number % 3)
        assert len(mailbox.inbox._items) <= 6
    await iterations(2)
    assert mailbox.times == [[0, 1, 2]]


async def test_many_that_differ_are_looked_through_less_and_less_often(monkeypatch):
    monkeypatch.setattr(inbox_module, "COALESCE_ABOVE", 4)
    mailbox = Mailbox().bound()
    mailbox.inbox._coalesce_above = 4
    for number in range(1000):
        mailbox.inbox.put(number)
    assert sum(mailbox.coalesced) < 4 * 1000
    await iterations(2)
    assert mailbox.times == [list(range(1000))]


async def test_a_loop_that_cannot_be_woken_says_so_and_is_asked_again(monkeypatch):
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
