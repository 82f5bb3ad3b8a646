"""`IdleTracker`: each silent id is reported once and on time; active ids cost almost nothing."""

import asyncio
import gc
import math
import random
import weakref
from typing import Any

import pytest
from helpers import Broken, Listener, Spy, collector, iterations, profiled, raiser
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from loops import Runner, on_every_loop, on_virtual_time

from purgatory import IdleTracker, PurgatoryClosed, WrongLoop
from purgatory.testing import VirtualTimeLoop


class IdleLog:
    """An `on_idle` callback that records each id and the time."""

    def __init__(self) -> None:
        self.at: list[tuple[Any, float]] = []

    def __call__(self, id_: object) -> None:
        self.at.append((id_, asyncio.get_running_loop().time()))

    @property
    def ids(self) -> list[Any]:
        return [id_ for id_, _ in self.at]


# Which id falls idle, and when


@on_virtual_time
@pytest.mark.parametrize(
    ("start", "timeout"),
    [(0.0, 0.001), (0.1, 7200.0), (2e7, 0.001), (2e7, 30.0), (1e9, 0.001), (1e9, 0.25), (1e9, 1e6)],
)
async def test_silent_id_falls_idle_once_within_tick(timeout: float, start: float) -> None:
    log = IdleLog()
    tracker = IdleTracker(timeout, log)
    tracker.touch("a")
    touched = asyncio.get_running_loop().time()
    await asyncio.sleep(3 * timeout + 3)
    [(id_, at)] = log.at
    assert id_ == "a"
    tick = tracker._loop_wheel.wheel.clock.tick
    assert touched + timeout <= at <= touched + timeout + tick + 2 * math.ulp(at)
    assert "a" not in tracker
    assert len(tracker) == 0


@on_every_loop
async def test_no_id_is_early_on_real_clock() -> None:
    log = IdleLog()
    with IdleTracker(0.02, log, tick=0.001) as tracker:
        last: dict[int, float] = {}
        loop = asyncio.get_running_loop()
        for id_ in range(200):
            last[id_] = loop.time()
            tracker.touch(id_)
            if id_ % 10 == 0:
                await asyncio.sleep(0.001)
        while len(log.at) < 200:
            await asyncio.sleep(0.005)
        assert sorted(log.ids) == list(range(200))
        assert all(at >= last[id_] + 0.02 for id_, at in log.at)


@on_virtual_time
async def test_touched_id_never_falls_idle() -> None:
    log = IdleLog()
    tracker = IdleTracker(10, log, tick=0.01)
    for _ in range(50):
        tracker.touch("talks")
        await asyncio.sleep(9.999)
    assert log.at == []
    await asyncio.sleep(0.02)
    assert log.ids == ["talks"]


@on_virtual_time
async def test_timeout_counts_from_last_touch() -> None:
    log = IdleLog()
    tracker = IdleTracker(30, log, tick=1)
    for at in (0, 12, 29):
        await asyncio.sleep(at - asyncio.get_running_loop().time())
        tracker.touch("a")
    await asyncio.sleep(100)
    assert log.at == [("a", 59)]


@on_virtual_time
async def test_infinite_timeout_arms_no_timer() -> None:
    log = IdleLog()
    spy = Spy(asyncio.get_running_loop())
    tracker = IdleTracker(math.inf, log)
    tracker.touch("a")
    tracker.touch("a")
    assert spy.calls["call_at"] == 0
    assert tracker.remove("a") is True
    assert "a" not in tracker
    tracker._check()


@on_virtual_time
async def test_on_idle_can_touch_its_id_again() -> None:
    loop = asyncio.get_running_loop()
    at = []

    def on_idle(id_: str) -> None:
        assert id_ not in tracker
        at.append(loop.time())
        if len(at) < 3:
            tracker.touch(id_)

    tracker = IdleTracker(5, on_idle, tick=1)
    tracker.touch("a")
    await asyncio.sleep(100)
    assert at == [5, 10, 15]
    tracker._check()


