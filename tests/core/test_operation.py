"""An operation alone: its result, its time, its hooks and their failures."""

import asyncio
from itertools import combinations

import pytest
from helpers import Probe, iterations, outcome, raiser
from invariants import check
from loops import on_virtual_time

from purgatory import OperationCancelled, OperationState, Purgatory, WrongLoop
from purgatory.testing import VirtualTimeLoop

PENDING, COMPLETED, EXPIRED, CANCELLED = OperationState


# Result


async def test_every_awaiter_gets_result_even_a_late_one(purgatory):
    operation = Probe(30, name="answer")
    purgatory.try_complete_else_watch(operation, ["key"])
    awaiters = [asyncio.create_task(outcome(operation)) for _ in range(3)]
    await iterations()
    assert operation.force_complete() and operation.result() == "answer"
    assert await asyncio.gather(*awaiters) == ["answer"] * 3
    assert await operation == "answer"
    assert operation.calls == ["try", "complete"]


@pytest.mark.parametrize("others", [0, 1, 2])
async def test_cancelling_one_awaiter_ends_only_its_await(purgatory, others):
    operation = Probe(30, name="answer")
    purgatory.try_complete_else_watch(operation, ["key"])
    before, *after = [asyncio.create_task(outcome(operation)) for _ in range(1 + others)]
    await iterations()
    before.cancel()
    assert isinstance(await before, asyncio.CancelledError)
    assert operation.state is PENDING and purgatory.pending == 1
    operation.force_complete()
    assert await asyncio.gather(*after) == ["answer"] * others


async def test_awaiting_cancelled_operation_raises_before_and_after(purgatory):
    operation = Probe(30)
    purgatory.try_complete_else_watch(operation, ["key"])
    awaiters = [asyncio.create_task(outcome(operation)) for _ in range(2)]
    await iterations()
    assert operation.cancel() and not operation.cancel() and not operation.force_complete()
    for error in [*await asyncio.gather(*awaiters), await outcome(operation)]:
        assert isinstance(error, OperationCancelled) and not isinstance(
            error, asyncio.CancelledError
        )
    with pytest.raises(OperationCancelled, match=r"Probe cancelled.*was cancelled") as caught:
        operation.result()
    assert caught.value.__context__ is None, "the traceback shows our insides"
    assert operation.calls == ["try"]


async def test_each_await_raises_error_with_hooks_traceback():
    error = ZeroDivisionError("in the hook")
    async with Purgatory() as purgatory:
        operation = Probe(30, completing=raiser(error))
        purgatory.try_complete_else_watch(operation, ["key"])
        awaiters = [asyncio.create_task(outcome(operation)) for _ in range(2)]
        await iterations()
        assert operation.force_complete() and operation.state is COMPLETED
        assert await asyncio.gather(*awaiters) == [error, error]
        depths = set()
        for _ in range(3):
            with pytest.raises(ZeroDivisionError) as caught:
                await operation
            depths.add(len(caught.traceback))
            assert caught.traceback[-1].name == "hook"
        assert len(depths) == 1, "the traceback grows each time it is raised"


@on_virtual_time
async def test_early_result_is_an_invalid_state_error():
    early = []
    async with Purgatory() as purgatory:
        other = Probe(30)
        first = Probe(30, completing=lambda _: (other.force_complete(), early.append(other)))
        purgatory.try_complete_else_watch(other, ["other"])
        purgatory.try_complete_else_watch(first, ["first"])
        for operation in (Probe(), first):
            with pytest.raises(asyncio.InvalidStateError, match="no result yet: it is pending"):
                operation.result()

        def ask(_):
            other.force_complete()
            with pytest.raises(asyncio.InvalidStateError, match="on_complete has not run"):
                other.result()
            early.append(True)

        first.completing = ask
        first.force_complete()
        assert early == [True] and other.result() == ""


@on_virtual_time
async def test_repr_shows_state_and_deadline(purgatory):
    operation = Probe(2.5)
    assert repr(operation) == "<Probe pending unwatched>"
    purgatory.try_complete_else_watch(operation, ["key"])
    assert repr(operation) == "<Probe pending deadline=2.5>"
    await asyncio.sleep(3)
    assert repr(operation) == "<Probe expired deadline=2.5>"
    patient = Probe()
    purgatory.try_complete_else_watch(patient, ["key"])
    assert repr(patient) == "<Probe pending>"
    patient.cancel()
    assert repr(patient) == "<Probe cancelled>"
    assert repr(Probe.__new__(Probe)) == "<Probe not initialised>"


# Without a purgatory


