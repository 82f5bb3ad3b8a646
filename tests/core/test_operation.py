"""An operation alone: its result, its time, its hooks and their failures."""

import asyncio
from abc import abstractmethod
from itertools import combinations
from math import inf, nan

import pytest
from helpers import Probe, iterations, outcome, raiser
from loops import on_virtual_time

from purgatory import (
    DelayedOperation,
    OperationCancelled,
    OperationState,
    Purgatory,
    WrongLoop,
)
from purgatory._core.kernel import PYPY
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


async def test_operation_claimed_in_hook_waits_for_own_hook(
    purgatory,
):
    second = Probe(30, name="second")
    awaiters = []

    def completing(_):
        second.force_complete()
        awaiters.append(asyncio.create_task(outcome(second)))

    first = Probe(30, completing=completing)
    for operation in (first, second):
        purgatory.try_complete_else_watch(operation, ["key"])
    first.force_complete()
    assert await asyncio.wait_for(awaiters[0], 5) == "second"


async def test_default_hooks_return_none():
    class Plain(DelayedOperation[None]):
        def try_complete(self):
            return self.force_complete()

    operation = Plain()
    assert (
        operation.try_complete()
        and operation.result() is None
        and operation.on_expiration() is None
    )


# Time


@pytest.mark.parametrize("times", [{"timeout": nan}, {"deadline": nan}, {"timeout": -nan}])
def test_nan_as_time_is_refused_by_name(times):
    with pytest.raises(ValueError, match=f"{next(iter(times))} cannot be NaN"):
        Probe(**times)


@pytest.mark.parametrize(
    ("timeout", "deadline"), [(1, 5.0), (0, nan), (-1.5, inf), (inf, 5.0), (nan, inf), (nan, nan)]
)
def test_timeout_and_deadline_exclude_each_other(timeout, deadline):
    with pytest.raises(
        ValueError, match=rf"timeout \({timeout}\) and deadline \({deadline}\) exclude each other"
    ):
        Probe(timeout, deadline=deadline)


@on_virtual_time
@pytest.mark.parametrize(
    "times", [{}, {"timeout": None}, {"timeout": inf}, {"deadline": None}, {"deadline": inf}]
)
@pytest.mark.parametrize("keys", [["a"], ["a", "b"]])
async def test_operation_without_deadline_waits_for_ever(purgatory, times, keys):
    operation = Probe(**times)
    assert not purgatory.try_complete_else_watch(operation, keys)
    assert operation.deadline is None
    await asyncio.sleep(3e9)
    assert operation.state is PENDING and operation.calls == ["try"]
    operation.ready = True
    assert purgatory.check_and_complete(keys[-1]) == 1


@on_virtual_time
@pytest.mark.parametrize(
    "times", [{"timeout": 0}, {"timeout": -inf}, {"deadline": 7.0}, {"deadline": -inf}]
)
@pytest.mark.parametrize("keys", [["a"], ["a", "b"]])
@pytest.mark.parametrize("ready", [False, True])
@pytest.mark.parametrize("start", [7.0])
async def test_passed_time_means_one_try_then_expiry(purgatory, times, keys, ready, start):
    operation = Probe(**times, ready=ready)
    assert purgatory.try_complete_else_watch(operation, keys)
    assert operation.state is (COMPLETED if ready else EXPIRED)
    assert operation.calls == (["try", "complete"] if ready else ["try", "complete", "expire"])
    assert purgatory.statistics().missed_triggers == 0 and purgatory.pending == 0
    assert operation.deadline != -inf and "-inf" not in repr(operation)


