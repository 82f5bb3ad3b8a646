"""Keys and operations with faulty methods: the exception reaches the caller, and no other operation
is affected."""

import asyncio
from dataclasses import dataclass
from unittest.mock import patch

import pytest
from helpers import Probe, counts, iterations, outcome
from loops import on_virtual_time

from purgatory import (
    DelayedOperation,
    IdleTracker,
    OperationCancelled,
    OperationState,
    Purgatory,
    ThresholdPurgatory,
)
from purgatory._core import closing

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
@pytest.mark.parametrize("keys", ["alone", "several", "shared"])
async def test_key_changed_while_watched_affects_only_its_operation(reports, keys):
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
    await iterations(4)
    assert all("cannot find a key again" in report["message"] for report in reports) and reports


class Stubborn(Changeable):
    """Equal to keys of its type, whatever their hash."""

    def __eq__(self, other):
        return isinstance(other, Stubborn)

    __hash__ = Changeable.__hash__


class Fickle(Stubborn):
    """Equal to keys of its type, once."""

    asked = 0

    def __eq__(self, other):
        self.asked += 1
        return self.asked == 1

    __hash__ = Changeable.__hash__


@on_virtual_time
async def test_old_hash_of_changed_key_stays_usable(
    reports,
):
    async with Purgatory() as purgatory:
        key = Stubborn(1)
        bad, good = Probe(5), Probe(10)
        purgatory.try_complete_else_watch(bad, ["other", key])
        key.id = 2
        assert purgatory.try_complete_else_watch(good, [Stubborn(1)]) is False
        assert counts(purgatory) == (2, 3, 2)
        await asyncio.sleep(6)
        assert bad.state is EXPIRED and counts(purgatory) == (1, 1, 1)
        good.ready = True
        assert purgatory.check_and_complete(Stubborn(1)) == 1
        assert counts(purgatory) == (0, 0, 0)
        purgatory._check()
    await iterations(4)
    assert reports


async def test_key_that_equals_another_once_is_its_own(purgatory):
    key = Fickle(1)
    first, second = Probe(30), Probe(30)
    purgatory.try_complete_else_watch(first, ["other", key])
    assert purgatory.try_complete_else_watch(second, [Fickle(1)]) is False
    assert counts(purgatory) == (2, 3, 3)
    purgatory._check()
    assert await purgatory.aclose() == [first, second] and counts(purgatory) == (0, 0, 0)


@pytest.mark.parametrize("others", [0, 1, 2])
@on_virtual_time
async def test_keys_turning_equal_affect_only_their_own_operation(reports, others):
    async with Purgatory() as purgatory:
        keys = [Changeable(1), Changeable(2)]
        good = [Probe(None) for _ in range(others)]
        for number, one in enumerate(good):
            purgatory.try_complete_else_watch(one, [f"good{number}"])
        bad = Probe(5, trying=lambda _: setattr(keys[1], "id", 1))
        purgatory.try_complete_else_watch(bad, keys)
        waiting = asyncio.ensure_future(bad)
        assert bad.cancel() and counts(purgatory) == (others,) * 3
        purgatory._check()
        for number, one in enumerate(good):
            one.ready = True
            assert purgatory.check_and_complete(f"good{number}") == 1
        assert counts(purgatory) == (0, 0, 0)
        with pytest.raises(OperationCancelled):
            await waiting
    await iterations(4)
    assert len(reports) == 1


@on_virtual_time
@pytest.mark.parametrize("end", ["cancel", "force_complete"])
async def test_changed_key_does_not_delay_a_drain(reports, end):
    purgatory, key, loop = Purgatory(), Changeable(1), asyncio.get_running_loop()
    bad, good = Probe(None), Probe(None)
    purgatory.try_complete_else_watch(bad, [key])
    purgatory.try_complete_else_watch(good, ["good"])
    key.id = 2
    bad.cancel()
    loop.call_later(3, getattr(good, end))
    assert await purgatory.aclose(drain=60) == [] and loop.time() == pytest.approx(3, abs=0.01)
    assert len(reports) == 1


