"""`timeout`, `timeout_at`, `wait_for` and `Timeout`: they behave like asyncio's, with few requests
to the loop.
CPython's own tests come first: they are loaded from the installed Python, with `asyncio` replaced
by a stand-in that contains our functions. Each is a test here, on virtual time, on asyncio's loop
and on uvloop. Debian and others install Python without its tests; then the test report ends with a
note.
"""

import asyncio
import gc
import inspect
import math
import random
import sys
import threading
import time
import unittest
import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from decimal import Decimal
from fractions import Fraction
from functools import partial
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Any

import anyio
import pytest
from helpers import Spy, iterations, outcome
from loops import LOOP_FACTORIES, TIMEOUT, Runner, on_asyncio, on_every_loop, on_virtual_time
from requirements import unavailable

import purgatory
from purgatory import Timeout, WrongLoop, timeout, timeout_at, wait_for
from purgatory._core.loop import BUSY_AFTER, BUSY_DELAY, BUSY_WINDOW, LoopTimingWheel
from purgatory._core.timeouts import TICK, WHEEL_ATTRIBUTE, running_wheel
from purgatory.testing import VirtualTimeLoop

STARTS = [0.0, 2e7, 1e9]
at_any_loop_time = pytest.mark.parametrize("start", STARTS)

# CPython's own tests

CPYTHON_TESTS = ["test_timeouts", "test_waitfor"]

HOLD_UP = 0.008
"""Seconds of a blocked loop that make the result of these tests meaningless: their shortest
deadline is 0.01 s, and uvloop counts whole milliseconds."""

DIFFERENT: dict[str, str] = {}
"""CPython's tests that our functions do not pass, with the reason."""
if sys.version_info < (3, 12):
    DIFFERENT["test_wait_for_self_cancellation"] = (
        "the wait_for of 3.11 waits in a task beside the one it waits for, and raises "
        "CancelledError although that one has"
        " swallowed the cancellation and returned; 3.12 repaired such races (cpython#86296) and "
        "removed this test: the"
        " result counts, as with asyncio.timeout"
    )


class StandIn(ModuleType):
    """`asyncio` with our timeouts in it."""

    timeout = staticmethod(purgatory.timeout)
    timeout_at = staticmethod(purgatory.timeout_at)
    wait_for = staticmethod(purgatory.wait_for)
    Timeout = purgatory.Timeout

    def __getattr__(self, name: str) -> Any:
        if name in ("tasks", "timeouts"):
            return self
        return getattr(asyncio, name)


def load_cpython_tests(name: str) -> list[type[unittest.IsolatedAsyncioTestCase]]:
    """The test cases of a module of `test.test_asyncio`, for our functions; empty if this Python is
    installed without it."""
    try:
        found = find_spec(f"test.test_asyncio.{name}")
    except ModuleNotFoundError:
        found = None
    if found is None or found.origin is None:
        return []
    spec = spec_from_file_location(f"cpython_{name}", found.origin)
    assert spec is not None and spec.loader is not None
    module: Any = module_from_spec(spec)
    spec.loader.exec_module(module)
    module.asyncio = StandIn("asyncio")
    if hasattr(module, "tasks"):
        module.tasks = module.asyncio
    if hasattr(module, "_EPSILON"):
        # a busy machine may need more than 0.1 ms to start the work that is to be cancelled
        module._EPSILON = 0.04
    return [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, unittest.IsolatedAsyncioTestCase)
    ]


