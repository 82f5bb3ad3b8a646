"""Waits for thresholds: their outcome and order, their cost, and that nothing is left behind."""

import asyncio
from collections import Counter
from decimal import Decimal
from math import inf, nan, nextafter
from unittest.mock import patch

import pytest
from helpers import Broken, Listener, counts, iterations, outcome, start_waits
from hypothesis import given, settings
from hypothesis import strategies as st
from invariants import check, deadlines
from loops import on_virtual_time

from purgatory import (
    Cause,
    OperationCancelled,
    OperationTimeout,
    PurgatoryFull,
    ThresholdPurgatory,
    ThresholdStatistics,
)
from purgatory._core import thresholds as module
from purgatory.testing import VirtualTimeLoop

# Outcomes


async def test_reached_threshold_is_answered_at_once():
    async with ThresholdPurgatory() as purgatory:
        purgatory.advance("key", 5)
        for threshold in (-1, 4, 5):
            with pytest.raises(StopIteration) as stop:
                purgatory.wait("key", threshold, 0).send(None)
            assert stop.value.value == 5
        assert counts(purgatory, "completed", "pending", "wake_ups") == (3, 0, 0)
        with pytest.raises(OperationTimeout):
            await purgatory.wait("key", 6, 0.001)
        assert purgatory.statistics().wake_ups > 0


# Refusals


REFUSED = [
    # the key's value, the refused value, the error of advance, the error of wait
    (47, 46, (ValueError, "'orders' to 46: it has 47, and values never go backwards"), None),
    (47, nan, (ValueError, "'orders' to nan: .*NaN is no value"), (ValueError, "'orders'.*never")),
    ((4, 7), Decimal("nan"), (ValueError, "'orders'"), (ValueError, "'orders'")),
    (47, "x", (TypeError, "not supported between"), (TypeError, "not supported between")),
    (47, [9], (TypeError, "not supported between"), (TypeError, "not supported|unhashable")),
    ((4, 7), (9, []), None, (TypeError, "unhashable type: 'list'")),
    ((4, 7), (4, "x"), (TypeError, "not supported between"), (TypeError, "not supported between")),
]


@on_virtual_time
@pytest.mark.parametrize("has_value", [True, False])
@pytest.mark.parametrize(("known", "refused", "advancing", "waiting"), REFUSED)
async def test_refused_value_changes_nothing(known, refused, advancing, waiting, has_value):
    highest = (4, 50) if type(known) is tuple else 50
    async with ThresholdPurgatory(max_keys=1) as purgatory:
        tasks = await start_waits(purgatory, ("orders", highest, 30))
        if has_value:
            purgatory.advance("orders", known)
        before = purgatory.statistics()
        if advancing and (has_value or refused != 46):
            with pytest.raises(advancing[0], match=advancing[1]):
                purgatory.advance("orders", refused)
        if waiting:
            with pytest.raises(waiting[0], match=waiting[1]):
                await purgatory.wait("orders", refused, 30)
        assert purgatory.value("orders") == (known if has_value else None)
        assert purgatory.statistics() == before and deadlines(purgatory) == 1
        check(purgatory)
        assert purgatory.advance("orders", highest) == 1 and await tasks[0] == highest
        purgatory.forget("orders")
        if refused == (9, []):
            with pytest.raises(TypeError, match="unhashable"):
                await purgatory.wait("orders", refused)
            assert counts(purgatory, "keys", "pending") == (0, 0) and deadlines(purgatory) == 0


# Deadlines


@pytest.mark.parametrize("timeout", [0, 0.0, -1, -inf])
async def test_wait_without_time_looks_once(timeout):
    async with ThresholdPurgatory() as purgatory:
        with pytest.raises(TimeoutError, match=r"'key' did not reach 1 within .*: it has no value"):
            purgatory.wait("key", 1, timeout).send(None)
        purgatory.advance("key", 1)
        assert await purgatory.wait("key", 1, timeout) == 1
        assert counts(purgatory, "pending", "expired", "keys") == (0, 1, 1)


