"""`purgatory.asgi`: the endings of a poll, its limits, and the stop, driven as a server drives an
application. `test_scopes` has the races between two endings."""

import asyncio
import contextlib
import gc
import re
import resource
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from math import inf, nan
from typing import Any

import pytest
from asgi_requests import WAITS, Request, Service, lifespan
from helpers import Listener, iterations, raiser
from loops import on_every_loop, on_virtual_time
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request as StarletteRequest
from starlette.responses import Response
from starlette.routing import Route

from purgatory import (
    Cause,
    OperationCancelled,
    OperationState,
    OperationTimeout,
    Purgatory,
    PurgatoryFull,
    ThresholdPurgatory,
    WrongLoop,
)
from purgatory.asgi import Ending, LongPolls, Outcome, Poll
from purgatory.metrics import Meter

PENDING, COMPLETED, EXPIRED, CANCELLED = OperationState
in_each_way = pytest.mark.parametrize("way", WAITS)


def now() -> float:
    return asyncio.get_running_loop().time()


# The endings


APPLIED = {"preference-applied": "wait=5"}
CLOSING = {"retry-after": "3", "connection": "close"}
ENDS = {  # by name: the ending, the status and headers, and how observers are notified
    "satisfied": (Ending.SATISFIED, 200, APPLIED, COMPLETED, Cause.KEY),
    "deadline": (Ending.DEADLINE, 204, APPLIED, EXPIRED, Cause.DEADLINE),
    "gone": (Ending.GONE, 499, {}, CANCELLED, Cause.CANCELLED),
    "stopping": (Ending.STOPPING, 503, CLOSING, CANCELLED, Cause.CLOSED),
    "cancelled": (None, 0, {}, CANCELLED, Cause.CANCELLED),
}


@on_virtual_time
@in_each_way
@pytest.mark.parametrize("how", ENDS)
async def test_each_ending_is_one_answer_and_event(way, how):
    (ending, status, headers, state, cause), listener, meter = ENDS[how], Listener(), Meter()
    started: list[object] = []
    listener.operation_started = lambda it: started.append(id(it))  # type: ignore[attr-defined]
    service = Service(
        way, retry_after=2.5, retry_jitter=0, name="board", observer=[listener, meter]
    )
    request = Request(service.app, b"wait=5")
    await asyncio.sleep(1)
    assert (service.polls.open, len(started), listener.ended) == (1, 1, [])
    if how == "satisfied":
        service.satisfy()
    elif how == "gone":
        request.leave()
    elif how == "stopping":
        service.polls.stop()
        service.polls.stop()
    elif how == "cancelled":
        request.task.cancel()
    await asyncio.wait([request.task])
    assert now() == pytest.approx(5.0 if how == "deadline" else 1.0)
    [event] = listener.ended
    assert (event.purgatory, event.kind, event.keys, event.key) == ("board", "poll", (), None)
    assert (event.state, event.cause, event.exception) == (state, cause, None)
    assert (event.started_at, event.ended_at, event.timeout) == (0.0, now(), 5.0)
    assert [event.operation_id] == started
    [kind] = meter.snapshot()
    assert kind.outcomes == {(state, cause): 1}
    if ending is None:
        assert request.task.cancelled() and request.answer == service.outcomes == []
    else:
        assert (service.endings, request.status) == ([ending], status)
        assert service.polls.endings == {ending: 1}
        assert request.headers.items() >= headers.items()
        found = b"1" if way == "threshold" else b"found"
        assert request.content == (found if how == "satisfied" else b"")
    if (how, way) == ("deadline", "operation"):
        assert service.outcomes[0].value == "late"
    service.check_nothing_is_left()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@on_virtual_time
@in_each_way
@pytest.mark.parametrize(
    ("before", "query", "status"),
    [
        ("satisfied", b"wait=5", 200),
        ("gone", b"wait=5", 499),
        ("stopping", b"wait=5", 503),
        ("satisfied", b"wait=soon", 400),
        ("", b"wait=0", 204),
    ],
)
async def test_wait_that_cannot_begin_ends_at_once(way, before, query, status):
    service = Service(way)

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        for _ in range(2):
            outcome = await service.wait(service.polls.poll(scope))
        await outcome.send(send)
        if before == "gone":
            refusal = service.polls.poll(scope).hold()
            assert refusal is not None and refusal.ending is Ending.GONE

    service.answer = answer
    if before == "satisfied":
        service.satisfy()
    elif before == "stopping":
        service.polls.stop()
    request = Request(service.app, query, http_version="2")
    if before == "gone":
        request.leave()
    await request.done()
    assert ([each.status for each in service.outcomes], now()) == ([status] * 2, 0.0)
    assert "connection" not in request.headers  # there is none in HTTP/2
    if status == 400:
        reason = "wait must be a number of seconds, zero or more, not 'soon'"
        assert (service.outcomes[0].reason, service.outcomes[0].headers) == (reason, {})
    service.check_nothing_is_left()


