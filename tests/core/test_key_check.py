"""Checks of keys: which operations are tried, in which order, the return value, and the budget of
an iteration of the loop."""

import asyncio

import pytest
from helpers import Broken, Probe, Pulse, counts, iterations, outcome, watch_all
from loops import on_virtual_time

from purgatory import DelayedOperation, OperationCancelled, OperationState, Purgatory
from purgatory._core import watch_lists
from purgatory._core.loop import MAX_PER_ITERATION

PENDING, COMPLETED, EXPIRED, CANCELLED = OperationState

BURST = 8 * MAX_PER_ITERATION + 7


# The return value of a check


async def test_check_counts_completions_of_nested_checks_too(
    purgatory,
):
    a = watch_all(purgatory, [Probe(30, ready=False) for _ in range(3)], ["a"])
    b = watch_all(purgatory, [Probe(30) for _ in range(2)], ["b"])
    forced = watch_all(purgatory, [Probe(30)], ["c"])[0]
    inner = []

    def completing(_):
        inner.append(purgatory.check_and_complete("b"))
        forced.force_complete()

    for operation in (a[0], a[2], *b):
        operation.ready = True
    a[0].completing = completing
    assert purgatory.check_and_complete("a") == 4 and inner == [0]
    assert forced.state is COMPLETED and purgatory.pending == 1


async def test_check_does_not_count_leftovers_of_earlier_check(purgatory):
    hot = watch_all(purgatory, [Probe(30) for _ in range(5 * MAX_PER_ITERATION)], ["hot"])
    cold = watch_all(purgatory, [Probe(30)], ["cold"])
    for operation in [*hot, *cold]:
        operation.ready = True
    assert purgatory.check_and_complete("hot") == MAX_PER_ITERATION
    assert purgatory.check_and_complete("cold") == 1
    assert cold[0].state is COMPLETED


# Bursts coalesce


@on_virtual_time
@pytest.mark.parametrize("by", ["calls", "threads", "hooks"])
async def test_key_that_is_always_checked_is_queued_once(purgatory, by):
    waiting = watch_all(purgatory, [Probe(None) for _ in range(10 * MAX_PER_ITERATION)], ["hot"])
    log = waiting[0].log
    for operation in waiting:
        operation.log = log
    asked = 100
    for _ in range(asked):
        if by == "calls":
            purgatory.check_and_complete("hot")
        elif by == "threads":
            purgatory.check_and_complete_threadsafe("hot")
        else:
            Probe(completing=lambda _: purgatory.check_and_complete("hot")).force_complete()
        await iterations(1)
    before = len(log)
    assert before <= (asked + 1) * MAX_PER_ITERATION + len(waiting)
    await iterations(asked * 10)
    # The rest of the check in progress and one more check remain, not one check for each call.
    assert len(log) - before <= 2 * len(waiting)
    count = len(log)
    await iterations(30)
    assert len(log) == count


@on_virtual_time
async def test_check_requested_during_check_runs_once_more(purgatory):
    waiting = watch_all(purgatory, [Probe(None) for _ in range(3 * MAX_PER_ITERATION)], ["hot"])
    assert purgatory.check_and_complete("hot") == 0
    waiting[0].ready = True
    assert purgatory.check_and_complete("hot") == 0  # already tried by this check
    await iterations(10)
    assert waiting[0].state is COMPLETED
    assert {len(operation.calls) for operation in waiting[1:]} == {3}


# No iteration costs more than its budget


@on_virtual_time
@pytest.mark.cpython
async def test_first_iteration_costs_one_budget_for_any_crowd(purgatory):
    import tracemalloc

    waiting = watch_all(
        purgatory, [Probe(None, log=[]) for _ in range(60 * MAX_PER_ITERATION)], ["hot"]
    )
    shared = []
    for operation in waiting:
        operation.log = shared
    shared.extend([None] * len(waiting))
    shared.clear()
    tracemalloc.start()
    try:
        purgatory.check_and_complete("hot")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(shared) <= MAX_PER_ITERATION
    # A copy of the list would take 8 bytes per operation, some 240 kB; each try logs a tuple of 56
    # bytes.
    assert peak < MAX_PER_ITERATION * 200


