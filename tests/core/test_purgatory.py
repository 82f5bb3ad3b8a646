"""`Purgatory` by example, on its fast and general paths. `test_model_purgatory` has its promises."""

import asyncio
from contextvars import ContextVar
from math import nan

import pytest
from helpers import Listener, Probe, counts, iterations, outcome, watch_all
from invariants import MAX_PER_ITERATION, check, deadlines
from loops import on_virtual_time

from purgatory import OperationState, OperationTimeout, Purgatory

PENDING, COMPLETED, EXPIRED, CANCELLED = OperationState


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
        check(purgatory)


def test_kafkas_name_is_an_alias_of_the_function():
    assert Purgatory.checkAndComplete is Purgatory.check_and_complete


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
        check(purgatory)


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


ENDS = ["check", "force_complete", "cancel", "cancel_for_key", "expiry"]


@on_virtual_time
@pytest.mark.parametrize("how", ENDS)
@on_every_path
async def test_finished_operation_is_unregistered_before_its_hooks(how, options, keys):
    async with Purgatory(**options) as purgatory:
        seen = []

        def look(_):
            seen.append(
                (counts(purgatory), purgatory.pending, purgatory.watched, deadlines(purgatory))
            )

        watch_all(purgatory, [Probe(9) for _ in range(3)], ["bystander"])
        watch_all(purgatory, [Probe(1, completing=look, expiring=look)], keys)
        await end(purgatory, purgatory._by_key.operations("key")[0], how)
        look(None)
        assert set(seen) == {((3, 3, 1), 3, 3, 3)}
        assert len(seen) == {"cancel": 1, "cancel_for_key": 1, "expiry": 3}.get(how, 2)


@on_virtual_time
async def test_hooks_at_deadline_inherit_no_watchers_context():
    variable = ContextVar("variable", default="nobody")
    async with Purgatory() as purgatory:
        variable.set("the first to watch")
        operation = Probe(1, completing=lambda _: variable.get())
        purgatory.try_complete_else_watch(operation, ["key"])
        await asyncio.sleep(2)
        assert operation.result() == "nobody"


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


@on_virtual_time
async def test_repr_shows_name_and_pending_operations():
    async with Purgatory("letters") as purgatory:
        watch_all(purgatory, [Probe(1)], ["a", "b"])
        assert repr(purgatory) == "<Purgatory 'letters' open pending=1 watched=2>"
    assert repr(purgatory) == "<Purgatory 'letters' closed pending=0 watched=0>"