@on_virtual_time
@pytest.mark.parametrize("orphans", [0, 3])
async def test_closing_answers_waiters_of_changed_keys(reports, orphans):
    purgatory, keys = Purgatory(), [Changeable(number) for number in range(orphans + 4)]
    bad = [Probe(None) for _ in keys]
    for one, key in zip(bad, keys, strict=True):
        purgatory.try_complete_else_watch(one, [key])
    pair = Probe(None)
    purgatory.try_complete_else_watch(pair, ["other", keys[-1]])
    for key in keys:
        key.id += 1003
    waiting = [asyncio.ensure_future(one) for one in (*bad, pair)]
    await asyncio.sleep(1)
    for one in bad[:orphans]:
        one.cancel()
    with patch.object(closing, "SNAPSHOT", 2):
        closed = await purgatory.aclose()
    assert len(closed) == 5 and {*closed} == {*bad[orphans:], pair}
    assert counts(purgatory) == (0, 0, 0)
    await iterations(2)
    assert len(purgatory._engine.by_key) == 0
    assert {type(one) for one in await asyncio.gather(*waiting, return_exceptions=True)} == {
        OperationCancelled
    }
    assert reports


@on_virtual_time
@pytest.mark.parametrize("end", ["deadline", "aclose", "cancel", "advance"])
async def test_wait_for_changing_key_is_answered_others_wait(reports, end):
    thresholds, key = ThresholdPurgatory("versions"), Changeable(1)
    bad = asyncio.create_task(thresholds.wait(key, 1, 5))
    taken = asyncio.create_task(thresholds.wait(Changeable(2), 1))
    good = asyncio.create_task(thresholds.wait("good", 1))
    await asyncio.sleep(1)
    key.id = 2
    if end == "aclose":
        assert await thresholds.aclose() == 3
    elif end == "cancel":
        bad.cancel()
    elif end == "advance":
        thresholds.advance(key, 1)
    await asyncio.sleep(9)
    assert bad.done() and thresholds.pending == (
        0 if end == "aclose" else 1 if end == "advance" else 2
    )
    if end != "aclose":
        assert thresholds.advance("good", 1) == 1 and await good == 1
        assert (
            thresholds.advance(Changeable(2), 1) == (0 if end == "advance" else 1)
            and await taken == 1
        )
    assert await outcome(bad) is not None
    assert (
        all("versions: cannot find a Changeable again" in report["message"] for report in reports)
        and reports
    )


class Unsteady(Changeable):
    """A key whose hash starts to raise later."""

    def __hash__(self):
        if self.id is None:
            raise LookupError
        return hash(self.id)


@on_virtual_time
async def test_wait_for_key_with_raising_hash_is_answered(reports):
    thresholds, key = ThresholdPurgatory(), Unsteady(1)
    waiting = asyncio.create_task(thresholds.wait(key, 1, 5))
    await asyncio.sleep(1)
    key.id = None
    assert isinstance(await outcome(waiting), LookupError)  # the message looks up the key's value
    assert [type(report["exception"]) for report in reports] == [LookupError]


@on_virtual_time
async def test_changing_id_is_reported_once_like_the_others(reports):
    idle, key = [], Changeable(1)
    with IdleTracker(5, idle.append) as tracker:
        tracker.touch(key)
        tracker.touch("good")
        key.id = 2
        await asyncio.sleep(9)
        assert idle == [key, "good"]
    assert len(tracker) == 0
    assert ["cannot find a Changeable again" in report["message"] for report in reports] == [True]


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
            with pytest.raises(TypeError, match=f"{kind.__name__} defines __eq__ or __hash__"):
                purgatory.try_complete_else_watch(kind(1), ["key"])
    assert counts(purgatory) == (0, 0, 0)
    two = [Right(1), Right(1)]
    for one in two:
        purgatory.try_complete_else_watch(one, ["key"])
    assert [await one for one in two] == [None, None] and {one.state for one in two} == {EXPIRED}