@pytest.mark.parametrize("ready", [True, False], ids=["completing", "only tried"])
async def test_crowd_is_checked_over_iterations_in_order(purgatory, ready):
    log = []
    operations = watch_all(purgatory, [Probe(30, name=number, log=log) for number in range(BURST)])
    log.clear()
    pulse = Pulse()
    for operation in operations:
        operation.ready, operation.trying = ready, pulse.mark
    assert purgatory.check_and_complete("key") == (MAX_PER_ITERATION if ready else 0)
    assert len(log) == (2 * MAX_PER_ITERATION if ready else MAX_PER_ITERATION), (
        "a first budget is tried at once"
    )
    await iterations(20)
    assert [name for name, hook in log if hook == "try"] == list(range(BURST))
    assert pulse.busiest <= MAX_PER_ITERATION and purgatory.pending == (0 if ready else BURST)
    purgatory._check()


async def test_two_large_checks_alternate(purgatory):
    log = []
    for key in "ab":
        watch_all(
            purgatory, [Probe(30, name=key, log=log) for _ in range(4 * MAX_PER_ITERATION)], [key]
        )
    log.clear()
    purgatory.check_and_complete("a")
    purgatory.check_and_complete("b")
    await iterations(20)
    rounds = [
        [name for name, _ in log[start : start + MAX_PER_ITERATION]]
        for start in range(0, len(log), MAX_PER_ITERATION)
    ]
    counts = [one.count("a") for one in rounds]
    assert counts[:2] == [512, 0] and all(128 < count < 384 for count in counts[2:])


# First come, first served


class Takes(DelayedOperation[int]):
    """Waits for a token from a limited supply."""

    def __init__(self, number, tokens, served, timeout=None):
        super().__init__(timeout)
        self.number, self.tokens, self.served = number, tokens, served

    def try_complete(self):
        return bool(self.tokens) and self.force_complete()

    def on_complete(self):
        if self.state is COMPLETED:
            self.tokens.pop()
            self.served.append(self.number)
        return self.number


@on_virtual_time
@pytest.mark.parametrize("key", ["hot", ("hot", 1)])
async def test_newcomer_during_check_joins_at_the_end(purgatory, key):
    tokens, served = [], []
    count = MAX_PER_ITERATION + 188
    watch_all(purgatory, [Takes(number, tokens, served) for number in range(count)], [key])
    tokens.extend(range(count))
    assert purgatory.check_and_complete(key) == MAX_PER_ITERATION
    newcomers = [Takes(count + number, tokens, served) for number in range(3)]
    for newcomer in newcomers:
        assert purgatory.try_complete_else_watch(newcomer, [key, "another"]) is False
    tokens.append(None)
    await iterations(5)
    assert served == list(range(count + 1))
    assert [newcomer.state for newcomer in newcomers] == [COMPLETED, PENDING, PENDING]
    purgatory.cancel_for_key(key)


@on_virtual_time
@pytest.mark.parametrize("left", [0, 1, 4])
async def test_newcomer_is_tried_once_despite_emptied_chunk(left, monkeypatch):
    monkeypatch.setattr(watch_lists, "CHUNK_CAPACITY", 4)
    async with Purgatory() as purgatory:
        log, newcomers = [], [Probe(30, name=number) for number in range(9, 15)]
        waiting = watch_all(purgatory, [Probe(30, name=number) for number in range(9)])
        for operation in waiting[:left]:
            operation.cancel()
        for operation in (*waiting, *newcomers):
            operation.log = log
        waiting[5].trying = lambda _: watch_all(purgatory, newcomers)
        purgatory.check_and_complete("key")
        assert [name for name, _ in log] == list(range(left, 15))
        purgatory.cancel_for_key("key")


