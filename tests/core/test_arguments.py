"""Arguments: any number is a time, wrong ones are refused at once. The message names the argument
and its value, and nothing has changed."""

import asyncio
import copy
import pickle
from decimal import Decimal
from fractions import Fraction
from math import inf, nan

import pytest
from helpers import Listener, Probe, counts, iterations, outcome, watch_all
from loops import on_virtual_time

import purgatory as library
from purgatory import (
    DelayedOperation,
    IdleTracker,
    OperationReused,
    OperationState,
    Purgatory,
    PurgatoryClosed,
    PurgatoryFull,
    ThresholdPurgatory,
    WheelTimer,
)
from purgatory._core.arguments import MAX_DESCRIBED, describe, printable


class Places:
    """Everything that takes a time; each method returns when that time has come."""

    def __init__(self):
        self.purgatory, self.thresholds, self.timer = (
            Purgatory(),
            ThresholdPurgatory(),
            WheelTimer(),
        )
        self.task = self.timer.call_later(60, print)

    def due(self):
        return asyncio.get_running_loop().create_future()

    async def operation_timeout(self, timeout):
        await self.purgatory.wait(Probe(timeout), ["key"])

    async def operation_deadline(self, deadline):
        await self.purgatory.wait(Probe(deadline=deadline), ["key", "other"])

    async def wait_for(self, timeout):
        await outcome_or_refusal(self.purgatory.wait_for(bool, ["key"], timeout))

    async def asynchronous(self, timeout):
        await outcome_or_refusal(
            self.purgatory.wait_for(lambda: asyncio.sleep(0), ["key"], timeout)
        )

    async def receive(self, timeout):
        await outcome_or_refusal(self.purgatory.receive("key", timeout))

    async def expect(self, timeout):
        with self.purgatory.expect("key", timeout) as reply:
            await outcome_or_refusal(reply)

    async def threshold(self, timeout):
        await outcome_or_refusal(self.thresholds.wait("key", 1, timeout))

    async def call_later(self, delay):
        self.timer.call_later(delay, (due := self.due()).set_result, None)
        await due

    async def call_at(self, when):
        self.timer.call_at(when, (due := self.due()).set_result, None)
        await due

    async def reschedule(self, when):
        due = self.due()
        task = self.timer.call_later(50, due.set_result, None)
        try:
            task.reschedule(when)
        except BaseException:
            assert task.cancel() and task.when() == 50.0
            raise
        await due

    async def idle(self, timeout):
        with IdleTracker(timeout, lambda due: due.set_result(None)) as tracker:
            tracker.touch(due := self.due())
            await due

    async def limit(self, delay):
        with pytest.raises(TimeoutError):
            async with library.timeout(delay):
                await self.due()

    async def limit_at(self, when):
        with pytest.raises(TimeoutError):
            async with library.timeout_at(when):
                await self.due()

    async def limit_moved(self, when):
        with pytest.raises(TimeoutError):
            async with library.timeout(None) as limit:
                limit.reschedule(when)
                await self.due()

    async def limited(self, timeout):
        await outcome_or_refusal(library.wait_for(self.due(), timeout))


async def outcome_or_refusal(awaitable):
    with pytest.raises(TimeoutError):
        await awaitable


TAKING_TIMES = [name for name, value in vars(Places).items() if name[0] != "_" and name != "due"]


@on_virtual_time
@pytest.mark.parametrize("place", TAKING_TIMES)
async def test_any_number_is_a_time(place):
    for start, number in enumerate((2.5, Decimal("3.5"), Fraction(9, 2), Indexed(5), True + 4)):
        places, loop = Places(), asyncio.get_running_loop()
        absolute = Places.__dict__[place].__code__.co_varnames[1] in ("when", "deadline")
        begun = 0.0 if absolute else loop.time()
        await asyncio.wait_for(getattr(places, place)(number), 100)
        assert 0.0 <= loop.time() - begun - float(number) <= 0.005, start
        assert places.purgatory.pending == places.thresholds.pending == 0


class Indexed:
    """A number only by its `__index__`."""

    def __init__(self, number):
        self.number = number

    def __index__(self):
        return self.number

    def __float__(self):
        return float(self.number)