@on_virtual_time
@pytest.mark.parametrize("keys", [["a"], ["a", "b"]])
@pytest.mark.parametrize("start", [7.0])
async def test_deadline_is_loop_instant_and_counts_from_watch(purgatory, keys, start):
    operations = [Probe(2.5), Probe(deadline=12.5)]
    assert [operation.deadline for operation in operations] == [None, None]
    await asyncio.sleep(3)
    for operation in operations:
        purgatory.try_complete_else_watch(operation, keys)
    assert [operation.deadline for operation in operations] == [12.5, 12.5]
    await asyncio.sleep(2.49)
    assert purgatory.pending == 2
    await asyncio.sleep(0.02)
    assert [operation.state for operation in operations] == [EXPIRED, EXPIRED]
    assert [operation.deadline for operation in operations] == [12.5, 12.5]


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
        purgatory._check()
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


async def test_exception_seen_by_result_is_not_reported():
    operation = Probe(completing=raiser(ZeroDivisionError()))
    operation.force_complete()
    with pytest.raises(ZeroDivisionError):
        operation.result()
    await iterations(4)


@on_virtual_time
async def test_returning_true_without_completing_is_a_type_error():
    class Liar(Probe):
        def try_complete(self):
            return True

    async with Purgatory() as purgatory:
        operation = Liar(1)
        assert purgatory.try_complete_else_watch(operation, ["key"])
        assert operation.state is CANCELLED and operation.calls == []
        with pytest.raises(TypeError, match="did not call force_complete"):
            await operation