def test_completion_without_loop_is_refused():
    operation = Probe()
    with pytest.raises(WrongLoop, match="no event loop is running"):
        operation.force_complete()
    assert operation.state is PENDING and operation.cancel()


@pytest.mark.parametrize("end", ["force_complete", "cancel"])
async def test_unwatched_operation_can_be_awaited(end):
    operation = Probe(name="answer")
    awaiters = [asyncio.create_task(outcome(operation)) for _ in range(2)]
    await iterations()
    getattr(operation, end)()
    for result in await asyncio.gather(*awaiters):
        assert (
            result == "answer"
            if end == "force_complete"
            else isinstance(result, OperationCancelled)
        )


# Hooks that raise

HOOKS = {
    "first try": ("try", "complete"),
    "first try expires": ("try", "complete", "expire"),
    "key": ("try", "complete"),
    "force_complete": ("complete",),
    "deadline": ("try", "complete", "expire"),
    "missed trigger": ("try", "complete"),
}
"""The hooks that each end calls."""
FAILING = [
    (end, raising)
    for end, hooks in HOOKS.items()
    for size in range(len(hooks) + 1)
    for raising in combinations(hooks, size)
]


@on_virtual_time
@pytest.mark.parametrize(
    ("awaited", "keys"), [(True, ["a"]), (False, ["a", "b"])], ids=["awaited", "unawaited"]
)
@pytest.mark.parametrize(
    ("end", "raising"), FAILING, ids=[f"{end}: {'+'.join(raising)}" for end, raising in FAILING]
)
async def test_first_exception_is_result_and_second_is_reported(
    reports, end, raising, awaited, keys
):
    errors = {hook: RuntimeError(hook) for hook in HOOKS[end]}
    at_first = end.startswith("first")

    def trying(operation):
        if "try" in raising and (at_first or operation.calls.count("try") > 1):
            raise errors["try"]

    operation = Probe(
        -1 if end == "first try expires" else 1,
        name="answer",
        ready=end == "first try",
        trying=trying,
        completing=raiser(errors["complete"]) if "complete" in raising else None,
        expiring=raiser(errors["expire"]) if "expire" in raising else None,
    )

    async with Purgatory() as purgatory:
        awaiter = asyncio.create_task(outcome(operation)) if awaited else None
        await iterations()
        assert purgatory.try_complete_else_watch(operation, keys) is at_first
        if end == "key":
            operation.ready = True
            purgatory.check_and_complete(keys[-1])
        elif end == "force_complete":
            operation.force_complete()
        elif not at_first:
            operation.ready = end == "missed trigger"
            await asyncio.sleep(2)
        await iterations(4)
        check(purgatory)
        result = awaiter and await awaiter

    expires = end in ("deadline", "first try expires")
    hooks = [] if end == "force_complete" else ["try"]
    hooks += ["complete", "expire"] if expires else ["complete"]
    failures = [hook for hook in hooks if hook in raising]
    if failures[:1] == ["try"]:
        assert operation.state is CANCELLED and "complete" not in operation.calls
        failures = failures[:1]
    else:
        assert operation.state is (EXPIRED if expires else COMPLETED)
        assert operation.calls.count("complete") == 1 and operation.calls.count("expire") == expires
    if failures:
        with pytest.raises(RuntimeError) as caught:
            operation.result()
        assert caught.value is errors[failures[0]]
    else:
        assert operation.result() == "answer"
    if awaited:
        assert result is (errors[failures[0]] if failures else "answer")
    unretrieved = sorted(failures[1:] if awaited else failures)
    assert sorted(str(report["exception"]) for report in reports) == unretrieved
    assert all(repr(operation) in report["message"] for report in reports)


@pytest.mark.parametrize("late", [1, 2])
async def test_unretrieved_exception_is_reported_once_after_two_iterations(reports, late):
    operation = Probe(completing=raiser(ZeroDivisionError()))
    operation.force_complete()
    await iterations(late)
    assert isinstance(await outcome(operation), ZeroDivisionError)
    await iterations(3)
    assert len(reports) == (late == 2)


def test_exit_in_hook_at_deadline_ends_loop_only():
    leaving = Probe(1, completing=raiser(KeyboardInterrupt()))
    following = Probe(1)

    async def main():
        for operation in (leaving, following):
            purgatory.try_complete_else_watch(operation, ["key"])
        await asyncio.sleep(2)

    purgatory = Purgatory()
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.get_loop().set_exception_handler(lambda *_: None)
        with pytest.raises(KeyboardInterrupt):
            runner.run(main())
        assert leaving.state is EXPIRED and following.state is PENDING
        runner.run(asyncio.sleep(1))
        assert following.state is EXPIRED and purgatory.pending == 0
