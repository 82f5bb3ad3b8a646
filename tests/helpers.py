"""Helpers for the tests of every folder."""

import asyncio
import gc
import os
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

from purgatory import DelayedOperation, Ended, Purgatory, ThresholdPurgatory

THOROUGHNESS = int(os.environ.get("PURGATORY_THOROUGHNESS", "1"))
"""Multiplies the random histories, the rounds, or the seconds of random load of slow tests. The gate
has half an hour; the nightly run takes 10."""


class Probe(DelayedOperation[Any]):
    """An operation whose condition is the flag `ready`. Each hook appends `(name, "try" |
    "complete" | "expire")` to `log`, which operations may share, and then calls the function given
    for it, if any. The result is what `completing` returns, otherwise `name`."""

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


class OtherProbe(Probe):
    """An operation of another kind."""


class Listener:
    """An observer that records its notifications."""

    def __init__(self) -> None:
        self.ended: list[Ended] = []
        self.checks: list[tuple[object, int, int]] = []

    def operation_ended(self, ended: Ended) -> None:
        self.ended.append(ended)

    def key_checked(self, key: object, tried: int, completed: int) -> None:
        self.checks.append((key, tried, completed))

    @property
    def ended_ids(self) -> list[int]:
        """`id` of each operation that has ended, in order."""
        return [ended.operation_id for ended in self.ended]


async def live(purgatory: Purgatory[Any], rng: random.Random, number: int) -> None:
    """Has operations of two kinds wait for some keys, and end in all ways."""
    waiting: list[Probe] = []
    for _ in range(number):
        timeout = rng.choice([0, 0.5, 5, 50, 2e6, 1e300, None])
        operation = rng.choice([Probe, OtherProbe])(timeout, ready=rng.random() < 0.1)
        if rng.random() < 0.1:
            operation.completing = lambda _: purgatory.check_and_complete(rng.randrange(5))
        if not purgatory.try_complete_else_watch(
            operation, rng.sample(range(5), rng.choice([1, 2]))
        ):
            waiting.append(operation)
        for _ in range(2):
            chosen = rng.choice(waiting[-10:] or [operation])
            rng.choice([chosen.cancel, chosen.force_complete, *[lambda: None] * 3])()
            chosen.ready = rng.random() < 0.5
            chosen.trying = raiser(Broken()) if rng.random() < 0.03 else None
        purgatory.check_and_complete(rng.randrange(5))
        await asyncio.sleep(rng.choice([0, 0.01, 0.3, 3]))


class Broken(Exception):
    """Raised by hooks and conditions that have to fail."""


def raiser(error: BaseException) -> Callable[[object], object]:
    """A hook that raises `error`."""

    def hook(_: object) -> object:
        raise error

    return hook


async def outcome(awaitable: Awaitable[Any]) -> Any:
    """The result of the awaitable, or its exception."""
    try:
        return await awaitable
    except BaseException as error:
        return error


async def until(condition: Callable[[], bool]) -> None:
    """Polls; a hanging wait ends with the test's loop."""
    while not condition():
        await asyncio.sleep(0.01)


async def iterations(count: int = 1) -> None:
    """Lets `count` iterations of the loop pass."""
    for _ in range(count):
        await asyncio.sleep(0)


def in_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Calls `function` in another thread while this one blocks, and returns its result or raises
    its exception."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(function, *args).result()


def watch_all(
    purgatory: Purgatory[Any], operations: list[Probe], keys: Iterable[Hashable] = ("key",)
) -> list[Probe]:
    """Has all of them wait; they are returned."""
    keys = list(keys)
    for operation in operations:
        assert purgatory.try_complete_else_watch(operation, keys) is False
    return operations