@on_virtual_time
async def test_on_idle_can_touch_remove_and_add_others() -> None:
    log = IdleLog()

    def on_idle(id_: str) -> None:
        log(id_)
        if id_ == "first":
            tracker.touch("saved")
            assert tracker.remove("removed")
            tracker.touch("new")
        tracker._loop_wheel.wheel._check()
        assert tracker._loop_wheel.wheel.size == len(tracker)

    tracker = IdleTracker(5, on_idle, tick=1)
    for id_ in ("first", "saved", "removed", "other"):
        tracker.touch(id_)
    await asyncio.sleep(5)
    assert log.at == [("first", 5), ("other", 5)]
    assert sorted(tracker) == ["new", "saved"]
    await asyncio.sleep(10)
    assert sorted(log.at[2:]) == [("new", 10), ("saved", 10)]


async def test_exception_of_on_idle_is_reported_alone(
    reports: list[dict[str, Any]],
) -> None:
    log = IdleLog()
    errors = {"bad": ValueError("bad"), "cancelled": asyncio.CancelledError()}

    def on_idle(id_: str) -> None:
        log(id_)
        if id_ in errors:
            raise errors[id_]

    tracker = IdleTracker(0.01, on_idle, tick=0.01)
    for id_ in ("a", "bad", "b", "cancelled", "c"):
        tracker.touch(id_)
    while len(tracker):
        await asyncio.sleep(0.01)
    await iterations(2)
    assert sorted(log.ids) == ["a", "b", "bad", "c", "cancelled"]
    assert [report["exception"] for report in reports] == [errors["bad"], errors["cancelled"]]
    assert reports[0]["message"] == "exception in on_idle('bad') of the idle tracker 'idle'"


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_exit_in_on_idle_ends_the_loop(error: type[BaseException]) -> None:
    async def main() -> None:
        tracker: IdleTracker[str] = IdleTracker(1, raiser(error()))
        tracker.touch("a")
        await asyncio.sleep(10)

    with pytest.raises(error), asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())


@on_virtual_time
async def test_crowd_falls_idle_over_several_iterations() -> None:
    loop = asyncio.get_running_loop()
    per_iteration: list[int] = []
    log = [0]

    def on_idle(_: int) -> None:
        log[0] += 1

    def watch() -> None:
        per_iteration.append(log[0])
        log[0] = 0
        if sum(per_iteration) < 5000:
            loop.call_soon(watch)

    tracker = IdleTracker(5, on_idle, tick=1)
    for id_ in range(5000):
        tracker.touch(id_)
    loop.call_at(5, watch)
    await asyncio.sleep(10)
    assert sum(per_iteration) == 5000
    assert max(per_iteration) <= 512


@on_virtual_time
async def test_rest_of_crowd_can_be_touched_and_removed() -> None:
    loop = asyncio.get_running_loop()
    log = IdleLog()
    tracker = IdleTracker(5, log, tick=1)
    for id_ in range(5000):
        tracker.touch(id_)
    fate: dict[int, str] = {}

    def meddle() -> None:
        tracker._check()
        rest = sorted(set(tracker) - set(fate))
        if not rest:
            return
        for kind, id_ in zip(
            ("spoke", "left", "came back", "spoke, left"), rest[-4:], strict=False
        ):
            fate[id_] = kind
            if kind.startswith("spoke"):
                tracker.touch(id_)
            if kind != "spoke":
                tracker.remove(id_)
            if kind == "came back":
                tracker.touch(id_)
        loop.call_soon(meddle)

    loop.call_at(5, meddle)
    await asyncio.sleep(8)
    assert len(fate) >= 10
    assert set(log.ids) == set(range(5000)) - set(fate)
    assert set(tracker) == {id_ for id_, kind in fate.items() if not kind.endswith("left")}
    await asyncio.sleep(10)
    assert len(log.ids) == 5000 - sum(kind.endswith("left") for kind in fate.values())
    assert all(at == 10 for id_, at in log.at if id_ in fate)


@on_virtual_time
async def test_id_touched_after_stall_does_not_fall_idle() -> None:
    log = IdleLog()
    tracker = IdleTracker(5, log, tick=0.5)
    for id_ in range(100):
        tracker.touch(id_)
    loop: Any = asyncio.get_running_loop()
    loop._set_time(1000.25)  # simulates a callback that blocked the loop
    for id_ in range(0, 100, 2):
        tracker.touch(id_)
    await iterations(3)
    assert sorted(log.ids) == list(range(1, 100, 2))
    tracker._check()
    await asyncio.sleep(6)
    assert len(log.at) == 100


