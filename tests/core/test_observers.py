"""The public interface for observers: the event for each end of an operation, its recipients and
time, by public names alone."""

import asyncio
from math import inf

import pytest
from helpers import Listener, Probe, outcome, raiser
from loops import on_virtual_time

import purgatory as package
from purgatory import Cause, Ended, OperationState, Purgatory

PENDING, COMPLETED, EXPIRED, CANCELLED = OperationState


class StartListener(Listener):
    """Records starts as well."""

    def __init__(self):
        super().__init__()
        self.notified = []

    def operation_ended(self, ended):
        super().operation_ended(ended)
        self.notified.append(("ended", ended.operation_id))

    def operation_started(self, operation):
        self.notified.append(("started", id(operation)))


async def check(purgatory, operation):
    operation.ready = True
    purgatory.check_and_complete("key")


async def check_among_others(purgatory, operation):
    purgatory.try_complete_else_watch(Probe(50), ["key"])
    operation.ready = True
    purgatory.check_and_complete("key")


async def miss_the_trigger(purgatory, operation):
    operation.ready = True
    await asyncio.sleep(50)


async def check_in_vain_and_expire(purgatory, operation):
    purgatory.check_and_complete("key")
    purgatory.check_and_complete("key")
    await asyncio.sleep(50)


async def raise_in_a_check(purgatory, operation):
    operation.trying = raiser(KeyError("no"))
    purgatory.check_and_complete("key")


async def raise_in_on_complete(purgatory, operation):
    operation.completing = raiser(KeyError("no"))
    await check(purgatory, operation)


ENDS = {
    "a check": (check, COMPLETED, Cause.KEY, "key", 1),
    "a check of several": (check_among_others, COMPLETED, Cause.KEY, "key", 1),
    "the deadline": (lambda *_: asyncio.sleep(50), EXPIRED, Cause.DEADLINE, None, 2),
    "the deadline, after checks": (check_in_vain_and_expire, EXPIRED, Cause.DEADLINE, None, 4),
    "a missed trigger": (miss_the_trigger, COMPLETED, Cause.DEADLINE, None, 1),
    "force_complete": (
        lambda _, operation: asyncio.sleep(0, operation.force_complete()),
        COMPLETED,
        Cause.FORCED,
        None,
        1,
    ),
    "cancel": (
        lambda _, operation: asyncio.sleep(0, operation.cancel()),
        CANCELLED,
        Cause.CANCELLED,
        None,
        1,
    ),
    "cancel_for_key": (
        lambda one, _: asyncio.sleep(0, one.cancel_for_key("key")),
        CANCELLED,
        Cause.CANCELLED,
        None,
        1,
    ),
    "aclose": (lambda purgatory, _: purgatory.aclose(), CANCELLED, Cause.CLOSED, None, 1),
    "aclose, after its deadline": (
        lambda purgatory, _: purgatory.aclose(60),
        EXPIRED,
        Cause.DEADLINE,
        None,
        2,
    ),
    "a try that raises": (raise_in_a_check, CANCELLED, Cause.FAILED, "key", 2),
    "on_complete that raises": (raise_in_on_complete, COMPLETED, Cause.KEY, "key", 1),
}


LIMITS = [
    ("timeout", ["key"]),
    ("deadline", ["other", "key", "other"]),
    ("long timeout", ["other", "key"]),
    ("no limit", ["key"]),
]


@on_virtual_time
@pytest.mark.parametrize(
    ("way", "timed", "keys"),
    [
        (way, *limit)
        for way in ENDS
        for limit in (LIMITS if way in ("a check", "cancel", "aclose") else LIMITS[:2])
    ],
)
async def test_each_end_is_reported_by_one_event(way, keys, timed, reports):
    end, state, cause, key, failed_tries = ENDS[way]
    listener, loop = Listener(), asyncio.get_running_loop()
    async with Purgatory("orders", observer=listener) as purgatory:
        await asyncio.sleep(3)
        begun = loop.time()
        limits = {
            "timeout": (40, None),
            "long timeout": (1e9, None),
            "deadline": (None, begun + 40),
            "no limit": (inf, None),
        }
        timeout, deadline = limits[timed]
        operation = Probe(timeout, deadline=deadline)
        purgatory.try_complete_else_watch(operation, keys)
        await asyncio.sleep(1)
        assert listener.ended == []
        await end(purgatory, operation)
        [ended] = [each for each in listener.ended if each.operation_id == id(operation)]
    failure = await outcome(operation) if "raises" in way else None
    assert ended.ended_at == pytest.approx(
        begun + (40 if cause is Cause.DEADLINE else 1), abs=0.002
    )
    assert ended == Ended(
        purgatory="orders",
        kind="Probe",
        keys=tuple(dict.fromkeys(keys)),
        started_at=pytest.approx(begun, abs=1e-6),
        ended_at=ended.ended_at,
        timeout={
            "timeout": 40,
            "long timeout": 1e9,
            "deadline": pytest.approx(40),
            "no limit": None,
        }[timed],
        state=state,
        cause=cause,
        key=key,
        failed_tries=failed_tries,
        missed_trigger=way == "a missed trigger",
        exception=failure,
        operation_id=id(operation),
    )