@on_virtual_time
@pytest.mark.parametrize(
    ("mistake", "error"),
    [
        *((each, TypeError) for each in ("5", b"5", [5], object, 5j)),
        *((each, ValueError) for each in (nan, -nan, Decimal("nan"), 10**400, -(10**400))),
        (Decimal("snan"), ValueError),
    ],
    ids=lambda value: repr(value)[:12],
)
@pytest.mark.parametrize("place", TAKING_TIMES)
async def test_wrong_time_is_refused_and_changes_nothing(place, mistake, error):
    places = Places()
    places.thresholds.advance("other", 1)
    before = counts(places.purgatory), counts(places.thresholds, "keys", "pending")
    with pytest.raises(error) as raised:
        await getattr(places, place)(mistake)
    name = Places.__dict__[place].__code__.co_varnames[1]
    if error is TypeError:
        assert repr(mistake) in str(raised.value)
    if type(mistake) is not Decimal:  # whose message is its own
        assert str(raised.value).startswith((f"{name} ", "when " if name == "delay" else name))
    assert (places.timer.size, places.task.when()) == (1, 60.0)
    assert before == (counts(places.purgatory), counts(places.thresholds, "keys", "pending"))
    places.task.cancel()


@on_virtual_time
@pytest.mark.parametrize("times", [{"timeout": 1e300}, {"deadline": inf}, {"timeout": inf}, {}])
@pytest.mark.parametrize("keys", [["key"], ["other", "key"]])
async def test_endless_time_waits_for_ever(purgatory, times, keys):
    operation = Probe(**times)
    waiting = asyncio.create_task(purgatory.wait_for(lambda: operation.ready, keys, inf))
    assert purgatory.try_complete_else_watch(operation, keys) is False
    assert operation.deadline in (None, 1e300)
    await asyncio.sleep(3e9)
    assert operation.state is OperationState.PENDING and operation.calls == ["try"]
    operation.ready = True
    assert purgatory.check_and_complete("key") == 2 and await waiting is True


@on_virtual_time
@pytest.mark.parametrize("start", [7.0])
@pytest.mark.parametrize("ready", [False, True])
@pytest.mark.parametrize("keys", [["key"], ["key", "other"]])
@pytest.mark.parametrize(
    "times",
    [{"timeout": each} for each in (0, -1, Decimal(0), Fraction(-1, 2), False, -inf)]
    + [{"deadline": each} for each in (7.0, 6, -inf)],
    ids=repr,
)
async def test_passed_time_means_one_try_then_expiry(purgatory, times, keys, ready, start):
    operation = Probe(**times, ready=ready)
    assert purgatory.try_complete_else_watch(operation, keys) is True
    assert operation.state is (OperationState.COMPLETED if ready else OperationState.EXPIRED)
    assert operation.calls == (["try", "complete"] if ready else ["try", "complete", "expire"])
    assert purgatory.statistics().missed_triggers == 0 and purgatory.pending == 0
    assert operation.deadline != -inf and "-inf" not in repr(operation)


@pytest.mark.parametrize(
    ("timeout", "deadline"), [(1, 5.0), (0, nan), (-1.5, inf), (inf, 5.0), (nan, inf)]
)
def test_timeout_and_deadline_exclude_each_other(timeout, deadline):
    with pytest.raises(
        ValueError, match=rf"timeout \({timeout}\) and deadline \({deadline}\) exclude each other"
    ):
        Probe(timeout, deadline=deadline)


# Constructors