@on_virtual_time
async def test_refused_poll_notifies_only_after_starting():
    listener = Listener()
    service = Service(max_open=2, retry_jitter=0, observer=listener)
    service.purgatory = Purgatory(max_pending=1)
    first = Request(service.app)
    await asyncio.sleep(1)
    full = await Request(service.app).done()
    assert (full.status, full.headers["retry-after"]) == (503, "1")
    [ended] = listener.ended
    assert (ended.state, ended.cause, ended.exception) == (CANCELLED, Cause.FAILED, None)
    service.polls.max_open = 1
    await Request(service.app).done()
    await Request(service.app, b"wait=nonsense").done()
    service.polls.stop()
    await first.done()
    await Request(service.app).done()
    assert len(listener.ended) == 2


@on_virtual_time
async def test_raising_observer_is_reported_and_harmless(reports):
    listener = Listener()
    listener.operation_ended = listener.operation_started = raiser(ZeroDivisionError())  # type: ignore
    service = Service(observer=listener)
    service.satisfy()
    assert (await Request(service.app).done()).status == 200
    named = [report["message"].split(" ")[1] for report in reports]
    assert named == ["operation_started", "operation_ended"]
    with pytest.raises(TypeError, match="observer must have a method"):
        LongPolls(observer=object())  # type: ignore[arg-type]


# What is taken and cannot be returned


class Tokens(Service):
    """An application of which two requests wait for tokens, which they take."""

    def __init__(self, give_back: Any = None) -> None:
        super().__init__()
        self.tokens: list[str] = []
        self.waiting: list[Poll] = []
        self.give_back = self.tokens.append if give_back is True else give_back
        self.requests = [Request(self.app) for _ in range(2)]

    async def answer(self, scope: Any, receive: Any, send: Any) -> None:
        self.waiting.append(self.polls.poll(scope))
        take = lambda: self.tokens.pop() if self.tokens else None  # noqa: E731
        options = {"keys": iter(["key"]), "give_back": self.give_back}
        outcome = await self.waiting[-1].wait_for(self.purgatory, take, **options)
        self.outcomes.append((outcome.ending, outcome.value))

    def act(self, *actions: str) -> None:
        for action in actions:
            if action == "check":
                self.tokens.append("token")
                self.purgatory.check_and_complete("key")
            elif action == "leave":  # as in an iteration in which the client's reader runs first
                self.waiting[0]._client.disconnected = True
                self.waiting[0].on_disconnect()
            elif action == "stop":
                self.waiting[0].on_stop()
            else:
                self.requests[0].task.cancel()


TAKEN, GONE, STOPPING = (Ending.SATISFIED, "token"), (Ending.GONE, None), (Ending.STOPPING, None)


@pytest.mark.parametrize(
    ("actions", "given_back", "kept"),
    [
        (["leave", "check"], [GONE, TAKEN], [GONE, TAKEN]),
        (["stop", "check"], [STOPPING, TAKEN], [STOPPING, TAKEN]),
        (["check", "leave"], [GONE, TAKEN], [TAKEN]),
        (["check", "cancel"], [TAKEN], []),
    ],
)
@pytest.mark.parametrize("give_back", [True, None])
async def test_value_of_ended_wait_goes_to_next(actions, given_back, kept, give_back):
    service = Tokens(give_back)
    await iterations(20)
    service.act(*actions)
    await iterations(20)
    assert sorted(service.outcomes, key=str) == sorted(given_back if give_back else kept, key=str)
    if not service.requests[1].task.done():
        service.act("check")
    await service.requests[1].done()
    assert service.tokens == []
    assert service.requests[0].task.cancelled() is ("cancel" in actions)


@on_virtual_time
@pytest.mark.parametrize("end", ["cancel_for_key", "fail", "aclose", "deadline"])
async def test_late_value_is_given_back(end):
    """An asynchronous predicate has it when the wait has ended otherwise."""
    service, pool, ready = Service(), ["job"], asyncio.Event()

    async def take() -> str:
        if end == "deadline":
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
        await ready.wait()
        return pool.pop()

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        poll = service.polls.poll(scope)
        await poll.wait_for(service.purgatory, take, ["key"], give_back=pool.append)

    service.answer = answer  # type: ignore[method-assign]
    request = Request(service.app, b"wait=5")
    await iterations(20)
    ready.set()
    if end == "aclose":
        await service.purgatory.aclose()
    elif end != "deadline":
        error = [KeyError("x")] if end == "fail" else []
        getattr(service.purgatory, end)("key", *error)
    await asyncio.wait([request.task])
    assert pool == ["job"]


