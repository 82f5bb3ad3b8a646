"""Times may be any number. Plain mistakes are refused at once, in words that name the argument and its value, and nothing has
changed then."""

import asyncio
import math
from decimal import Decimal
from fractions import Fraction

import pytest
from helpers import Probe, iterations, outcome
from loops import on_virtual_time

from purgatory import IdleTracker, OperationState, OperationTimeout, Purgatory, ThresholdPurgatory, WheelTimer

NUMBERS = pytest.mark.parametrize("seconds", [Decimal("2.5"), Fraction(5, 2), 2.5], ids=repr)
NO_NUMBERS = pytest.mark.parametrize("mistake", ["5", b"5", [5], object, 5j], ids=repr)
FAR_TOO_LARGE = 10**400


def says(error, *words):
    assert type(error) is TypeError
    assert all(word in str(error) for word in words), str(error)


# 22. Times of an operation


@on_virtual_time
@NUMBERS
@pytest.mark.parametrize("argument", ["timeout", "deadline"])
@pytest.mark.parametrize("keys", [["key"], ["key", "another"]], ids=["one key", "two keys"])
async def test_the_times_of_an_operation_may_be_any_number(purgatory, argument, seconds, keys):
    operation = Probe(**{argument: seconds})
    assert purgatory.try_complete_else_watch(operation, keys) is False
    assert operation.deadline == 2.5 and type(operation.deadline) is float
    await operation
    assert operation.state is OperationState.EXPIRED
    assert 2.5 <= asyncio.get_running_loop().time() <= 2.502


@on_virtual_time
@pytest.mark.parametrize("timeout", [0, -1, Decimal(0), Fraction(-1, 2), False])
async def test_any_number_that_is_zero_or_less_means_to_try_once(purgatory, timeout):
    operation = Probe(timeout)
    assert purgatory.try_complete_else_watch(operation, ["key"]) is True
    assert operation.calls == ["try", "complete", "expire"]


@pytest.mark.parametrize("argument", ["timeout", "deadline"])
@NO_NUMBERS
def test_a_time_of_an_operation_that_is_no_number_is_refused(argument, mistake):
    with pytest.raises(TypeError) as raised:
        Probe(**{argument: mistake})
    says(raised.value, argument, repr(mistake))


@pytest.mark.parametrize("argument", ["timeout", "deadline"])
@pytest.mark.parametrize("nan", [math.nan, Decimal("nan"), Decimal("snan")], ids=repr)
def test_a_time_of_an_operation_that_is_not_a_number_by_its_value_is_refused(argument, nan):
    with pytest.raises(ValueError):  # noqa: PT011 - a Decimal has words of its own
        Probe(**{argument: nan})


@on_virtual_time
@pytest.mark.parametrize("argument", ["timeout", "deadline"])
async def test_an_operation_with_a_time_too_large_for_a_float_is_refused_or_waits_for_ever(argument):
    try:
        operation = Probe(**{argument: FAR_TOO_LARGE})
    except (ValueError, OverflowError):
        return
    async with Purgatory() as purgatory:
        assert purgatory.try_complete_else_watch(operation, ["key"]) is False
        await asyncio.sleep(1e9)
        assert operation.state is OperationState.PENDING


@on_virtual_time
@pytest.mark.parametrize("timeout", [1e300, 1.7e308, math.inf])
async def test_an_operation_with_a_huge_timeout_waits(purgatory, timeout):
    operation = Probe(timeout)
    assert purgatory.try_complete_else_watch(operation, ["key"]) is False
    await asyncio.sleep(1e9)
    assert operation.state is OperationState.PENDING
    operation.ready = True
    assert purgatory.check_and_complete("key") == 1


# 22. and 26. Its siblings


@on_virtual_time
@NUMBERS
async def test_the_timeout_of_any_wait_may_be_any_number(seconds):
    loop, thresholds = asyncio.get_running_loop(), ThresholdPurgatory()

    async def is_false():
        return False

    async with Purgatory() as purgatory:
        for begin in (
            lambda: purgatory.wait_for(lambda: None, ["key"], seconds),
            lambda: purgatory.wait_for(is_false, ["key"], seconds),
            lambda: purgatory.receive("key", seconds),
            lambda: thresholds.wait("key", 1, seconds),
        ):
            begun = loop.time()
            assert type(await outcome(begin())) is OperationTimeout
            assert 2.5 <= loop.time() - begun <= 2.502


@on_virtual_time
@NO_NUMBERS
async def test_a_timeout_of_a_wait_that_is_no_number_is_refused_whether_it_would_have_to_wait_or_not(mistake):
    thresholds, calls = ThresholdPurgatory(), []
    thresholds.advance("reached", 5)
    async with Purgatory() as purgatory:
        for begin in (
            lambda: purgatory.wait_for(lambda: calls.append(True), ["key"], mistake),
            lambda: purgatory.receive("key", mistake),
            lambda: thresholds.wait("key", 1, mistake),
            lambda: thresholds.wait("reached", 1, mistake),
        ):
            says(await outcome(begin()), "timeout", repr(mistake))
        assert calls == []
        assert purgatory.pending == thresholds.pending == 0


