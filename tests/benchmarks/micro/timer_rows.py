"""The rows about `WheelTimer`: the cost of starting and cancelling a timer, however many others are
pending."""

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import repeat
from typing import Protocol

from benchmarks.cases import Setting
from benchmarks.measure import BATCH, Contender, Measured, Unmeasurable, compare, own_copy
from purgatory import WheelTimer

TIMEOUT = 30.0
SAME_DELAYS = [TIMEOUT] * BATCH

# The pending timers are due before and after the timeout, because the cost of a new timer in a heap
# depends on its place among the others: the soonest costs most, the latest least. They are started
# in the order in which they are due, as in a server whose timeouts are all the same. None of them
# may fall due before its row is measured.
SOONEST, LATEST = 20.0, 50.0


class Timer(Protocol):
    """The timer that both sides return."""

    def cancel(self) -> object: ...


CallLater = Callable[[float, Callable[[], None]], Timer]


async def start_and_cancel_among(pending: int, spread: float, setting: Setting) -> Measured:
    """`call_later` + `cancel`, the wheel's against the loop's own, with equally many timers
    pending, due at the same times.

    The delays are `TIMEOUT` and up to `spread` more.
    """
    delays = differing(spread, setting)
    call_later, own_call_later = WheelTimer().call_later, asyncio.get_running_loop().call_later
    with not_yet_due(pending):
        start_pending(call_later, pending, setting)
        start_pending(own_call_later, pending, setting)
        ours, theirs = (
            starting_and_cancelling(each, delays) for each in (call_later, own_call_later)
        )
        return await compare(ours, theirs, setting.rounds())


def differing(spread: float, setting: Setting) -> list[float]:
    """The delays of a batch, evenly spread, in random order."""
    delays = [TIMEOUT + spread * number / BATCH for number in range(BATCH)]
    setting.random.shuffle(delays)
    return delays


async def replace_at_random_among(pending: int, setting: Setting) -> Measured:
    """Each step cancels a random live timer, and starts another in its place; both sides take the
    same steps."""
    seed = setting.random.random()
    with not_yet_due(pending):
        ours, theirs = (
            replacing(call_later, start_pending(call_later, pending, setting), random.Random(seed))
            for call_later in (WheelTimer().call_later, asyncio.get_running_loop().call_later)
        )
        return await compare(ours, theirs, setting.rounds())


def starting_and_cancelling(
    call_later: CallLater, delays: Sequence[float] = SAME_DELAYS
) -> Contender:
    """The contender whose batch is `call_later` + `cancel` for each delay."""
    return repeat(partial(own_copy(_start_and_cancel), call_later, delays))


async def _start_and_cancel(call_later: CallLater, delays: Sequence[float]) -> None:
    for delay in delays:
        call_later(delay, nothing).cancel()


def replacing(call_later: CallLater, live: list[Timer], rng: random.Random) -> Contender:
    """The contender whose batch replaces `BATCH` random live timers."""
    batch = own_copy(_replace)
    while True:
        yield partial(batch, call_later, live, [rng.randrange(len(live)) for _ in range(BATCH)])


async def _replace(call_later: CallLater, live: list[Timer], steps: Iterable[int]) -> None:
    for index in steps:
        live[index].cancel()
        live[index] = call_later(TIMEOUT, nothing)


def nothing() -> None:
    """The callback of every timer here. None of them should fire."""


def start_pending(call_later: CallLater, pending: int, setting: Setting) -> list[Timer]:
    """Starts timers that only wait."""
    pending = setting.size(pending)
    return [
        call_later(SOONEST + (LATEST - SOONEST) * number / pending, nothing)
        for number in range(pending)
    ]


@contextmanager
def not_yet_due(pending: int) -> Iterator[None]:
    """Makes sure that the pending timers of a row, if there are any, are still pending when it is
    measured.

    Raises:
        Unmeasurable: they are not, so that their callbacks ran while we measured.
    """
    loop = asyncio.get_running_loop()
    start = loop.time()
    yield
    if pending and loop.time() >= start + SOONEST:
        raise Unmeasurable(
            "the machine was too busy: the pending timers fell due while the row was measured"
        )