# The tracked ids


@on_virtual_time
async def test_ids_are_iterated_in_order_of_first_touch() -> None:
    tracker = IdleTracker(5, IdleLog())
    for id_ in ("b", "a", "c", "b"):
        tracker.touch(id_)
    assert list(tracker) == ["b", "a", "c"]
    assert len(tracker) == 3
    assert "a" in tracker
    assert "d" not in tracker
    assert repr(tracker) == "<IdleTracker timeout=5.0 tick=0.004 tracked=3>"
    tracker.close()
    assert repr(tracker) == "<IdleTracker timeout=5.0 tick=0.004 closed>"


@on_virtual_time
async def test_touch_and_remove_do_not_disturb_iteration() -> None:
    log = IdleLog()
    tracker = IdleTracker(5, log, tick=1)
    for id_ in range(10):
        tracker.touch(id_)
    seen = []
    for id_ in tracker:
        seen.append(id_)
        tracker.touch(id_)
        tracker.touch(id_ + 100)
        tracker.remove(9 - id_)
        await asyncio.sleep(1)  # long enough that some ids fall idle during the iteration
    assert seen == list(range(10))
    tracker._check()


async def test_removed_id_is_freed() -> None:
    class Connection:
        pass

    log = IdleLog()
    loop = asyncio.get_running_loop()
    spy = Spy(loop)
    tracker: IdleTracker[Connection] = IdleTracker(3600, log)
    connections = [Connection() for _ in range(100)]
    for connection in connections:
        tracker.touch(connection)
    gone = [weakref.ref(connection) for connection in connections]
    for connection in connections:
        assert tracker.remove(connection) is True
        assert tracker.remove(connection) is False
        tracker._check()
    connections.clear()
    del connection
    gc.collect()
    assert [ref() for ref in gone] == [None] * 100
    await iterations(2)
    assert spy.armed == 0
    assert log.at == []


@on_virtual_time
async def test_idle_id_is_freed() -> None:
    log = IdleLog()
    spy = Spy(asyncio.get_running_loop())
    tracker = IdleTracker(5, log)
    for id_ in range(1000):
        tracker.touch(id_)
        await asyncio.sleep(0.001)
    await asyncio.sleep(20)
    assert log.ids == sorted(log.ids, key=dict(log.at).__getitem__)
    assert len(log.at) == 1000
    assert spy.armed == 0
    tracker._check()
    assert not list(tracker._loop_wheel.wheel.buckets())


@on_virtual_time
async def test_removing_unknown_id_is_no_error() -> None:
    tracker = IdleTracker(5, IdleLog())
    assert tracker.remove("stranger") is False
    tracker.touch("a")
    assert tracker.remove("stranger") is False


# Cost


async def test_touch_costs_the_same_for_any_size() -> None:
    spy = Spy(asyncio.get_running_loop())
    costs = []
    with IdleTracker(3600, IdleLog()) as tracker:
        for tracked in (1, 100, 10_000):
            for id_ in range(tracked):
                tracker.touch(id_)
            armed = spy.calls["call_at"]
            costs.append(profiled(lambda: tracker.touch(0)))
            for id_ in range(tracked):
                tracker.touch(id_)
            assert spy.calls["call_at"] == armed
    # The lambda, touch, _get_running_loop and time. The profiler counts a few more calls on some
    # loops.
    assert costs[0] == costs[1] == costs[2] <= 8


@on_virtual_time
async def test_loop_has_one_timer_per_visited_tick() -> None:
    spy = Spy(asyncio.get_running_loop())
    tracker = IdleTracker(64, IdleLog(), tick=1)
    for _ in range(10):
        for id_ in range(100):
            tracker.touch(id_)
        await asyncio.sleep(0.05)
    assert spy.calls["call_at"] == 1 + 10  # one for the tick, and one per sleep
    for second in range(1000):
        tracker.touch(second % 100 + 1000)
        await asyncio.sleep(0.1)
    assert spy.armed <= 66