async def test_raising_give_back_is_reported(reports):
    service = Tokens(raiser(ZeroDivisionError()))
    await iterations(20)
    service.act("check")
    service.waiting[0]._client.disconnected = True
    await service.requests[0].done()
    assert service.outcomes == [GONE]
    [report] = reports
    assert "give_back" in report["message"] and type(report["exception"]) is ZeroDivisionError
    service.requests[1].task.cancel()


# The context and the name of a wait


TENANT: ContextVar[str] = ContextVar("TENANT")


@on_virtual_time
@pytest.mark.parametrize("is_asynchronous", [False, True])
@pytest.mark.parametrize("by", ["check", "deadline"])
async def test_predicate_runs_in_the_context_of_its_wait(is_asynchronous, by):
    listener, seen = Listener(), []
    purgatory: Purgatory[Any] = Purgatory(observer=listener)

    def look() -> str | None:
        seen.append(TENANT.get())
        return seen[-1] if len(seen) > 1 else None

    async def look_later() -> str | None:
        await asyncio.sleep(0)
        return look()

    async def wait(poll: Poll) -> Outcome[str]:
        TENANT.set("the request's")
        predicate: Any = look_later if is_asynchronous else look
        return await poll.wait_for(purgatory, predicate, ["key"], kind="mail")

    service = Service(wait)
    request = Request(service.app, b"wait=5")
    await asyncio.sleep(1)
    TENANT.set("another")
    if by == "check":
        purgatory.check_and_complete("key")
    await request.done()
    assert seen == ["the request's"] * 2
    assert [(each.ending, each.value) for each in service.outcomes] == [
        (Ending.SATISFIED, "the request's")
    ]
    assert [ended.kind for ended in listener.ended] == ["mail"]


@on_virtual_time
async def test_wait_for_a_threshold_has_its_kind():
    listener = Listener()
    thresholds: ThresholdPurgatory[str, int] = ThresholdPurgatory(observer=listener)
    kinds: list[str | None] = [None, "offset"]

    async def wait(poll: Poll) -> Outcome[int]:
        return await poll.reach(thresholds, "key", 1, kind=kinds.pop())

    service = Service(wait)
    for _ in range(2):
        await Request(service.app, b"wait=0").done()
    assert [ended.kind for ended in listener.ended] == ["offset", "wait"]


# Errors


async def test_hook_that_stops_polls_ends_its_wait():
    service = Service()

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        for result in (None, 7):
            service.polls.is_stopping = False
            outcome = await service.polls.poll(scope).wait_for(
                service.purgatory, lambda r=result: [service.polls.stop(), r][1], ["k"]
            )
            service.outcomes.append(outcome)
            await iterations(20)  # where a cancellation that was left behind would strike

    service.answer = answer
    await Request(service.app).done()
    assert service.endings == [Ending.STOPPING, Ending.SATISFIED]
    service.check_nothing_is_left()


async def test_closed_purgatory_answers_with_retry_after():
    service = Service()
    first = Request(service.app)
    await iterations(20)
    service.purgatory.cancel_for_key("key")
    await first.done()
    await service.purgatory.aclose()
    second = await Request(service.app).done()
    assert [first.status, second.status] == [503] * 2
    assert service.endings == [Ending.STOPPING] * 2


ERRORS = [ValueError("bad"), OperationTimeout("its own")]
OTHERS = [TimeoutError(), OperationCancelled("x"), PurgatoryFull("x"), asyncio.CancelledError()]


@pytest.mark.parametrize(
    ("way", "errors"),
    [("predicate", ERRORS), ("asynchronous predicate", ERRORS), ("run", [*ERRORS, *OTHERS])],
)
async def test_exceptions_of_user_code_pass_through(way, errors):
    listener = Listener()
    service = Service(observer=listener)

    async def later() -> None:
        await asyncio.sleep(0)
        raise error

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        poll = service.polls.poll(scope)
        if way == "run":
            await poll.run(later())
        predicate = (lambda: raiser(error)(None)) if way == "predicate" else later
        await poll.wait_for(service.purgatory, predicate, ["key"])

    service.answer = answer
    for error in errors:
        request = Request(service.app)
        with pytest.raises(type(error)) as raised:
            await request.done()
        await iterations(3)
        assert request.readers == 0
        is_error = isinstance(error, Exception)
        assert raised.value is error or not is_error
        event = listener.ended.pop()
        assert event.exception is (error if is_error else None)
        assert event.cause is (Cause.FAILED if is_error else Cause.CANCELLED)
        service.check_nothing_is_left()


