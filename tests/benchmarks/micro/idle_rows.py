"""The rows about `IdleTracker`: the cost of a sign of life, and of finding the ids that gave
none."""

import asyncio
import random
import time
from collections.abc import Callable, Iterable
from contextvars import Context
from functools import partial
from heapq import heappop, heappush
from itertools import count, islice
from math import inf
from typing import Any, Self

from benchmarks.cases import Setting
from benchmarks.measure import (
    BATCH,
    SETTLING_ITERATIONS,
    Comparison,
    Contender,
    Measured,
    Unmeasurable,
    compare,
)
from benchmarks.micro.timer_rows import TIMEOUT, Timer, nothing
from purgatory import IdleTracker

FAR_TIMEOUT = 300.0
"""A timeout, in seconds, longer than any row takes."""

TICKS_PER_TIMEOUT = 7_500
"""By default, with this timeout."""

SILENT_TICKS = 250
"""Number of ticks in which ids fall idle; a row cannot measure more ticks."""

TICKS_PER_RUN = 8
"""Number of ticks of one contender measured before the other's turn."""

TRACKED_PER_IDLE = 1_000
"""In each tick, one of this number of ids falls idle."""


async def touch_among(tracked: int, setting: Setting) -> Measured:
    """Activity of a random id: `touch`, against a timer for each id, which is cancelled and created
    again.

    Both sides look the id up in a dictionary, and both get the same ids.
    """
    tracked = setting.size(tracked)
    call_later = asyncio.get_running_loop().call_later
    seed = setting.random.random()
    with IdleTracker[int](FAR_TIMEOUT, ignore) as tracker:
        for id_ in range(tracked):
            tracker.touch(id_)
        timers: dict[int, Timer] = {id_: call_later(FAR_TIMEOUT, nothing) for id_ in range(tracked)}
        ours = touching(tracker, random.Random(seed))
        theirs = remaking_timers(timers, random.Random(seed))
        measured = await compare(ours, theirs, setting.rounds())
        if len(tracker) < tracked:
            raise Unmeasurable("the machine was too busy: ids fell idle while the row was measured")
    return measured


def touching(tracker: IdleTracker[int], rng: random.Random) -> Contender:
    tracked = len(tracker)
    while True:
        yield partial(_touch, tracker, [rng.randrange(tracked) for _ in range(BATCH)])


async def _touch(tracker: IdleTracker[int], ids: Iterable[int]) -> None:
    touch = tracker.touch
    for id_ in ids:
        touch(id_)


def remaking_timers(timers: dict[int, Timer], rng: random.Random) -> Contender:
    while True:
        yield partial(_remake_timers, timers, [rng.randrange(len(timers)) for _ in range(BATCH)])


async def _remake_timers(timers: dict[int, Timer], ids: Iterable[int]) -> None:
    call_later = asyncio.get_running_loop().call_later
    for id_ in ids:
        timers[id_].cancel()
        timers[id_] = call_later(FAR_TIMEOUT, nothing)


async def tick_among(tracked: int, setting: Setting) -> Measured:
    """One tick in which one id of a thousand falls idle, against a scan of all ids; per tick.

    The tick is the default one. Ids that fall idle are replaced by new ones, and the others are
    touched once a second, at random; the touching is not measured. The clock is moved by hand,
    because otherwise a whole timeout would have to pass first. The contenders alternate after a run
    of several ticks, because a scan leaves nothing of the other in the caches of the processor. A
    run is measured as a whole, with its first tick.
    """
    tracked = setting.size(tracked)
    seed = setting.random.random()
    scan = Scan(Traffic(tracked, random.Random(seed)))
    fell_idle: list[int] = []
    with (
        LoopByHand(Traffic(tracked, random.Random(seed))) as by_hand,
        IdleTracker[int](TIMEOUT, fell_idle.append) as tracker,
    ):
        contenders = ticks_of_wheel(tracker, by_hand), scan.ticks()
        for contender in contenders:
            await run_of_ticks(contender)
        runs = [
            [await run_of_ticks(contender) for contender in contenders] for _ in setting.rounds(24)
        ]
        assert sorted(fell_idle) == sorted(scan.fell_idle)
    bare, settled = (
        Comparison.paired([ours[kind] for ours, _ in runs], [theirs[kind] for _, theirs in runs])
        for kind in (0, 1)
    )
    return Measured(bare, settled)