# Races: exactly once


@pytest.mark.parametrize("end", ["advance", "fail", "aclose", "expiry"])
@on_virtual_time
async def test_cancelled_wait_is_passed_over(end):
    loop, listener = asyncio.get_running_loop(), Listener()
    purgatory = ThresholdPurgatory(observer=listener)
    tasks = await start_waits(purgatory, ("key", 1, 30), ("key", 1, 30))
    if end == "expiry":
        loop.call_at(nextafter(30.0, 0.0), tasks[0].cancel)  # in the iteration of the expiry
        await asyncio.sleep(30.5)
    else:
        tasks[0].cancel()
    if end == "advance":
        assert purgatory.advance("key", 1) == 1
    elif end == "fail":
        assert purgatory.fail("key", Broken()) == 1
    elif end == "aclose":
        assert await purgatory.aclose() == 2
    first, second = await asyncio.gather(*tasks)
    assert isinstance(first, asyncio.CancelledError)
    kinds = {
        "advance": int,
        "fail": Broken,
        "aclose": OperationCancelled,
        "expiry": OperationTimeout,
    }
    assert type(second) is kinds[end]
    ended = counts(purgatory, "pending", "completed", "failed", "expired", "cancelled")
    assert ended == (
        0, end == "advance", end == "fail", end == "expiry", 1 + (end == "aclose"),
    )  # fmt: skip
    causes = {
        "advance": Cause.KEY, "fail": Cause.FAILED, "aclose": Cause.CLOSED, "expiry": Cause.DEADLINE,
    }  # fmt: skip
    passed_over = Cause.CLOSED if end == "aclose" else Cause.CANCELLED
    assert {each.cause for each in listener.ended} == {passed_over, causes[end]}
    assert len(listener.ended) == 2
    check(purgatory)


# Failing and forgetting


async def test_fail_above_ends_higher_waits_alone():
    async with ThresholdPurgatory() as purgatory:
        waits = [("key", threshold, 30) for threshold in (1, 2, 3, 3, 4)]
        tasks = await start_waits(purgatory, *waits)
        assert purgatory.fail("key", Broken(), above=9) == 0
        assert purgatory.fail("nobody", Broken(), above=0) == 0
        with pytest.raises(TypeError, match="not supported"):
            purgatory.fail("key", Broken(), above="3")
        assert purgatory.fail("key", error := Broken(), above=2) == 3
        check(purgatory)
        assert await asyncio.gather(*tasks[2:]) == [error] * 3
        assert purgatory.advance("key", 2) == 2
        assert await asyncio.gather(*tasks[:2]) == [2, 2]
        assert counts(purgatory, "failed", "completed", "pending", "keys") == (3, 2, 0, 1)


# Limits


async def test_max_pending_refuses_one_more_wait():
    async with ThresholdPurgatory("small", max_pending=2) as purgatory:
        purgatory.advance("key", 1)
        tasks = await start_waits(purgatory, ("key", 2, 30), ("other", 2, 30))
        for _ in range(3):
            with pytest.raises(
                PurgatoryFull,
                match=r"<wait for 'key' to reach 3>: max_pending \(2\) operations are pending in small",
            ):
                await purgatory.wait("key", 3, 30)
        assert await purgatory.wait("key", 1) == 1
        with pytest.raises(OperationTimeout):
            await purgatory.wait("key", 2, 0)
        for end in range(3):
            if end == 0:
                purgatory.advance("key", 2)
            elif end == 1:
                tasks[0].cancel()
            else:
                purgatory.fail("key", Broken())
            await iterations(2)
            [tasks[0]] = await start_waits(purgatory, ("key", 9, 30))
            with pytest.raises(PurgatoryFull):
                await purgatory.wait("third", 3, 30)
        assert purgatory.pending == 2