@in_each_way
@pytest.mark.parametrize("is_held", [False, True])
@pytest.mark.parametrize("ending", ["leaves", "fails"])
async def test_early_end_of_receive_reaches_every_wait(way, ending, is_held):
    service = Service(way)

    async def receive() -> Any:
        if ending == "leaves":
            return {"type": "http.disconnect"}
        raise ConnectionError("the server is broken")

    failure = pytest.raises(ConnectionError, match="the server is broken")

    async def answer(scope: Any, _: Any, send: Any) -> None:
        for _ in range(2):
            poll = service.polls.poll(scope)
            with failure if ending == "fails" else contextlib.nullcontext():
                if is_held:
                    outcome = poll.hold()  # an eager task has noticed at once
                    assert outcome is None or outcome.ending is Ending.GONE
                    await iterations(20)
                await service.wait(poll)
            await iterations(20)

    service.answer = answer
    scope = {"type": "http", "headers": []}
    async with asyncio.timeout(60):
        await service.app(scope, receive, raiser(AssertionError()))
    assert service.endings == [Ending.GONE] * (2 * (ending == "leaves"))
    service.check_nothing_is_left()


async def test_one_poll_waits_once_at_a_time():
    service = Service()

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        poll = service.polls.poll(scope)
        first = asyncio.create_task(service.wait(poll))
        await iterations(3)
        for wait in (service.wait(poll), poll.run(asyncio.sleep(1))):
            with pytest.raises(RuntimeError, match="this poll waits already"):
                await wait
        second = asyncio.create_task(service.wait(service.polls.poll(scope)))
        await iterations(3)
        service.polls.stop()
        assert [(await task).ending for task in (first, second)] == [Ending.STOPPING] * 2
        with pytest.raises(TypeError, match="cannot wait for 7: it is not awaitable"):
            await poll.run(7)  # type: ignore[arg-type]

    service.answer = answer
    await Request(service.app).done()
    service.check_nothing_is_left()


@on_virtual_time
@in_each_way
@pytest.mark.parametrize("is_held", [False, True])
async def test_wait_beyond_its_request_ends_at_stop(way, is_held):
    service = Service(way)
    tasks: list[asyncio.Task[Outcome[Any]]] = []
    polls: list[Poll] = []

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        polls.extend(service.polls.poll(scope) for _ in range(2))
        if is_held:
            polls[0].hold()
        tasks.append(asyncio.create_task(service.wait(polls[0])))
        await asyncio.sleep(1)

    service.answer = answer
    await Request(service.app).done()
    assert service.polls.open == 1
    refusal = polls[1].hold()  # its request is over
    assert refusal is not None and refusal.ending is Ending.GONE
    assert (await service.wait(polls[1])).ending is Ending.GONE
    await service.polls.aclose()
    assert (await tasks[0]).ending is Ending.STOPPING
    assert now() == 1.0
    service.check_nothing_is_left()


# How long


@on_virtual_time
async def test_spread_shortens_waits_and_never_extends():
    service = Service(spread=1 / 16)
    ends = []

    async def poll() -> None:
        request = await Request(service.app, b"", {"Prefer": "wait=32"}).done()
        ends.append(now())
        assert ends[-1] <= int(request.headers["preference-applied"].removeprefix("wait=")) <= 32

    await asyncio.gather(*(poll() for _ in range(100)))
    assert 30.0 <= min(ends) < 30.5
    assert 31.5 < max(ends) <= 32.0
    assert len(set(ends)) > 90


@on_virtual_time
@in_each_way
async def test_waits_of_one_poll_share_its_timeout(way):
    service = Service(way)
    left: list[float] = []

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        poll = service.polls.poll(scope)
        await asyncio.sleep(5)  # it begins with the first wait
        left.append(poll.remaining)
        await poll.run(asyncio.sleep(0.5))
        left.append(poll.remaining)
        for _ in range(2):
            await service.wait(poll)
            left.append(poll.remaining)
        assert poll.timeout == 2.0
        poll.timeout = 3.0  # starts with the next wait
        await asyncio.sleep(1)
        await service.wait(poll)

    service.answer = answer
    await Request(service.app, b"wait=2").done()
    assert service.endings == [Ending.DEADLINE] * 3
    assert (now(), left) == (11.0, [2.0, 1.5, 0.0, 0.0])
    assert service.outcomes[-1].headers["Preference-Applied"] == "wait=2"
    service.check_nothing_is_left()


