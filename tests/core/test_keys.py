"""Keys and operations with faulty methods: the exception reaches the caller, and no other operation
is affected."""

import asyncio
from dataclasses import dataclass

import pytest
from helpers import Probe, counts, iterations
from loops import on_virtual_time

from purgatory import (
    DelayedOperation,
    OperationState,
    Purgatory,
)

PENDING, COMPLETED, EXPIRED, CANCELLED = OperationState


class Naive:
    """Equal only to keys of its own type."""

    def __init__(self, id_):
        self.id = id_

    def __hash__(self):
        return hash(self.id)

    def __eq__(self, other):
        return self.id == other.id


class Unhashable:
    """A key with a raising hash."""

    def __init__(self, error):
        self.error = error

    def __hash__(self):
        raise self.error


class Changeable:
    """A faulty key: its equality can change."""

    def __init__(self, id_):
        self.id = id_

    def __hash__(self):
        return hash(self.id)

    def __eq__(self, other):
        return isinstance(other, Changeable) and self.id == other.id


@on_virtual_time
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
@pytest.mark.parametrize(
    ("others", "timeout"),
    [([], 30.0), ([], None), (["a", "b"], 1e9), (["shared", "a", "more"], 30.0)],
    ids=["alone", "alone, without a deadline", "with others", "with some that are shared"],
)
async def test_exception_of_key_reaches_caller_and_changes_nothing(
    purgatory, bad, error, others, timeout
):
    other, crowd = Probe(1), [Probe(1), Probe(1)]
    purgatory.try_complete_else_watch(other, [1, 2])  # 1 has the same hash as Naive(1)
    for one in crowd:
        purgatory.try_complete_else_watch(one, ["shared", "more"])
    before = counts(purgatory)
    operation = Probe(timeout)
    for keys in ([*others, bad()], [bad(), *others]):
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
@pytest.mark.parametrize("id_", [2, 3], ids=["unknown", "equal to another"])
@pytest.mark.parametrize("count", [1, 2])
async def test_changed_key_ends_at_its_deadline(id_, count):
    purgatory, key = Purgatory(), Changeable(1)
    bad, good = [Probe(5) for _ in range(count)], [Probe(None) for _ in range(count)]
    for one, other in zip(bad, good, strict=True):
        purgatory.try_complete_else_watch(one, ["other", key])
        purgatory.try_complete_else_watch(other, ["good", Changeable(3)])
    key.id = id_
    await asyncio.sleep(6)
    assert {one.state for one in bad} == {EXPIRED} and purgatory.pending == count
    for other in good:
        other.ready = True
    assert purgatory.check_and_complete("good") == count
    assert purgatory.pending == purgatory.watched == 0
    assert await purgatory.aclose() == []


async def test_bad_keys_of_threads_affect_no_other_key(reports):
    async with Purgatory() as purgatory:
        good, other = Probe(None), Probe(None)
        purgatory.try_complete_else_watch(good, ["good"])
        purgatory.try_complete_else_watch(other, [1])
        good.ready = True
        for key in (1, Naive(1), Naive(1), "good"):
            purgatory.check_and_complete_threadsafe(key)
        with pytest.raises(ValueError, match="no hash"):
            purgatory.check_and_complete_threadsafe(Unhashable(ValueError("no hash")))
        await iterations(4)
        assert good.state is COMPLETED and other.calls == ["try", "try"]
        other.cancel()
    await iterations(4)
    assert reports and all("as another thread requested" in report["message"] for report in reports)


# Equal operations


@on_virtual_time
async def test_operations_made_equal_by_decorator_are_refused(purgatory):
    class Numbered(DelayedOperation):
        number: int

        def __post_init__(self):
            super().__init__(1)

        def try_complete(self):
            return False

    @dataclass(unsafe_hash=True)
    class Equal(Numbered):
        number: int

    @dataclass
    class NotHashable(Numbered):
        number: int

    @dataclass(eq=False)
    class Right(Numbered):
        number: int

    for kind in (Equal, NotHashable):
        for _ in range(2):
            with pytest.raises(TypeError, match="its class defines __eq__ or __hash__"):
                purgatory.try_complete_else_watch(kind(1), ["key"])
    assert counts(purgatory) == (0, 0, 0)
    two = [Right(1), Right(1)]
    for one in two:
        purgatory.try_complete_else_watch(one, ["key"])
    assert [await one for one in two] == [None, None] and {one.state for one in two} == {EXPIRED}
