"""`Poll.run`: the endings of a wait for any awaitable."""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anyio
import pytest
from asgi_requests import Request
from helpers import iterations
from loops import on_virtual_time

from purgatory import OperationCancelled, OperationTimeout, PurgatoryFull
from purgatory.asgi import Ending, LongPolls, Outcome


class Service:
    """An application that runs what `work` returns, and the outcomes that it had."""

    def __init__(self, work: Callable[[], Awaitable[Any]], **options: Any) -> None:
        self.polls = LongPolls(**{"signals": (), **options})
        self.work = work
        self.outcomes: list[Outcome[Any]] = []
        self.app = self.polls.middleware(self.answer)

    async def answer(self, scope: Any, receive: Any, send: Any) -> None:
        outcome = await self.polls.poll(scope).run(self.work())
        self.outcomes.append(outcome)
        await outcome.send(send, str(outcome.value).encode() if outcome.is_satisfied else b"")

    @property
    def endings(self) -> list[Ending]:
        return [outcome.ending for outcome in self.outcomes]


class Work:
    """A coroutine function that takes `seconds`, and records its progress. Its cleanup takes one
    second more."""

    def __init__(self, seconds: float = 100.0) -> None:
        self.seconds = seconds
        self.log: list[str] = []

    async def __call__(self) -> str:
        self.log.append("begun")
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.log.append("cancelled")
            await asyncio.sleep(1)
            self.log.append("cleaned up")
            raise
        self.log.append("done")
        return "value"


@pytest.fixture(autouse=True, scope="module")
def nothing_is_left_unawaited() -> Iterator[None]:
    """A coroutine that is never awaited warns when it is collected, and a warning is an error
    here."""
    yield
    gc.collect()


def cancelled_and_cleaned_up(work: Work) -> bool:
    return work.log == ["begun", "cancelled", "cleaned up"]


async def nothing_runs() -> bool:
    await iterations(3)
    return asyncio.all_tasks() == {asyncio.current_task()}


@on_virtual_time
async def test_its_value_is_the_outcomes():
    service = Service(Work(3))
    request = await Request(service.app).done()
    assert (request.status, request.content, service.endings) == (200, b"value", [Ending.SATISFIED])
    assert asyncio.get_running_loop().time() == 3.0
    assert service.polls.open == 0
    assert await nothing_runs()


@on_virtual_time
async def test_at_the_deadline_it_is_cancelled_and_awaited():
    work = Work()
    service = Service(work)
    request = await Request(service.app, b"wait=5").done()
    assert (request.status, request.headers["preference-applied"]) == (204, "wait=5")
    assert cancelled_and_cleaned_up(work)
    assert asyncio.get_running_loop().time() == 6.0
    assert await nothing_runs()


@on_virtual_time
async def test_disconnect_cancels_and_awaits_the_awaitable():
    work = Work()
    service = Service(work)
    request = Request(service.app)
    await asyncio.sleep(2)
    request.leave()
    await request.done()
    assert service.endings == [Ending.GONE]
    assert cancelled_and_cleaned_up(work)
    assert asyncio.get_running_loop().time() == 3.0
    assert await nothing_runs()


@on_virtual_time
async def test_stop_cancels_and_awaits_the_awaitable():
    work = Work()
    service = Service(work)
    request = Request(service.app)
    await asyncio.sleep(2)
    await service.polls.aclose()
    assert asyncio.get_running_loop().time() == 3.0
    await request.done()
    assert (request.status, service.endings) == (503, [Ending.STOPPING])
    assert cancelled_and_cleaned_up(work)
    assert await nothing_runs()


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad"),
        TimeoutError("its own"),
        OperationTimeout("its own"),
        OperationCancelled("x"),
        PurgatoryFull("x"),
    ],
)
async def test_its_exception_is_raised_whatever_it_is(error):
    async def work() -> None:
        await asyncio.sleep(0)
        raise error

    service = Service(work)
    with pytest.raises(type(error)) as raised:
        await Request(service.app).done()
    assert raised.value is error
    assert service.polls.open == 0