@on_virtual_time
async def test_explicit_wait_overrides_the_request():
    listener = Listener()
    service = Service(observer=listener)

    async def at_once() -> int:
        return 7

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        poll = partial(service.polls.poll, scope)
        with pytest.raises(ValueError, match="wait must be a number of seconds, not nan"):
            poll(nan)
        outcome = await service.wait(poll(3))
        assert (outcome.ending, outcome.headers) == (Ending.DEADLINE, {})
        assert (await poll(0).run(at_once())).value == 7
        assert (await poll(inf).run(asyncio.sleep(1e6, 8))).value == 8

    service.answer = answer
    await Request(service.app, b"wait=nonsense").done()
    assert now() == 1e6 + 3.0
    assert [each.timeout for each in listener.ended] == [3.0, 0.0, None]


# How many


@on_virtual_time
async def test_client_has_no_more_than_its_share():
    service = Service(
        max_open=4, max_per_client=2, client_of=lambda scope: scope["client"][0] or None
    )
    hers = [Request(service.app, host="192.0.2.7") for _ in range(3)]
    await asyncio.sleep(1)
    unknown = [Request(service.app, host="") for _ in range(3)]
    await asyncio.sleep(1)
    assert [each.reason for each in service.outcomes] == [
        "max_per_client (2) polls of this client are open already",
        "max_open (4) polls are open already",
    ]
    unknown[0].leave()
    hers[0].leave()
    await hers[0].done()
    again = [Request(service.app, host="192.0.2.7") for _ in range(2)]
    await asyncio.sleep(1)
    service.satisfy()
    statuses = [(await request.done()).status for request in (*hers, *unknown, *again)]
    assert statuses == [499, 200, 503, 499, 200, 503, 200, 503]
    counts = {Ending.REFUSED: 3, Ending.GONE: 2, Ending.SATISFIED: 3}
    assert service.polls.endings == counts
    service.check_nothing_is_left()


@on_virtual_time
@pytest.mark.parametrize("max_open", [2, 4])
async def test_newest_poll_of_a_client_replaces_its_oldest(max_open):
    service = Service(max_open=max_open, max_per_client=2, replace_oldest=True)
    polls = []
    for _ in range(4):
        polls.append(Request(service.app))
        await asyncio.sleep(1)
    assert service.polls.open == 2
    assert [each.reason for each in service.outcomes] == [
        "a newer poll of this client has replaced it"
    ] * 2
    service.satisfy()
    assert [(await request.done()).status for request in polls] == [503, 503, 200, 200]
    service.check_nothing_is_left()
    with pytest.raises(ValueError, match="replace_oldest needs max_per_client, which is None"):
        LongPolls(replace_oldest=True)


@on_virtual_time
async def test_held_poll_replaced_between_waits_is_refused():
    service = Service(max_per_client=1, replace_oldest=True)

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        poll = service.polls.poll(scope, wait=5)
        poll.hold()
        await asyncio.sleep(0.5)
        outcome = await poll.wait_for(service.purgatory, lambda: None, ["key"])
        service.outcomes.append((now(), outcome.ending, outcome.reason))

    service.answer = answer  # type: ignore[method-assign]
    requests = [Request(service.app)]
    await asyncio.sleep(0.1)
    requests.append(Request(service.app))
    await asyncio.wait([each.task for each in requests])
    replaced = (0.5, Ending.REFUSED, "a newer poll of this client has replaced it")
    assert service.outcomes == [replaced, (5.6, Ending.DEADLINE, "")]


@on_virtual_time
async def test_retry_after_of_a_restart_is_spread():
    service = Service(retry_after=2.5, retry_jitter=7)
    service.polls.stop()
    pauses = {int((await Request(service.app).done()).headers["retry-after"]) for _ in range(300)}
    assert pauses == set(range(3, 11))