@on_virtual_time
async def test_busy_id_is_visited_once_per_timeout() -> None:
    tracker = IdleTracker(10, IdleLog())
    for _ in range(1000):
        tracker.touch("a")
        await asyncio.sleep(0.1)
    assert 9 <= tracker._loop_wheel.wake_ups <= 11


# Wrong loops and threads, and closing


def test_wrong_loop_is_refused(loop_factory) -> None:
    tracker: IdleTracker[str] = IdleTracker(5, IdleLog())
    with pytest.raises(WrongLoop, match="cannot touch 'a': no event loop is running"):
        tracker.touch("a")
    assert len(tracker) == 0
    assert tracker.remove("a") is False

    async def main() -> None:
        tracker.touch("a")
        errors: list[BaseException] = []

        def elsewhere() -> None:
            for method in (
                lambda: tracker.touch("a"),
                lambda: tracker.touch("b"),
                lambda: tracker.remove("a"),
                tracker.close,
            ):
                try:
                    method()
                except WrongLoop as error:
                    errors.append(error)

        await asyncio.to_thread(elsewhere)
        assert len(errors) == 4
        assert all("this is another thread" in str(error) for error in errors)
        assert list(tracker) == ["a"]

    async def other() -> None:
        with pytest.raises(WrongLoop, match="cannot touch 'a'"):
            tracker.touch("a")
        with pytest.raises(WrongLoop, match="cannot remove 'a'"):
            tracker.remove("a")
        with pytest.raises(WrongLoop, match="cannot close"):
            tracker.close()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())
        with asyncio.Runner(loop_factory=loop_factory) as another:
            another.run(other())
        with pytest.raises(WrongLoop):
            tracker.touch("a")


async def test_closed_tracker_accepts_nothing_and_leaves_no_timer() -> None:
    log = IdleLog()
    spy = Spy(asyncio.get_running_loop())
    with IdleTracker(0.005, log) as tracker:
        for id_ in range(100):
            tracker.touch(id_)
    tracker.close()
    assert len(tracker) == 0
    with pytest.raises(PurgatoryClosed, match="cannot touch 5: the idle tracker 'idle' is closed"):
        tracker.touch(5)
    assert tracker.remove(5) is False
    await iterations(2)
    assert spy.armed == 0
    await asyncio.sleep(0.02)
    assert log.at == []
    tracker._check()


@on_virtual_time
async def test_close_in_on_idle_spares_other_ids() -> None:
    log: list[int] = []

    def on_idle(id_: int) -> None:
        log.append(id_)
        tracker.close()

    tracker = IdleTracker(5, on_idle)
    for id_ in range(1000):
        tracker.touch(id_)
    await asyncio.sleep(20)
    assert len(log) == 1
    assert len(tracker) == 0


def test_tracker_can_be_closed_without_its_loop() -> None:
    async def main(tracker: IdleTracker[str]) -> None:
        tracker.touch("a")

    with IdleTracker(5, IdleLog()) as tracker:
        pass
    with pytest.raises(PurgatoryClosed):
        tracker.touch("a")
    with IdleTracker(5, IdleLog()) as tracker:
        asyncio.run(main(tracker))
    assert len(tracker) == 0


@pytest.mark.parametrize("timeout", [0, -1.0, -math.inf])
def test_timeout_must_be_positive(timeout: float) -> None:
    with pytest.raises(ValueError, match="timeout must be a positive number of seconds, got "):
        IdleTracker(timeout, print)


@pytest.mark.parametrize(
    ("timeout", "error", "words"),
    [
        (math.nan, ValueError, "cannot be NaN"),
        ("5", TypeError, "must be a number of seconds, not '5'"),
    ],
)
def test_timeout_must_be_a_number(timeout: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=f"timeout {words}"):
        IdleTracker(timeout, print)


@pytest.mark.parametrize("tick", [0, -1.0, math.nan, math.inf])
def test_tick_must_be_positive_and_finite(tick: float) -> None:
    with pytest.raises(
        ValueError, match=r"tick (must be a finite number of seconds|cannot be NaN)"
    ):
        IdleTracker(5, print, tick=tick)


