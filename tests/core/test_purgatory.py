"""The ten promises of the purgatory, the bounds of its arguments, its observer, and its waits."""

import asyncio
import gc
import itertools
import random
import weakref
from collections import deque
from contextvars import ContextVar
from math import inf, nan, ulp
from sys import getsizeof

import pytest
from helpers import (
    Listener,
    Probe,
    Pulse,
    Spy,
    collector,
    counts,
    iterations,
    outcome,
    profiled,
    raiser,
    watch_all,
)
from loops import on_every_loop, on_virtual_time

from purgatory import (
    OperationCancelled,
    OperationState,
    OperationTimeout,
    Purgatory,
    PurgatoryFull,
)
from purgatory._core.loop import MAX_PER_ITERATION
from purgatory.testing import VirtualTimeLoop

PENDING, COMPLETED, EXPIRED, CANCELLED = OperationState

DEEP = 10_000  # ten times the recursion limit


# The fast and general paths must behave alike, so each test of a fast path runs on all of them.
on_every_path = pytest.mark.parametrize(
    ("options", "keys"),
    [
        ({}, ("key",)),
        ({}, ["key"]),
        ({}, ("key", "second")),
        ({"max_pending": 100_000}, ["key"]),
        ({"observer": Listener()}, {"key"}),
    ],
    ids=["one key", "a list", "two keys", "limited", "observed"],
)


# 1. Exactly once


@on_every_path
async def test_ready_operation_completes_at_once_and_unwatched(options, keys):
    async with Purgatory(**options) as purgatory:
        operation = Probe(30, name="answer", ready=True)
        assert purgatory.try_complete_else_watch(operation, keys)
        assert operation.calls == ["try", "complete"] and await operation == "answer"
        assert counts(purgatory) == (0, 0, 0) and purgatory.statistics().completed == 1


@on_every_path
async def test_checking_any_key_tries_and_completes_once(options, keys):
    async with Purgatory(**options) as purgatory:
        operation = Probe(30)
        assert not purgatory.try_complete_else_watch(operation, keys)
        assert counts(purgatory) == (1, len(keys), len(keys))
        assert purgatory.check_and_complete("other") == 0 and operation.calls == ["try"]
        assert purgatory.check_and_complete("key") == 0 and operation.calls == ["try", "try"]
        operation.ready = True
        assert (
            next(purgatory.check_and_complete(key) for key in [*reversed(list(keys)), *keys]) == 1
        )
        assert operation.calls == ["try", "try", "try", "complete"]
        assert counts(purgatory) == (0, 0, 0)
        purgatory._check()


def test_kafkas_name_is_an_alias_of_the_function():
    assert Purgatory.checkAndComplete is Purgatory.check_and_complete


# 2. No lost wake-up between the check and the watch


@on_every_path
@pytest.mark.parametrize("nested", [False, True], ids=["outside", "in a hook"])
async def test_check_requested_by_first_try_finds_operation(options, keys, nested):
    async with Purgatory(**options) as purgatory:

        class Late(Probe):
            """Its condition becomes true right after it was evaluated."""

            def try_complete(self):
                held = super().try_complete()
                if not self.ready:
                    self.ready = True
                    purgatory.check_and_complete(next(iter(keys)))
                return held

        operation = Late(30)
        watched = []

        def watch(_=None):
            watched.append(purgatory.try_complete_else_watch(operation, keys))

        # Another operation watches the key, otherwise the request before the watch has no effect.
        watch_all(purgatory, [Probe(30)], keys)
        if nested:
            Probe(30, completing=watch).force_complete()
            host = watch_all(purgatory, [Probe(30, completing=watch)], ["host"])[0]
            operation = Late(30)
            host.force_complete()
        else:
            watch()
        assert operation.state is COMPLETED and operation.calls == ["try", "try", "complete"]
        assert watched[-1] is (not nested), "nested, the check comes when the hook has returned"
        purgatory._check()


@pytest.mark.parametrize("refusal", [PurgatoryFull, TypeError])
async def test_check_requested_by_refused_first_try_still_runs(
    refusal,
):
    async with Purgatory(max_pending=1 if refusal is PurgatoryFull else None) as purgatory:
        waiting = watch_all(purgatory, [Probe(30)], ["key"])[0]

        def trying(_):
            waiting.ready = True
            purgatory.check_and_complete("key")

        keys = [[]] if refusal is TypeError else ["other"]
        with pytest.raises(refusal):
            purgatory.try_complete_else_watch(Probe(30, trying=trying), keys)
        await iterations(2)
        assert waiting.state is COMPLETED or waiting.calls == ["try"], "asked for and not made"
        purgatory._check()