async def run_of_ticks(ticks: Contender) -> tuple[float, float]:
    """Microseconds per tick of the next run: bare, and settled, as in `compare`."""
    bare = settled = 0.0
    for tick in islice(ticks, TICKS_PER_RUN):
        start = time.process_time()
        await tick()
        done = time.process_time()
        for _ in range(SETTLING_ITERATIONS):
            await asyncio.sleep(0)
        bare += done - start
        settled += time.process_time() - start
    return bare / TICKS_PER_RUN * 1e6, settled / TICKS_PER_RUN * 1e6


class Traffic:
    """Which ids give signs of life, tick by tick. `now` is the clock. Both sides have the same
    traffic at the same instants."""

    def __init__(self, tracked: int, rng: random.Random) -> None:
        self.tick = TIMEOUT / TICKS_PER_TIMEOUT
        self.tracked = tracked
        self.falling = max(1, tracked // TRACKED_PER_IDLE)
        self.rng = rng
        self.tick_number = int(asyncio.get_running_loop().time() / self.tick)
        self.next_tick()
        self.next_id = tracked

    def next_tick(self) -> None:
        self.tick_number += 1
        self.now = (self.tick_number + 0.25) * self.tick

    def between_ticks(self) -> None:
        self.now = (self.tick_number + 0.75) * self.tick

    def begin(self, touch: Callable[[int], object]) -> None:
        """All ids appear, spread over a timeout. A quarter of them are never touched again; the
        others are at its end."""
        active = self.tracked - SILENT_TICKS * self.falling
        for number in range(TICKS_PER_TIMEOUT):
            self.next_tick()
            self.between_ticks()
            for id_ in range(
                active * number // TICKS_PER_TIMEOUT, active * (number + 1) // TICKS_PER_TIMEOUT
            ):
                touch(id_)
            if number < SILENT_TICKS:
                for id_ in range(
                    active + number * self.falling, active + (number + 1) * self.falling
                ):
                    touch(id_)
        self.active = range(active)
        for id_ in self.rng.sample(self.active, active):
            touch(id_)

    def next_interval(self, touch: Callable[[int], object]) -> None:
        """Touches the ids of the time between two ticks, then moves the clock to the next tick."""
        self.between_ticks()
        for id_ in self.rng.sample(self.active, round(self.tracked * self.tick)):
            touch(id_)
        for _ in range(self.falling):
            touch(self.next_id)
            self.next_id += 1
        self.next_tick()


class LoopByHand:
    """Replaces the running loop's clock by the time of a traffic, and keeps its timers until they
    are run by hand."""

    def __init__(self, traffic: "Traffic") -> None:
        self.traffic = traffic
        self.loop = asyncio.get_running_loop()
        self.timers: list[tuple[float, int, asyncio.Handle]] = []
        self.numbers = count()

    def __enter__(self) -> Self:
        vars(self.loop).update(time=lambda: self.traffic.now, call_at=self.call_at)
        return self

    def __exit__(self, *_: object) -> None:
        del vars(self.loop)["time"], vars(self.loop)["call_at"]

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self.loop, context)
        heappush(self.timers, (when, next(self.numbers), handle))
        return handle

    def run_due(self) -> None:
        """Runs the due timers, and the callbacks that they schedule: the rest of a batch that is
        longer than an iteration."""
        vars(self.loop).update(call_soon=partial(self.call_at, -inf))
        try:
            while self.timers and self.timers[0][0] <= self.traffic.now:
                _, _, handle = heappop(self.timers)
                if not handle.cancelled():
                    handle._run()
        finally:
            del vars(self.loop)["call_soon"]


def ticks_of_wheel(tracker: IdleTracker[int], by_hand: LoopByHand) -> Contender:
    traffic = by_hand.traffic
    traffic.begin(tracker.touch)

    async def tick() -> None:
        by_hand.run_due()

    while True:
        traffic.next_interval(tracker.touch)
        yield tick


class Scan:
    """The usual way without a wheel: a dictionary of when each id was last seen, all of which is
    scanned in every tick."""

    def __init__(self, traffic: Traffic) -> None:
        self.traffic = traffic
        self.fell_idle: list[int] = []
        self.last_seen: dict[int, float] = {}

    def touch(self, id_: int) -> None:
        self.last_seen[id_] = self.traffic.now

    def ticks(self) -> Contender:
        self.traffic.begin(self.touch)
        while True:
            self.traffic.next_interval(self.touch)
            yield self._tick

    async def _tick(self) -> None:
        last_seen, on_idle = self.last_seen, self.fell_idle.append
        long_ago = self.traffic.now - TIMEOUT
        for id_ in [id_ for id_, seen in last_seen.items() if seen <= long_ago]:
            del last_seen[id_]
            on_idle(id_)


def ignore(_: int) -> None:
    """The callback of trackers in which no id should fall idle."""
