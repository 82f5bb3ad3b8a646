"""The loops that every test which touches a loop runs on, and the way in: `run` and `virtual`.

    def test_something(run):                       # once per kind of loop
        async def main():
            ...
        run(main)

    def test_something_that_is_reported(run, reports):
        run(main)
        assert [context["message"] for context in reports] == [...]

A test that does not ask for `reports` fails if anything was reported to the loop's exception handler.

`Probe` is the operation that most tests use, `Spy` counts what is asked of a loop, `profiled` what is called.

`spark` is the one Spark session of the tests in `pipeline`. It starts with the first that asks for it, and they all run in
one process, however many run tests.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import partial
from inspect import iscoroutine
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
import uvloop
from requirements import unavailable
from xdist.scheduler import LoadScopeScheduling

from purgatory import DelayedOperation
from purgatory.testing import VirtualTimeLoop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
LoopFactory = Callable[[], asyncio.AbstractEventLoop]
Report = dict[str, Any]


def eager_virtual_loop(start: float = 0.0) -> asyncio.AbstractEventLoop:
    loop = VirtualTimeLoop(start=start)
    loop.set_task_factory(asyncio.eager_task_factory)
    return loop


LOOP_FACTORIES: dict[str, LoopFactory] = {
    "virtual": VirtualTimeLoop,
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
if sys.version_info >= (3, 12):
    LOOP_FACTORIES["eager"] = eager_virtual_loop


class Run:
    """Runs a coroutine, or a coroutine function without arguments, on a new loop, and closes the loop.

    What the loop's exception handler is told goes to `reports`; if there are none, `__call__` fails on it. What hangs is
    ended: on virtual time by the loop, elsewhere after a minute (a signal does not get through to a uvloop that sleeps).
    """

    def __init__(self, loop_factory: LoopFactory, reports: list[Report] | None) -> None:
        self.loop_factory = loop_factory
        self.reports = reports

    def __call__(self, main: Callable[[], Coroutine[Any, Any, T]] | Coroutine[Any, Any, T], start: float | None = None) -> T:
        reports: list[Report] = [] if self.reports is None else self.reports
        loop_factory = self.loop_factory if start is None else partial(self.loop_factory, start=start)
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.get_loop().set_exception_handler(lambda _, context: reports.append(context))
            coroutine = main if iscoroutine(main) else main()
            is_virtual = isinstance(runner.get_loop(), VirtualTimeLoop)
            result = runner.run(coroutine if is_virtual else asyncio.wait_for(coroutine, 60))
        if self.reports is None and reports:
            error = reports[0].get("exception")
            raise AssertionError(f"reported to the loop's exception handler: {reports!r}") from error
        return result


@pytest.fixture(params=LOOP_FACTORIES)
def loop_factory(request: pytest.FixtureRequest) -> LoopFactory:
    """One of the kinds of loop."""
    return LOOP_FACTORIES[request.param]


@pytest.fixture
def reports() -> list[Report]:
    """What the loop's exception handler was called with, in order. To ask for it is to allow it."""
    return []


def _reports_asked_for(request: pytest.FixtureRequest) -> list[Report] | None:
    return request.getfixturevalue("reports") if "reports" in request.fixturenames else None


@pytest.fixture
def run(request: pytest.FixtureRequest, loop_factory: LoopFactory) -> Run:
    """Runs a coroutine on each kind of loop."""
    return Run(loop_factory, _reports_asked_for(request))