@pytest.mark.parametrize("keys", [["key"], ["key", "second"]])
async def test_completions_of_first_try_finish_before_the_return(purgatory, keys):
    other = watch_all(purgatory, [Probe(30)], ["other"])[0]
    operation = Probe(30, trying=lambda _: other.force_complete())
    assert not purgatory.try_complete_else_watch(operation, keys)
    assert other.calls == ["try", "complete"]


# 3. Never early


@on_every_loop
async def test_nothing_expires_early_by_clock_of_loop():
    generator = random.Random(3)
    time = asyncio.get_running_loop().time
    expired = []
    async with Purgatory(tick=0.001) as purgatory:
        for number in range(300):
            timeout = generator.uniform(0.0005, 0.06)
            operation = Probe(
                timeout, completing=lambda operation: expired.append(time() - operation.deadline)
            )
            purgatory.try_complete_else_watch(operation, [number])
            if number % 50 == 0:
                await asyncio.sleep(0.0007)
        await asyncio.sleep(0.03)
        while purgatory.pending:
            await asyncio.sleep(0.005)
    assert len(expired) == 300 and min(expired) >= 0.0


@on_virtual_time
@pytest.mark.parametrize("start", [0.0, 2e7, 1e9])
@pytest.mark.parametrize(("tick", "wheel_size"), [(0.001, 2), (0.01, 512), (0.25, 20)])
async def test_expiry_is_late_by_at_most_one_tick(start, tick, wheel_size):
    generator = random.Random(4)
    time = asyncio.get_running_loop().time
    late = []
    async with Purgatory(tick=tick, wheel_size=wheel_size) as purgatory:
        for number in range(100):
            timeout = (
                tick
                * generator.choice([0.3, 1, 1.5, 7, 40, 1000, 123_456.7])
                * generator.uniform(0.9, 1.1)
            )
            operation = Probe(
                timeout, completing=lambda operation: late.append(time() - operation.deadline)
            )
            purgatory.try_complete_else_watch(operation, [number])
            await asyncio.sleep(tick * generator.random() / 3)
        await asyncio.sleep(tick * 200_000)
    assert len(late) == 100 and min(late) >= 0.0
    assert max(late) <= tick + 4 * ulp(start + 1)


async def test_many_waits_time_out_at_their_own_deadlines():
    time = asyncio.get_running_loop().time
    async with Purgatory() as purgatory:

        async def one(number):
            begun, timeout = time(), 0.001 * number
            assert await purgatory.wait(Probe(timeout, name=number), [number]) == number
            assert time() >= begun + timeout

        await asyncio.gather(*map(one, range(1, 40)))


# 4. Nothing lingers


async def end(purgatory, operation, how):
    operation.ready = how == "check"
    match how:
        case "check":
            assert purgatory.check_and_complete("key") == 1
        case "force_complete":
            assert operation.force_complete()
        case "cancel":
            assert operation.cancel()
        case "cancel_for_key":
            assert purgatory.cancel_for_key("key") == [operation]
        case "expiry":
            await asyncio.sleep(2)
        case "aclose":
            assert await purgatory.aclose() == [operation]


ENDS = ["check", "force_complete", "cancel", "cancel_for_key", "expiry", "aclose"]
on_every_end = pytest.mark.parametrize("how", ENDS)


@on_virtual_time
@on_every_path
@pytest.mark.cpython
async def test_finished_operation_is_freed_without_garbage_collector(options, keys):
    class Key:
        def __hash__(self):
            return hash("key")

        def __eq__(self, other):
            return other == "key" or self is other

    with collector(is_on=False):
        for how in ENDS:
            async with Purgatory(**options) as purgatory:
                operation, key = Probe(1), Key()
                watch_all(purgatory, [operation], [key, *list(keys)[1:]])
                await end(purgatory, operation, how)
                options.get("observer", Listener()).ended.clear()
                references = [weakref.ref(operation), weakref.ref(key)]
                assert counts(purgatory) == (0, 0, 0)
                del operation, key
                assert [reference() for reference in references] == [None, None], how


