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
import random
import sys
import time
import unittest
import weakref
from collections.abc import Awaitable, Callable
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Any

import pytest
from helpers import iterations
from loops import LOOP_FACTORIES, TIMEOUT, Runner
from requirements import unavailable

import purgatory
from purgatory import Timeout, timeout, timeout_at, wait_for
from purgatory._core.loop import LoopTimingWheel
from purgatory._core.timeouts import WHEEL_ATTRIBUTE
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
        if name in DIFFERENT and not is_virtual:
            body[name] = None  # which fails, would be repeated for as long as a test may take
        elif name.startswith("test_"):
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
            except (AssertionError, TimeoutError):
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


# wait_for


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


# Outside a loop, a task or its thread


def test_timeout_outside_loop_raises() -> None:
    with pytest.raises(RuntimeError, match="no running event loop"):
        timeout(30)
    limit = timeout_at(30)
    with pytest.raises(RuntimeError, match="no running event loop"):
        limit.__aenter__().send(None)


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