@on_virtual_time
@pytest.mark.parametrize("own", [None, "private, max-age=5"])
async def test_no_cache_keeps_an_answer(own):
    service = Service()

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if scope["query_string"]:
            await service.wait(service.polls.poll(scope))
        headers = [] if own is None else [(b"Cache-Control", own.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    service.answer = answer
    request = await Request(service.app, b"wait=1").done()
    headers = {name.lower(): value for name, value in request.headers.items()}
    assert headers == {"cache-control": own or "no-store"}
    if own is None:
        assert (await Request(service.app).done()).headers == {}  # this was no poll


@pytest.mark.parametrize(
    ("name", "values", "complaint"),
    [
        ("max_wait", [0.0, inf], "must be a finite number of seconds above zero, not {}"),
        ("max_wait", [nan], "cannot be NaN"),
        ("default_wait", [61.0, -1.0], "must be from 0 to max_wait (60.0), not {}"),
        ("spread", [1.5, -0.1, nan], "must be a fraction from 0 to 1, not {}"),
        ("max_open", [0, nan], "must be at least 1, not {}"),
        ("max_per_client", [0, nan], "must be at least 1, not {}"),
        ("retry_jitter", [-1.0, inf], "must be a finite number of seconds, zero or more, not {}"),
        ("retry_after", [-1.0, inf], "must be a finite number of seconds, zero or more, not {}"),
        ("grace", [-1.0, inf], "must be a finite number of seconds, zero or more, not {}"),
        ("grace", [nan], "cannot be NaN"),
        ("read_ahead", [-1, nan, inf], "must be zero or more bytes, not {}"),
        ("signals", [[15, 4711]], "must be numbers of signals, which 4711 is not"),
    ],
)
def test_option_out_of_bounds_is_refused(name, values, complaint):
    for value in values:
        with pytest.raises(ValueError, match=re.escape(f"{name} {complaint.format(value)}")):
            LongPolls(**{name: value})
    if name != "signals":
        with pytest.raises(TypeError, match=f"{name} must be a .*, not '60'"):
            LongPolls(**{name: "60"})


@on_virtual_time
@pytest.mark.parametrize(
    ("options", "max_open", "is_warned_of"),
    [
        ({"max_open": inf}, inf, True),
        ({"max_open": 1024}, 1024, True),
        ({"max_open": 1023}, 1023, False),
        ({}, 768, False),
    ],
)
async def test_too_few_open_files_log_a_warning(options, max_open, is_warned_of, caplog):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        service = Service(name="web\npolls", **options)
        await lifespan(service.app, "lifespan.startup", "lifespan.shutdown")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert service.polls.max_open == max_open
    warned = [each.getMessage().startswith(r"web\npolls: max_open is ") for each in caplog.records]
    assert warned == [True] * is_warned_of


# The stop


@on_virtual_time
@in_each_way
@pytest.mark.parametrize("is_satisfied", [False, True])
async def test_polls_within_grace_may_be_satisfied(way, is_satisfied):
    service = Service(way, grace=2.0)
    request = Request(service.app)
    await asyncio.sleep(1)
    closing = [asyncio.create_task(service.polls.aclose()) for _ in range(2)]
    await asyncio.sleep(1)
    assert (await Request(service.app).done()).status == 503
    if is_satisfied:
        service.satisfy()
    await asyncio.gather(*closing)
    expected = (200, 2.0) if is_satisfied else (503, 3.0)
    assert ((await request.done()).status, now()) == expected
    service.check_nothing_is_left()


@on_virtual_time
@pytest.mark.parametrize("way", ["predicate", "threshold"])
@pytest.mark.parametrize("end", ["stop", "leave"])
async def test_thousands_end_over_several_iterations(way, end):
    service = Service(way)
    requests = [Request(service.app) for _ in range(2000)]
    await asyncio.sleep(1)
    if end == "stop":
        service.polls.stop()
        await iterations(3)
        assert 0 < service.polls.open < 2000
    else:
        for request in requests:
            request.leave()
    await asyncio.gather(*(request.done() for request in requests))
    assert service.polls.endings == {Ending.STOPPING if end == "stop" else Ending.GONE: 2000}
    assert now() == 1.0
    service.check_nothing_is_left()


@on_virtual_time
async def test_lifespan_ends_polls_and_next_begins_anew():
    service = Service(grace=5.0)
    early = Request(service.app)
    await asyncio.sleep(1)
    ending = asyncio.create_task(lifespan(service.app, "lifespan.startup", "lifespan.shutdown"))
    await asyncio.sleep(0.5)
    assert (await Request(service.app).done()).status == 503
    served = asyncio.create_task(lifespan(service.app, "lifespan.startup"))
    await asyncio.sleep(0.5)
    late = Request(service.app, b"wait=10")
    assert ((await early.done()).status, now()) == (503, 6.0)
    assert await ending == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert ((await late.done()).status, now()) == (204, 12.0)  # the stop was the other lifespan's
    service.check_nothing_is_left()
    served.cancel()


@in_each_way
def test_new_loop_starts_without_closed_loops_polls(way):
    polls = LongPolls(signals=(), max_open=2, max_per_client=2)

    async def main() -> int:
        assert polls.open == 0
        service = Service(way)
        service.polls, service.app = polls, polls.middleware(service.serve)
        requests = [Request(service.app) for _ in range(3)]
        await iterations(20)
        assert polls.open == 2
        service.satisfy()
        statuses = [(await request.done()).status for request in requests[:2]]
        leftover.extend(Request(service.app) for _ in range(2))
        polls.stop()
        return max(statuses)

    for _ in range(3):
        leftover: list[Request] = []
        assert asyncio.run(main()) == 200


@on_every_loop
async def test_stop_from_signal_or_thread_answers_polls():
    service = Service()
    service.polls.stop_threadsafe()  # before any loop: without effect
    # As a signal handler: a callback belongs to no task.
    asyncio.get_running_loop().call_soon(service.polls.stop)
    await iterations(2)
    assert service.polls.is_stopping
    assert (await Request(service.app).done()).status == 503
    service.polls.is_stopping = False
    request = Request(service.app, b"wait=60")
    await iterations(20)
    assert service.polls.open == 1
    await asyncio.to_thread(service.polls.stop_threadsafe)
    assert (await request.done()).status == 503


@on_every_loop
@pytest.mark.parametrize("has_loop", [False, True])
@pytest.mark.parametrize("opened", [0, 1])
async def test_stop_from_thread_names_threadsafe_method(has_loop, opened):
    service = Service()
    polls = service.polls
    await Request(service.app, b"wait=0").done()
    requests = [Request(service.app, b"wait=60") for _ in range(opened)]
    await iterations(20)

    async def stop() -> None:
        polls.stop()

    ways = [polls.stop, lambda: setattr(polls, "is_stopping", True)]
    if has_loop:
        ways = [lambda: asyncio.run(stop()), lambda: asyncio.run(polls.aclose())]
    for way in ways:
        with pytest.raises(WrongLoop, match=r"cannot .* these LongPolls: .* call stop_threadsafe"):
            await asyncio.to_thread(way)
    assert (service.polls.open, service.polls.is_stopping) == (opened, False)
    service.polls.stop()
    for request in requests:
        assert (await request.done()).status == 503


def test_two_loops_at_once_raise_wrong_loop():
    service = Service()

    async def open_one() -> Request:
        request = Request(service.app)
        await iterations(20)
        return request

    with asyncio.Runner() as first:
        request = first.run(open_one())
        service.polls.stop_threadsafe()  # is not run before the loop is closed
        with pytest.raises(WrongLoop, match="these LongPolls have open polls \\(1\\) on"):
            asyncio.run(open_one()).task.result()
        request.task.cancel()
    service.polls.stop_threadsafe()
    service.purgatory = Purgatory()
    service.found.set()
    assert asyncio.run(open_one()).status == 200


# Other layers


async def test_other_scopes_pass_through_untouched():
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope, receive, send))

    arguments = ({"type": "something.new"}, raiser(AssertionError()), raiser(AssertionError()))
    await LongPolls(signals=()).middleware(app)(*arguments)
    assert seen == [({"type": "something.new"}, *arguments[1:])]