@on_virtual_time
async def test_a_timeout_of_a_wait_that_is_too_large_for_a_float_is_refused_or_is_no_limit():
    thresholds = ThresholdPurgatory()
    async with Purgatory() as purgatory:
        for begin in (
            lambda: purgatory.wait_for(lambda: None, ["key"], FAR_TOO_LARGE),
            lambda: purgatory.receive("key", FAR_TOO_LARGE),
            lambda: thresholds.wait("key", 1, FAR_TOO_LARGE),
        ):
            task = asyncio.create_task(outcome(begin()))
            await asyncio.sleep(1e6)
            assert not task.done() or isinstance(task.result(), (ValueError, OverflowError))
            task.cancel()
            await iterations(2)
        assert purgatory.pending == thresholds.pending == 0


@on_virtual_time
@NUMBERS
async def test_the_times_of_a_timer_may_be_any_number(seconds):
    loop, timer, called = asyncio.get_running_loop(), WheelTimer(), []
    first = timer.call_later(seconds, lambda: called.append(loop.time()))
    second = timer.call_at(seconds, lambda: called.append(loop.time()))
    third = timer.call_later(60, lambda: called.append(loop.time()))
    third.reschedule(seconds)
    assert [type(task.when()) for task in (first, second, third)] == [float] * 3
    await asyncio.sleep(10)
    assert len(called) == 3 and all(2.5 <= time <= 2.502 for time in called)


@on_virtual_time
@NO_NUMBERS
async def test_a_time_of_a_timer_that_is_no_number_is_refused_and_nothing_has_changed(mistake):
    timer = WheelTimer()
    task = timer.call_later(60, print)
    for call in (
        lambda: timer.call_later(mistake, print),
        lambda: timer.call_at(mistake, print),
        lambda: task.reschedule(mistake),
    ):
        with pytest.raises(TypeError) as raised:
            call()
        assert repr(mistake) in str(raised.value)
    assert timer.size == 1 and task.when() == 60
    task.cancel()


@on_virtual_time
@NUMBERS
async def test_the_timeout_of_an_idle_tracker_may_be_any_number(seconds):
    loop, idle = asyncio.get_running_loop(), []
    tracker = IdleTracker(seconds, lambda _: idle.append(loop.time()))
    tracker.touch("id")
    await asyncio.sleep(10)
    assert len(idle) == 1 and 2.5 <= idle[0] <= 2.51


@NO_NUMBERS
def test_a_timeout_of_an_idle_tracker_that_is_no_number_is_refused(mistake):
    with pytest.raises(TypeError) as raised:
        IdleTracker(mistake, print)
    says(raised.value, "timeout", repr(mistake))


def test_a_timeout_of_an_idle_tracker_that_is_too_large_for_a_float_is_refused_or_means_never():
    try:
        IdleTracker(FAR_TOO_LARGE, print)
    except (ValueError, OverflowError):
        pass


# 26. Plain mistakes


@on_virtual_time
async def test_keys_that_are_no_collection_are_refused_by_name(purgatory):
    calls = []
    says(await outcome(purgatory.wait_for(lambda: calls.append(True), 7)), "keys", "7")
    says(await outcome(purgatory.wait(Probe(), 7)), "keys", "7")
    with pytest.raises(TypeError, match=r"keys.*7"):
        purgatory.try_complete_else_watch(Probe(), 7)
    assert calls == [] and purgatory.pending == 0


@on_virtual_time
@pytest.mark.parametrize("mistake", [True, None, "condition"])
async def test_a_predicate_that_cannot_be_called_is_refused_by_name(purgatory, mistake):
    says(await outcome(purgatory.wait_for(mistake, ["a"])), "predicate", repr(mistake))
    assert purgatory.pending == 0


@on_virtual_time
async def test_a_coroutine_in_place_of_a_predicate_is_refused_by_name():
    async def is_true():
        return True

    async with Purgatory() as purgatory:
        coroutine = is_true()
        says(await outcome(purgatory.wait_for(coroutine, ["a"])), "predicate")
        coroutine.close()


@on_virtual_time
@pytest.mark.parametrize("keys", [[["tea"]], (["tea"],), [["tea"], "coffee"], [{}]], ids=repr)
@pytest.mark.parametrize("holds", [True, False])
async def test_a_key_that_is_not_hashable_is_refused_whether_the_condition_holds_or_not(purgatory, keys, holds):
    calls = []

    def predicate():
        calls.append(True)
        return holds

    assert type(await outcome(purgatory.wait_for(predicate, keys, 5))) is TypeError
    assert calls == [] and purgatory.pending == purgatory.watched == 0
