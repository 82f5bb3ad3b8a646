"""Observers of `LongPolls`: they are notified of each wait of a request as of an operation, however
it ends."""

import asyncio
from math import inf

import pytest
from asgi_requests import Request
from helpers import raiser
from loops import on_virtual_time

from purgatory import Cause, OperationState, Purgatory
from purgatory.asgi import LongPolls
from purgatory.metrics import Meter

PENDING, COMPLETED, EXPIRED, CANCELLED = OperationState


class Listener:
    def __init__(self):
        self.ended, self.started = [], []

    def operation_ended(self, ended):
        self.ended.append(ended)

    def operation_started(self, it):
        self.started.append(id(it))

    def key_checked(self, *_): ...


class Service:
    def __init__(self, **options):
        self.listener, self.meter, self.results = Listener(), Meter(), []
        self.polls = LongPolls(
            signals=(), max_wait=20, observer=[self.listener, self.meter], **options
        )
        self.purgatory = Purgatory(max_pending=1)
        self.app = self.polls.middleware(self.answer)

    def predicate(self):
        if self.results and isinstance(self.results[0], BaseException):
            raise self.results[0]
        return self.results

    async def answer(self, scope, receive, send):
        try:
            raise ValueError("of the endpoint's own, which it handles while it waits")
        except ValueError:
            outcome = await self.polls.poll(scope).wait_for(self.purgatory, self.predicate, ["key"])
        await outcome.send(send)

    def bring(self, result):
        self.results.append(result)
        self.purgatory.check_and_complete("key")


ENDS = {
    "satisfied": (lambda service, _: service.bring(1), COMPLETED, Cause.KEY),
    "deadline": (lambda *_: None, EXPIRED, Cause.DEADLINE),
    "gone": (lambda _, request: request.leave(), CANCELLED, Cause.CANCELLED),
    "stopping": (lambda service, _: service.polls.stop(), CANCELLED, Cause.CLOSED),
    "its task is cancelled": (lambda _, request: request.task.cancel(), CANCELLED, Cause.CANCELLED),
    "a hook raises": (lambda service, _: service.bring(KeyError("no")), CANCELLED, Cause.FAILED),
}


@on_virtual_time
@pytest.mark.parametrize("way", ENDS)
async def test_each_ending_is_one_event(way):
    end, state, cause = ENDS[way]
    service, loop = Service(name="board"), asyncio.get_running_loop()
    request = Request(service.app)
    await asyncio.sleep(1)
    assert service.listener.ended == [] and len(service.listener.started) == 1
    begun = loop.time() - 1
    end(service, request)
    await asyncio.wait([request.task])
    [ended] = service.listener.ended
    assert (ended.purgatory, ended.kind, ended.keys, ended.key, ended.timeout) == (
        "board",
        "poll",
        (),
        None,
        20,
    )
    assert (ended.state, ended.cause) == (state, cause)
    assert (ended.started_at, ended.ended_at) == (
        begun,
        pytest.approx(begun + (20 if way == "deadline" else 1), abs=0.002),
    )
    assert type(ended.exception) is (KeyError if way == "a hook raises" else type(None))
    assert service.listener.started == [ended.operation_id]
    [kind] = service.meter.snapshot()
    assert kind.outcomes == {(state, cause): 1}
    if not request.task.cancelled():
        request.task.exception()


@on_virtual_time
async def test_refused_poll_notifies_only_after_starting():
    service = Service(max_open=2)
    first = Request(service.app)
    await asyncio.sleep(1)
    await Request(service.app).done()  # the purgatory is full
    [ended] = service.listener.ended
    assert (ended.state, ended.cause, ended.exception) == (CANCELLED, Cause.FAILED, None)
    service.polls.max_open = 1
    await Request(service.app).done()
    await Request(service.app, b"wait=nonsense").done()
    service.polls.stop()
    await first.done()
    await Request(service.app).done()
    assert len(service.listener.ended) == len(service.listener.started) == 2


@on_virtual_time
async def test_infinite_wait_has_no_deadline_in_events():
    service = Service()

    async def answer(scope, receive, send):
        poll = service.polls.poll(scope, wait=inf)
        await (await poll.wait_for(service.purgatory, service.predicate, ["key"])).send(send)

    request = Request(service.polls.middleware(answer))
    await asyncio.sleep(1)
    service.bring(1)
    await request.done()
    [ended] = service.listener.ended
    assert ended.timeout is None and ended.state is COMPLETED


@on_virtual_time
async def test_raising_observer_is_reported_and_harmless(reports):
    service = Service()
    service.listener.operation_ended = service.listener.operation_started = raiser(
        ZeroDivisionError()
    )
    request = Request(service.app)
    await asyncio.sleep(1)
    service.bring(1)
    await request.done()
    assert request.status == 200
    assert [report["message"].split(" ")[:2] for report in reports] == [
        ["polls:", "operation_started"],
        ["polls:", "operation_ended"],
    ]


def test_what_cannot_observe_is_refused():
    with pytest.raises(TypeError, match="observer must have a method"):
        LongPolls(observer=object())