@on_virtual_time
@on_every_end
@on_every_path
async def test_finished_operation_is_unregistered_before_its_hooks(how, options, keys):
    async with Purgatory(**options) as purgatory:
        seen = []

        def look(_):
            seen.append(
                (
                    counts(purgatory),
                    purgatory.pending,
                    purgatory.watched,
                    purgatory._wheel.size,
                )
            )

        watch_all(purgatory, [Probe(9) for _ in range(3)], ["bystander"])
        watch_all(purgatory, [Probe(1, completing=look, expiring=look)], keys)
        if how == "aclose":
            return
        await end(purgatory, purgatory._watchers.operations("key")[0], how)
        look(None)
        assert set(seen) == {((3, 3, 1), 3, 3, 3)}
        assert len(seen) == {"cancel": 1, "cancel_for_key": 1, "expiry": 3}.get(how, 2)


@on_virtual_time
@on_every_end
async def test_finished_wait_keeps_no_reference_to_operation(how):
    async with Purgatory() as purgatory:
        operation = Probe(1)
        waiting = asyncio.create_task(outcome(purgatory.wait(operation, ["key", "second"])))
        await iterations()
        reference = weakref.ref(operation)
        await end(purgatory, operation, how)
        result = await waiting
        assert (
            isinstance(result, OperationCancelled)
            if how in ("cancel", "cancel_for_key", "aclose")
            else result == ""
        )
        # A traceback refers to frames, and through them to the operation.
        del operation, result, waiting
        await iterations()
        gc.collect()
        assert reference() is None


# 5. One loop callback for each bucket