@on_virtual_time
@pytest.mark.parametrize(
    ("count", "at"),
    [
        (300, 0),
        (300, 299),
        (MAX_PER_ITERATION, 100),
        (2 * MAX_PER_ITERATION + 300, 2 * MAX_PER_ITERATION + 50),
    ],
)
@pytest.mark.parametrize("leaving", ["all leave", "some leave", "nobody leaves"])
async def test_newcomers_are_tried_in_order_after_check(purgatory, leaving, count, at):
    served, new = [], []

    def newcomers(number):
        for _ in range(number):
            new.append(
                Probe(
                    None, name=len(new), ready=True, completing=lambda one: served.append(one.name)
                )
            )
            watch_all(purgatory, new[-1:], ["hot"])

    def come_and_go(_):
        if not new:
            newcomers(5)
            for operation in old[
                :: {"all leave": 1, "some leave": 3, "nobody leaves": count}[leaving]
            ]:
                operation.cancel()
            newcomers(2 * MAX_PER_ITERATION)

    old = watch_all(purgatory, [Probe(None) for _ in range(count)], ["hot"])
    old[at].trying = come_and_go
    purgatory.check_and_complete("hot")
    await iterations(12)
    assert [number for number, name in enumerate(served) if number != name] == [] and len(
        served
    ) == len(new)
    assert {len(operation.calls) for operation in new} == {2}
    purgatory._check()
    purgatory.cancel_for_key("hot")
    assert purgatory.pending == purgatory.watched == 0


@on_virtual_time
async def test_newcomer_without_time_is_tried_at_once(purgatory):
    watch_all(purgatory, [Probe(None) for _ in range(2 * MAX_PER_ITERATION)], ["hot"])
    purgatory.check_and_complete("hot")
    assert purgatory.try_complete_else_watch(Probe(0, ready=True, name="now"), ["hot"]) is True
    assert purgatory.try_complete_else_watch(hopeless := Probe(-1), ["hot"]) is True
    assert hopeless.calls == ["try", "complete", "expire"]
    purgatory.cancel_for_key("hot")


@on_virtual_time
async def test_newcomer_of_queued_key_is_tried_once(purgatory):
    newcomers = [Probe(30), Probe(30)]

    def ask_then_come(_):
        purgatory.check_and_complete("key")
        watch_all(purgatory, newcomers)
        newcomers[0].ready = True

    watch_all(purgatory, waiting := [Probe(30)])
    Probe(completing=ask_then_come).force_complete()
    assert newcomers[0].state is COMPLETED
    assert [each.calls for each in (*waiting, *newcomers)] == [
        ["try", "try"],
        ["try", "complete"],
        ["try"],
    ]


# A failing try


class Ended(DelayedOperation[None]):
    """Its second try completes the operation and then raises."""

    def __init__(self, end, error):
        super().__init__(30)
        self.end, self.error, self.tries = end, error, 0

    def try_complete(self):
        self.tries += 1
        if self.tries == 1:
            return False
        if self.end is not None:
            getattr(self, self.end)()
        if self.error is not None:
            raise self.error
        return True


@pytest.mark.parametrize(
    ("end", "error", "raised", "reported"),
    [
        (None, Broken("no"), Broken, None),
        (None, None, TypeError, None),
        ("cancel", None, OperationCancelled, None),
        ("cancel", Broken("no"), OperationCancelled, Broken),
        ("force_complete", Broken("no"), None, Broken),
    ],
    ids=[
        "raises",
        "says yes and does nothing",
        "cancels itself",
        "cancels itself and raises",
        "completes and raises",
    ],
)
async def test_failing_try_ends_only_its_own_operation(end, error, raised, reported, reports):
    async with Purgatory() as purgatory:
        before, after = Probe(30), Probe(30)
        operation = Ended(end, error)
        for each in (before, operation, after):
            purgatory.try_complete_else_watch(each, ["key", "other"])
        waiting = asyncio.create_task(outcome(operation))
        await iterations()
        before.ready = after.ready = True
        assert purgatory.check_and_complete("key") == 2 + (end == "force_complete")
        assert before.state is after.state is COMPLETED and operation.is_completed
        answer = await waiting
        assert answer is None if raised is None else type(answer) is raised
        assert counts(purgatory) == (0, 0, 0) and purgatory.statistics().cancelled == (
            raised is not None
        )
    assert [type(report["exception"]) for report in reports] == (
        [] if reported is None else [reported]
    )