async def start_waits(
    purgatory: ThresholdPurgatory[Any, Any],
    *waits: tuple[Any, ...],
    log: list[tuple[int, Any]] | None = None,
) -> list[asyncio.Task[Any]]:
    """Tasks that wait, each for `(key, threshold)` or `(key, threshold, timeout)`; their outcomes
    go to `log`, too."""

    async def wait(number: int, arguments: tuple[Any, ...]) -> Any:
        if log is None:
            return await outcome(purgatory.wait(*arguments))  # a name would make a cycle with it
        log.append((number, await outcome(purgatory.wait(*arguments))))
        return log[-1][1]

    tasks = [asyncio.create_task(wait(number, arguments)) for number, arguments in enumerate(waits)]
    await iterations()
    return tasks


def counts(
    purgatory: Purgatory[Any] | ThresholdPurgatory[Any, Any], *names: str
) -> tuple[int, ...]:
    """Its statistics of these `names`; by default the numbers of pending, watched, and keys."""
    statistics = purgatory.statistics()
    return tuple(getattr(statistics, name) for name in names or ("pending", "watched", "keys"))


class Pulse:
    """Numbers the iterations of the loop and counts the marks in each, until none has come for a
    while."""

    def __init__(self) -> None:
        self.iteration = self.last = 0
        self.marks: Counter[int] = Counter()
        self._loop = asyncio.get_running_loop()
        self._loop.call_soon(self._beat)

    def _beat(self) -> None:
        self.iteration += 1
        if self.iteration <= self.last + 20:
            self._loop.call_soon(self._beat)

    def mark(self, _: object = None) -> None:
        self.last = self.iteration
        self.marks[self.iteration] += 1

    @property
    def busiest(self) -> int:
        return max(self.marks.values())


class Spy:
    """Counts the calls of a loop's methods; `shift` may give the seconds by which the next timer is
    to fire late, or early if negative. `asked` has the instants for which there was to be a timer,
    and `longest_wait` the seconds until the furthest of them, when it was asked for."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.time = loop.time
        self.calls: Counter[str] = Counter()
        self.asked: list[float] = []
        self.longest_wait = 0.0
        self.shift: Callable[[], float] = float
        self._handles: dict[int, asyncio.Handle] = {}
        for name in ("call_at", "call_soon_threadsafe"):
            setattr(loop, name, partial(self._call, name, getattr(loop, name)))

    def _call(
        self, name: str, method: Callable[..., asyncio.Handle], *args: Any, context: Any = None
    ) -> asyncio.Handle:
        self.calls[name] += 1
        if name != "call_at":
            return method(*args, context=context)
        when, callback, *rest = args
        number = len(self.asked)
        self.asked.append(when)
        self.longest_wait = max(self.longest_wait, when - self.time())

        def fire() -> None:
            del self._handles[number]
            callback(*rest)

        shifted = when + self.shift()
        if shifted <= self.time():
            shifted = when  # early, but not over and over at one instant: every clock moves on
        self._handles[number] = handle = method(shifted, fire, context=context)
        return handle

    @property
    def armed_for(self) -> list[float]:
        """The instants of the timers that wait on the loop, sorted."""
        self._handles = {
            number: handle for number, handle in self._handles.items() if not handle.cancelled()
        }
        return sorted(self.asked[number] for number in self._handles)

    @property
    def armed(self) -> int:
        """How many timers wait on the loop."""
        return len(self.armed_for)


def profiled(function: Callable[[], object]) -> int:
    """How many calls, of Python and C functions, `function` makes. The cost of a thing, without a
    clock."""
    count = 0

    def profile(frame: object, event: str, arg: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before, collecting = sys.getprofile(), gc.isenabled()
    gc.disable()  # the finalizers of others do not count; PyPy runs them whenever it collects
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(before)
        if collecting:
            gc.enable()
    return count


@contextmanager
def collector(is_on: bool) -> Iterator[None]:
    """Switches Python's collector of reference cycles on or off, after a collection."""
    was_on = gc.isenabled()
    gc.collect()
    (gc.enable if is_on else gc.disable)()
    try:
        yield
    finally:
        (gc.enable if was_on else gc.disable)()