@on_every_path
async def test_bucket_arms_loop_once_and_idle_purgatory_never(options, keys):
    loop = asyncio.get_running_loop()
    spy = Spy(loop)
    async with Purgatory(tick=0.25, **options) as purgatory:
        deadline = (loop.time() // 0.25 + 40) * 0.25
        operations = watch_all(
            purgatory, [Probe(deadline=deadline - 0.1) for _ in range(500)], keys
        )
        assert spy.calls["call_at"] == spy.armed == 1
        watch_all(purgatory, [Probe() for _ in range(5)], keys)
        watch_all(purgatory, [Probe(inf) for _ in range(5)], keys)
        assert spy.calls["call_at"] == spy.armed == 1
        for operation in operations:
            operation.force_complete()
        await iterations(2)
        assert spy.armed == 0 and purgatory.pending == 10
        await iterations(5)
        assert spy.armed == 0 and spy.calls["call_at"] == 1


async def test_thousand_cycles_in_one_tick_arm_once():
    spy = Spy(asyncio.get_running_loop())
    async with Purgatory(tick=3600.0) as purgatory:
        for number in range(1000):
            operation = Probe(1800)
            purgatory.try_complete_else_watch(operation, [number])
            operation.force_complete()
        assert spy.calls["call_at"] <= 2
        await iterations(2)
        assert spy.armed == 0


# 6. First come, first served


async def test_waiters_are_tried_and_completed_in_order(purgatory):
    log = []
    operations = watch_all(purgatory, [Probe(30, name=number, log=log) for number in range(6)])
    operations[1].cancel()
    log.clear()
    for operation in operations[2:]:
        operation.ready = True
    assert purgatory.check_and_complete("key") == 4
    assert log == [
        (0, "try"),
        *((number, hook) for number in (2, 3, 4, 5) for hook in ("try", "complete")),
    ]


class Take(Probe):
    """Takes one item from a queue."""

    def __init__(self, items, **options):
        super().__init__(30, **options)
        self.items = items

    def try_complete(self):
        self.log.append((self.name, "try"))
        return bool(self.items) and self.force_complete()

    def on_complete(self):
        item = self.items.popleft()
        super().on_complete()
        return item


async def test_order_is_kept_when_completions_nest(purgatory):
    items, log = deque(), []

    def give_back(operation):
        items.append(operation.name)
        purgatory.check_and_complete("items")

    operations = [Take(items, name=number, log=log, completing=give_back) for number in range(100)]
    watch_all(purgatory, operations, ["items"])
    items.append("first")
    assert purgatory.check_and_complete("items") == 100
    assert [name for name, hook in log if hook == "complete"] == list(range(100))
    assert [operation.result() for operation in operations] == ["first", *range(99)]


async def test_waiter_forced_by_hook_runs_before_next_try(purgatory):
    log = []
    a, b, c = watch_all(purgatory, [Probe(30, name=name, log=log) for name in "abc"])
    log.clear()
    a.completing = lambda _: (c.force_complete(), log.append(("a", "left")))
    a.ready = b.ready = True
    assert purgatory.check_and_complete("key") == 2
    assert log == [
        ("a", "try"),
        ("a", "complete"),
        ("a", "left"),
        ("c", "complete"),
        ("b", "try"),
        ("b", "complete"),
    ]


@on_virtual_time
async def test_operations_of_one_tick_expire_in_order():
    async with Purgatory(tick=1.0, wheel_size=2) as purgatory:
        log = []
        for number in range(50):
            operation = Probe(deadline=63.0 - number / 100, name=number, log=log)
            purgatory.try_complete_else_watch(operation, [number])
            await asyncio.sleep(1.2)
        await asyncio.sleep(10)
        assert [name for name, hook in log if hook == "expire"] == list(range(50))


# 7. Re-entrant, without recursion


def chained_by_check(purgatory, operations, number):
    def hook(_):
        following = operations[number + 1]
        following.ready = True
        purgatory.check_and_complete(number + 1)

    return hook


def chained_by_force(purgatory, operations, number):
    return lambda _: operations[number + 1].force_complete()


def chained_by_watch(purgatory, operations, number):
    """Watches the next operation under the key that is being checked."""

    def hook(_):
        late = Probe(30)
        purgatory.try_complete_else_watch(late, [("late", number)])
        operations[number + 1].ready = True
        purgatory.check_and_complete(number + 1)
        late.force_complete()

    return hook


@on_virtual_time
@pytest.mark.parametrize("chained_by", [chained_by_check, chained_by_force, chained_by_watch])
@pytest.mark.parametrize("hook", ["trying", "completing", "expiring"])
@pytest.mark.parametrize("observer", [None, Listener()], ids=["unobserved", "observed"])
async def test_long_chain_of_completions_needs_no_stack(chained_by, hook, observer):
    async with Purgatory(observer=observer) as purgatory:
        log = []
        operations = [Probe(None, name=number, log=log) for number in range(DEEP)]
        for number, operation in enumerate(operations):
            purgatory.try_complete_else_watch(operation, [number])
        log.clear()
        for number, operation in enumerate(operations[:-1]):
            # Only the first operation of the chain expires and calls `expiring`; the others
            # complete.
            name = "completing" if hook == "expiring" else hook
            if hook == "trying" and chained_by is chained_by_force:
                name = "completing"  # a forced operation is not tried
            setattr(operation, name, chained_by(purgatory, operations, number))
        if hook == "expiring":
            first = Probe(1, expiring=lambda _: operations[0].force_complete())
            purgatory.try_complete_else_watch(first, ["first"])
            await asyncio.sleep(2)
        else:
            operations[0].ready = True
            purgatory.check_and_complete(0)
        while purgatory.pending:
            await asyncio.sleep(0)
        await iterations(2)
        assert [name for name, called in log if called == "complete"] == list(range(DEEP))
        purgatory._check()


async def test_hooks_may_change_waiters_during_their_check(purgatory):
    log, added = [], []

    def shuffle(operation):
        operations[operation.name + 1].cancel()
        operations[operation.name + 2].force_complete()
        added.append(Probe(30, name=operation.name + 100, log=log))
        purgatory.try_complete_else_watch(added[-1], ["key"])

    operations = watch_all(purgatory, [Probe(30, name=number, log=log) for number in range(9)])
    log.clear()
    for number in (0, 3, 6):
        operations[number].ready = True
        operations[number].completing = shuffle
    assert purgatory.check_and_complete("key") == 3
    assert [entry for entry in log if entry[1] == "complete"] == [
        (n, "complete") for n in (0, 2, 3, 5, 6, 8)
    ]
    assert [operations[number].state for number in (1, 4, 7)] == [CANCELLED] * 3
    assert [operation.calls for operation in added] == [["try"]] * 3, (
        "who comes during a check waits for the next"
    )
    assert counts(purgatory) == (3, 3, 1)
    purgatory._check()
    for operation in added:
        operation.ready = True
    assert purgatory.check_and_complete("key") == 3
    assert [name for name, hook in log if hook == "complete"][-3:] == [100, 103, 106]


async def test_no_hook_runs_inside_another(purgatory):
    inside = []

    def enter(operation):
        assert not inside
        inside.append(operation)
        forced.force_complete()
        for key in ("key", "other"):
            purgatory.check_and_complete(key)
        assert inside.pop() is operation

    forced, *operations = [Probe(30, completing=enter) for _ in range(6)]
    watch_all(purgatory, [forced, *operations[:3]])
    watch_all(purgatory, operations[3:], ["other"])
    for number in (1, 4):
        operations[number].ready = True
    for operation in operations:
        operation.trying = lambda operation: len(operation.calls) < 4 and enter(operation)
    assert purgatory.check_and_complete("key") == 2
    assert forced.state is COMPLETED and purgatory.pending == 3
    results = [await outcome(one) for one in (forced, operations[1], operations[4])]
    assert results == [None] * 3, "a hook was entered inside another one"
    purgatory._check()


async def test_repeated_check_requests_in_hook_run_once(purgatory):
    other = watch_all(purgatory, [Probe(30)], ["other"])[0]
    first = watch_all(
        purgatory,
        [
            Probe(
                30, completing=lambda _: [purgatory.check_and_complete("other") for _ in range(50)]
            )
        ],
    )
    first[0].force_complete()
    assert other.calls == ["try", "try"]


@on_virtual_time
async def test_observer_may_start_a_chain_too():
    class Domino(Listener):
        def operation_ended(self, ended):
            super().operation_ended(ended)
            [number] = ended.keys
            if number + 1 < DEEP:
                operations[number + 1].cancel()

    observer = Domino()
    operations = [Probe(30, name=number) for number in range(DEEP)]
    async with Purgatory(observer=observer) as purgatory:
        for number, operation in enumerate(operations):
            purgatory.try_complete_else_watch(operation, [number])
        operations[0].cancel()
        await iterations(DEEP // MAX_PER_ITERATION + 5)
        assert purgatory.pending == 0 and observer.ended_ids == [*map(id, operations)]


# 8. A failing operation affects no other


@on_virtual_time
@on_every_path
@pytest.mark.parametrize(
    ("hook", "end", "error_type"),
    [
        ("trying", "check", ZeroDivisionError),
        ("trying", "expiry", asyncio.CancelledError),
        ("completing", "check", asyncio.CancelledError),
        ("completing", "expiry", GeneratorExit),
    ],
)
async def test_raising_hook_does_not_affect_other_operations(options, keys, error_type, hook, end):
    async with Purgatory(**options) as purgatory:
        operations = watch_all(purgatory, [Probe(1, name=number) for number in range(3)], keys)
        setattr(operations[1], hook, raiser(error_type()))
        for operation in operations:
            operation.ready = end == "check"
        waiting = [asyncio.create_task(outcome(operation)) for operation in operations]
        await iterations()
        if end == "check":
            assert purgatory.check_and_complete("key") == (2 if hook == "trying" else 3)
        first, bad, last = await asyncio.gather(*waiting)
        assert (first, last) == (0, 2) and type(bad) is error_type
        assert counts(purgatory) == (0, 0, 0)
        statistics = purgatory.statistics()
        assert statistics.cancelled == (hook == "trying")
        assert statistics.completed + statistics.expired == (2 if hook == "trying" else 3)
        purgatory._check()


@pytest.mark.parametrize("method", ["operation_ended", "key_checked"])
async def test_raising_observer_is_reported_and_affects_nothing(reports, method):
    observer = Listener()
    setattr(observer, method, lambda *_: 1 // 0)
    async with Purgatory("letters", observer=observer) as purgatory:
        operations = watch_all(purgatory, [Probe(30) for _ in range(3)])
        for operation in operations:
            operation.ready = True
        assert purgatory.check_and_complete("key") == 3
        watch_all(purgatory, [Probe(30)])[0].cancel()
        purgatory._check()
    await iterations(4)
    assert len(reports) == (4 if method == "operation_ended" else 1)
    assert all(
        method in report["message"] and report["message"].startswith("letters")
        for report in reports
    )
    assert all(isinstance(report["exception"], ZeroDivisionError) for report in reports)


@on_virtual_time
async def test_hooks_at_deadline_inherit_no_watchers_context():
    variable = ContextVar("variable", default="nobody")
    async with Purgatory() as purgatory:
        variable.set("the first to watch")
        operation = Probe(1, completing=lambda _: variable.get())
        purgatory.try_complete_else_watch(operation, ["key"])
        await asyncio.sleep(2)
        assert operation.result() == "nobody"


# 9. A burst does not stall the loop


BURST = 8 * MAX_PER_ITERATION + 7


@on_virtual_time
@pytest.mark.parametrize("start", [0.0, 1e9])
@pytest.mark.parametrize("keys", [1, 10_000], ids=["one key", "own keys"])
async def test_burst_of_expiries_spreads_over_iterations_in_order(purgatory, start, keys):
    log, pulses = [], []

    def completing(_):
        if not pulses:
            pulses.append(Pulse())
        pulses[0].mark()

    for number in range(BURST):
        operation = Probe(1, name=number, log=log, completing=completing)
        purgatory.try_complete_else_watch(operation, [number % keys])
    await asyncio.sleep(1.01)
    assert [name for name, hook in log if hook == "expire"] == list(range(BURST))
    assert (
        pulses[0].busiest <= MAX_PER_ITERATION
        and len(pulses[0].marks) <= BURST / MAX_PER_ITERATION + 2
    )


@on_virtual_time
async def test_expiries_beside_unfinished_check_stay_within_bounds(purgatory):
    pulses = []

    def begin(_=None):
        if not pulses:
            pulses.append(Pulse())
            purgatory.check_and_complete("hot")

    hot = watch_all(purgatory, [Probe(30) for _ in range(40 * MAX_PER_ITERATION)], ["hot"])
    for operation in hot:
        operation.trying = lambda _: pulses[0].mark()
    for number in range(MAX_PER_ITERATION):
        purgatory.try_complete_else_watch(Probe(1, completing=begin), [number])
    await asyncio.sleep(1.5)
    assert pulses[0].busiest <= 2 * MAX_PER_ITERATION
    assert sum(pulses[0].marks.values()) == len(hot)


@on_virtual_time
@pytest.mark.parametrize("end", ["check", "expiry"])
async def test_branching_chains_in_hooks_stay_within_bounds(purgatory, end):
    pulses = []

    def link(length):
        def completing(_):
            if not pulses:
                pulses.append(Pulse())
            pulses[0].mark()
            if length:
                following = Probe(completing=link(length - 1))
                purgatory.try_complete_else_watch(following, [following])
                following.force_complete()

        return completing

    for operation in watch_all(
        purgatory, [Probe(1, completing=link(MAX_PER_ITERATION)) for _ in range(20)]
    ):
        operation.ready = True
    if end == "check":
        purgatory.check_and_complete("key")
    await asyncio.sleep(2)
    assert sum(pulses[0].marks.values()) == 20 * (MAX_PER_ITERATION + 1)
    assert pulses[0].busiest <= 3 * MAX_PER_ITERATION


# 10. O(1), counted in calls


@on_virtual_time
@pytest.mark.parametrize("spread", [True, False], ids=["own keys", "one hot key"])
@pytest.mark.parametrize(
    "work", ["watch", "cancel first", "cancel middle", "force last", "pending"]
)
async def test_operation_cost_ignores_number_of_pending_operations(spread, work):
    async def cost(pending):
        async with Purgatory() as purgatory:
            operations = []
            for number in range(pending):
                operations.append(Probe(30))
                purgatory.try_complete_else_watch(operations[-1], [number if spread else "hot"])
            new = Probe(30)
            action = {
                "watch": lambda: purgatory.try_complete_else_watch(
                    new, ["new" if spread else "hot"]
                ),
                "cancel first": operations[0].cancel,
                "cancel middle": operations[pending // 2].cancel,
                "force last": operations[-1].force_complete,
                "pending": lambda: (purgatory.pending, purgatory.watched, purgatory.statistics()),
            }[work]
            result = profiled(action)
            for operation in [*operations, new]:
                operation.cancel()
            return result

    assert await cost(10) == await cost(20_000)


# Errors


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"tick": 0.0}, ValueError),
        ({"tick": -1.0}, ValueError),
        ({"tick": nan}, ValueError),
        ({"tick": inf}, ValueError),
        ({"wheel_size": 1}, ValueError),
        ({"wheel_size": 2.5}, TypeError),
        ({"max_pending": 0}, ValueError),
        ({"max_pending": -1}, ValueError),
        ({"max_pending": 1.5}, TypeError),
    ],
)
def test_constructor_checks_bounds_of_its_arguments(options, error):
    with pytest.raises(error):
        Purgatory(**options)