@on_virtual_time
@pytest.mark.parametrize("exit_type", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("hook", ["try", "forced try", "complete"])
@pytest.mark.parametrize("shared", [False, True], ids=["one waiter", "several waiters"])
async def test_exit_in_hook_propagates_and_answers_everything(
    purgatory, reports, hook, exit_type, shared
):
    forced = Probe(30, name="forced")
    purgatory.try_complete_else_watch(forced, ["forced"])

    def leave(operation):
        if operation.calls.count("try") == 2:
            forced.force_complete()
            if hook == "forced try":
                operation.force_complete()
            raise exit_type

    operation = Probe(30, **{"completing" if hook == "complete" else "trying": leave})
    other = Probe(30, name="other")
    purgatory.try_complete_else_watch(operation, ["key"])
    if shared:
        purgatory.try_complete_else_watch(other, ["key"])
    awaiters = [asyncio.create_task(outcome(one)) for one in (operation, forced)]
    await iterations()
    operation.ready = hook == "complete"
    other.ready = True
    with pytest.raises(exit_type):
        purgatory.check_and_complete("key")
    await iterations(4)
    purgatory._check()
    assert purgatory.pending == 0
    assert operation.state is (CANCELLED if hook == "try" else COMPLETED)
    assert operation.calls.count("complete") == (hook != "try")
    answer, forced_answer = await asyncio.wait_for(asyncio.gather(*awaiters), 5)
    assert forced_answer == "forced" and other.is_completed is shared
    assert isinstance(answer, exit_type) or hook == "forced try"


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


@on_virtual_time
async def test_state_is_final_before_hooks_run():
    def note(operation):
        seen.append((operation.state, operation.force_complete(), operation.cancel()))

    seen = []
    for ready in (True, False):
        async with Purgatory() as purgatory:
            operation = Probe(1, completing=note, expiring=note)
            purgatory.try_complete_else_watch(operation, ["key"])
            operation.ready = ready
            purgatory.check_and_complete("key")
            await asyncio.sleep(2)
    assert seen == [(COMPLETED, False, False), (EXPIRED, False, False), (EXPIRED, False, False)]


# Misuse


@on_virtual_time
async def test_subclass_without_super_init_is_explained():
    class Forgetful(DelayedOperation[None]):
        def __init__(self):
            pass

        def try_complete(self):
            raise AssertionError("must not be tried")

    async with Purgatory() as purgatory:
        before = purgatory.statistics()
        for keys in (["a"], ["a", "b"]):
            with pytest.raises(TypeError, match=r"Forgetful not initialised.*super\(\).__init__"):
                purgatory.try_complete_else_watch(Forgetful(), keys)
        assert purgatory.statistics() == before
        purgatory._check()


def test_abstract_condition_must_be_overridden():
    with pytest.raises(TypeError, match="abstract"):
        DelayedOperation()


def test_slots_and_generics_work_in_subclasses():
    class Small(DelayedOperation[int]):
        __slots__ = ("value",)

        def try_complete(self):
            return False

    assert not hasattr(Small(), "__dict__")


def test_another_loop_cannot_await_or_end_operation(loop_factory):
    purgatory, operation = Purgatory(), Probe(30)
    with (
        asyncio.Runner(loop_factory=loop_factory) as home,
        asyncio.Runner(loop_factory=loop_factory) as abroad,
    ):

        async def watch():
            purgatory.try_complete_else_watch(operation, ["key"])
            return purgatory.statistics()

        before = home.run(watch())
        for action in (operation.force_complete, operation.cancel):
            for call in (action, lambda action=action: abroad.run(call_in_coroutine(action))):
                with pytest.raises(WrongLoop, match="Probe pending"):
                    call()
        with pytest.raises(WrongLoop, match=r"cannot await.*Probe pending"):
            abroad.run(outcome_or_raise(operation))
        assert operation.state is PENDING and purgatory.statistics() == before
        purgatory._check()
        assert home.run(call_in_coroutine(operation.force_complete))
        assert abroad.run(outcome_or_raise(operation)) == ""


async def call_in_coroutine(function):
    return function()


async def outcome_or_raise(operation):
    return await operation


class Arguments(DelayedOperation):
    def __init__(self, *args, **kwargs):
        super().__init__(kwargs.pop("timeout", None))
        self.given = args, kwargs

    def try_complete(self):
        return False


class OwnNew(Arguments):
    def __new__(cls, *args, **kwargs):
        return super().__new__(cls) if args else "another object"


class OwnGetattr(Arguments):
    def __getattr__(self, name):
        return name


@pytest.mark.parametrize("kind", [Arguments, OwnNew, OwnGetattr])
def test_constructor_gets_all_arguments(kind):
    for args in ((1,), (1, 2, 3), tuple(range(40))):
        for kwargs in ({}, {"a": 1, "timeout": 3}):
            operation = kind(*args, **kwargs)
            kwargs.pop("timeout", None)
            assert type(operation) is kind and operation.given == (args, kwargs)
            assert operation.state is PENDING
    assert OwnNew() == "another object"


def test_constructor_refuses_what_type_call_refuses():
    class Abstract(Arguments):
        @abstractmethod
        def missing(self): ...

    class Returns(Arguments):
        def __init__(self):
            return 5  # noqa: PLE0101

    class Raises(Arguments):
        def __init__(self):
            raise ZeroDivisionError

    returned = r"__init__\(\) should return None" + ("" if PYPY else ", not 'int'")
    for _ in range(2):
        with pytest.raises(TypeError, match="abstract"):
            Abstract()
        with pytest.raises(TypeError, match=returned):
            Returns()
        with pytest.raises(TypeError, match="positional argument"):
            Returns(5)
        with pytest.raises(ZeroDivisionError):
            Raises()


def test_constructor_follows_changes_of_class():
    class Changes(Arguments):
        pass

    assert Changes(1).given == ((1,), {})
    Changes.__init__ = DelayedOperation.__init__
    assert not hasattr(Changes(2.0), "given")
    Changes.__new__ = lambda cls, *args: "another object"
    assert Changes(2.0) == "another object"


@pytest.mark.parametrize("seconds", [5, 5.0, True, 0, -3, 0.0, -0.0, 1e-300])
async def test_deadline_is_float_whatever_was_given(purgatory, seconds):
    for operation in (Arguments(timeout=seconds), Plain(seconds), Plain(deadline=seconds)):
        purgatory.try_complete_else_watch(operation, ["key"])
        assert type(operation.deadline) is float
    with pytest.raises(ValueError, match="hold"):
        Plain(10**400)


class Plain(DelayedOperation):
    def try_complete(self):
        return False
