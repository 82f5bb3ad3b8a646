"""The engine of a purgatory: refusals, which change nothing, and its loop."""

import asyncio
from functools import partial

import pytest
from helpers import Probe, iterations, outcome, watch_all
from loops import on_virtual_time

from purgatory import (
    OperationReused,
    OperationState,
    Purgatory,
    PurgatoryClosed,
    PurgatoryFull,
    WrongLoop,
)

PENDING, COMPLETED, EXPIRED, CANCELLED = OperationState

METHODS = {
    "watch": lambda purgatory: purgatory.try_complete_else_watch(Probe(), ["new"]),
    "check": lambda purgatory: purgatory.check_and_complete("key"),
    "cancel what watches": lambda purgatory: purgatory.cancel_for_key("key"),
}


@pytest.fixture
def unchanged():
    def check(purgatory, action, error, *words):
        before = purgatory.statistics()
        with pytest.raises(error) as caught:
            action()
        for word in words:
            assert word in str(caught.value)
        assert purgatory.statistics() == before
        purgatory._check()

    return check


@on_virtual_time
@pytest.mark.parametrize("keys", [["key"], ["key", "second"], ("key",), {"key"}])
async def test_operation_can_be_watched_once(unchanged, keys):
    async with Purgatory() as purgatory, Purgatory() as other:
        operation, ended, forced = Probe(30), Probe(30, ready=True), Probe(30)
        purgatory.try_complete_else_watch(operation, keys)
        purgatory.try_complete_else_watch(ended, keys)
        forced.force_complete()
        calls = operation.calls
        for place in (purgatory, other):
            give = place.try_complete_else_watch
            unchanged(
                place,
                lambda give=give: give(operation, keys),
                OperationReused,
                repr(operation),
                "is being watched",
            )
            unchanged(
                place,
                lambda give=give: give(ended, keys),
                OperationReused,
                repr(ended),
                "has ended",
            )
            unchanged(
                place,
                lambda give=give: give(forced, keys),
                OperationReused,
                repr(forced),
                "has ended",
            )
        assert operation.calls == calls and operation.deadline == 30.0
        assert purgatory.pending == 1


@on_virtual_time
@pytest.mark.parametrize(
    ("keys", "error", "word"),
    [
        ([], ValueError, "at least one key"),
        ((), ValueError, "at least one key"),
        (iter([]), ValueError, "at least one key"),
        ([[]], TypeError, "unhashable"),
        (([],), TypeError, "unhashable"),
        (["key", []], TypeError, "unhashable"),
        ("orders", TypeError, "got one string"),
        (b"orders", TypeError, "got one string"),
        (3, TypeError, "got 3: pass [3]"),
    ],
)
@pytest.mark.parametrize(("timeout", "options"), [(30, {}), (None, {"max_pending": 5})])
async def test_wrong_keys_are_refused_and_operation_stays_usable(
    unchanged, keys, error, word, timeout, options
):
    async with Purgatory(**options) as purgatory:
        for bystander in (False, True):
            if bystander:
                watch_all(purgatory, [Probe(30)])
            operation = Probe(timeout)
            unchanged(
                purgatory,
                lambda operation=operation: purgatory.try_complete_else_watch(operation, keys),
                error,
                word,
            )
            assert (
                operation.state is PENDING
                and operation.deadline is None
                and "unwatched" in repr(operation)
            )
            assert not purgatory.try_complete_else_watch(operation, ["key"])
            assert operation.cancel()
            purgatory._check()


@on_virtual_time
async def test_closed_purgatory_refuses_operations_that_stay_usable(
    unchanged,
):
    purgatory = Purgatory("letters")
    await purgatory.aclose()
    operation = Probe(30, ready=True)
    for keys in (["key"], ["key", "second"]):
        give = partial(purgatory.try_complete_else_watch, operation, keys)
        unchanged(
            purgatory, give, PurgatoryClosed, "cannot watch", repr(operation), "letters is closed"
        )
    assert (
        operation.calls == []
        and purgatory.check_and_complete("key") == 0
        and purgatory.cancel_for_key("key") == []
    )
    async with Purgatory() as other:
        assert other.try_complete_else_watch(operation, ["key"])