async def test_two_purgatories_may_trigger_each_other():
    async with Purgatory() as one, Purgatory() as two:
        operations = [Probe(30, name=number) for number in range(5000)]
        for number, operation in enumerate(operations):
            (one, two)[number % 2].try_complete_else_watch(operation, [number])
        for operation, following in itertools.pairwise(operations):
            operation.completing = lambda _, following=following: following.force_complete()
        operations[0].force_complete()
        while one.pending or two.pending:
            await asyncio.sleep(0)
        assert all(operation.state is COMPLETED for operation in operations)


@on_virtual_time
@on_every_path
async def test_completion_at_deadline_is_a_missed_trigger(options, keys):
    async with Purgatory(**options) as purgatory:
        operation = watch_all(
            purgatory, [Probe(1, completing=lambda operation: operation.state)], keys
        )[0]
        operation.ready = True
        assert await operation is COMPLETED and operation.calls == ["try", "try", "complete"]
        assert (await purgatory.wait(Probe(1), keys), operation.deadline) == ("", 1.0)
        statistics = purgatory.statistics()
        assert (statistics.completed, statistics.expired, statistics.missed_triggers) == (1, 1, 1)


# The observer


@on_virtual_time
@on_every_end
@pytest.mark.parametrize("keys", [["key"], ["key", "second"]])
async def test_observer_is_notified_once_per_ended_operation(how, keys):
    class Witness(Listener):
        def operation_ended(self, ended):
            super().operation_ended(ended)
            assert operation.is_completed and ended.state is operation.state
            if operation.state is not CANCELLED:
                operation.result()

    observer = Witness()
    async with Purgatory(observer=observer) as purgatory:
        operation = watch_all(purgatory, [Probe(1)], keys)[0]
        assert observer.ended == []
        await end(purgatory, operation, how)
        assert observer.ended_ids == [id(operation)]
        await asyncio.sleep(3)
    assert observer.ended_ids == [id(operation)]
    assert observer.checks == ([("key", 1, 1)] if how == "check" else [])