def on_loop(
    case: type[unittest.IsolatedAsyncioTestCase],
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> dict[str, Any]:
    """The attributes of a subclass of `case` that runs its tests on that loop, undisturbed, with
    known differences marked."""
    is_virtual = loop_factory is VirtualTimeLoop

    def set_up_runner(self: Any) -> None:
        self._asyncioRunner = asyncio.Runner(debug=True, loop_factory=loop_factory)

    body: dict[str, Any] = {"_setupAsyncioRunner": set_up_runner, "__module__": __name__}
    for name, test in vars(case).items():
        if name.startswith("test_"):
            body[name] = copied(test) if is_virtual else without_hold_ups(test)
            if name in DIFFERENT:
                body[name] = pytest.mark.xfail(strict=True, reason=DIFFERENT[name])(body[name])
    return body


def copied(test: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
    """`test` as a function that can be marked without marking every subclass of its class."""

    async def copy(self: Any) -> None:
        await test(self)

    return copy


def without_hold_ups(test: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
    """`test`, repeated after a failure while the loop was blocked, for as long as a test may take.
    These tests decide the order of events by deadlines of 0.01 to 0.1 s. A loop that is blocked for
    as long finds all of them due at once, and uvloop runs due timers before ready callbacks: then
    asyncio's own functions fail these tests, too.
    """

    async def copy(self: Any) -> None:
        begun = time.monotonic()
        while time.monotonic() < begun + TIMEOUT:
            held_up = asyncio.create_task(until_held_up(HOLD_UP, asyncio.get_running_loop().time()))
            try:
                return await test(self)
            except AssertionError:
                await asyncio.sleep(0.02)
                if not held_up.done():
                    raise
            finally:
                held_up.cancel()
        raise AssertionError(f"the machine was too busy for CPython's tests for {TIMEOUT:g} s")

    return copy


async def until_held_up(limit: float, before: float) -> None:
    """Returns when the loop has been blocked for `limit` seconds, including time before this
    call."""
    loop = asyncio.get_running_loop()
    while loop.time() < before + limit:
        before = loop.time()
        await asyncio.sleep(0.002)


@on_asyncio
@pytest.mark.parametrize("yields", [False, True])
async def test_failed_test_on_busy_machine_is_repeated(yields: bool) -> None:
    tries = []

    async def first_held_up(_: object) -> None:
        tries.append(1)
        if len(tries) == 1:
            if yields:
                await asyncio.sleep(0.02)
            time.sleep(0.01)  # noqa: ASYNC251  blocks the loop
            raise AssertionError

    await without_hold_ups(first_held_up)(None)
    assert len(tries) == 2


LOOPS = {kind.title(): make for kind, make in LOOP_FACTORIES.items() if kind != "eager"}
MISSING: list[str] = []
for module_name in CPYTHON_TESTS:
    cases = load_cpython_tests(module_name)
    if not cases:
        MISSING.append(module_name)
    for case in cases:
        for loop_name, loop_factory in LOOPS.items():
            class_name = f"{case.__name__}On{loop_name}"
            globals()[class_name] = type(class_name, (case,), on_loop(case, loop_factory))
case = cases = None  # type: ignore[assignment]  # otherwise pytest would collect them again


class Missing:
    """A pytest plugin that reports CPython's missing tests at the end."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("CPython's own tests of timeouts were NOT run")
        for name in self.names:
            terminalreporter.line(
                f"This Python ({sys.version.split()[0]}) was installed without "
                f"test.test_asyncio.{name}."
            )


@pytest.fixture(autouse=True, scope="module")
def say_what_is_missing(request: pytest.FixtureRequest) -> None:
    if MISSING:
        request.config.pluginmanager.register(Missing(MISSING))


def test_missing_cpython_tests_are_reported() -> None:
    class Reporter:
        text = ""

        def line(self, line: str) -> None:
            self.text += line + "\n"

        section = line

    assert load_cpython_tests("test_no_such_thing") == []
    Missing(["test_no_such_thing"]).pytest_terminal_summary(reporter := Reporter())
    assert (
        "NOT run" in reporter.text
        and "without test.test_asyncio.test_no_such_thing" in reporter.text
    )


@pytest.mark.cpython  # has the tests, which PyPy leaves out
def test_cpython_tests_run_against_ours() -> None:
    cases = [
        value
        for name, value in globals().items()
        if name.endswith(tuple(f"On{name}" for name in LOOPS))
    ]
    assert bool(cases) == (len(MISSING) < len(CPYTHON_TESTS))
    for case in cases:
        stand_in = vars(sys.modules[__name__])[case.__name__].__mro__[1].__dict__
        functions = [value for name, value in stand_in.items() if name.startswith("test_")]
        assert functions and all(
            function.__globals__["asyncio"].timeout is timeout for function in functions
        )
    if MISSING:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        unavailable(
            f"this Python lacks test.test_asyncio: apt-get install libpython{version}-testsuite"
        )


# Random programs, on asyncio's functions and on ours


class Script:
    """Runs a random program of nested timeouts, and records each event with its time.
    Deadlines are whole ticks, and no two are equal, as the order of equal deadlines is not
    promised.
    """

    def __init__(self, seed: int, timeout_at: Callable[[float | None], Any]) -> None:
        self.chance = random.Random(seed)
        self.timeout_at = timeout_at
        self.whens: list[float | None] = [tick / 1000 for tick in range(-20, 60)]
        self.chance.shuffle(self.whens)
        self.active: list[Any] = []
        self.trace: list[Any] = []

    def note(self, *words: object) -> None:
        self.trace.append((asyncio.get_running_loop().time(), *words))

    async def run(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        for _ in range(self.chance.randrange(3)):
            asyncio.get_running_loop().call_later(0.06 * self.chance.random(), task.cancel)
        while len(self.whens) > 20:
            try:
                await self.body(0)
            except BaseException as error:
                self.note(
                    "left",
                    repr(error),
                    repr(error.__cause__),
                    repr(error.__context__),
                    task.cancelling(),
                )

    async def body(self, depth: int) -> None:
        task = asyncio.current_task()
        assert task is not None
        for _ in range(self.chance.randrange(1, 4)):
            match self.chance.choice(
                ["sleep", "iterate", "limit", "limit", "move", "swallow", "fail"]
            ):
                case "limit" if depth < 5:
                    limit = self.timeout_at(
                        self.chance.choice([self.whens.pop(), self.whens.pop(), None])
                    )
                    self.active.append(limit)
                    try:
                        async with limit:
                            await self.body(depth + 1)
                    except TimeoutError:
                        self.note("timed out", task.cancelling())
                    finally:
                        self.active.remove(limit)
                        self.note(repr(limit), limit.when(), limit.expired())
                case "move" if self.active:
                    limit = self.chance.choice(self.active)
                    try:
                        limit.reschedule(
                            self.chance.choice([self.whens.pop(), self.whens.pop(), None])
                        )
                    except RuntimeError as error:
                        self.note(str(error))
                    self.note(repr(limit), limit.when(), limit.expired())
                case "swallow":
                    try:
                        await self.body(depth + 1)
                    except asyncio.CancelledError:
                        self.note("swallowed", task.cancelling())
                case "fail" if self.chance.random() < 0.1:
                    raise KeyError(depth)
                case "iterate":
                    await asyncio.sleep(0)
                case _:
                    await asyncio.sleep(0.02 * self.chance.random())


@pytest.mark.skipif(
    sys.version_info < (3, 11, 7), reason="asyncio's own were still being repaired (cpython#102780)"
)
@pytest.mark.parametrize(
    "seeds", [range(50), pytest.param(range(50, 1000), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_random_program_behaves_as_with_asyncio(virtual: Runner, seeds: range) -> None:
    for seed in seeds:
        ours, theirs = Script(seed, timeout_at), Script(seed, asyncio.timeout_at)
        virtual(ours.run)
        virtual(theirs.run)
        assert ours.trace == theirs.trace, seed


# The body and its deadline


def test_signatures_equal_those_of_asyncio() -> None:
    for name in ("timeout", "timeout_at", "wait_for", "Timeout"):
        ours, theirs = (inspect.signature(getattr(module, name)) for module in (purgatory, asyncio))
        assert [parameter.kind for parameter in ours.parameters.values()] == [
            parameter.kind for parameter in theirs.parameters.values()
        ]
    assert list(inspect.signature(wait_for).parameters) == ["awaitable", "timeout"]
    public = {name for name in dir(asyncio.Timeout) if not name.startswith("_")}
    assert public == {name for name in dir(Timeout) if not name.startswith("_")}


async def test_slow_body_is_cancelled_and_raises_timeout_error() -> None:
    cancelled = False
    with pytest.raises(TimeoutError) as raised:
        async with timeout(0.01) as limit:
            assert not limit.expired()
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                cancelled = True
                assert limit.expired()
                raise
    assert cancelled
    assert isinstance(raised.value.__cause__, asyncio.CancelledError)
    assert limit.expired()
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0


@pytest.mark.parametrize("delay", [3600, None, math.inf, 1e300])
async def test_body_in_time_is_left_alone(delay: float | None) -> None:
    async with timeout(delay) as limit:
        await asyncio.sleep(0.001)
    assert not limit.expired()
    await iterations(3)


@pytest.mark.parametrize("delay", [0, 0.0, -1, -math.inf])
async def test_zero_delay_expires_at_first_await(delay: float) -> None:
    with pytest.raises(TimeoutError):
        async with timeout(delay):
            await asyncio.sleep(0)
    async with timeout(delay) as limit:
        pass  # never suspended
    await iterations(3)
    assert not limit.expired()


async def test_deadline_passed_before_enter_expires_at_first_await() -> None:
    limit = timeout(0.002)
    await asyncio.sleep(0.005)
    with pytest.raises(TimeoutError):
        async with limit:
            await asyncio.sleep(0)


@on_virtual_time
@pytest.mark.parametrize("start", [TICK / 4])
async def test_passed_deadline_does_not_wait_for_tick(
    start: float,
) -> None:
    loop = asyncio.get_running_loop()
    now = loop.time()
    async with timeout_at(now + TICK / 2):  # due at the end of this tick, like the next deadline
        with pytest.raises(TimeoutError):
            async with timeout_at(now):
                await asyncio.sleep(0)
    assert loop.time() == now


@on_virtual_time
@at_any_loop_time
async def test_timeout_is_late_by_at_most_one_tick(start: float) -> None:
    chance = random.Random(3)

    async def strike(when: float) -> None:
        limit = timeout_at(when)
        with pytest.raises(TimeoutError):
            async with limit:
                await asyncio.sleep(1e9)
        late = asyncio.get_running_loop().time() - when
        assert 0 <= late <= TICK + 2 * math.ulp(when)

    loop = asyncio.get_running_loop()
    whens = [
        loop.time() + chance.choice([1e-9, 0.001, 0.5, 1.0, 700.0]) * chance.random()
        for _ in range(300)
    ]
    await asyncio.gather(
        *map(strike, whens), *map(strike, (loop.time() + number / 1000 for number in range(1, 50)))
    )


@on_every_loop
async def test_timeout_is_never_early_by_loop_clock() -> None:
    async def strike(delay: float) -> None:
        loop = asyncio.get_running_loop()
        with pytest.raises(TimeoutError):
            async with timeout(delay) as limit:
                await asyncio.sleep(100)
        when = limit.when()
        assert when is not None and loop.time() >= when

    async def strike_wait_for(delay: float) -> None:
        loop = asyncio.get_running_loop()
        when = loop.time() + delay
        with pytest.raises(TimeoutError):
            await wait_for(asyncio.sleep(100), delay)
        assert loop.time() >= when

    delays = [0.05 * number / 300 for number in range(300)]
    await asyncio.gather(*map(strike, delays), *map(strike_wait_for, delays))


@pytest.mark.parametrize("bad", [math.nan, "soon", [5], 10**400, Decimal("NaN")], ids=range(5))
async def test_invalid_deadline_is_refused_and_changes_nothing(bad: Any) -> None:
    limit = timeout_at(bad)
    with pytest.raises((ValueError, TypeError)):
        await limit.__aenter__()
    assert repr(limit) == "<Timeout [created]>"
    async with timeout(5) as limit:
        before = limit.when()
        with pytest.raises((ValueError, TypeError)):
            limit.reschedule(bad)
        assert limit.when() == before
    with pytest.raises(TimeoutError):
        async with timeout(0.003) as limit:
            with pytest.raises((ValueError, TypeError)):
                limit.reschedule(bad)
            await asyncio.sleep(10)
    with pytest.raises((ValueError, TypeError), match="timeout "):
        await wait_for(asyncio.sleep(0), bad)  # closes it, otherwise Python would warn
    if not isinstance(bad, float):
        with pytest.raises((ValueError, TypeError), match="delay "):
            timeout(bad)


@on_virtual_time
@pytest.mark.parametrize("when", [Decimal(5), Fraction(5), 5], ids=repr)
async def test_deadline_of_any_number_blocks_no_other(when: Any) -> None:
    """A wheel with an incomparable deadline would raise at each tick, and end no later timeout."""

    async def expire_at(limit: Timeout, move: bool) -> float:
        with pytest.raises(TimeoutError):
            async with limit:
                if move:
                    limit.reschedule(when)
                await asyncio.sleep(100)
        return asyncio.get_running_loop().time()

    ends = await asyncio.gather(
        expire_at(timeout(2), True),
        expire_at(timeout(20), True),
        expire_at(timeout_at(when), False),
        expire_at(timeout(when), False),
        expire_at(timeout(7), False),
    )
    assert ends == [5, 5, 5, 5, 7]
    with pytest.raises(TimeoutError):
        await wait_for(asyncio.sleep(100), when)
    assert asyncio.get_running_loop().time() == 12


async def test_wait_for_outside_task_closes_coroutine() -> None:
    answer = asyncio.get_running_loop().create_future()

    def start(coroutine: Any) -> None:
        try:
            wait_for(coroutine, 30).send(None)
        except RuntimeError as error:
            answer.set_result(str(error))

    asyncio.get_running_loop().call_soon(start, asyncio.sleep(0))
    assert await answer == "Timeout should be used inside a task"


# A callback of the garbage collector may run after the wheel has returned a timeout as due, and
# before it expires. `take_out` does the same as the wheel at that moment.


def take_out(limit: Timeout) -> None:
    assert running_wheel().wheel.remove(limit)


@on_virtual_time
async def test_timeout_left_just_before_expiry_does_not_expire() -> None:
    async with timeout(10) as limit:
        take_out(limit)
    limit._timer_expired()
    await iterations(3)
    assert not limit.expired()


async def test_inner_expires_alone_and_outer_through_it() -> None:
    async with timeout(30) as outer:
        with pytest.raises(TimeoutError):
            async with timeout(0.005) as inner:
                await asyncio.sleep(10)
    assert inner.expired() and not outer.expired()

    with pytest.raises(TimeoutError):
        async with timeout(0.005) as outer:
            try:
                async with timeout(30) as inner:
                    await asyncio.sleep(10)
            except TimeoutError:
                pytest.fail("the inner one raised")
    assert outer.expired() and not inner.expired()


async def test_simultaneous_expiry_raises_in_outer_alone() -> None:
    when = asyncio.get_running_loop().time() + 0.005
    with pytest.raises(TimeoutError):
        async with timeout_at(when) as outer:
            with pytest.raises(asyncio.CancelledError):
                async with timeout_at(when) as inner:
                    await asyncio.sleep(10)
            raise asyncio.CancelledError
    assert outer.expired() and inner.expired()
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0


async def test_swallowed_cancellation_raises_nothing() -> None:
    async with timeout(0.005) as limit:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(10)
        with pytest.raises(RuntimeError, match="Cannot change state of expiring Timeout"):
            limit.reschedule(None)
        await asyncio.sleep(0.01)
    assert limit.expired()
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0


async def test_task_cancellation_wins_over_deadline() -> None:
    async def body() -> None:
        async with timeout(0.005):
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                task.cancel()
                raise

    task = asyncio.create_task(body())
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelling() == 1


async def test_cancelled_task_can_limit_its_cleanup() -> None:
    async def body() -> str:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            with pytest.raises(TimeoutError):
                async with timeout(0.005):
                    await asyncio.sleep(10)
        return "cleaned up"

    task = asyncio.create_task(body())
    await iterations()
    task.cancel()
    assert await task == "cleaned up"
    assert task.cancelling() == 1


@pytest.mark.parametrize("strikes", [True, False])
async def test_other_exceptions_pass_through(strikes: bool) -> None:
    with pytest.raises(KeyError):
        async with timeout(0.005 if strikes else 30) as limit:
            try:
                await asyncio.sleep(10 if strikes else 0)
            finally:
                raise KeyError
    assert limit.expired() is strikes


async def test_subclass_of_cancelled_error_becomes_timeout() -> None:
    class Cancelled(asyncio.CancelledError):
        pass

    with pytest.raises(TimeoutError):
        async with timeout(0.005):
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                raise Cancelled from None


# Moving the deadline


async def test_deadline_can_be_moved_removed_and_set_again() -> None:
    loop = asyncio.get_running_loop()
    async with timeout(0.002) as limit:
        limit.reschedule(loop.time() + 30)
        await asyncio.sleep(0.005)
        limit.reschedule(None)
        assert limit.when() is None
        limit.reschedule(loop.time() + 0.002)
        limit.reschedule(math.inf)
        await asyncio.sleep(0.005)
    assert not limit.expired()
    for first in (None, loop.time() + 30, math.inf):
        with pytest.raises(TimeoutError):
            async with timeout_at(first) as limit:
                limit.reschedule(when := loop.time() + 0.003)
                await asyncio.sleep(10)
        assert limit.when() == when <= loop.time()


@pytest.mark.parametrize("ahead", [None, 30.0, 0.0, 0.001])
async def test_deadline_moved_to_past_expires_next_iteration(
    ahead: float | None,
) -> None:
    loop = asyncio.get_running_loop()
    with pytest.raises(TimeoutError):
        async with timeout(ahead) as limit:
            if ahead == 0.001 and not isinstance(loop, VirtualTimeLoop):
                time.sleep(0.003)  # noqa: ASYNC251  # the new time is then past, and later than the old
            limit.reschedule(loop.time())
            await asyncio.sleep(0)
    async with timeout(ahead) as limit:
        limit.reschedule(loop.time() - 1)
        limit.reschedule(loop.time() + 30)
        await iterations(3)
    assert not limit.expired()


async def test_postponing_does_not_touch_the_loop() -> None:
    loop = asyncio.get_running_loop()
    async with timeout(30) as limit:
        when = limit.when()
        assert when is not None
        spy = Spy(loop)
        for number in range(1000):
            limit.reschedule(when + number)
        assert not spy.calls


async def test_inactive_timeout_cannot_be_moved_left_or_reused() -> None:
    limit = timeout(30)
    with pytest.raises(RuntimeError, match="Timeout has not been entered"):
        limit.reschedule(None)
    with pytest.raises(RuntimeError, match="Cannot leave created Timeout"):
        await limit.__aexit__(None, None, None)
    async with limit:
        with pytest.raises(RuntimeError, match="Timeout has already been entered"):
            await limit.__aenter__()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="Cannot change state of finished Timeout"):
            limit.reschedule(None)
        with pytest.raises(RuntimeError, match="Timeout has already been entered"):
            await limit.__aenter__()
        with pytest.raises(RuntimeError, match="Cannot leave finished Timeout"):
            await limit.__aexit__(None, None, None)


def test_repr_has_words_of_asyncio(virtual: Runner) -> None:
    async def words(module: Any) -> list[str]:
        said = []
        for delay in (1.23456, None, 0):
            limit = module.timeout(delay)
            said.append(repr(limit))
            with pytest.raises(TimeoutError):
                async with limit:
                    said.append(repr(limit))
                    try:
                        await asyncio.sleep(2)
                    finally:
                        said.append(repr(limit))
                    raise TimeoutError
            said.append(repr(limit))
        return said

    ours, theirs = virtual(partial(words, purgatory)), virtual(partial(words, asyncio))
    assert ours == theirs
    assert ours[1] == "<Timeout [active] when=1.235>"


# wait_for


@pytest.mark.parametrize("limit", [None, 30, math.inf])
async def test_wait_for_returns_result_or_raises(limit: float | None) -> None:
    async def give(value: object) -> object:
        await asyncio.sleep(0)
        return value

    async def fail() -> None:
        raise KeyError("mine")

    class Answer:
        def __await__(self) -> Iterator[Any]:
            yield from asyncio.sleep(0).__await__()
            return "answer"

    assert await wait_for(give(42), limit) == 42
    assert await wait_for(asyncio.create_task(give(43)), timeout=limit) == 43
    assert await wait_for(Answer(), limit) == "answer"  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="mine"):
        await wait_for(fail(), limit)


async def test_wait_for_cancels_and_awaits_slow_coroutine() -> None:
    ended = False

    async def slow() -> None:
        nonlocal ended
        try:
            await asyncio.sleep(10)
        finally:
            await asyncio.sleep(0.002)
            ended = True

    for awaitable in (slow(), asyncio.create_task(slow())):
        ended = False
        with pytest.raises(TimeoutError) as raised:
            await wait_for(awaitable, 0.003)
        assert ended
        assert isinstance(raised.value.__cause__, asyncio.CancelledError)


@pytest.mark.parametrize("limit", [0, -1, -math.inf])
async def test_wait_for_zero_takes_result_or_cancels(
    limit: float,
) -> None:
    loop = asyncio.get_running_loop()
    done, pending = loop.create_future(), loop.create_future()
    done.set_result("done")
    assert await wait_for(done, limit) == "done"
    failed = loop.create_future()
    failed.set_exception(KeyError)
    with pytest.raises(KeyError):
        await wait_for(failed, limit)
    with pytest.raises(TimeoutError) as raised:
        await wait_for(pending, limit)
    assert isinstance(raised.value.__cause__, asyncio.CancelledError)
    assert pending.cancelled()
    # the awaitable was cancelled before, independent of the timeout
    with pytest.raises(asyncio.CancelledError):
        await wait_for(pending, limit)

    async def stubborn() -> str:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            return "all the same"
        return "in time"

    task = asyncio.create_task(stubborn())
    await iterations()
    assert await wait_for(task, limit) == "all the same"


@on_virtual_time
async def test_wait_for_zero_starts_no_coroutine() -> None:
    async def never() -> None:
        pytest.fail("it was started")

    with pytest.raises(TimeoutError):
        await wait_for(never(), 0)


async def test_result_after_cancellation_is_returned() -> None:
    async def stubborn() -> str:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            await asyncio.sleep(0.001)
        return "all the same"

    assert await wait_for(stubborn(), 0.003) == "all the same"
    inner = asyncio.create_task(stubborn())
    waiter = asyncio.create_task(wait_for(inner, 30))
    await iterations(2)
    waiter.cancel()
    assert await waiter == "all the same"  # 3.11's own `wait_for` raises CancelledError here


async def test_cancelled_wait_for_cancels_unshielded_awaitable() -> None:
    loop = asyncio.get_running_loop()
    inner, shielded = loop.create_future(), loop.create_future()
    for awaitable in (inner, asyncio.shield(shielded)):
        waiter = asyncio.create_task(wait_for(awaitable, 30))
        await iterations(2)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
    assert inner.cancelled() and not shielded.done()
    with pytest.raises(TimeoutError):
        await wait_for(asyncio.shield(shielded), 0.002)
    assert not shielded.done()


async def test_cancellation_after_done_future_is_not_swallowed() -> None:
    future = asyncio.get_running_loop().create_future()
    reached_end = False

    async def body() -> None:
        nonlocal reached_end
        await wait_for(future, 30)
        await asyncio.sleep(0)
        reached_end = True

    task = asyncio.create_task(body())
    await iterations(2)
    future.set_result(None)
    task.cancel()
    assert isinstance(await outcome(task), asyncio.CancelledError)
    assert not reached_end


async def test_wait_for_awaits_in_task_of_caller() -> None:
    variable: ContextVar[str] = ContextVar("variable")

    async def look() -> asyncio.Task[Any] | None:
        variable.set("set inside")
        return asyncio.current_task()

    assert await wait_for(look(), 30) is asyncio.current_task()
    assert variable.get() == "set inside"


# Outside a loop, a task or its thread


def test_timeout_outside_loop_raises() -> None:
    with pytest.raises(RuntimeError, match="no running event loop"):
        timeout(30)
    limit = timeout_at(30)
    with pytest.raises(RuntimeError, match="no running event loop"):
        limit.__aenter__().send(None)


async def test_timeout_outside_task_raises() -> None:
    loop = asyncio.get_running_loop()
    answer = loop.create_future()

    def enter() -> None:
        try:
            timeout(30).__aenter__().send(None)
        except RuntimeError as error:
            answer.set_result(str(error))

    loop.call_soon(enter)
    assert await answer == "Timeout should be used inside a task"


async def test_reschedule_from_other_thread_is_wrong_loop() -> None:
    refused: list[BaseException] = []

    def elsewhere(limit: Timeout) -> None:
        def move() -> None:
            for when in (0.0, 1.0, None):
                with pytest.raises(WrongLoop, match="cannot reschedule") as raised:
                    limit.reschedule(when)
                refused.append(raised.value)

        async def move_on_a_loop() -> None:
            move()

        move()
        asyncio.run(move_on_a_loop())

    for delay in (1e9, None):
        async with timeout(delay) as limit:
            when = limit.when()
            thread = threading.Thread(target=elsewhere, args=(limit,))
            thread.start()
            thread.join()
            assert limit.when() == when
            await iterations(3)
    assert len(refused) == 12


def test_coroutine_closed_after_loop_is_silent(run: Runner) -> None:
    for delay in (30, 0, None):

        async def body(delay: float | None = delay) -> None:
            async with timeout(delay):
                await asyncio.Event().wait()

        coroutine = body()

        async def main() -> None:
            task = asyncio.current_task()
            assert task is not None
            await asyncio.sleep(0)

        # Driven by hand from inside a task, so that the loop does not know of it and closes without
        # it.
        async def drive(coroutine: Any = coroutine) -> None:
            coroutine.send(None)

        run(drive)
        run(main)
        coroutine.close()


# Requests to the loop


async def test_timeouts_of_one_time_share_one_timer() -> None:
    loop = asyncio.get_running_loop()
    spy = Spy(loop)
    when = loop.time() + 30
    done = asyncio.Event()

    async def body() -> None:
        async with timeout_at(when):
            await done.wait()

    tasks = [asyncio.create_task(body()) for _ in range(1000)]
    await iterations(2)
    assert spy.calls["call_at"] == spy.armed == 1
    done.set()
    await asyncio.gather(*tasks)
    await iterations(2)
    assert spy.calls["call_at"] == 1
    assert spy.armed == 0


async def test_each_bucket_has_one_timer() -> None:
    loop = asyncio.get_running_loop()
    spy = Spy(loop)
    start = loop.time()
    done = asyncio.Event()

    async def body(number: int) -> None:
        async with timeout_at(start + 1000 + number % 10 * 500):
            await done.wait()

    tasks = [asyncio.create_task(body(number)) for number in range(1000)]
    await iterations(2)
    assert spy.calls["call_at"] == spy.armed == 10
    done.set()
    await asyncio.gather(*tasks)
    await iterations(2)
    assert spy.calls["call_at"] == 10
    assert spy.armed == 0


@pytest.mark.parametrize("enough", [1, 100, 10 * BUSY_AFTER])
async def test_successive_timeouts_rarely_touch_the_loop(
    enough: int,
) -> None:
    spy = Spy(asyncio.get_running_loop())
    await asyncio.sleep(0)
    for _ in range(enough):
        await wait_for(asyncio.sleep(0), 30)
    # the time of a virtual loop does not advance here
    if isinstance(asyncio.get_running_loop(), VirtualTimeLoop):
        assert spy.calls["call_at"] <= 2  # the bucket, and one check for idleness
    if enough > BUSY_AFTER:
        await asyncio.sleep(2 * BUSY_DELAY)
    await iterations(3)
    assert spy.armed == 0
    loop_wheel = running_wheel()
    assert (
        loop_wheel.wheel.size == 0
        and loop_wheel.wheel.notify_empty
        and not [*loop_wheel.wheel.buckets()]
    )
    loop_wheel._check()


@on_virtual_time
async def test_busy_wheel_is_checked_rarely_until_quiet() -> None:
    spy = Spy(asyncio.get_running_loop())
    for _ in range(BUSY_AFTER + 10):
        await wait_for(asyncio.sleep(0), 30)
    await iterations(5)
    assert spy.armed == 2  # the bucket, and the check for idleness
    await asyncio.sleep(BUSY_DELAY)
    assert spy.armed == 0
    await asyncio.sleep(BUSY_WINDOW)
    for armed in (2, 0):  # the late check finds the wheel idle
        await wait_for(asyncio.sleep(0), 30)
        await iterations(5)
        assert spy.armed == armed
        await asyncio.sleep(BUSY_DELAY)


async def test_expired_timeouts_leave_nothing() -> None:
    loop = asyncio.get_running_loop()
    spy = Spy(loop)
    wheel = None

    async def body(number: int) -> None:
        async with timeout(0.0001 * number):
            await asyncio.Event().wait()

    outcomes = await asyncio.gather(
        *(body(number) for number in range(700)), return_exceptions=True
    )
    assert {type(error) for error in outcomes} == {TimeoutError}
    await iterations(3)
    assert spy.armed == 0
    wheel = running_wheel()
    assert wheel.wheel.size == 0 and not [*wheel.wheel.buckets()]
    wheel._check()


@pytest.mark.cpython
async def test_left_timeout_is_freed() -> None:
    gc.disable()
    try:
        async with timeout(30) as waiting:
            async with timeout(30) as limit:
                pass
            reference = weakref.ref(limit)
            del limit
            assert reference() is None
        assert waiting is not None
    finally:
        gc.enable()


@pytest.mark.parametrize("often", [1, 2 * BUSY_AFTER])
async def test_bucket_keeps_no_context(often: int) -> None:
    class Secret:
        pass

    variable: ContextVar[Secret] = ContextVar("variable")

    async def first(often: int) -> weakref.ref[Secret]:
        variable.set(secret := Secret())
        for _ in range(often):
            await wait_for(asyncio.sleep(0), 30)  # opens the bucket, and sees to its being closed
        with pytest.raises(TimeoutError):
            async with timeout(0):
                await asyncio.sleep(0)
        return weakref.ref(secret)

    started = asyncio.Event()

    async def second() -> None:
        async with timeout(30.001):
            await started.wait()

    reference = await asyncio.create_task(first(often))
    task = asyncio.create_task(second())
    await iterations(3)
    gc.collect()
    assert reference() is None
    started.set()
    await task


# One wheel per loop


@pytest.mark.parametrize("unfinished", [False, True])
@pytest.mark.cpython
def test_wheel_does_not_keep_its_loop_alive(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], unfinished: bool
) -> None:
    class Marker:
        pass

    async def body() -> None:
        async with timeout(30):
            await asyncio.sleep(0)
        if unfinished:
            await timeout(40).__aenter__()

    loop = loop_factory()
    loop.marker = marker = Marker()  # type: ignore[attr-defined]
    reference = weakref.ref(marker)
    loop.run_until_complete(loop.create_task(body()))
    wheel = getattr(loop, WHEEL_ATTRIBUTE)
    assert isinstance(wheel, LoopTimingWheel) and bool(wheel.wheel.size) is unfinished
    loop.close()
    del loop, marker, wheel
    gc.collect()
    assert reference() is None


def test_each_loop_keeps_its_own_wheel(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def wheel() -> LoopTimingWheel:
        async with timeout(30):
            return running_wheel()

    with (
        asyncio.Runner(loop_factory=loop_factory) as one,
        asyncio.Runner(loop_factory=loop_factory) as other,
    ):
        first, second = one.run(wheel()), other.run(wheel())
        assert first is not second
        assert one.run(wheel()) is first and other.run(wheel()) is second


def test_loop_can_change_threads(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    loop = loop_factory()
    spy = Spy(loop)

    async def strike() -> str:
        async with timeout(30):
            await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            async with timeout(0.003):
                await asyncio.sleep(10)
        async with timeout(10) as limit:
            limit.reschedule(asyncio.get_running_loop().time() + 5)
            await asyncio.sleep(0)
        await iterations(3)
        assert spy.armed == 0
        return "struck"

    results: list[object] = []
    for _ in range(3):
        thread = threading.Thread(
            target=lambda: results.append(loop.run_until_complete(outcome(strike())))
        )
        thread.start()
        thread.join()
    loop.close()
    assert results == ["struck"] * 3


def test_loops_in_threads_are_independent() -> None:
    async def work(number: int) -> int:
        chance, struck = random.Random(number), 0

        async def one() -> None:
            nonlocal struck
            with pytest.raises(TimeoutError):
                async with timeout(chance.random()):
                    await wait_for(asyncio.Event().wait(), 50)
            struck += 1
            assert await wait_for(asyncio.sleep(chance.random(), "slept"), 30) == "slept"

        await asyncio.gather(*(one() for _ in range(100)))
        return struck

    def in_thread(number: int) -> None:
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            results[number] = runner.run(work(number))

    results: dict[int, int] = {}
    threads = [threading.Thread(target=in_thread, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == dict.fromkeys(range(8), 100)


# Together with task groups and anyio


async def test_inner_task_group_is_cancelled_whole() -> None:
    ended: list[int] = []

    async def child(number: int) -> None:
        try:
            await asyncio.sleep(10)
        finally:
            ended.append(number)

    with pytest.raises(TimeoutError):
        async with timeout(0.005), asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(child(number))
    assert sorted(ended) == [0, 1, 2]

    with pytest.raises(ExceptionGroup) as raised:
        async with asyncio.TaskGroup() as group:
            group.create_task(wait_for(asyncio.Event().wait(), 0.002))
            group.create_task(asyncio.sleep(10))
    assert [type(error) for error in raised.value.exceptions] == [TimeoutError]


async def test_anyio_scopes_keep_their_own_cancellations() -> None:
    with anyio.move_on_after(0.003) as scope:
        async with timeout(30) as limit:
            await asyncio.sleep(10)
    assert scope.cancelled_caught and not limit.expired()

    with anyio.fail_after(30) as scope, pytest.raises(TimeoutError):
        async with timeout(0.003) as limit:
            await asyncio.sleep(10)
    assert limit.expired() and not scope.cancelled_caught

    with pytest.raises(TimeoutError):
        async with timeout(0.003) as limit:
            with anyio.CancelScope() as scope:
                await asyncio.sleep(10)
    assert limit.expired() and not scope.cancelled_caught


async def test_repeated_anyio_cancellation_behaves_as_with_asyncio() -> None:
    async def scene(timeout: Callable[[float], Any], first: str, swallow: bool) -> list[object]:
        task = asyncio.current_task()
        assert task is not None
        seen: list[object] = []
        try:
            with anyio.CancelScope() as scope:
                async with timeout(0.003 if first == "timeout" else 30) as limit:
                    try:
                        if first == "scope":
                            scope.cancel()
                        await asyncio.sleep(10)
                    except asyncio.CancelledError:
                        if first == "timeout":
                            scope.cancel()
                        seen.append(await outcome(iterations()))
                        if not swallow:
                            raise
        except BaseException as error:
            seen.append(error)
        return [
            list(map(type, seen)),
            scope.cancelled_caught,
            limit.expired(),
            repr(limit),
            task.cancelling(),
        ]

    for first in ("timeout", "scope"):
        for swallow in (True, False):
            ours = await asyncio.create_task(scene(timeout, first, swallow))
            assert ours == await asyncio.create_task(scene(asyncio.timeout, first, swallow))


async def test_eager_task_can_enter_timeout() -> None:
    async def at_once(delay: float) -> str:
        async with timeout(delay):
            return "at once"

    async def strike() -> None:
        async with timeout(0.003):
            await asyncio.sleep(10)

    outer = asyncio.current_task()
    assert outer is not None
    assert (
        await asyncio.gather(*(asyncio.create_task(at_once(delay)) for delay in (30, 0)))
        == ["at once"] * 2
    )
    async with timeout(30) as limit:
        with pytest.raises(TimeoutError):
            await asyncio.create_task(strike())
    assert not limit.expired() and outer.cancelling() == 0


@on_asyncio
async def test_wait_for_keeps_result_type() -> None:
    async def number() -> int:
        return 1

    awaitable: Awaitable[int] = number()
    assert await wait_for(awaitable, 1) + 1 == 2
