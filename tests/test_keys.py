"""Keys and operations that misbehave: what their methods raise reaches the caller, and nobody else notices."""

import asyncio
from dataclasses import dataclass

import pytest
from helpers import Probe, turns
from loops import on_virtual_time

from purgatory import DelayedOperation, OperationState, Purgatory

PENDING, COMPLETED, EXPIRED, CANCELLED = OperationState


class Naive:
    """Its equality knows only its own kind."""

    def __init__(self, id_):
        self.id = id_

    def __hash__(self):
        return hash(self.id)

    def __eq__(self, other):
        return self.id == other.id


class Unhashable:
    """Whose hash is not to be had."""

    def __init__(self, error):
        self.error = error

    def __hash__(self):
        raise self.error


class Changeable:
    """A key as it should not be: what it equals can change."""

    def __init__(self, id_):
        self.id = id_

    def __hash__(self):
        return hash(self.id)

    def __eq__(self, other):
        return isinstance(other, Changeable) and self.id == other.id


def counts(purgatory):
    return purgatory.pending, purgatory.watched, purgatory.statistics().keys


TIMEOUTS = [{"timeout": 30.0}, {"timeout": None}, {"timeout": 1e9}]


@pytest.mark.parametrize("timeout", TIMEOUTS, ids=["timeout", "none", "far"])
@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (lambda: Naive(1), AttributeError),
        (lambda: Unhashable(ValueError("no hash")), ValueError),
        (lambda: Unhashable(KeyError("no hash")), KeyError),
        (lambda: Unhashable(OverflowError("no hash")), OverflowError),
        (list, TypeError),
    ],
    ids=["equality", "ValueError", "KeyError", "OverflowError", "list"],
)
@pytest.mark.parametrize("place", ["alone", "first", "last", "behind one that is shared"])
async def test_what_a_key_raises_reaches_the_caller_and_changes_nothing(bad, error, place, timeout):
    async with Purgatory() as purgatory:
        other, crowd = Probe(0.01), [Probe(0.01), Probe(0.01)]
        purgatory.try_complete_else_watch(other, [1, 2])  # the hash of 1 is that of Naive(1)
        for one in crowd:
            purgatory.try_complete_else_watch(one, ["shared", "more"])
        before = counts(purgatory)
        operation = Probe(**timeout)
        keys = {
            "alone": [bad()],
            "first": [bad(), "a", "b"],
            "last": ["a", "b", bad()],
            "behind one that is shared": ["shared", "a", "more", bad()],
        }[place]
        for _ in range(3):
            with pytest.raises(error):
                purgatory.try_complete_else_watch(operation, keys)
            assert counts(purgatory) == before and operation.state is PENDING
            purgatory._check()
        with pytest.raises(error):
            purgatory.check_and_complete(bad())
        assert purgatory.try_complete_else_watch(operation, ["a", "b"]) is False
        assert [await one for one in (other, *crowd)] == ["", "", ""]
        assert {one.state for one in (other, *crowd)} == {EXPIRED}
        assert all(one.calls.count("complete") == 1 for one in (other, *crowd))
        operation.ready = True
        assert purgatory.check_and_complete("b") == 1 and counts(purgatory) == (0, 0, 0)


@on_virtual_time
@pytest.mark.parametrize("keys", ["alone", "several", "shared"])
async def test_a_key_that_changes_while_it_is_watched_hurts_its_own_operation_alone(reports, keys):
    async with Purgatory() as purgatory:
        key = Changeable(1)
        bad = [Probe(5) for _ in range(2 if keys == "shared" else 1)]
        for one in bad:
            purgatory.try_complete_else_watch(one, [key] if keys == "alone" else ["other", key])
        good = Probe(10)
        purgatory.try_complete_else_watch(good, ["good"])
        key.id = 2
        await asyncio.sleep(6)
        assert {one.state for one in bad} == {EXPIRED} and good.state is PENDING
        assert counts(purgatory) == (1, 1, 1)
        for seen in (Changeable(1), Changeable(2)):
            later = Probe(5)
            assert purgatory.try_complete_else_watch(later, [seen]) is False
            later.ready = True
            assert purgatory.check_and_complete(seen) == 1
        key.id = 1
        again = [Probe(1), Probe(1)]
        for one in again:
            purgatory.try_complete_else_watch(one, [Changeable(1)])
        assert counts(purgatory) == (3, 3, 2)
        await asyncio.sleep(10)
        assert counts(purgatory) == (0, 0, 0) and good.state is EXPIRED
        assert all(one.calls.count("complete") == 1 for one in (*bad, *again, good))
    await turns(4)
    assert all("cannot find a key again" in report["message"] for report in reports) and reports


async def test_threads_that_name_bad_keys_hurt_nobody_else(reports):
    async with Purgatory() as purgatory:
        good, other = Probe(None), Probe(None)
        purgatory.try_complete_else_watch(good, ["good"])
        purgatory.try_complete_else_watch(other, [1])
        good.ready = True
        for key in (1, Naive(1), Naive(1), "good"):
            purgatory.check_and_complete_threadsafe(key)
        with pytest.raises(ValueError, match="no hash"):
            purgatory.check_and_complete_threadsafe(Unhashable(ValueError("no hash")))
        await turns(4)
        assert good.state is COMPLETED and other.calls == ["try", "try"]
        other.cancel()
    await turns(4)
    assert reports and all("which another thread has named" in report["message"] for report in reports)


# Operations that are equal


async def test_operations_that_a_decorator_makes_equal_are_refused():
    @dataclass(unsafe_hash=True)
    class Equal(DelayedOperation):
        number: int

        def __post_init__(self):
            super().__init__(0.01)

        def try_complete(self):
            return False

    @dataclass
    class NotHashable(DelayedOperation):
        number: int

        def __post_init__(self):
            super().__init__(0.01)

        def try_complete(self):
            return False

    @dataclass(eq=False)
    class Right(DelayedOperation):
        number: int

        def __post_init__(self):
            super().__init__(0.01)

        def try_complete(self):
            return False

    async with Purgatory() as purgatory:
        for kind in (Equal, NotHashable):
            for _ in range(2):
                with pytest.raises(TypeError, match=f"{kind.__name__} defines __eq__ or __hash__"):
                    purgatory.try_complete_else_watch(kind(1), ["key"])
        assert counts(purgatory) == (0, 0, 0)
        two = [Right(1), Right(1)]
        for one in two:
            purgatory.try_complete_else_watch(one, ["key"])
        assert [await one for one in two] == [None, None] and {one.state for one in two} == {EXPIRED}