async def test_observer_is_notified_of_operations_without_wait():
    observer = Listener()
    async with Purgatory(observer=observer) as purgatory:
        bad = Probe(30, trying=raiser(ZeroDivisionError()))
        quitter = Probe(30, trying=lambda operation: operation.cancel())
        operations = [Probe(ready=True), Probe(0), bad, quitter]
        for operation in operations:
            assert purgatory.try_complete_else_watch(operation, ["key"])
        assert observer.ended_ids == [*map(id, operations)] and observer.checks == []
        assert isinstance(await outcome(bad), ZeroDivisionError)


async def test_observer_is_notified_once_per_effective_check():
    observer = Listener()
    async with Purgatory(observer=observer) as purgatory:
        operations = watch_all(purgatory, [Probe(30) for _ in range(3 * MAX_PER_ITERATION)])
        nested = watch_all(purgatory, [Probe(30)], ["nested"])[0]
        operations[0].ready = operations[-1].ready = nested.ready = True
        operations[0].completing = lambda _: purgatory.check_and_complete("nested")
        purgatory.check_and_complete("nobody")
        purgatory.check_and_complete("key")
        await iterations(8)
        assert sorted(observer.checks) == [("key", 3 * MAX_PER_ITERATION, 2), ("nested", 1, 1)]
        observer.checks.clear()
        purgatory.check_and_complete_threadsafe("nobody")
        purgatory.check_and_complete_threadsafe("key")
        await asyncio.sleep(0.01)
        await iterations(8)
        assert observer.checks == [("key", 3 * MAX_PER_ITERATION - 2, 0)]