@pytest.mark.parametrize(
    ("make", "options", "error", "words"),
    [
        *(
            (make, {"tick": tick}, error, "tick ")
            for make in (Purgatory, ThresholdPurgatory, WheelTimer)
            for tick, error in ((0.0, ValueError), (-1.0, ValueError), (inf, ValueError),
                                (nan, ValueError), (9.9e-10, ValueError), ("1", TypeError))
        ),
        *(
            (make, {"wheel_size": size}, error, "wheel_size |as an integer")
            for make in (Purgatory, ThresholdPurgatory, WheelTimer)
            for size, error in ((1, ValueError), (2**62 + 1, ValueError), (10**5000, ValueError),
                                (2.5, TypeError), ("10", TypeError))
        ),
        *(
            (make, {name: limit}, error, f"{name} must be a")
            for make, name in ((Purgatory, "max_pending"), (ThresholdPurgatory, "max_pending"),
                               (ThresholdPurgatory, "max_keys"))
            for limit, error in ((0, ValueError), (-1, ValueError), (False, ValueError),
                                 (1.5, TypeError))
        ),
        *(
            (lambda **options: IdleTracker(options.pop("timeout", 5), print, **options),
             options, ValueError, words)
            for options, words in (
                ({"timeout": 0}, "timeout must be a positive number of seconds, got "),
                ({"timeout": -inf}, "timeout must be a positive number of seconds, got "),
                ({"tick": 0}, "tick must be a finite number"), ({"tick": nan}, "tick cannot be NaN"),
            )
        ),
        *(
            (make, {"observer": observer}, TypeError, "observer must have a method")
            for make in (Purgatory, ThresholdPurgatory,
                         lambda observer: IdleTracker(5, print, observer=observer))
            for observer in (object(), [None], [Listener(), "journal"],
                             type("Half", (), {"operation_ended": print})())
        ),
    ],
)  # fmt: skip
def test_constructor_checks_its_arguments(make, options, error, words):
    with pytest.raises(error, match=words):
        make(**options)


@on_virtual_time
@pytest.mark.parametrize("method", ["aclose", "drain of thresholds"])
@pytest.mark.parametrize("drain", [nan, -1.0, -inf])
async def test_invalid_drain_leaves_everything_open(method, drain):
    closable = Purgatory() if method == "aclose" else ThresholdPurgatory()
    with pytest.raises(
        ValueError, match=r"drain (cannot be NaN|must be zero or more seconds, not)"
    ):
        await closable.aclose(drain)
    assert "open" in repr(closable)


# Keys, predicates and operations


@on_virtual_time
@pytest.mark.parametrize(
    ("keys", "error", "word"),
    [
        ([], ValueError, "at least one key"),
        (iter([]), ValueError, "at least one key"),
        ([[]], TypeError, "unhashable"),
        (([],), TypeError, "unhashable"),
        (["key", []], TypeError, "unhashable"),
        ([{}, "key"], TypeError, "unhashable"),
        ("orders", TypeError, "got one string"),
        (b"orders", TypeError, "got one string"),
        (3, TypeError, r"got 3: pass \[3\]"),
    ],
)
@pytest.mark.parametrize(("timeout", "options"), [(30, {}), (None, {"max_pending": 5})])
async def test_wrong_keys_are_refused_and_operation_stays_usable(
    keys, error, word, timeout, options
):
    async with Purgatory(**options) as purgatory:
        watch_all(purgatory, [Probe(30)])
        operation, calls, before = Probe(timeout), [], purgatory.statistics()
        with pytest.raises(error, match=word):
            purgatory.try_complete_else_watch(operation, keys)
        for wait in (
            purgatory.wait(Probe(), keys),
            purgatory.wait_for(lambda: calls.append(1) or 1, keys, 5),
        ):
            assert type(await outcome(wait)) is error
        assert purgatory.statistics() == before and calls == []
        assert operation.deadline is None and "unwatched" in repr(operation)
        assert not purgatory.try_complete_else_watch(operation, ["key"])


CALLS_WITH_KEYS = {
    "check": lambda one, _, key: one.check_and_complete(key),
    "deliver": lambda one, _, key: one.deliver(key, 1),
    "cancel": lambda one, _, key: one.cancel_for_key(key),
    "fail": lambda one, _, key: one.fail(key, ValueError()),
    "expect": lambda one, _, key: one.expect(key).__enter__(),
    "receive": lambda one, _, key: one.receive(key).send(None),
    "thread": lambda one, _, key: one.check_and_complete_threadsafe(key),
    "thread's value": lambda one, _, key: one.deliver_threadsafe(key, 1),
    "advance": lambda _, one, key: one.advance(key, 1),
    "thread's advance": lambda _, one, key: one.advance_threadsafe(key, 1),
    "value": lambda _, one, key: one.value(key),
    "forget": lambda _, one, key: one.forget(key),
    "fail thresholds": lambda _, one, key: one.fail(key, ValueError()),
    "wait": lambda _, one, key: one.wait(key, 1).send(None),
}