async def test_max_keys_refuses_one_more_key():
    async with ThresholdPurgatory("small", max_keys=2) as purgatory:
        purgatory.advance("a", 1)
        [task] = await start_waits(purgatory, ("b", 1, 30))
        for _ in range(3):
            with pytest.raises(
                PurgatoryFull,
                match=r"cannot advance 'c' to 1: max_keys \(2\) other keys are in small",
            ):
                purgatory.advance("c", 1)
            with pytest.raises(
                PurgatoryFull,
                match=r"cannot wait for 'c' to reach 1: max_keys \(2\) other keys are in small",
            ):
                await purgatory.wait("c", 1, 30)
        purgatory.advance("a", 2)
        assert purgatory.value("a") == 2 and purgatory.value("c") is None
        task.cancel()  # b has no waiter and no value now
        await iterations(2)
        purgatory.advance("c", 1)
        purgatory.forget("a")
        purgatory.advance("b", 1)
        assert counts(purgatory, "keys", "pending") == (2, 0)
        check(purgatory)


# Its repr


@on_virtual_time
async def test_repr_shows_name_and_state():
    async with ThresholdPurgatory("offsets") as purgatory:
        await start_waits(purgatory, ("key", 1))
        assert repr(purgatory) == "<ThresholdPurgatory 'offsets' open pending=1 keys=1>"
        statistics = purgatory.statistics()
        assert type(statistics) is ThresholdStatistics and statistics.name == "offsets"
        with pytest.raises(AttributeError):
            statistics.pending = 5
    assert repr(purgatory) == "<ThresholdPurgatory 'offsets' closed pending=0 keys=0>"


# Against a model that scans


KEYS = ("a", "b")
ACTION = st.one_of(
    st.tuples(st.just("advance"), st.sampled_from(KEYS), st.integers(0, 12)),
    st.tuples(st.just("fail"), st.sampled_from(KEYS), st.just(0)),
    st.tuples(st.just("forget"), st.sampled_from(KEYS), st.just(0)),
    st.tuples(st.just("cancel"), st.integers(0, 100), st.just(0)),
)
WAIT = st.tuples(
    st.sampled_from(KEYS), st.integers(0, 12), st.sampled_from([None, 0, 0.5, 1.0, 2.0, inf])
)
ITERATION = st.tuples(
    st.lists(WAIT, max_size=6),
    st.lists(ACTION, max_size=4),
    st.sampled_from([0, 0, 0.25, 0.75, 1.25]),
)


class Model:
    """The model: one list of all waits, scanned for every request."""

    def __init__(self):
        self.values = {}
        self.waiting = []
        self.outcomes = {}
        self.counts = Counter()

    def wait(self, number, key, threshold, timeout, now):
        if key in self.values and threshold <= self.values[key]:
            self.end(number, self.values[key], "completed")
        elif timeout is not None and timeout <= 0:
            self.end(number, OperationTimeout, "expired")
        else:
            self.waiting.append(
                (threshold, number, key, now + (inf if timeout is None else timeout))
            )

    def end(self, number, outcome, counted):
        self.outcomes[number] = outcome
        self.counts[counted] += 1

    def end_those(self, chosen, outcome, counted):
        ended = sorted(waiter for waiter in self.waiting if chosen(waiter))
        self.waiting = [waiter for waiter in self.waiting if not chosen(waiter)]
        for waiter in ended:
            self.end(waiter[1], outcome, counted)
        return [waiter[1] for waiter in ended]


HISTORIES = given(st.lists(ITERATION, max_size=12), st.sampled_from([0.0, 0.25]))


@settings(deadline=None, max_examples=100)
@HISTORIES
def test_histories_match_the_model(history, drain):
    ends_as_in_the_model(history, drain)


@pytest.mark.slow
@settings(deadline=None, max_examples=1000)
@HISTORIES
def test_many_histories_match_the_model(history, drain):
    ends_as_in_the_model(history, drain)