# wait and wait_for


async def test_wait_returns_result_and_cancels_with_its_task(purgatory):
    operation, doomed = Probe(30, name="answer"), Probe(30)
    tasks = [asyncio.create_task(purgatory.wait(one, ["key"])) for one in (operation, doomed)]
    await iterations()
    tasks[1].cancel()
    assert isinstance(await outcome(tasks[1]), asyncio.CancelledError)
    assert doomed.state is CANCELLED and purgatory.pending == 1 and doomed.calls == ["try"]
    operation.ready = True
    purgatory.check_and_complete("key")
    assert await tasks[0] == "answer"
    assert await purgatory.wait(Probe(ready=True, name=1), ["key"]) == 1
    assert await purgatory.wait(Probe(0.001, name=2), ["key"]) == 2
    bad = Probe(0.001, completing=raiser(KeyError("bad")))
    assert isinstance(await outcome(purgatory.wait(bad, ["key"])), KeyError)


async def test_wait_for_returns_the_first_true_value(purgatory):
    values = iter([None, 0, "", [], "true", "never asked for"])
    waiting = asyncio.create_task(purgatory.wait_for(lambda: next(values), ["key", "second"], 30))
    await iterations()
    for key in ["key", "second", "key", "second"]:
        assert not waiting.done()
        purgatory.check_and_complete(key)
    assert await waiting == "true" and next(values) == "never asked for"
    assert await purgatory.wait_for(lambda: 5, ["key"], 0) == 5