@pytest.fixture
def virtual(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine on virtual time only, beginning at `start`: `virtual(main, start=1e9)`."""
    return Run(VirtualTimeLoop, _reports_asked_for(request))


class Probe(DelayedOperation[Any]):
    """An operation whose condition is the flag `ready`, which writes down what is called, and whose hooks can be filled in.

    Each hook appends `(name, "try" | "complete" | "expire")` to `log`, which operations may share, and then calls the
    function given for it, if any. What `completing` returns is the result, otherwise the result is `name`.
    """

    def __init__(
        self,
        timeout: float | None = None,
        *,
        deadline: float | None = None,
        name: object = "",
        ready: bool = False,
        log: list[tuple[object, str]] | None = None,
        trying: Callable[["Probe"], object] | None = None,
        completing: Callable[["Probe"], object] | None = None,
        expiring: Callable[["Probe"], object] | None = None,
    ) -> None:
        super().__init__(timeout, deadline=deadline)
        self.name = name
        self.ready = ready
        self.log: list[tuple[object, str]] = [] if log is None else log
        self.trying, self.completing, self.expiring = trying, completing, expiring

    def try_complete(self) -> bool:
        self.log.append((self.name, "try"))
        if self.trying is not None:
            self.trying(self)
        return self.ready and self.force_complete()

    def on_complete(self) -> Any:
        self.log.append((self.name, "complete"))
        return self.name if self.completing is None else self.completing(self)

    def on_expiration(self) -> None:
        self.log.append((self.name, "expire"))
        if self.expiring is not None:
            self.expiring(self)

    @property
    def calls(self) -> list[str]:
        """The hooks of this operation that were called, in order."""
        return [hook for name, hook in self.log if name is self.name]


def raiser(error: BaseException) -> Callable[[object], object]:
    """A hook that raises `error`."""

    def hook(_: object) -> object:
        raise error

    return hook


async def outcome(awaitable: Awaitable[Any]) -> Any:
    """What the awaitable returned or raised."""
    try:
        return await awaitable
    except BaseException as error:
        return error


async def turns(count: int = 1) -> None:
    """Lets `count` turns of the loop pass."""
    for _ in range(count):
        await asyncio.sleep(0)


class Spy:
    """Counts what is asked of a loop, by wrapping its methods."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.calls: Counter[str] = Counter()
        self._handles: list[tuple[asyncio.Handle, list[bool]]] = []
        for name in ("call_at", "call_soon_threadsafe"):
            setattr(loop, name, partial(self._call, name, getattr(loop, name)))

    def _call(self, name: str, method: Callable[..., asyncio.Handle], *args: Any, context: Any = None) -> asyncio.Handle:
        self.calls[name] += 1
        if name != "call_at":
            return method(*args, context=context)
        when, callback, *rest = args
        called = [False]

        def call() -> None:
            called[0] = True
            callback(*rest)

        handle = method(when, call, context=context)
        self._handles.append((handle, called))
        return handle

    @property
    def armed(self) -> int:
        """How many timers wait on the loop."""
        self._handles = [(handle, called) for handle, called in self._handles if not (called[0] or handle.cancelled())]
        return len(self._handles)


def profiled(function: Callable[[], object]) -> int:
    """How many calls, of Python and C functions, `function` makes. The cost of a thing, without a clock."""
    count = 0

    def profile(frame: object, event: str, arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count


SPARK_SETTINGS = {
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.driver.memory": "1g",
    "spark.sql.codegen.wholeStage": "false",  # compiling takes longer than so few rows
    "spark.python.authenticate.socketTimeout": "120s",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}


@pytest.fixture(scope="session")
def spark() -> "Iterator[SparkSession]":
    """Spark on two threads of this process."""
    from purgatory.pipeline._session import SparkUnavailable, check_java, spark_session

    try:
        check_java()
    except SparkUnavailable as error:
        unavailable(str(error))
    with spark_session("purgatory tests", "local[2]", SPARK_SETTINGS) as session:
        yield session


class OneProcessForSpark(LoadScopeScheduling):
    """Hands out tests one by one, but those on Spark as one; pytest-xdist's groups do not get through to pytest 9.2."""

    def _split_scope(self, nodeid: str) -> str:
        return "spark" if nodeid.startswith("tests/pipeline/") else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return OneProcessForSpark(config, log)