@on_virtual_time
@pytest.mark.parametrize("keys", [["key"], ["key", "second"]])
async def test_full_purgatory_refuses_only_operations_that_must_wait(unchanged, keys):
    async with Purgatory("letters", max_pending=3) as purgatory:
        operations = watch_all(purgatory, [Probe(30) for _ in range(3)], keys)
        refused = Probe(30)
        give = partial(purgatory.try_complete_else_watch, refused, keys)
        for _ in range(10):
            unchanged(
                purgatory,
                give,
                PurgatoryFull,
                "cannot watch",
                "Probe pending",
                "3 operations wait in letters",
            )
        assert isinstance(await outcome(purgatory.wait(Probe(30), keys)), PurgatoryFull)
        assert isinstance(await outcome(purgatory.wait_for(lambda: 0, keys, 30)), PurgatoryFull)
        assert purgatory.try_complete_else_watch(Probe(30, ready=True), keys), (
            "does not have to wait"
        )
        assert purgatory.try_complete_else_watch(Probe(0), keys), "does not wait either"
        assert await purgatory.wait_for(lambda: 7, keys) == 7
        for end in ("cancel", "force_complete"):
            getattr(operations.pop(), end)()
            assert purgatory.pending == 2
            assert not give()
            operations.append(refused)
            refused = Probe(30)
            give = partial(purgatory.try_complete_else_watch, refused, keys)
            unchanged(purgatory, give, PurgatoryFull)
        await asyncio.sleep(31)
        assert purgatory.pending == 0 and not give()


@on_virtual_time
async def test_limit_leaks_no_slot_however_operations_end():
    async with Purgatory(max_pending=2) as purgatory:
        for round_ in range(50):
            waiting = [
                asyncio.create_task(outcome(purgatory.wait(Probe(1), ["key", n]))) for n in range(5)
            ]
            await iterations()
            assert purgatory.pending == 2
            if round_ % 2:
                for task in waiting:
                    task.cancel()
            results = await asyncio.gather(*waiting)
            assert [type(result) for result in results[2:]] == [PurgatoryFull] * 3
            assert purgatory.pending == purgatory.watched == 0


@pytest.mark.parametrize("doing", METHODS)
def test_purgatory_outside_its_loop_raises_and_changes_nothing(loop_factory, unchanged, doing):
    purgatory = Purgatory()
    call = partial(METHODS[doing], purgatory)
    unchanged(purgatory, call, WrongLoop, f"cannot {doing}", "no event loop is running")

    async def watch():
        purgatory.try_complete_else_watch(Probe(), ["key"])

    async def try_abroad():
        unchanged(purgatory, call, WrongLoop, f"cannot {doing}", "bound to", "running loop is")
        assert isinstance(await outcome(purgatory.aclose()), WrongLoop)
        assert isinstance(await outcome(purgatory.wait(Probe(), ["key"])), WrongLoop)
        assert purgatory.pending == 1

    with (
        asyncio.Runner(loop_factory=loop_factory) as home,
        asyncio.Runner(loop_factory=loop_factory) as abroad,
    ):
        home.run(watch())
        unchanged(purgatory, call, WrongLoop, f"cannot {doing}", "no event loop is running")
        abroad.run(try_abroad())
        assert len(home.run(purgatory.aclose())) == 1


class Compared:
    """A key that is equal to itself alone, and calls `compared` when it is compared."""

    def __init__(self, compared):
        self.compared = compared

    def __hash__(self):
        return 1

    def __eq__(self, other):
        self.compared()
        return self is other


@on_virtual_time
async def test_operation_ended_while_joining_leaves_no_entry(purgatory):
    joining, other = Probe(30), Probe(30)
    purgatory.try_complete_else_watch(other, [Compared(joining.force_complete)])
    assert purgatory.try_complete_else_watch(joining, ["key", Compared(joining.force_complete)])
    assert (joining.state, purgatory.pending, purgatory.watched) == (COMPLETED, 1, 1)
    assert joining.calls == ["try", "complete"]
    purgatory._check()


@on_virtual_time
async def test_operation_ended_by_failing_join_is_completed(purgatory):
    def end_and_fail():
        if joining.force_complete():
            raise ZeroDivisionError

    joining, other = Probe(30, name="answer"), Probe(30)
    purgatory.try_complete_else_watch(other, [Compared(end_and_fail)])
    with pytest.raises(ZeroDivisionError):
        purgatory.try_complete_else_watch(joining, ["key", Compared(end_and_fail)])
    assert await joining == "answer"
    assert (purgatory.pending, purgatory.watched) == (1, 1)
    assert joining.calls == ["try", "complete"]
    purgatory._check()