def ends_as_in_the_model(history, drain):
    async def main():
        loop = asyncio.get_running_loop()
        model, purgatory, tasks, woken, expected = Model(), ThresholdPurgatory(), [], [], []

        async def wait(number, *arguments):
            result = await outcome(purgatory.wait(*arguments))
            woken.append((number, result))

        for waits, actions, pause in history:
            for arguments in waits:
                model.wait(len(tasks), *arguments, loop.time())
                tasks.append(asyncio.create_task(wait(len(tasks), *arguments)))
            await iterations()
            cancelled = set()
            for action, key, value in actions:
                if action == "advance" and value < model.values.get(key, 0):
                    with pytest.raises(ValueError, match="never go backwards"):
                        purgatory.advance(key, value)
                elif action == "advance":
                    model.values[key] = value
                    model.end_those(
                        lambda w, key=key, value=value, gone=cancelled: (
                            w[2] == key and w[0] <= value and w[1] in gone
                        ),
                        asyncio.CancelledError,
                        "cancelled",
                    )
                    reached = model.end_those(
                        lambda w, key=key, value=value: w[2] == key and w[0] <= value,
                        value,
                        "completed",
                    )
                    assert purgatory.advance(key, value) == len(reached)
                    expected.append(reached)
                elif action == "fail":
                    model.end_those(
                        lambda w, key=key, gone=cancelled: w[2] == key and w[1] in gone,
                        asyncio.CancelledError,
                        "cancelled",
                    )
                    failed = model.end_those(lambda w, key=key: w[2] == key, Broken, "failed")
                    assert purgatory.fail(key, Broken()) == len(failed)
                elif action == "forget":
                    assert purgatory.forget(key) is (model.values.pop(key, None) is not None)
                elif tasks and tasks[key % len(tasks)].cancel():
                    cancelled.add(key % len(tasks))
                assert [purgatory.value(key) for key in KEYS] == [
                    model.values.get(key) for key in KEYS
                ]
                assert purgatory.pending == len(model.waiting)
            await iterations()
            # Cancelled tasks have run; waits that were decided earlier are cancelled all the same.
            model.end_those(
                lambda w, gone=cancelled: w[1] in gone, asyncio.CancelledError, "cancelled"
            )
            model.outcomes |= dict.fromkeys(cancelled, asyncio.CancelledError)
            if pause:
                await asyncio.sleep(pause)
                await iterations(2)
                model.end_those(lambda w: w[3] <= loop.time(), OperationTimeout, "expired")
            check(purgatory)
            assert counts(purgatory, *model.counts, "pending") == (
                *model.counts.values(),
                len(model.waiting),
            )
        await asyncio.sleep(0.125)
        model.end_those(lambda w: w[3] <= loop.time(), OperationTimeout, "expired")
        closed_at = loop.time()
        ended = await purgatory.aclose(drain)
        model.end_those(lambda w: w[3] <= closed_at + drain, OperationTimeout, "expired")
        assert ended == len(model.end_those(lambda w: True, OperationCancelled, "cancelled"))
        await asyncio.gather(*tasks)
        for number, result in woken:
            wanted = model.outcomes[number]
            assert type(result) is wanted if isinstance(wanted, type) else result == wanted, (
                number,
                result,
                wanted,
            )
        assert sorted(number for number, _ in woken) == list(range(len(tasks)))
        order = [
            number for number, result in woken if not isinstance(result, asyncio.CancelledError)
        ]
        for together in expected:
            together = [
                number
                for number in together
                if model.outcomes[number] is not asyncio.CancelledError
            ]
            assert [number for number in order if number in together] == together
        check(purgatory)
        at_the_end = (0, 0, len(model.values), *model.counts.values())
        assert counts(purgatory, "pending", "unanswered", "keys", *model.counts) == at_the_end
        assert deadlines(purgatory) == 0

    small = patch.object(module, "MAX_PER_ITERATION", 3)
    with small, asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())
