"""A poll within foreign scopes: after the end of a wait, the request's task, or a part of it, can
still be cancelled."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from itertools import permutations, product
from typing import Any

import anyio
import pytest
from asgi_requests import WAITS, Reader, Request, Service
from helpers import iterations
from loops import on_every_loop, on_virtual_time
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import StreamingResponse
from starlette.routing import Route

from purgatory import DelayedOperation, Purgatory
from purgatory.asgi import Ending, LongPolls


class Scoped(Service):
    """A request that waits within `around`, and everything that may end it.

    Attributes:
        went_on: whether the endpoint came to its end.
        ended_by_scope: whether `around` has cancelled it.
    """

    def __init__(self, way: str, around: str) -> None:
        super().__init__(way)
        self.around = around
        self.went_on = self.ended_by_scope = False
        self.request: Request | None = None

    async def answer(self, scope: Any, receive: Any, send: Any) -> None:
        task = asyncio.current_task()
        before = task.cancelling()
        try:
            if self.around == "nothing":
                await self.body(scope)
            elif self.around == "timeout":
                async with asyncio.timeout(None) as timeout:
                    self.end = lambda: timeout.reschedule(asyncio.get_running_loop().time())
                    await self.body(scope)
            elif self.around == "anyio":
                with anyio.CancelScope() as around:
                    self.end = around.cancel
                    await self.body(scope)
                self.ended_by_scope = around.cancelled_caught
            else:
                async with asyncio.TaskGroup() as group:
                    sibling = asyncio.get_running_loop().create_future()
                    self.end = lambda: sibling.done() or sibling.set_exception(LookupError())
                    child = group.create_task(asyncio.wait_for(sibling, None))
                    await self.body(scope)
                    child.cancel()
        except (TimeoutError, ExceptionGroup):
            self.ended_by_scope = True
        # In 3.11 a group of tasks does not take its own cancellation back.
        assert task.cancelling() == before or self.around == "group"
        await iterations(5)  # where a cancellation that was left behind would strike

    async def body(self, scope: Any) -> None:
        await self.wait(self.polls.poll(scope))
        await iterations(5)
        self.went_on = True

    def end_scope(self) -> None:
        if not self.went_on and not self.request.task.done():
            self.end()

    async def run(self, events: tuple[str, ...], pause: int) -> bool:
        """Applies the events to a request, `pause` iterations apart, and returns whether the
        request was cancelled."""
        self.request = Request(self.app)
        await iterations(20)
        methods = {
            "satisfy": self.satisfy, "leave": self.request.leave, "stop": self.polls.stop,
            "cancel": self.request.task.cancel, "end_scope": self.end_scope,
        }  # fmt: skip
        for event in events:
            methods[event]()
            await iterations(pause)
        await asyncio.wait([self.request.task])
        self.check_nothing_is_left()
        if self.request.task.cancelled():
            return True
        await self.request.done()
        return False


AROUND = ["nothing", "timeout", "anyio", "group"]
in_each_way = pytest.mark.parametrize("way", WAITS)


@in_each_way
@pytest.mark.parametrize("around", AROUND)
async def test_each_end_of_a_wait_reaches_its_owner(way, around):
    names = ["satisfy", "leave", "stop", "cancel", *(["end_scope"] if around != "nothing" else [])]
    for events, pause in product(permutations(names, 2), range(4)):
        service = Scoped(way, around)
        was_cancelled = await service.run(events, pause)
        came_to_its_end = service.went_on or was_cancelled or service.ended_by_scope
        assert came_to_its_end, (events, pause)
        if "cancel" not in events:
            assert not was_cancelled, (events, pause)
        if "end_scope" not in events:
            assert not service.ended_by_scope, (events, pause)
        is_found = way != "asynchronous predicate" or pause == 3  # by when it has been awaited
        if events[0] == "satisfy" and events[1] in ("stop", "leave") and is_found:
            assert service.endings == [Ending.SATISFIED], (events, pause)


async def test_operation_whose_hook_is_due_is_satisfied():
    class Never(DelayedOperation[str]):
        def try_complete(self) -> bool:
            return False

        def on_complete(self) -> str:
            if self is first:
                second.force_complete()  # its hook is deferred
                service.polls.stop()
            return "value"

    purgatory, first, second = Purgatory[Any](), Never(100.0), Never(100.0)
    service = Service(lambda poll: poll.wait(purgatory, second, ["second"]))
    request = Request(service.app)
    purgatory.try_complete_else_watch(first, ["first"])
    await iterations(5)
    first.force_complete()
    await request.done()
    assert [(each.ending, each.value) for each in service.outcomes] == [(Ending.SATISFIED, "value")]


@on_every_loop
@in_each_way
async def test_cancelled_server_scope_ends_the_wait(way):
    service = Scoped(way, "nothing")

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        with anyio.move_on_after(0.01) as around:
            await service.app(scope, receive, send)
        assert around.cancelled_caught

    await Request(serve).done()
    assert service.outcomes == []
    service.check_nothing_is_left()


@on_virtual_time
@pytest.mark.parametrize("leaves", [True, False])
async def test_value_returned_after_cancellation_is_satisfied(leaves):
    async def stubborn() -> str:
        for _ in range(2):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(10)
        return "value"

    service = Service(lambda poll: poll.run(stubborn()))
    request = Request(service.app, b"wait=60" if leaves else b"wait=5")
    await asyncio.sleep(1)
    if leaves:
        request.leave()
    await request.done()
    assert [(each.ending, each.value) for each in service.outcomes] == [(Ending.SATISFIED, "value")]
    assert request.task.cancelling() == 0
    assert asyncio.get_running_loop().time() == (11.0 if leaves else 15.0)


async def test_other_cancellation_does_not_prevent_the_end():
    other = asyncio.get_running_loop().create_future()

    async def work() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await other
        await asyncio.Event().wait()

    service = Service(lambda poll: poll.run(work()))
    request = Request(service.app)
    await iterations(10)
    other.cancel()
    await iterations(10)
    request.leave()
    await request.done()
    assert service.endings == [Ending.GONE]


class Stream:
    """Held polls whose streams are the user's own, and take `farewell` seconds to end."""

    def __init__(self, farewell: float = 0.0, *, is_behind: bool = False) -> None:
        self.polls, self.farewell = LongPolls(signals=()), farewell
        behind = [Middleware(BaseHTTPMiddleware, dispatch=lambda request, call: call(request))]
        starlette = Starlette(routes=[Route("/", self.answer)], middleware=behind * is_behind)
        self.app = self.polls.middleware(starlette)

    async def answer(self, request: Any) -> StreamingResponse:
        poll = self.polls.poll(request.scope)
        assert poll.hold() is None
        return StreamingResponse(self.parts(poll))

    async def parts(self, poll: Any) -> AsyncIterator[str]:
        if not self.farewell:
            yield "part"  # which is never taken
        await poll.run(asyncio.Event().wait())
        await asyncio.sleep(self.farewell)


@on_virtual_time
@pytest.mark.parametrize("is_behind", [False, True])
@pytest.mark.parametrize(("farewell", "end"), [(0.0, 2.0), (0.5, 1.5), (30.0, 2.0)])
async def test_held_stream_has_a_second_to_end(farewell, end, is_behind):
    stream = Stream(farewell, is_behind=is_behind)
    requests = [Reader(stream.app, "event") for _ in range(3)]
    await asyncio.sleep(1)
    assert stream.polls.open == 3
    await stream.polls.aclose()
    for request in requests:
        await request.done()
        assert request.task.cancelling() == 0
    assert (asyncio.get_running_loop().time(), stream.polls.open) == (end, 0)
    is_whole = request.answer[-1].get("more_body") is False
    assert is_whole is (end == 1.5)
    await asyncio.sleep(5)  # a request that has ended is not cut off


@on_virtual_time
@pytest.mark.parametrize("delay", [0.5, 1.0])
async def test_cut_off_request_may_be_cancelled_by_others(delay):
    stream = Stream()
    request = Reader(stream.app, "event")
    await asyncio.sleep(1)
    stream.polls.stop()
    asyncio.get_running_loop().call_later(delay, request.task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await request.done()
    assert stream.polls.open == 0
