"""The kinds of loop that tests run on. A coroutine function that is a test runs on each kind, once;
runs beside the first are slow tests, unless it is marked `on_every_loop`; `on_virtual_time` and
`on_asyncio` leave one kind. The fixtures `run` and `virtual` run coroutines around a loop's end.
All fail if anything was reported to the loop's exception handler, unless the test asks for the
fixture `reports`, and all end tests that hang."""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from inspect import iscoroutine
from typing import Any, TypeVar

import pytest

from purgatory.testing import VirtualTimeLoop

T = TypeVar("T")
LoopFactory = Callable[..., asyncio.AbstractEventLoop]
Report = dict[str, Any]

TIMEOUT = 120.0
"""Seconds that a test may take on a real clock. A signal does not get through to a uvloop that
sleeps, so a timer ends it."""


def eager_virtual_loop(start: float = 0.0) -> asyncio.AbstractEventLoop:
    """A loop on virtual time, whose tasks start at once."""
    loop = VirtualTimeLoop(start=start)
    loop.set_task_factory(asyncio.eager_task_factory)
    return loop


LOOP_FACTORIES: dict[str, LoopFactory] = {
    "virtual": VirtualTimeLoop,
    "asyncio": asyncio.new_event_loop,
}
if sys.implementation.name == "cpython":  # there is no uvloop for PyPy
    import uvloop

    LOOP_FACTORIES["uvloop"] = uvloop.new_event_loop
if sys.version_info >= (3, 12):
    LOOP_FACTORIES["eager"] = eager_virtual_loop

on_virtual_time = pytest.mark.asyncio(loop_factories=["virtual"])
"""Runs a test that is a coroutine function on virtual time only. If it has a parameter `start`, the
time begins there."""

on_every_loop = pytest.mark.every_loop
"""Runs a test on all its kinds of loop in the default suite, too."""

on_asyncio = pytest.mark.asyncio(loop_factories=["asyncio"])
"""Runs such a test on asyncio's own loop only: for what takes real time, or is not about loops."""


def fail_on(reports: list[Report]) -> None:
    """Fails, from the first exception, if anything was reported to the loop's exception handler."""
    if reports:
        error = reports[0].get("exception")
        raise AssertionError(f"reported to the loop's exception handler: {reports!r}") from error


class Current:
    """Makes the loop of a test that pytest-asyncio runs, whose virtual time begins at `start`. The
    calls of its exception handler go to `reports`."""

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.start = 0.0

    def new_loop(self, kind: str) -> asyncio.AbstractEventLoop:
        """A loop of a kind that is named in `LOOP_FACTORIES`."""
        reports = self.reports
        options = {} if kind in ("asyncio", "uvloop") else {"start": self.start}
        loop = LOOP_FACTORIES[kind](**options)
        loop.set_exception_handler(lambda _, context: reports.append(context))

        def end() -> None:
            reports.append({"message": f"it still runs after {TIMEOUT:g} s"})
            loop.stop()

        if not isinstance(loop, VirtualTimeLoop):  # which ends a hanging test by itself
            loop.call_later(TIMEOUT, end)
        return loop


CURRENT = Current()


class Runner:
    """Runs a coroutine, or a coroutine function without arguments, on a new loop. Calls of its
    exception handler go to `reports`; without `reports`, they fail the test."""

    def __init__(self, loop_factory: LoopFactory, reports: list[Report] | None) -> None:
        self.loop_factory = loop_factory
        self.reports = reports

    def __call__(
        self,
        main: Callable[[], Coroutine[Any, Any, T]] | Coroutine[Any, Any, T],
        start: float | None = None,
    ) -> T:
        reports: list[Report] = [] if self.reports is None else self.reports
        options = {} if start is None else {"start": start}
        with asyncio.Runner(loop_factory=partial(self.loop_factory, **options)) as runner:
            runner.get_loop().set_exception_handler(lambda _, context: reports.append(context))
            coroutine = main if iscoroutine(main) else main()
            is_virtual = isinstance(runner.get_loop(), VirtualTimeLoop)
            result = runner.run(coroutine if is_virtual else asyncio.wait_for(coroutine, TIMEOUT))
        if self.reports is None:
            fail_on(reports)
        return result
