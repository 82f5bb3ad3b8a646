"""Times may be any number. Wrong arguments are refused at once: the message names the argument and
its value, and nothing has changed."""

import asyncio
import math
from decimal import Decimal
from fractions import Fraction

import pytest
from helpers import Probe, iterations, outcome
from loops import on_virtual_time

from purgatory import (
    DelayedOperation,
    IdleTracker,
    OperationState,
    OperationTimeout,
    Purgatory,
    ThresholdPurgatory,
    WheelTimer,
)
from purgatory._core.arguments import MAX_DESCRIBED, describe

NUMBERS = pytest.mark.parametrize("seconds", [Decimal("2.5"), Fraction(5, 2), 2.5], ids=repr)
NO_NUMBERS = pytest.mark.parametrize("mistake", ["5", b"5", [5], object, 5j], ids=repr)
FAR_TOO_LARGE = 10**400


def says(error, *words):
    assert type(error) is TypeError
    assert all(word in str(error) for word in words), str(error)


# Times of an operation


@on_virtual_time
@NUMBERS
@pytest.mark.parametrize("argument", ["timeout", "deadline"])
@pytest.mark.parametrize("keys", [["key"], ["key", "another"]], ids=["one key", "two keys"])
async def test_operation_accepts_any_number_as_time(purgatory, argument, seconds, keys):
    operation = Probe(**{argument: seconds})
    assert purgatory.try_complete_else_watch(operation, keys) is False
    assert operation.deadline == 2.5 and type(operation.deadline) is float
    await operation
    assert operation.state is OperationState.EXPIRED
    assert 2.5 <= asyncio.get_running_loop().time() <= 2.502


@on_virtual_time
@pytest.mark.parametrize("timeout", [0, -1, Decimal(0), Fraction(-1, 2), False])
async def test_time_of_zero_or_less_means_try_once(purgatory, timeout):
    operation = Probe(timeout)
    assert purgatory.try_complete_else_watch(operation, ["key"]) is True
    assert operation.calls == ["try", "complete", "expire"]


@pytest.mark.parametrize("argument", ["timeout", "deadline"])
@NO_NUMBERS
def test_operation_refuses_non_number_as_time(argument, mistake):
    with pytest.raises(TypeError) as raised:
        Probe(**{argument: mistake})
    says(raised.value, argument, repr(mistake))


@pytest.mark.parametrize("argument", ["timeout", "deadline"])
@pytest.mark.parametrize("nan", [math.nan, Decimal("nan"), Decimal("snan")], ids=repr)
def test_operation_refuses_nan_as_time(argument, nan):
    with pytest.raises(ValueError):  # noqa: PT011 - the message of a Decimal is its own
        Probe(**{argument: nan})


@on_virtual_time
@pytest.mark.parametrize("argument", ["timeout", "deadline"])
async def test_operation_refuses_oversized_time_or_waits_for_ever(
    argument,
):
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
async def test_operation_with_huge_timeout_waits(purgatory, timeout):
    operation = Probe(timeout)
    assert purgatory.try_complete_else_watch(operation, ["key"]) is False
    await asyncio.sleep(1e9)
    assert operation.state is OperationState.PENDING
    operation.ready = True
    assert purgatory.check_and_complete("key") == 1


# Times of waits, timers and idle trackers


@on_virtual_time
@NUMBERS
async def test_wait_accepts_any_number_as_timeout(seconds):
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
async def test_wait_refuses_non_number_even_if_ready(
    mistake,
):
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
async def test_wait_refuses_oversized_timeout_or_has_no_limit():
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
async def test_timer_accepts_any_number_as_time(seconds):
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
async def test_timer_refuses_non_number_and_changes_nothing(mistake):
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
async def test_idle_tracker_accepts_any_number_as_timeout(seconds):
    loop, idle = asyncio.get_running_loop(), []
    tracker = IdleTracker(seconds, lambda _: idle.append(loop.time()))
    tracker.touch("id")
    await asyncio.sleep(10)
    assert len(idle) == 1 and 2.5 <= idle[0] <= 2.51


@NO_NUMBERS
def test_idle_tracker_refuses_non_number_as_timeout(mistake):
    with pytest.raises(TypeError) as raised:
        IdleTracker(mistake, print)
    says(raised.value, "timeout", repr(mistake))


def test_idle_tracker_refuses_oversized_timeout_or_never_expires():
    try:
        IdleTracker(FAR_TOO_LARGE, print)
    except (ValueError, OverflowError):
        pass


# Wrong keys and predicates


@on_virtual_time
async def test_keys_that_are_no_collection_are_refused(purgatory):
    calls = []
    says(await outcome(purgatory.wait_for(lambda: calls.append(True), 7)), "keys", "7")
    says(await outcome(purgatory.wait(Probe(), 7)), "keys", "7")
    with pytest.raises(TypeError, match=r"keys.*7"):
        purgatory.try_complete_else_watch(Probe(), 7)
    assert calls == [] and purgatory.pending == 0


@on_virtual_time
@pytest.mark.parametrize("mistake", [True, None, "condition"])
async def test_uncallable_predicate_is_refused_by_name(purgatory, mistake):
    says(await outcome(purgatory.wait_for(mistake, ["a"])), "predicate", repr(mistake))
    assert purgatory.pending == 0


@on_virtual_time
async def test_coroutine_as_predicate_is_refused_by_name():
    async def is_true():
        return True

    async with Purgatory() as purgatory:
        coroutine = is_true()
        says(await outcome(purgatory.wait_for(coroutine, ["a"])), "predicate")
        coroutine.close()


@on_virtual_time
async def test_unhashable_key_of_a_check_is_named(purgatory):
    with pytest.raises(TypeError, match=r"cannot check \['tea'\]: .*unhashable type: 'list'"):
        purgatory.check_and_complete(["tea"])


@on_virtual_time
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
async def test_async_try_is_named_as_the_cause(purgatory):
    class Mistaken(DelayedOperation):
        async def try_complete(self):
            return True

    with pytest.raises(TypeError, match=r"<Mistaken .*> is async, and hooks are plain functions"):
        await purgatory.wait(Mistaken(5), ["key"])


@on_virtual_time
@pytest.mark.parametrize("keys", [[["tea"]], (["tea"],), [["tea"], "coffee"], [{}]], ids=repr)
@pytest.mark.parametrize("holds", [True, False])
async def test_unhashable_key_is_refused_even_if_ready(purgatory, keys, holds):
    calls = []

    def predicate():
        calls.append(True)
        return holds

    assert type(await outcome(purgatory.wait_for(predicate, keys, 5))) is TypeError
    assert calls == [] and purgatory.pending == purgatory.watched == 0


def test_description_of_large_value_is_bounded():
    shown = describe("\n" * 10**6)
    assert len(shown) < 3 * MAX_DESCRIBED and shown.endswith("(2,000,002 characters)")