def test_poll_of_something_else_is_explained():
    class AnyRequest:
        scope: Any = None

    scope = {"type": "http", "headers": []}
    with pytest.raises(RuntimeError, match=r"did not come through LongPolls\.middleware"):
        LongPolls().poll(scope)
    with pytest.raises(TypeError, match=r"wait must be a number of seconds, got <function"):
        LongPolls().poll(scope, iterations)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"scope must be the scope of a request.*pass its \.scope"):
        LongPolls().poll(AnyRequest())  # type: ignore[arg-type]


@on_virtual_time
async def test_nested_long_polls_have_one_reader():
    polls = [LongPolls(signals=()) for _ in range(2)]
    endings = []

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        for each in (*polls, *polls):
            outcome = await each.poll(scope, 5).run(asyncio.sleep(100))
            endings.append(outcome.ending)

    request = Request(polls[0].middleware(polls[1].middleware(answer)))
    await asyncio.sleep(17)
    request.leave()
    await request.done()
    assert endings == [Ending.DEADLINE] * 3 + [Ending.GONE]
    assert request.most_readers == 1


@on_virtual_time
@pytest.mark.parametrize("base_middleware", ["none", "within", "around"])
@pytest.mark.parametrize("end", ["read first", "read last", "leave"])
async def test_body_and_disconnect_pass_other_middleware(base_middleware, end):
    service = Service()

    async def endpoint(request: StarletteRequest) -> Response:
        before = await request.body() if end == "read first" else b""
        await service.wait(service.polls.poll(request.scope))
        return Response(b"" if end == "leave" else before or await request.body())

    async def dispatch(request: StarletteRequest, call_next: Any) -> Response:
        return await call_next(request)

    base = Middleware(BaseHTTPMiddleware, dispatch=dispatch)
    own = Middleware(service.polls.middleware)
    layers = {"none": [own], "within": [own, base], "around": [base, own]}[base_middleware]
    request = Request(Starlette(routes=[Route("/", endpoint)], middleware=layers))
    request.body(b"par", more=True)
    request.body(b"t")
    await asyncio.sleep(1)
    assert service.polls.open == 1
    if end == "leave":
        request.leave()
    else:
        service.satisfy()
    await request.done()
    assert now() == 1.0
    assert service.endings == [Ending.GONE if end == "leave" else Ending.SATISFIED]
    assert request.content == (b"" if end == "leave" else b"part")
    assert request.most_readers == 1
    service.check_nothing_is_left()