async def test_cancellation_of_the_awaitable_is_raised():
    task = asyncio.create_task(asyncio.sleep(100))
    service = Service(lambda: task)
    request = Request(service.app)
    await iterations(10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request.done()
    assert service.polls.open == 0


@on_virtual_time
async def test_externally_cancelled_task_stays_cancelled_at_any_end():
    for also_stopped in (False, True):
        work = Work()
        service = Service(work)
        request = Request(service.app)
        await asyncio.sleep(1)
        if also_stopped:
            service.polls.stop()
        request.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request.done()
        assert service.polls.open == 0


@on_virtual_time
@pytest.mark.parametrize("by", ["client", "deadline"])
async def test_value_returned_after_cancellation_is_satisfied(by):
    async def stubborn() -> str:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            return "value"
        raise AssertionError

    service = Service(stubborn)
    request = Request(service.app, b"wait=5")
    await asyncio.sleep(1)
    if by == "client":
        request.leave()
    await request.done()
    assert service.endings == [Ending.SATISFIED]
    assert service.outcomes[0].value == "value"
    task = request.task
    assert task.cancelling() == 0


@pytest.mark.parametrize("kind", ["coroutine", "task", "future", "other"])
async def test_unstarted_awaitable_is_closed_without_warning(kind):
    class Other:
        def __await__(self) -> Any:
            return asyncio.sleep(0).__await__()

    work = Work()
    made: list[Any] = []

    def make() -> Any:
        loop = asyncio.get_running_loop()
        kinds: dict[str, Callable[[], Any]] = {
            "coroutine": work,
            "task": lambda: loop.create_task(asyncio.sleep(100)),
            "future": loop.create_future,
            "other": Other,
        }
        made.append(kinds[kind]())
        return made[-1]

    service = Service(make)
    service.polls.stop()
    malformed, stopping = Request(service.app, b"wait=soon"), Request(service.app)
    assert [(await request.done()).status for request in (malformed, stopping)] == [400, 503]
    await iterations(5)
    if kind in ("task", "future"):
        assert all(each.cancelled() for each in made)
    assert work.log == []


async def test_concurrent_wait_and_non_awaitable_raise_cleanly():
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        poll = polls.poll(scope)
        first = asyncio.create_task(poll.run(Work(100)()))
        await iterations(5)
        with pytest.raises(RuntimeError, match="this poll waits already"):
            await poll.run(Work()())
        with pytest.raises(TypeError, match="cannot wait for 7: it is not awaitable"):
            await poll.run(7)  # type: ignore[arg-type]
        first.cancel()
        await asyncio.wait([first])
        poll.timeout = float("nan")
        with pytest.raises(ValueError, match="NaN"):
            await poll.run(Work()())
        assert polls.open == 0

    polls = LongPolls(signals=())
    await Request(polls.middleware(answer)).done()


@on_virtual_time
async def test_shielded_task_survives_and_can_be_awaited_again():
    task = asyncio.create_task(Work(8)())
    service = Service(lambda: asyncio.shield(task))
    statuses = [(await Request(service.app, b"wait=5").done()).status for _ in range(2)]
    assert statuses == [204, 200]
    assert asyncio.get_running_loop().time() == 8.0


@on_virtual_time
async def test_zero_and_infinite_waits():
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        poll = polls.poll(scope, wait=0)
        assert (await poll.run(Work()())).ending is Ending.DEADLINE

        async def at_once() -> int:
            return 7

        assert (await poll.run(at_once())).value == 7
        poll.timeout = float("inf")
        assert (await poll.run(asyncio.sleep(1e6, 8))).value == 8

    polls = LongPolls(signals=())
    await Request(polls.middleware(answer)).done()


@on_virtual_time
async def test_inner_anyio_scopes_are_cancelled_as_well():
    log: list[str] = []

    async def work() -> None:
        async def child() -> None:
            try:
                await anyio.sleep(100)
            finally:
                log.append("child ended")

        async with anyio.create_task_group() as group:
            group.start_soon(child)
            group.start_soon(child)

    service = Service(work)
    assert (await Request(service.app, b"wait=5").done()).status == 204
    leaver = Request(service.app)
    await asyncio.sleep(1)
    leaver.leave()
    await leaver.done()
    assert service.endings == [Ending.DEADLINE, Ending.GONE]
    assert log == ["child ended"] * 4


async def test_what_is_awaited_may_stop_the_polls_itself():
    async def work() -> None:
        service.polls.stop()
        await asyncio.sleep(100)

    service = Service(work)
    assert (await Request(service.app).done()).status == 503
    assert service.polls.open == 0
