"""`purgatory.asgi`: the endings of a poll, its limits, and the stop, driven as a server drives an
application."""

import asyncio
import contextlib
import gc
import re
import resource
from typing import Any

import pytest
from asgi_requests import Request, lifespan
from helpers import collector, iterations, raiser
from loops import on_every_loop, on_virtual_time
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request as StarletteRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from purgatory import (
    DelayedOperation,
    OperationState,
    OperationTimeout,
    Purgatory,
    ThresholdPurgatory,
    WrongLoop,
)
from purgatory.asgi import Ending, LongPolls, Outcome, Poll


class Service:
    """An application whose requests wait for `results`, in the way of `waiting`, and the outcomes
    that they had."""

    def __init__(self, waiting: str = "predicate", **options: Any) -> None:
        self.polls = LongPolls(**{"signals": (), **options})
        self.purgatory: Purgatory[Any] = Purgatory()
        self.thresholds: ThresholdPurgatory[str, int] = ThresholdPurgatory()
        self.results: dict[str, Any] = {}
        self.outcomes: list[Outcome[Any]] = []
        self.waiting = waiting
        self.app = self.polls.middleware(self.answer)

    async def answer(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while (await receive())["type"] != "lifespan.shutdown":
                await send({"type": "lifespan.startup.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        outcome = await self.wait(self.polls.poll(scope))
        self.outcomes.append(outcome)
        await outcome.send(send, str(outcome.value).encode() if outcome.is_satisfied else b"")

    async def wait(self, poll: Poll) -> Outcome[Any]:
        if self.waiting == "predicate":
            return await poll.wait_for(self.purgatory, lambda: self.results.get("key"), ["key"])
        if self.waiting == "operation":
            return await poll.wait(self.purgatory, Fetch(self.results, poll.remaining), ["key"])
        return await poll.reach(self.thresholds, "key", 1)

    def satisfy(self) -> None:
        self.results["key"] = 1
        self.thresholds.advance("key", 1)
        self.purgatory.check_and_complete("key")

    @property
    def pending(self) -> int:
        return self.purgatory.pending + self.thresholds.pending

    @property
    def endings(self) -> list[Ending]:
        return [outcome.ending for outcome in self.outcomes]

    def check_nothing_is_left(self) -> None:
        assert self.pending == self.polls.open == 0
        assert self.purgatory.watched == 0
        assert self.polls._open_polls is None or not self.polls._open_polls.per_client


class Fetch(DelayedOperation[int]):
    def __init__(self, results: dict[str, Any], timeout: float) -> None:
        super().__init__(timeout)
        self.results = results

    def try_complete(self) -> bool:
        return "key" in self.results and self.force_complete()

    def on_complete(self) -> int:
        return -1 if self.state is OperationState.EXPIRED else self.results["key"]


@pytest.fixture(params=["predicate", "operation", "threshold"])
def waiting(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# The four endings


async def test_what_is_there_already_is_answered_at_once(waiting):
    service = Service(waiting)
    service.satisfy()
    request = await Request(service.app, b"wait=5").done()
    assert (request.status, request.content) == (200, b"1")
    assert service.endings == [Ending.SATISFIED]
    service.check_nothing_is_left()


@on_virtual_time
async def test_what_comes_answers_those_who_wait_for_it(waiting):
    service = Service(waiting)
    requests = [Request(service.app, b"wait=5") for _ in range(3)]
    await asyncio.sleep(1)
    assert service.pending == service.polls.open == 3
    service.satisfy()
    for request in requests:
        assert (await request.done()).status == 200
        assert request.content == b"1"
    assert asyncio.get_running_loop().time() == 1.0
    service.check_nothing_is_left()


@on_virtual_time
async def test_the_deadline_answers_without_content(waiting):
    service = Service(waiting)
    request = await Request(service.app, b"wait=5").done()
    assert asyncio.get_running_loop().time() == 5.0
    assert (request.status, request.content) == (204, b"")
    assert request.headers == {"preference-applied": "wait=5"}
    assert service.endings == [Ending.DEADLINE]
    assert (
        service.outcomes[0].value
        == {"predicate": None, "operation": -1, "threshold": None}[waiting]
    )
    service.check_nothing_is_left()


@on_virtual_time
async def test_disconnect_ends_the_wait_at_once(waiting):
    service = Service(waiting)
    leaver, stayer = Request(service.app), Request(service.app)
    await asyncio.sleep(1)
    leaver.leave()
    await leaver.done()
    assert asyncio.get_running_loop().time() == 1.0
    assert service.endings == [Ending.GONE]
    assert (service.outcomes[0].status, service.pending, service.polls.open) == (499, 1, 1)
    service.satisfy()
    assert (await stayer.done()).status == 200
    service.check_nothing_is_left()


@on_virtual_time
async def test_client_that_left_before_does_not_wait(waiting):
    service = Service(waiting)
    request = Request(service.app)
    request.leave()
    await request.done()
    await Request(service.app, b"wait=0").done()
    assert service.endings == [Ending.GONE, Ending.DEADLINE]
    service.check_nothing_is_left()


@on_virtual_time
async def test_after_a_disconnect_every_wait_ends_at_once(waiting):
    service = Service(waiting)

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        for _ in range(3):
            service.outcomes.append(await service.wait(service.polls.poll(scope)))

    request = Request(service.polls.middleware(answer))
    await asyncio.sleep(1)
    request.leave()
    await request.done()
    assert asyncio.get_running_loop().time() == 1.0
    assert service.endings == [Ending.GONE] * 3
    service.check_nothing_is_left()


@on_virtual_time
async def test_stop_answers_open_polls_and_refuses_new(waiting):
    service = Service(waiting, retry_after=2.5)
    requests = [Request(service.app) for _ in range(3)]
    await asyncio.sleep(1)
    service.polls.stop()
    service.polls.stop()
    late = Request(service.app)
    for request in [*requests, late]:
        await request.done()
        assert request.status == 503
        assert (request.headers["retry-after"], request.headers["connection"]) == ("3", "close")
    assert asyncio.get_running_loop().time() == 1.0
    assert service.polls.endings == {Ending.STOPPING: 4}
    service.check_nothing_is_left()


@on_virtual_time
async def test_endings_are_counted_and_polls_unregistered(waiting):
    service = Service(waiting, max_open=2, max_per_client=2)
    for _ in range(5):
        leaver, late = Request(service.app, b"wait=1"), Request(service.app, b"wait=1")
        await asyncio.sleep(0.5)
        refused = await Request(service.app).done()
        assert refused.status == 503
        leaver.leave()
        await asyncio.gather(leaver.done(), late.done())
        service.check_nothing_is_left()
    assert service.polls.endings == {Ending.GONE: 5, Ending.DEADLINE: 5, Ending.REFUSED: 5}


# Races


async def test_completion_in_the_stops_iteration_is_satisfied(waiting):
    service = Service(waiting)
    request = Request(service.app)
    await iterations(20)
    service.satisfy()
    service.polls.stop()
    assert (await request.done()).status == 200
    service.check_nothing_is_left()


async def test_ended_wait_ignores_checks_of_same_iteration():
    service = Service("operation")
    request = Request(service.app)
    await iterations(20)
    service.polls.stop()
    service.satisfy()
    await request.done()
    statistics = service.purgatory.statistics()
    assert request.status == (200 if statistics.completed else 503)
    service.check_nothing_is_left()


class Tokens:
    """An application whose requests take tokens, two of which wait."""

    def __init__(self, *, gives_back: bool) -> None:
        self.polls = LongPolls(signals=())
        self.purgatory: Purgatory[Any] = Purgatory()
        self.tokens: list[str] = []
        self.waiting: list[Poll] = []
        self.outcomes: list[Outcome[str]] = []
        self.give_back = self.tokens.append if gives_back else None
        self.app = self.polls.middleware(self.answer)

    async def answer(self, scope: Any, receive: Any, send: Any) -> None:
        poll = self.polls.poll(scope)
        self.waiting.append(poll)
        self.outcomes.append(
            await poll.wait_for(
                self.purgatory,
                lambda: self.tokens.pop() if self.tokens else None,
                iter(["key"]),
                give_back=self.give_back,
            )
        )

    def check(self) -> None:
        self.tokens.append("token")
        self.purgatory.check_and_complete("key")

    @property
    def values(self) -> list[tuple[Ending, str]]:
        return [(outcome.ending, outcome.value) for outcome in self.outcomes]


@pytest.mark.parametrize("gives_back", [True, False])
@pytest.mark.parametrize("way", ["client", "server"])
async def test_a_wait_that_is_being_ended_takes_nothing(way, gives_back):
    service = Tokens(gives_back=gives_back)
    requests = [Request(service.app) for _ in range(2)]
    await iterations(20)
    first, _ = service.waiting
    if way == "client":
        service.waiting[0]._client.disconnected = True
        first.on_disconnect()
    else:
        first.on_stop()
    service.check()
    for request in requests:
        await request.done()
    ending = Ending.GONE if way == "client" else Ending.STOPPING
    assert sorted(service.values, key=str) == sorted(
        [(ending, None), (Ending.SATISFIED, "token")], key=str
    )


@pytest.mark.parametrize("gives_back", [True, False])
async def test_client_that_leaves_after_the_check_loses_nothing(gives_back):
    service = Tokens(gives_back=gives_back)
    requests = [Request(service.app) for _ in range(2)]
    await iterations(20)
    service.check()
    service.waiting[0]._client.disconnected = True
    service.waiting[0].on_disconnect()
    await iterations(20)
    if gives_back:
        assert service.values == [(Ending.GONE, None), (Ending.SATISFIED, "token")]
    else:
        assert service.values == [(Ending.SATISFIED, "token")]
        service.check()
    for request in requests:
        await request.done()
    assert service.tokens == []


async def test_task_cancelled_after_the_check_gives_back():
    service = Tokens(gives_back=True)
    requests = [Request(service.app) for _ in range(2)]
    await iterations(20)
    service.check()
    requests[0].task.cancel()
    await requests[1].done()
    assert service.values == [(Ending.SATISFIED, "token")]
    with pytest.raises(asyncio.CancelledError):
        await requests[0].task


async def test_a_give_back_that_raises_is_reported(reports):
    service = Tokens(gives_back=True)
    service.give_back = raiser(ZeroDivisionError())
    request = Request(service.app)
    await iterations(20)
    service.check()
    service.waiting[0]._client.disconnected = True
    await request.done()
    assert service.values == [(Ending.GONE, None)]
    [report] = reports
    assert "give_back" in report["message"] and type(report["exception"]) is ZeroDivisionError


@on_virtual_time
async def test_disconnect_at_the_deadline_reports_nothing(waiting):
    service = Service(waiting)
    requests = [Request(service.app, b"wait=1") for _ in range(3)]
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_at(1.0, service.polls.stop)
    for request in requests:
        await request.done()
    assert set(service.endings) <= {Ending.DEADLINE, Ending.STOPPING}
    service.check_nothing_is_left()
    await iterations(5)


async def test_externally_cancelled_task_stays_cancelled(waiting):
    service = Service(waiting)
    for also_stopped in (False, True):
        request = Request(service.app)
        await iterations(20)
        if also_stopped:
            service.polls.stop()
        request.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request.done()
        assert request.answer == []
        service.check_nothing_is_left()


@on_virtual_time
async def test_ended_wait_leaves_an_outer_timeout_intact(waiting):
    service = Service(waiting)

    async def patient(scope: Any, receive: Any, send: Any) -> None:
        async with asyncio.timeout(10):
            outcome = await service.wait(service.polls.poll(scope))
            assert outcome.ending is Ending.STOPPING
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0
            await asyncio.sleep(1)

    request = Request(service.polls.middleware(patient))
    await asyncio.sleep(1)
    service.polls.stop()
    await request.done()
    assert asyncio.get_running_loop().time() == 2.0


async def test_hook_of_the_wait_may_stop_polls():
    service = Service()

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        purgatory: Purgatory[Any] = Purgatory()
        for result in (None, 7):
            service.polls.is_stopping = False
            outcome = await service.polls.poll(scope).wait_for(
                purgatory, lambda r=result: [service.polls.stop(), r][1], ["k"]
            )
            service.outcomes.append(outcome)
            await iterations(20)  # where a cancellation that was left behind would strike

    await Request(service.polls.middleware(answer)).done()
    assert service.endings == [Ending.STOPPING, Ending.SATISFIED]
    service.check_nothing_is_left()


async def test_closed_purgatory_answers_with_retry_after():
    service = Service()
    requests = [Request(service.app) for _ in range(2)]
    await iterations(20)
    service.purgatory.cancel_for_key("key")
    await asyncio.gather(*(request.done() for request in requests))
    await service.purgatory.aclose()
    requests.append(await Request(service.app).done())
    assert [request.status for request in requests] == [503] * 3
    assert service.endings == [Ending.STOPPING] * 3


async def test_a_full_purgatory_says_come_again():
    service = Service()
    service.purgatory = Purgatory(max_pending=1)
    waiting = Request(service.app)
    await iterations(20)
    for _ in range(3):
        refused = await Request(service.app).done()
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    assert service.polls.open == 1
    service.satisfy()
    assert (await waiting.done()).status == 200
    service.check_nothing_is_left()


async def test_exception_of_a_hook_passes_through_cleanly():
    service = Service()
    errors = [ValueError("bad"), OperationTimeout("not ours")]

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        poll = service.polls.poll(scope)
        for error in errors:
            with pytest.raises(type(error), match=str(error)):
                await poll.wait_for(service.purgatory, lambda e=error: raiser(e)(None), ["key"])
        with pytest.raises(TypeError, match="keys"):
            await poll.wait_for(service.purgatory, lambda: 1, "a string")

    await Request(service.polls.middleware(answer)).done()
    service.check_nothing_is_left()


async def test_receive_error_is_raised_to_the_poll(waiting):
    service = Service(waiting)
    request = Request(service.app)
    request.messages.put_nowait({})  # a message without a type
    with pytest.raises(KeyError):
        await request.done()
    service.check_nothing_is_left()


@pytest.mark.parametrize("is_held", [False, True])
@pytest.mark.parametrize("ending", ["leaves", "fails"])
async def test_early_disconnect_of_a_poll_is_noticed(waiting, ending, is_held):
    service = Service(waiting)

    async def receive() -> Any:
        if ending == "leaves":
            return {"type": "http.disconnect"}
        raise ConnectionError("the server is broken")

    async def answer(scope: Any, _: Any, send: Any) -> None:
        poll = service.polls.poll(scope)
        if is_held:
            outcome = poll.hold()  # an eager task has noticed at once
            assert outcome is None or (ending == "leaves" and outcome.ending is Ending.GONE)
            await iterations(20)
        service.outcomes.append(await service.wait(poll))

    with contextlib.suppress(ConnectionError) if ending == "fails" else contextlib.nullcontext():
        async with asyncio.timeout(20):
            await service.polls.middleware(answer)(
                {"type": "http", "headers": []}, receive, raiser(AssertionError())
            )
    assert service.endings == ([Ending.GONE] if ending == "leaves" else [])
    service.check_nothing_is_left()


async def test_failed_receive_is_raised_by_every_wait(waiting):
    service = Service(waiting)

    async def receive() -> Any:
        raise ConnectionError("the server is broken")

    async def answer(scope: Any, _: Any, send: Any) -> None:
        for _ in range(3):
            with pytest.raises(ConnectionError, match="the server is broken"):
                await service.wait(service.polls.poll(scope))
        service.check_nothing_is_left()

    await service.polls.middleware(answer)(
        {"type": "http", "headers": []}, receive, raiser(AssertionError())
    )


@on_virtual_time
@pytest.mark.parametrize("ending", ["satisfied", "deadline", "leaves", "never polls"])
@pytest.mark.cpython
async def test_a_request_leaves_nothing_for_the_garbage_collector(waiting, ending):
    service = Service(waiting)

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if ending != "never polls":
            await service.wait(service.polls.poll(scope, 1.0))

    async def once() -> None:
        request = Request(service.polls.middleware(answer))
        request.body()
        await iterations(5)
        if ending == "satisfied":
            service.satisfy()
        elif ending == "leaves":
            request.leave()
        await request.done()
        service.results.clear()
        service.thresholds.forget("key")
        await iterations(3)

    await once()
    with collector(is_on=False):
        for _ in range(10):
            await once()
        assert gc.collect() == 0


@on_virtual_time
@pytest.mark.parametrize("is_held", [False, True])
async def test_wait_beyond_its_request_ends_at_stop(waiting, is_held):
    service = Service(waiting)
    tasks: list[asyncio.Task[Outcome[Any]]] = []

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        poll = service.polls.poll(scope)
        if is_held:
            poll.hold()
        tasks.append(asyncio.create_task(service.wait(poll)))
        await asyncio.sleep(1)

    await Request(service.polls.middleware(answer)).done()
    assert service.polls.open == service.pending == 1
    await service.polls.aclose()
    assert (await tasks[0]).ending is Ending.STOPPING
    assert asyncio.get_running_loop().time() == 1.0
    service.check_nothing_is_left()


async def test_one_poll_waits_once_at_a_time():
    service = Service()

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        poll = service.polls.poll(scope)
        first = asyncio.create_task(service.wait(poll))
        await iterations(3)
        with pytest.raises(RuntimeError, match="this poll waits already"):
            await service.wait(poll)
        second = asyncio.create_task(service.wait(service.polls.poll(scope)))
        await iterations(3)
        service.polls.stop()
        assert [(await task).ending for task in (first, second)] == [Ending.STOPPING] * 2

    await Request(service.polls.middleware(answer)).done()
    service.check_nothing_is_left()


class AsynchronousPurgatory:
    """As far as a poll knows it, a purgatory that takes asynchronous predicates: it asks each
    second."""

    async def wait_for(self, predicate: Any, keys: Any, timeout: float) -> Any:
        async with asyncio.timeout(timeout):
            while not (value := await predicate()):
                await asyncio.sleep(1)
        await asyncio.sleep(0)
        return value


@on_virtual_time
@pytest.mark.parametrize("stops", [False, True])
async def test_asynchronous_predicate_result_is_satisfied(stops):
    async def found() -> str | None:
        await asyncio.sleep(0.25)
        if asyncio.get_running_loop().time() < 3.0:
            return None
        if stops:
            service.polls.stop()
        return "found"

    service = Service()
    service.purgatory, purgatory = AsynchronousPurgatory(), service.purgatory  # type: ignore[assignment]

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        poll = service.polls.poll(scope)
        service.outcomes.append(await poll.wait_for(service.purgatory, found, ["key"]))

    await Request(service.polls.middleware(answer)).done()
    assert (service.endings, service.outcomes[0].value) == ([Ending.SATISFIED], "found")
    service.purgatory = purgatory
    service.check_nothing_is_left()


@on_virtual_time
async def test_what_an_asynchronous_predicate_raises_passes_through():
    error = OperationTimeout("its own")

    async def failing() -> None:
        raise error

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        purgatory: Any = AsynchronousPurgatory()
        with pytest.raises(OperationTimeout) as raised:
            await polls.poll(scope).wait_for(purgatory, failing, ["key"])
        assert raised.value is error

    polls = LongPolls(signals=())
    await Request(polls.middleware(answer)).done()


# How long


@on_virtual_time
@pytest.mark.parametrize(
    ("query", "headers", "seconds", "applied"),
    [
        (b"", {}, 30.0, None),
        (b"wait=2", {}, 2.0, "wait=2"),
        (b"wait=0.25", {}, 0.25, "wait=0.25"),
        (b"wait=600", {}, 60.0, "wait=60"),
        (b"wait=inf", {}, 60.0, "wait=60"),
        (b"", {"Prefer": "wait=7"}, 7.0, "wait=7"),
        (b"", {"Prefer": "respond-async, wait=600"}, 60.0, "wait=60"),
        (b"", {"Prefer": "wait=nonsense"}, 30.0, None),
        (b"wait=0", {}, 0.0, "wait=0"),
    ],
)
async def test_requested_wait_is_capped_and_reported(query, headers, seconds, applied):
    service = Service(max_wait=60, default_wait=30)
    request = await Request(service.app, query, headers).done()
    assert asyncio.get_running_loop().time() == seconds
    assert request.headers.get("preference-applied") == applied


async def test_a_malformed_parameter_is_400_with_the_reason(waiting):
    service = Service(waiting)
    service.satisfy()
    assert (await Request(service.app, b"wait=soon").done()).status == 400
    assert (
        service.outcomes[0].reason == "wait must be a number of seconds, zero or more, not 'soon'"
    )
    assert service.outcomes[0].headers == {}
    service.check_nothing_is_left()


@on_virtual_time
async def test_spread_varies_deadlines_and_never_extends_them():
    service = Service(spread=1 / 16)
    ends = []

    async def poll() -> None:
        request = await Request(service.app, b"", {"Prefer": "wait=32"}).done()
        ends.append(asyncio.get_running_loop().time())
        assert ends[-1] <= int(request.headers["preference-applied"].removeprefix("wait=")) <= 32

    await asyncio.gather(*(poll() for _ in range(100)))
    assert 30.0 <= min(ends) < 30.5
    assert 31.5 < max(ends) <= 32.0
    assert len(set(ends)) > 90


@on_virtual_time
async def test_explicit_wait_overrides_the_request():
    service = Service()

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        outcome = await service.polls.poll(scope, wait=3).wait_for(
            service.purgatory, lambda: None, ["key"]
        )
        assert (outcome.ending, outcome.headers) == (Ending.DEADLINE, {})

    await Request(service.polls.middleware(answer), b"wait=nonsense").done()
    assert asyncio.get_running_loop().time() == 3.0


@on_virtual_time
async def test_waits_of_one_poll_share_its_timeout(waiting):
    service = Service(waiting)
    left: list[float] = []

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        poll = service.polls.poll(scope)
        await asyncio.sleep(5)  # it begins with the first wait
        left.append(poll.remaining)
        outcome = await poll.run(asyncio.sleep(0.5, "first"))
        left.append(poll.remaining)
        for _ in range(3):
            service.outcomes.append(await service.wait(poll))
            left.append(poll.remaining)
        assert poll.timeout == 2.0
        await outcome.send(send)

    request = await Request(service.polls.middleware(answer), b"wait=2").done()
    assert service.endings == [Ending.DEADLINE] * 3
    assert asyncio.get_running_loop().time() == 7.0
    assert left == [2.0, 1.5, 0.0, 0.0, 0.0]
    assert request.headers["preference-applied"] == "wait=2"
    service.check_nothing_is_left()


@on_virtual_time
async def test_timeout_set_between_waits_starts_with_next(waiting):
    service = Service(waiting)

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        poll = service.polls.poll(scope, wait=1)
        for _ in range(2):
            service.outcomes.append(await service.wait(poll))
            poll.timeout = 3.0
            await asyncio.sleep(1)

    await Request(service.polls.middleware(answer)).done()
    assert service.endings == [Ending.DEADLINE] * 2
    assert asyncio.get_running_loop().time() == 6.0


# How many


async def test_a_client_has_no_more_than_its_share():
    service = Service(max_per_client=2)
    hers = [Request(service.app, host="192.0.2.7") for _ in range(3)]
    his = Request(service.app, host="192.0.2.8")
    await iterations(20)
    assert hers[2].status == 503
    assert service.outcomes[0].reason == "max_per_client (2) polls of this client are open already"
    assert service.polls.open == 3
    service.satisfy()
    for request in (*hers[:2], his):
        assert (await request.done()).status == 200
    service.check_nothing_is_left()


async def test_a_client_nobody_knows_is_not_limited():
    service = Service(max_per_client=1, client_of=lambda scope: None)
    requests = [Request(service.app) for _ in range(3)]
    await iterations(20)
    assert service.polls.open == 3
    service.satisfy()
    await asyncio.gather(*(request.done() for request in requests))
    service.check_nothing_is_left()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"max_wait": 0.0}, "max_wait must be a finite number of seconds above zero, not 0.0"),
        ({"max_wait": float("nan")}, "max_wait cannot be NaN"),
        ({"max_wait": float("inf")}, "max_wait must be"),
        ({"default_wait": 61.0}, "default_wait must be from 0 to max_wait (60.0), not 61.0"),
        ({"default_wait": -1.0}, "default_wait must be"),
        ({"spread": 1.5}, "spread must be a fraction from 0 to 1, not 1.5"),
        ({"spread": float("nan")}, "spread must be"),
        ({"max_open": 0}, "max_open must be at least 1, or None for no limit, not 0"),
        ({"max_per_client": 0}, "max_per_client must be"),
        (
            {"retry_after": -1.0},
            "retry_after must be a finite number of seconds, zero or more, not -1.0",
        ),
        (
            {"retry_after": float("inf")},
            "retry_after must be a finite number of seconds, zero or more, not inf",
        ),
        ({"grace": float("nan")}, "grace cannot be NaN"),
        (
            {"grace": float("inf")},
            "grace must be a finite number of seconds, zero or more, not inf",
        ),
        ({"max_open": float("nan")}, "max_open must be at least 1, or None for no limit, not nan"),
        ({"max_per_client": float("nan")}, "max_per_client must be"),
        ({"read_ahead": -1}, "read_ahead must be zero or more bytes, not -1"),
        ({"read_ahead": float("nan")}, "read_ahead must be"),
        ({"signals": [15, 4711]}, "signals must be numbers of signals, which 4711 is not"),
    ],
)
def test_option_out_of_bounds_is_refused_by_name(options, complaint):
    with pytest.raises(ValueError, match=re.escape(complaint)):
        LongPolls(**options)