async def test_is_disconnected_and_poll_share_the_channel():
    service = Service()

    async def endpoint(request: StarletteRequest) -> Response:
        poll = asyncio.create_task(service.wait(service.polls.poll(request.scope)))
        await iterations(20)
        assert not await request.is_disconnected()
        await poll
        assert await request.is_disconnected()
        return Response()

    request = Request(service.polls.middleware(Starlette(routes=[Route("/", endpoint)])))
    request.body()
    await iterations(100)
    request.leave()
    assert (await request.done()).status == 200


async def test_answers_204_and_304_have_no_body():
    with pytest.raises(ValueError, match="cannot answer 204 with a body of 1 bytes"):
        await Outcome(Ending.DEADLINE, None, 204).send(raiser(AssertionError()), b"x")


# Any awaitable


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


def running(work: Callable[[], Any], way: str = "run") -> Service:
    """An application that runs what `work` returns, perhaps as a predicate."""
    purgatory = Purgatory[Any]()
    wait_for = lambda poll: poll.wait_for(purgatory, work, ["k"])  # noqa: E731
    return Service((lambda poll: poll.run(work())) if way == "run" else wait_for)


@on_virtual_time
@pytest.mark.parametrize("end", [Ending.DEADLINE, Ending.GONE, Ending.STOPPING])
@pytest.mark.parametrize("inside", ["itself", "a group", "a task", "gather", "its own task"])
@pytest.mark.parametrize("way", ["run", "predicate"])
async def test_ended_awaitable_is_cancelled_once_and_awaited(end, inside, way):
    work = Work()

    async def group() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(work())
            group.create_task(asyncio.sleep(100))

    async def task() -> None:
        await asyncio.create_task(work())

    async def gather() -> None:
        await asyncio.gather(work())

    ways = {"itself": work, "a group": group, "a task": task, "gather": gather}
    service = running(ways.get(inside, lambda: asyncio.ensure_future(work())), way)
    request = Request(service.app, b"wait=5")
    await asyncio.sleep(2)
    if end is Ending.GONE:
        request.leave()
    elif end is Ending.STOPPING:
        await service.polls.aclose()
    await request.done()
    assert (now(), service.endings) == (6.0 if end is Ending.DEADLINE else 3.0, [end])
    assert work.log == ["begun", "cancelled", "cleaned up"]
    await iterations(3)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("kind", ["coroutine", "task", "future", "other"])
async def test_unstarted_awaitable_is_closed_without_warning(kind):
    class Other:
        def __await__(self) -> Any:
            return asyncio.sleep(0).__await__()

    work = Work()
    made: list[Any] = []

    def make() -> Any:
        task = lambda: asyncio.create_task(asyncio.sleep(100))  # noqa: E731
        kinds = {"coroutine": work, "task": task, "future": asyncio.Future, "other": Other}
        made.append(kinds[kind]())
        return made[-1]

    service = running(make)
    service.polls.stop()
    malformed, stopping = Request(service.app, b"wait=soon"), Request(service.app)
    assert [(await request.done()).status for request in (malformed, stopping)] == [400, 503]
    await iterations(5)
    if kind in ("task", "future"):
        assert all(each.cancelled() for each in made)
    made.clear()
    gc.collect()  # a coroutine that is never awaited warns, and a warning is an error here
    assert work.log == []


@on_virtual_time
async def test_shielded_task_survives_and_is_awaited_again():
    task = asyncio.create_task(Work(8)())
    service = running(lambda: asyncio.shield(task))
    statuses = [(await Request(service.app, b"wait=5").done()).status for _ in range(2)]
    assert (statuses, now()) == ([204, 200], 8.0)
