"""The row about `IdleTracker`: the cost of a sign of life."""

import asyncio
import random
from collections.abc import Iterable
from functools import partial

from benchmarks.cases import Setting
from benchmarks.measure import (
    BATCH,
    Contender,
    Measured,
    Unmeasurable,
    compare,
)
from benchmarks.micro.timer_rows import Timer, nothing
from purgatory import IdleTracker

FAR_TIMEOUT = 300.0
"""A timeout, in seconds, longer than any row takes."""


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


def ignore(_: int) -> None:
    """The callback of trackers in which no id should fall idle."""