@pytest.mark.parametrize(
    "name",
    [
        "max_wait",
        "default_wait",
        "retry_after",
        "grace",
        "spread",
        "read_ahead",
        "max_open",
        "max_per_client",
    ],
)
def test_option_from_environment_is_refused_by_name(name):
    with pytest.raises(TypeError, match=f"{name} must be a .*, not '60'"):
        LongPolls(**{name: "60"})


@pytest.fixture
def files_limit():
    """Sets the limit of open files, for the length of a test."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield lambda limit: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_default_max_open_is_below_files_limit(files_limit):
    files_limit(1024)
    assert LongPolls().max_open == 768
    assert LongPolls(max_open=None).max_open is None
    assert LongPolls(max_open=5000).max_open == 5000


@pytest.mark.parametrize(
    ("options", "is_warned_of"),
    [
        ({"max_open": None}, True),
        ({"max_open": 1024}, True),
        ({"max_open": 1023}, False),
        ({}, False),
    ],
)
def test_too_few_open_files_log_a_warning(options, is_warned_of, files_limit, caplog, run):
    async def main() -> None:
        app = polls.middleware(Service().answer)
        await lifespan(app, "lifespan.startup", "lifespan.shutdown")

    files_limit(1024)
    polls = LongPolls(signals=(), name="web\npolls", **options)
    run(main)
    assert [
        record.getMessage().startswith(r"web\npolls: max_open is ") for record in caplog.records
    ] == [True] * is_warned_of


async def test_the_authors_own_wait_may_not_be_nan():
    polls = LongPolls(signals=())

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        with pytest.raises(ValueError, match="wait must be a number of seconds, not nan"):
            polls.poll(scope, wait=float("nan"))

    await Request(polls.middleware(answer)).done()


# The stop


@on_virtual_time
async def test_polls_within_grace_may_be_satisfied(waiting):
    service = Service(waiting, grace=2.0)
    satisfied = Request(service.app)
    await asyncio.sleep(1)
    service.polls.stop()
    assert (await Request(service.app).done()).status == 503
    await asyncio.sleep(1)
    service.satisfy()
    assert (await satisfied.done()).status == 200
    assert asyncio.get_running_loop().time() == 2.0
    assert service.polls.open == 0


@on_virtual_time
async def test_end_of_grace_answers_open_polls(waiting):
    service = Service(waiting, grace=2.0)
    requests = [Request(service.app) for _ in range(3)]
    await asyncio.sleep(1)
    await service.polls.aclose()
    assert asyncio.get_running_loop().time() == 3.0
    for request in requests:
        assert (await request.done()).status == 503
    await service.polls.aclose()
    service.check_nothing_is_left()


@on_virtual_time
async def test_very_many_are_answered_over_several_iterations():
    service = Service()
    requests = [Request(service.app) for _ in range(2000)]
    await asyncio.sleep(1)
    service.polls.stop()
    await iterations(1)
    assert 0 < service.polls.open < 2000
    await asyncio.gather(*(request.done() for request in requests))
    assert service.polls.endings == {Ending.STOPPING: 2000}
    assert asyncio.get_running_loop().time() == 1.0


@on_virtual_time
async def test_lifespan_ends_polls_before_the_application():
    service = Service()
    request = Request(service.app)
    await asyncio.sleep(1)
    assert await lifespan(service.app, "lifespan.startup", "lifespan.shutdown") == [
        "lifespan.startup.complete", "lifespan.shutdown.complete"
    ]  # fmt: skip
    assert (await request.done()).status == 503
    assert (await Request(service.app).done()).status == 503


async def test_a_server_that_begins_anew_has_polls_again():
    service = Service()
    await lifespan(service.app, "lifespan.startup", "lifespan.shutdown")
    served = asyncio.create_task(
        lifespan(service.app, "lifespan.startup")
    )  # and keeps waiting for the end
    await iterations(20)
    service.satisfy()
    assert (await Request(service.app).done()).status == 200
    served.cancel()


def test_new_loop_starts_without_polls_of_closed_one(waiting):
    polls = LongPolls(signals=(), max_open=2, max_per_client=2)

    async def main() -> int:
        service = Service(waiting)
        service.polls, service.app = polls, polls.middleware(service.answer)
        requests = [Request(service.app) for _ in range(3)]
        await iterations(20)
        assert polls.open == 2
        service.satisfy()
        statuses = [(await request.done()).status for request in requests[:2]]
        leftover.extend(Request(service.app) for _ in range(2))
        polls.stop()
        return max(statuses)

    async def nothing_is_known_of_it() -> None:
        assert polls.open == 0

    for _ in range(3):
        leftover: list[Request] = []
        assert asyncio.run(main()) == 200
    asyncio.run(nothing_is_known_of_it())


@pytest.mark.every_loop
async def test_stop_from_callback_before_any_request_refuses():
    service = Service()
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()  # as a signal handler: a callback belongs to no task
    loop.call_soon(lambda: [service.polls.stop(), stopped.set()])
    await stopped.wait()
    assert service.polls.is_stopping
    assert (await Request(service.app).done()).status == 503
    service.polls.is_stopping = False
    request = Request(service.app)
    await iterations(20)
    service.satisfy()
    assert (await request.done()).status == 200


@on_every_loop
async def test_stop_threadsafe_from_thread_answers_open_polls():
    service = Service()
    request = Request(service.app, b"wait=60")
    await iterations(20)
    assert service.polls.open == 1
    await asyncio.to_thread(service.polls.stop_threadsafe)
    assert (await request.done()).status == 503
    assert (await Request(service.app).done()).status == 503


@on_every_loop
@pytest.mark.parametrize("has_loop", [False, True])
@pytest.mark.parametrize("opened", [0, 1])
async def test_stop_from_thread_names_the_threadsafe_method(has_loop, opened):
    service = Service()
    service.satisfy()
    await Request(service.app).done()
    service.results.clear()
    requests = [Request(service.app, b"wait=60") for _ in range(opened)]
    await iterations(20)

    async def stop() -> None:
        service.polls.stop()

    def set_flag() -> None:
        service.polls.is_stopping = True

    ways = [stop, service.polls.aclose] if has_loop else [service.polls.stop, set_flag]
    for way in ways:
        with pytest.raises(WrongLoop, match=r"cannot .* these LongPolls: .* call stop_threadsafe"):
            await asyncio.to_thread(lambda: asyncio.run(way()) if has_loop else way())
    assert (service.polls.open, service.polls.is_stopping) == (opened, False)
    service.polls.stop()
    for request in requests:
        assert (await request.done()).status == 503


def test_stop_threadsafe_without_a_loop_has_no_effect():
    service = Service()
    service.polls.stop_threadsafe()

    async def main() -> int:
        service.satisfy()
        return (await Request(service.app).done()).status

    assert asyncio.run(main()) == 200
    service.polls.stop_threadsafe()
    service.purgatory = Purgatory()
    assert asyncio.run(main()) == 200


@on_virtual_time
async def test_running_stop_spares_later_lifespans():
    service = Service(grace=5.0)
    early = Request(service.app)
    await asyncio.sleep(1)
    service.polls.stop()
    served = asyncio.create_task(lifespan(service.app, "lifespan.startup"))
    await asyncio.sleep(1)
    late = Request(service.app, b"wait=10")
    await early.done()
    assert (early.status, asyncio.get_running_loop().time()) == (503, 6.0)
    await late.done()
    assert (late.status, asyncio.get_running_loop().time()) == (204, 12.0)
    service.check_nothing_is_left()
    served.cancel()


def test_two_loops_at_once_raise_wrong_loop():
    service = Service()

    async def wait() -> None:
        await Request(service.app, b"wait=1").done()

    with asyncio.Runner() as first:

        async def open_one() -> Request:
            request = Request(service.app)
            await iterations(20)
            return request

        request = first.run(open_one())
        with (
            asyncio.Runner() as second,
            pytest.raises(WrongLoop, match="these LongPolls have open polls \\(1\\) on"),
        ):
            service.purgatory = Purgatory()
            second.run(wait())
        request.task.cancel()


async def test_http_2_knows_no_connection_header():
    service = Service()
    service.satisfy()
    await Request(service.app).done()
    service.polls.stop()
    assert "connection" not in (await Request(service.app, http_version="2").done()).headers


# Other layers


async def test_other_scopes_pass_through_untouched():
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope, receive, send))

    scope, receive, send = (
        {"type": "something.new"},
        raiser(AssertionError()),
        raiser(AssertionError()),
    )
    await LongPolls(signals=()).middleware(app)(scope, receive, send)
    assert seen == [({"type": "something.new"}, receive, send)]


def test_poll_without_middleware_names_it():
    with pytest.raises(RuntimeError, match=r"did not come through LongPolls\.middleware"):
        LongPolls().poll({"type": "http", "headers": []})


async def test_outer_layer_notices_a_disconnect():
    service, other = Service(), LongPolls(signals=())
    request = Request(other.middleware(service.app))
    await iterations(20)
    request.leave()
    await request.done()
    assert request.most_readers == 1
    assert service.endings == [Ending.GONE]


@on_virtual_time
@pytest.mark.parametrize("is_outer_used_last", [True, False])
async def test_nested_long_polls_share_the_client(is_outer_used_last):
    inner, outer = LongPolls(signals=(), max_wait=5), LongPolls(signals=(), max_wait=9)
    endings = []

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        first, second = (inner, outer) if is_outer_used_last else (outer, inner)
        endings.append((await first.poll(scope).run(asyncio.sleep(100))).ending)
        endings.append((await second.poll(scope).run(asyncio.sleep(100))).ending)
        await receive()

    async def around(scope: Any, receive: Any, send: Any) -> None:
        await inner.middleware(answer)(scope, receive, send)
        endings.append((await outer.poll(scope).run(asyncio.sleep(100))).ending)

    request = Request(outer.middleware(around))
    await asyncio.sleep(15)
    request.leave()
    await request.done()
    assert endings == [Ending.DEADLINE, Ending.DEADLINE, Ending.GONE]
    assert request.most_readers == 1
    assert inner.open == outer.open == 0


@on_virtual_time
async def test_poll_after_its_request_does_not_wait(waiting):
    service = Service(waiting)
    polls: list[Poll] = []

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        polls.append(service.polls.poll(scope))

    await Request(service.polls.middleware(answer)).done()
    refusal = polls[0].hold()
    assert refusal is not None and refusal.ending is Ending.GONE
    assert (await service.wait(polls[0])).ending is Ending.GONE
    service.check_nothing_is_left()
    await service.polls.aclose()
    assert asyncio.get_running_loop().time() == 0.0


@on_virtual_time
async def test_poll_of_a_gone_client_is_not_held(waiting):
    service = Service(waiting)

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        poll = service.polls.poll(scope)
        assert (await service.wait(poll)).ending is Ending.GONE
        refusal = poll.hold()
        assert refusal is not None and refusal.ending is Ending.GONE
        service.check_nothing_is_left()

    request = Request(service.polls.middleware(answer))
    request.leave()
    await request.done()


def starlette_app(service: Service, base_middleware: str) -> Any:
    async def endpoint(request: StarletteRequest) -> Response:
        before = await request.body() if request.query_params.get("read") == "first" else b""
        outcome = await service.wait(service.polls.poll(request.scope))
        service.outcomes.append(outcome)
        if not outcome.is_satisfied:
            return Response(outcome.reason, outcome.status, outcome.headers)
        return JSONResponse(
            {"value": outcome.value, "body": (before or await request.body()).decode()}
        )

    async def dispatch(request: StarletteRequest, call_next: Any) -> Response:
        return await call_next(request)

    app = Starlette(routes=[Route("/", endpoint)])
    if base_middleware == "within":
        app.add_middleware(BaseHTTPMiddleware, dispatch=dispatch)
    app.add_middleware(service.polls.middleware)
    if base_middleware == "around":
        app.add_middleware(BaseHTTPMiddleware, dispatch=dispatch)
    return app


@pytest.mark.parametrize("base_middleware", ["none", "within", "around"])
@pytest.mark.parametrize("query", [b"read=first", b"read=last"])
async def test_body_is_whole_before_or_after_the_wait(base_middleware, query):
    service = Service()
    request = Request(starlette_app(service, base_middleware), query)
    request.body(b"par", more=True)
    request.body(b"t")
    await iterations(50)
    assert service.polls.open == 1
    service.satisfy()
    await request.done()
    assert request.content == b'{"value":1,"body":"part"}'
    assert request.most_readers == 1


@on_virtual_time
@pytest.mark.parametrize("base_middleware", ["none", "within", "around"])
async def test_disconnect_is_noticed_behind_wrapped_receive(
    base_middleware,
):
    service = Service()
    request = Request(starlette_app(service, base_middleware))
    request.body()
    await asyncio.sleep(1)
    assert service.polls.open == 1
    request.leave()
    await request.done()
    assert asyncio.get_running_loop().time() == 1.0
    assert service.endings == [Ending.GONE]
    service.check_nothing_is_left()


async def test_is_disconnected_and_a_poll_share_the_channel():
    service = Service()
    seen = []

    async def endpoint(request: StarletteRequest) -> Response:
        poll = asyncio.create_task(service.wait(service.polls.poll(request.scope)))
        await iterations(20)
        seen.append(await request.is_disconnected())
        await poll
        seen.append(await request.is_disconnected())
        return Response()

    app = Starlette(routes=[Route("/", endpoint)])
    request = Request(service.polls.middleware(app))
    request.body()
    await iterations(100)
    request.leave()
    await request.done()
    assert seen == [False, True]


@on_virtual_time
async def test_ended_request_leaves_no_task(waiting):
    service = Service(waiting)
    for query in (b"wait=0", b"wait=1"):
        await Request(service.app, query).done()
    satisfied = Request(service.app)
    await asyncio.sleep(1)
    service.satisfy()
    await satisfied.done()
    await asyncio.sleep(1)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@on_virtual_time
async def test_clients_that_all_vanish_at_once_leave_nothing(waiting):
    service = Service(waiting)
    requests = [Request(service.app) for _ in range(2_000)]
    await asyncio.sleep(1)
    assert service.pending == 2_000
    for request in requests:
        request.leave()
    await asyncio.gather(*(request.done() for request in requests))
    service.check_nothing_is_left()
    assert asyncio.get_running_loop().time() == 1.0


async def test_answers_204_and_304_have_no_body():
    async def send(message: Any) -> None:
        raise AssertionError

    with pytest.raises(ValueError, match="cannot answer 204 with a body of 1 bytes"):
        await Outcome(Ending.DEADLINE, None, 204).send(send, b"x")


@on_virtual_time
async def test_a_failing_application_leaves_nobody_listening():
    service = Service()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        poll = service.polls.poll(scope, wait=1)
        await service.wait(poll)
        raise ValueError("the author's own")

    request = Request(service.polls.middleware(app))
    with contextlib.suppress(ValueError):
        await request.done()
    await asyncio.sleep(1)
    assert request.readers == 0
    service.check_nothing_is_left()