@on_virtual_time
async def test_unhashable_id_is_refused() -> None:
    tracker: IdleTracker[Any] = IdleTracker(5, IdleLog())
    with pytest.raises(TypeError, match="unhashable"):
        tracker.touch([])
    assert len(tracker) == 0
    tracker._check()


@pytest.mark.parametrize(
    ("timeout", "tick"), [(0.5, 0.004), (30, 0.004), (80, 0.01), (1e5, 1.0), (math.inf, 1.0)]
)
def test_default_tick_is_a_fraction_of_timeout(timeout: float, tick: float) -> None:
    assert IdleTracker(timeout, print)._loop_wheel.wheel.clock.tick == pytest.approx(tick)


# Against a model


TICK, TIMEOUT = 0.5, 20.0
IDS = st.integers(0, 15)


class AgainstADictionary(RuleBasedStateMachine):
    """A dictionary of the last touches: it knows the ids that must be idle by now, and the ids that
    cannot be."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(start=12.3))
        self.loop = self.runner.get_loop()
        self.problems: list[Any] = []
        self.loop.set_exception_handler(lambda _, context: self.problems.append(context))
        self.last: dict[int, float] = {}
        self.again: set[int] = set()
        self.removes: dict[int, int] = {}
        self.tracker: IdleTracker[int] = IdleTracker(TIMEOUT, self.on_idle, tick=TICK)

    def on_idle(self, id_: int) -> None:
        now = self.loop.time()
        touched = self.last.pop(id_)  # raises KeyError for an unknown id, which would be reported
        if not touched + TIMEOUT <= now <= touched + TIMEOUT + TICK + 1e-9:
            self.problems.append((id_, touched, now))
        if id_ in self.again:
            self.again.remove(id_)
            self.touch_now(id_)
        if (other := self.removes.pop(id_, None)) is not None and self.tracker.remove(other) != (
            self.last.pop(other, None) is not None
        ):
            self.problems.append(("removed", other))

    def touch_now(self, id_: int) -> None:
        self.last[id_] = self.loop.time()
        self.tracker.touch(id_)

    async def do(self, action: Any, *args: Any) -> Any:
        return action(*args)

    @rule(id_=IDS)
    def touch(self, id_: int) -> None:
        self.runner.run(self.do(self.touch_now, id_))

    @rule(id_=IDS)
    def remove(self, id_: int) -> None:
        expected = self.last.pop(id_, None) is not None
        assert self.runner.run(self.do(self.tracker.remove, id_)) is expected

    @rule(
        seconds=st.one_of(
            st.floats(0, 3), st.floats(15, 25), st.just(TIMEOUT), st.just(TICK), st.floats(0, 1e5)
        )
    )
    def wait(self, seconds: float) -> None:
        self.runner.run(asyncio.sleep(seconds))

    @rule(seconds=st.floats(0, 100), id_=IDS)
    def stall_and_touch(self, seconds: float, id_: int) -> None:
        """Advances time while nothing runs. Ids that are overdue afterwards may be late by more
        than a tick, so they are not checked."""

        async def main() -> None:
            self.loop._set_time(self.loop.time() + seconds)  # type: ignore[attr-defined]
            now = self.loop.time()
            for other, touched in self.last.items():
                if touched + TIMEOUT < now:
                    self.last[other] = now - TIMEOUT
            self.touch_now(id_)

        self.runner.run(main())

    @rule(id_=IDS)
    def touch_again_in_on_idle(self, id_: int) -> None:
        self.again.add(id_)

    @rule(id_=IDS, other=IDS)
    def remove_another_in_on_idle(self, id_: int, other: int) -> None:
        self.removes[id_] = other

    @precondition(lambda self: self.last)
    @invariant()
    def nobody_is_overdue(self) -> None:
        now = self.loop.time()
        assert all(now <= touched + TIMEOUT + TICK + 1e-9 for touched in self.last.values())

    @invariant()
    def the_same_are_tracked(self) -> None:
        assert self.problems == []
        assert set(self.tracker) == set(self.last)
        self.tracker._check()

    def teardown(self) -> None:
        self.runner.close()


TestAgainstADictionary = AgainstADictionary.TestCase
TestAgainstADictionary.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_random_ids_match_dictionary_twice(
    virtual: Runner,
) -> None:
    def trace(seed: int) -> list[tuple[int, float]]:
        async def main() -> list[tuple[int, float]]:
            rng = random.Random(seed)
            loop = asyncio.get_running_loop()
            last: dict[int, float] = {}
            log: list[tuple[int, float]] = []

            def on_idle(id_: int) -> None:
                now = loop.time()
                assert last.pop(id_) + 10 <= now
                log.append((id_, now))

            tracker = IdleTracker(10, on_idle, tick=0.01)
            for _ in range(3000):
                id_ = min(int(rng.expovariate(0.05)), 500)
                tracker.touch(id_)
                last[id_] = loop.time()
                await asyncio.sleep(rng.random() * 0.1)
            assert set(tracker) == set(last)
            await asyncio.sleep(20)
            assert not last
            return log

        return virtual(main)

    first = trace(1)
    assert len(first) > 100
    assert first == trace(1) != trace(2)


class Fragile:
    """An id whose `__eq__` raises."""

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError


@on_virtual_time
async def test_id_that_cannot_be_compared_changes_nothing() -> None:
    log = IdleLog()
    tracker: IdleTracker[Any] = IdleTracker(5, log)
    first = Fragile()
    tracker.touch(first)
    with pytest.raises(ZeroDivisionError):
        tracker.touch(Fragile())
    tracker._check()
    assert len(tracker) == 1
    await asyncio.sleep(20)
    assert log.ids == [first]


@on_virtual_time
@pytest.mark.parametrize("observed", [False, True])
@pytest.mark.cpython
async def test_raising_on_idle_leaves_no_cycle(
    observed: bool, reports: list[dict[str, Any]]
) -> None:
    tracker = IdleTracker(1.0, raiser(Broken()), observer=Listener() if observed else None)
    with collector(is_on=False):
        for id_ in range(10):
            tracker.touch(id_)
        await asyncio.sleep(2.0)
        await iterations(3)
        assert gc.collect() == 0
    assert len(reports) == 10


# Closing and entering again


@on_virtual_time
async def test_closed_and_reopened_tracker_forgets_earlier_ids() -> None:
    log = IdleLog()
    tracker: IdleTracker[Any] = IdleTracker(5, log)
    tracker.touch("a")
    tracker.close()
    with tracker:
        tracker.touch("b")
        await asyncio.sleep(20)
    assert log.ids == ["b"]


def test_tracker_reopened_on_next_loop_forgets_earlier_ids() -> None:
    """This holds even if the loop was closed while ids were due."""
    log, idle = IdleLog(), asyncio.Event()
    tracker: IdleTracker[Any] = IdleTracker(1, lambda id_: (log(id_), idle.set()))

    async def first() -> None:
        for number in range(20_000):
            tracker.touch(number)
        await idle.wait()

    async def second() -> None:
        with tracker:
            tracker.touch("b")
            await asyncio.sleep(20)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(first())
    assert 0 < len(log.at) < 20_000
    tracker.close()
    assert tracker._loop_wheel.wheel.size == 0
    log.at.clear()
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(second())
    assert log.ids == ["b"]


def test_tracker_closed_after_its_loop_frees_ids() -> None:
    class Connection:
        pass

    async def main() -> "weakref.ref[Connection]":
        connection = Connection()
        tracker.touch(connection)
        return weakref.ref(connection)

    tracker: IdleTracker[Any] = IdleTracker(5, IdleLog())
    reference = asyncio.run(main())
    tracker.close()
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_exit_of_exception_handler_loses_no_idle_id(error: type[BaseException]) -> None:
    seen: list[int] = []
    exits = [error()]

    def on_idle(id_: int) -> None:
        seen.append(id_)
        raise ZeroDivisionError

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if exits:
            raise exits.pop()

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(handle)
        tracker: IdleTracker[int] = IdleTracker(1, on_idle)
        for id_ in range(3):
            tracker.touch(id_)
        await asyncio.sleep(10)

    with pytest.raises(error), asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())
    assert seen == [0, 1, 2]