@on_virtual_time
@pytest.mark.parametrize(
    ("timeout", "attributes", "state", "cause", "failed_tries"),
    [
        (40, {"ready": True}, COMPLETED, Cause.FIRST_TRY, 0),
        (None, {"ready": True}, COMPLETED, Cause.FIRST_TRY, 0),
        (0, {"ready": True}, COMPLETED, Cause.FIRST_TRY, 0),
        (0, {}, EXPIRED, Cause.DEADLINE, 1),
        (40, {"trying": raiser(KeyError("no"))}, CANCELLED, Cause.FAILED, 1),
        (
            40,
            {"trying": lambda operation: operation.cancel() and False},
            CANCELLED,
            Cause.CANCELLED,
            1,
        ),
    ],
)
async def test_operation_that_never_waited_is_reported_too(
    timeout, attributes, state, cause, failed_tries, reports
):
    listener, loop = StartListener(), asyncio.get_running_loop()
    async with Purgatory(observer=listener) as purgatory:
        operation = Probe(timeout)
        for name, value in attributes.items():
            setattr(operation, name, value)
        assert purgatory.try_complete_else_watch(operation, ["key"])
    [ended] = listener.ended
    assert (ended.state, ended.cause, ended.key, ended.failed_tries) == (
        state,
        cause,
        None,
        failed_tries,
    )
    assert ended.keys == ("key",) and ended.timeout == timeout
    assert ended.started_at == ended.ended_at == loop.time()
    assert listener.notified == [("started", id(operation)), ("ended", id(operation))]


@on_virtual_time
async def test_starts_are_reported_in_order_and_callers_context():
    listener = StartListener()
    async with Purgatory(observer=[Listener(), listener]) as purgatory:
        timed, endless, refused = Probe(5), Probe(), Probe(5)
        purgatory.try_complete_else_watch(timed, ["key"])
        purgatory.try_complete_else_watch(endless, ["key"])
        await asyncio.sleep(6)
        endless.force_complete()
    with pytest.raises(package.PurgatoryClosed):
        purgatory.try_complete_else_watch(refused, ["key"])
    one, other = id(timed), id(endless)
    assert listener.notified == [
        ("started", one),
        ("started", other),
        ("ended", one),
        ("ended", other),
    ]


@on_virtual_time
async def test_raising_observer_does_not_affect_other_observers(reports):
    class Bad(Listener):
        def operation_ended(self, ended):
            raise ZeroDivisionError

        key_checked = operation_started = operation_ended

    def fails(*_):
        raise ZeroDivisionError

    first, bad, last = Listener(), Bad(), Listener()
    bad.key_checked = bad.operation_started = fails
    async with Purgatory("orders", observer=(first, bad, last)) as purgatory:
        operation, forced = Probe(5), Probe(5)
        purgatory.try_complete_else_watch(operation, ["key"])
        await check(purgatory, operation)
        purgatory.try_complete_else_watch(forced, ["key"])
        forced.force_complete()
    assert first.ended == last.ended and [ended.cause for ended in last.ended] == [
        Cause.KEY,
        Cause.FORCED,
    ]
    assert first.checks == last.checks == [("key", 1, 1)]
    notified = [report["message"].split(" ")[1] for report in reports]
    assert notified == [
        "operation_started",
        "operation_ended",
        "key_checked",
        "operation_started",
        "operation_ended",
    ]


async def test_empty_list_of_observers_means_none():
    async with Purgatory(observer=()) as purgatory:
        assert purgatory.try_complete_else_watch(Probe(ready=True), ["key"])


@on_virtual_time
async def test_work_caused_by_observer_follows_its_return():
    class Chain(Listener):
        def operation_ended(self, ended):
            super().operation_ended(ended)
            second.ready = True
            assert purgatory.check_and_complete("second") == 0
            if first.is_completed and len(self.ended) == 1:
                self.at_once = second.is_completed

    chain = Chain()
    async with Purgatory(observer=chain) as purgatory:
        first, second = Probe(5), Probe(5)
        purgatory.try_complete_else_watch(first, ["key"])
        purgatory.try_complete_else_watch(second, ["second"])
        await check(purgatory, first)
        assert [ended.key for ended in chain.ended] == ["key", "second"]
    assert chain.at_once is False


async def expected(purgatory, **given):
    with purgatory.expect("key", 5, **given) as reply:
        return await reply


KINDS = {
    "wait_for": (
        lambda purgatory, **given: purgatory.wait_for(bool, ["key"], 5, **given),
        "Condition",
    ),
    "receive": (lambda purgatory, **given: purgatory.receive("key", 5, **given), "Receiver"),
    "expect": (expected, "Receiver"),
    "thresholds": (lambda purgatory, **given: purgatory.wait("key", 3, 5, **given), "wait"),
}


@on_virtual_time
@pytest.mark.parametrize(("wait", "default"), KINDS.values(), ids=[*KINDS])
async def test_wait_is_called_by_its_kind(wait, default):
    listener = Listener()
    cls = package.ThresholdPurgatory if default == "wait" else Purgatory
    async with cls(observer=listener) as purgatory:
        await outcome(wait(purgatory))
        await outcome(wait(purgatory, kind="fetch"))
        assert [ended.kind for ended in listener.ended] == [default, "fetch"]
        with pytest.raises(TypeError, match="kind must be a string or None, got 3"):
            await wait(purgatory, kind=3)
    assert [ended.kind for ended in listener.ended] == [default, "fetch"]