@pytest.mark.parametrize("call", CALLS_WITH_KEYS)
async def test_unhashable_key_is_refused_by_every_call(purgatory, call):
    thresholds = ThresholdPurgatory()
    thresholds.advance("key", 1)
    watch_all(purgatory, [Probe()])
    with pytest.raises(TypeError, match="unhashable type: 'list'"):
        CALLS_WITH_KEYS[call](purgatory, thresholds, ["tea"])
    await iterations(2)
    assert counts(purgatory) == (1, 1, 1) and counts(thresholds, "keys", "pending") == (1, 0)


class Naive:
    """A key that is comparable with its own type only, with the hash of 1."""

    def __hash__(self):
        return 1

    def __eq__(self, other):
        return self.id == other.id


@on_virtual_time
async def test_exception_of_a_key_changes_nothing(purgatory):
    watch_all(purgatory, [other := Probe(1)], [1, 2])
    before, operation = counts(purgatory), Probe(30)
    for keys in ([Naive()], ["a", Naive()], [Naive(), "a"]):
        with pytest.raises(AttributeError):
            purgatory.try_complete_else_watch(operation, keys)
        assert counts(purgatory) == before
    assert purgatory.try_complete_else_watch(operation, ["a", "b"]) is False
    assert await other == "" and operation.cancel()


@on_virtual_time
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
async def test_wrong_predicate_is_refused_by_name(purgatory):
    async def is_true():
        return True

    for mistake in (True, None, "condition", coroutine := is_true()):
        error = await outcome(purgatory.wait_for(mistake, ["a"]))
        assert type(error) is TypeError and "predicate" in str(error)
    coroutine.close()
    assert purgatory.pending == 0


@on_virtual_time
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
async def test_wrong_try_is_explained(purgatory):
    class Asynchronous(DelayedOperation):
        async def try_complete(self):
            return True

    class Liar(DelayedOperation):
        def try_complete(self):
            return True

    for kind, words in ((Asynchronous, "is async, and hooks are plain functions"),
                        (Liar, r"returned true, but did not call force_complete\(\)")):  # fmt: skip
        with pytest.raises(TypeError, match=rf"<{kind.__name__} .*> {words}"):
            await purgatory.wait(kind(5), ["key"])
    with pytest.raises(TypeError, match="abstract"):
        DelayedOperation()


@on_virtual_time
async def test_operation_can_be_watched_once(purgatory):
    watched, ended, forced = Probe(30), Probe(30, ready=True), Probe(30)
    async with Purgatory() as other:
        for keys in (["key"], ["key", "second"]):
            for place in (purgatory, other):
                for operation, words in (
                    (watched, "is being watched"), (ended, "has ended"), (forced, "has ended")
                ):  # fmt: skip
                    if place is purgatory and keys == ["key"]:
                        forced.force_complete()
                        if operation is not forced:
                            place.try_complete_else_watch(operation, keys)
                    before, calls = place.statistics(), operation.calls
                    with pytest.raises(OperationReused, match=words):
                        place.try_complete_else_watch(operation, keys)
                    assert (place.statistics(), operation.calls) == (before, calls)
    assert watched.deadline == 30.0 and purgatory.pending == 1


@on_virtual_time
async def test_subclass_without_super_init_is_explained(purgatory):
    class Forgetful(DelayedOperation):
        def __init__(self):
            pass

        def try_complete(self):
            raise AssertionError("must not be tried")

    for keys in (["a"], ["a", "b"]):
        with pytest.raises(TypeError, match=r"Forgetful not initialised.*super\(\).__init__"):
            purgatory.try_complete_else_watch(Forgetful(), keys)