@pytest.mark.parametrize("timeout", [0, -1.5, 0.002])
async def test_wait_for_retries_once_before_its_timeout(purgatory, timeout):
    asked = []

    def predicate():
        asked.append(True)

    with pytest.raises(TimeoutError) as caught:
        await purgatory.wait_for(predicate, ["key"], timeout)
    assert type(caught.value) is OperationTimeout
    assert str(caught.value) == f"the condition on ['key'] did not hold within {timeout} s"
    assert len(asked) == (2 if timeout > 0 else 1)
    assert purgatory.statistics().expired == 1


async def test_wait_for_raises_exception_of_its_predicate(purgatory):
    assert isinstance(await outcome(purgatory.wait_for(lambda: 1 // 0, ["key"])), ZeroDivisionError)
    number = 0
    waiting = asyncio.create_task(
        outcome(purgatory.wait_for(lambda: number and 1 // (number - 1), ["key"]))
    )
    await iterations()
    number = 1
    assert purgatory.check_and_complete("key") == 0
    assert isinstance(await waiting, ZeroDivisionError) and purgatory.pending == 0
    with pytest.raises(ValueError, match="NaN"):
        await purgatory.wait_for(lambda: True, ["key"], nan)


async def test_cancel_for_key_answers_and_returns_all_waiters(purgatory):
    a = watch_all(purgatory, [Probe(30) for _ in range(3)], ["a", "b"])
    b = watch_all(purgatory, [Probe(30)], ["b"])
    waiting = [asyncio.create_task(outcome(operation)) for operation in a]
    predicate = asyncio.create_task(outcome(purgatory.wait_for(lambda: False, ["a"])))
    await iterations()
    cancelled = purgatory.cancel_for_key("a")
    assert cancelled[:3] == a and len(cancelled) == 4 and purgatory.cancel_for_key("a") == []
    for result in await asyncio.gather(*waiting, predicate):
        assert isinstance(result, OperationCancelled)
    assert counts(purgatory) == (1, 1, 1) and not b[0].is_completed


# Dropped purgatories


@on_virtual_time
async def test_repr_shows_name_and_pending_operations():
    async with Purgatory("letters") as purgatory:
        watch_all(purgatory, [Probe(1)], ["a", "b"])
        assert repr(purgatory) == "<Purgatory 'letters' open pending=1 watched=2>"
    assert repr(purgatory) == "<Purgatory 'letters' closed pending=0 watched=0>"


def test_same_run_gives_the_same_trace_twice(virtual):
    async def main():
        generator, log = random.Random(5), []
        async with Purgatory(tick=0.01, wheel_size=4) as purgatory:
            for number in range(200):
                operation = Probe(generator.uniform(0.1, 9), name=number, log=log)
                purgatory.try_complete_else_watch(
                    operation, {generator.randrange(20), generator.randrange(20)}
                )
                operation.ready = generator.random() < 0.5
                await asyncio.sleep(generator.random() / 10)
                purgatory.check_and_complete(generator.randrange(20))
        return log, purgatory.statistics()

    assert virtual(main) == virtual(main)


@pytest.mark.cpython
async def test_idle_purgatory_releases_memory_of_its_keys():
    purgatory = Purgatory()
    operations = [Probe(timeout=30) for _ in range(1000)]
    for number, operation in enumerate(operations):
        purgatory.try_complete_else_watch(operation, (number,))
    full = getsizeof(purgatory._by_key)
    for operation in operations:
        operation.force_complete()
    await iterations(2)
    assert getsizeof(purgatory._by_key) < full / 100
    purgatory._check()


def test_deadline_at_zero_of_the_clock_may_wait():
    async def main():
        loop = asyncio.get_running_loop()
        loop.time = lambda: -5.0
        purgatory = Purgatory(max_pending=5)
        for operation in (Probe(5.0), Probe(5.0)):
            assert not purgatory.try_complete_else_watch(operation, ["key"])
            assert operation.deadline == 0.0
        await purgatory.aclose()

    loop = VirtualTimeLoop()
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()