@on_virtual_time
@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("is_watched", [False, True])
async def test_copies_are_refused_and_change_nothing(purgatory, way, is_watched):
    operation, timer = Probe(5), WheelTimer()
    task = timer.call_later(5, print)
    if is_watched:
        watch_all(purgatory, [operation])
    async with library.timeout(5) as limit:
        for original in (operation, task, limit):
            with pytest.raises(TypeError, match="it is known by its identity"):
                way(original)
    assert (purgatory.pending, timer.size) == (is_watched, 1)
    task.cancel()
    operation.cancel()


# Limits of a purgatory


@on_virtual_time
@pytest.mark.parametrize("keys", [["key"], ["key", "second"]])
async def test_full_purgatory_refuses_only_operations_that_must_wait(keys):
    async with Purgatory("letters", max_pending=3) as purgatory:
        operations, refused = watch_all(purgatory, [Probe(30) for _ in range(3)], keys), Probe(30)
        waiting = []
        for end in ("cancel", "force_complete", "expiry", "task"):
            words = r"cannot watch <Probe pending>: max_pending \(3\) operations are pending"
            before = purgatory.statistics()
            for _ in range(10):
                with pytest.raises(PurgatoryFull, match=words):
                    purgatory.try_complete_else_watch(refused, keys)
            assert purgatory.statistics() == before
            for wait in (purgatory.wait(Probe(30), keys), purgatory.wait_for(bool, keys, 30)):
                assert isinstance(await outcome(wait), PurgatoryFull)
            assert purgatory.try_complete_else_watch(Probe(30, ready=True), keys)
            assert purgatory.try_complete_else_watch(Probe(0), keys)
            assert await purgatory.wait_for(lambda: 7, keys) == 7
            if end in ("cancel", "force_complete"):
                getattr(operations.pop(), end)()
            elif end == "expiry":
                await asyncio.sleep(31)
            else:
                for task in waiting:
                    task.cancel()
                await asyncio.gather(*waiting)
            assert purgatory.pending < 3
            assert not purgatory.try_complete_else_watch(refused, keys)
            operations.append(refused)
            refused = Probe(30)
            while purgatory.pending < 3:
                waiting.append(asyncio.create_task(outcome(purgatory.wait(Probe(30), keys))))
                await iterations()


@on_virtual_time
async def test_closed_purgatory_refuses_operations_that_stay_usable():
    purgatory = Purgatory("letters")
    await purgatory.aclose()
    operation = Probe(30, ready=True)
    for keys in (["key"], ["key", "second"]):
        with pytest.raises(PurgatoryClosed, match=r"cannot watch <Probe .*: letters is closed"):
            purgatory.try_complete_else_watch(operation, keys)
    assert operation.calls == []
    assert purgatory.check_and_complete("key") == 0 and purgatory.cancel_for_key("key") == []
    async with Purgatory() as other:
        assert other.try_complete_else_watch(operation, ["key"])


# Descriptions in messages


class Shown:
    def __init__(self, shows):
        self.shows = shows

    def __repr__(self):
        if isinstance(self.shows, BaseException):
            raise self.shows
        return self.shows


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("key", "'key'"),
        (5, "5"),
        (Shown("<as it shows itself>"), "<as it shows itself>"),
        (Shown(ZeroDivisionError()), "<Shown, whose __repr__ raised ZeroDivisionError>"),
        (Shown("<Job\n\x1b]0;title>"), r"<Job\n\x1b]0;title>"),
    ],
)
def test_value_is_described_by_its_repr(value, shown):
    assert describe(value) == shown


def test_description_of_large_value_is_bounded():
    shown = describe("\n" * 10**6)
    assert len(shown) < 3 * MAX_DESCRIBED and shown.endswith("(2,000,002 characters)")
    for error in (KeyboardInterrupt, SystemExit):
        with pytest.raises(error):
            describe(Shown(error()))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("jobs, café, \u7d2b", "jobs, café, \u7d2b"),
        ("\x1b[2J\x07", r"\x1b[2J\x07"),
        ("a\r\nb", r"a\r\nb"),
        ("\u202ecod", r"\u202ecod"),
        ("\ud800", r"\ud800"),
        (7, "7"),
    ],
)
def test_printable_escapes_what_a_terminal_would_execute(text, shown):
    assert printable(text) == shown
