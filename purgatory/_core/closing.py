"""Cancelling all operations of a key or of a purgatory, and closing a purgatory: it refuses new
operations, lets pending ones end for a while, and cancels the rest.

OPEN ─> DRAINING, for up to `drain` seconds ─> CANCELLING the rest, in batches ─> CLOSED: all
waiters are answered
            └───── the closing task is cancelled: all the rest at once ─────┘

Entering a closed purgatory as a context manager opens it again, so that an object at the top of a
module can serve one lifespan after another.
"""

from asyncio import current_task, sleep, wait
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from purgatory._core import logs
from purgatory._core.arguments import printable
from purgatory._core.errors import PurgatoryClosed
from purgatory._core.loop import MAX_PER_ITERATION
from purgatory._core.observers import Cause
from purgatory._core.operation import Operation, cancel
from purgatory._core.watch_lists import steps_to_leave

if TYPE_CHECKING:
    from purgatory._core.purgatory import Purgatory
    from purgatory._core.thresholds import ThresholdPurgatory

    Closable: TypeAlias = Purgatory[Any] | ThresholdPurgatory[Any, Any]

T = TypeVar("T")

Batches = Iterator[tuple[list[T], int]]
"""The ended waits of each step, and its work, in operations."""


async def close(purgatory: "Purgatory[Any]", drain: float) -> list[Operation]:
    """Closes a purgatory, and returns the operations it cancelled. See `Purgatory.aclose`."""
    cancelled = await end_all(purgatory, drain, partial(cancel_all, purgatory))
    here = current_task()
    while others := [over for over, task in purgatory._async_waits.items() if task is not here]:
        await wait(others)
    return cancelled


async def end_all(home: "Closable", drain: float, rest: Callable[[], Batches[T]]) -> list[T]:
    """Closes `home`, and returns what it had to end when `drain` was over.

    Args:
        drain: in seconds.
        rest: ends all pending waits.
    """
    home._closed = True
    try:
        if drain > 0.0 and not home._is_idle:
            home._idle_waiter = idle = home._idle_waiter or home._loop.create_future()
            await wait((idle,), timeout=drain)
        ended = await in_batches(rest())
        if ended and drain > 0.0:
            logs.cancelled_by_drain(home.name, len(ended), drain)
        if home._dispatcher.queue:
            answered = home._loop.create_future()
            home._dispatcher.defer(lambda _: answered.done() or answered.set_result(None))
            await answered
    except BaseException:
        for _ in rest():
            pass
        raise  # deferred work runs in the next iterations
    return ended


def notify_idle(home: "Closable") -> None:
    """Ends the drain of `home`, if nothing is pending."""
    idle = home._idle_waiter
    if home._is_idle:
        home._idle_waiter = None
        if idle is not None and not idle.done():
            idle.set_result(None)


def open_again(home: "Closable") -> None:
    """Reopens `home`, if it is closed.

    Raises:
        PurgatoryClosed: it is still being closed.
        WrongLoop: it is bound to another loop, which is not closed.
    """
    if home._closed:
        action = f"open {printable(home.name)} again"
        home._bind(action)
        if not home._is_idle:
            raise PurgatoryClosed(f"cannot {action}: it is being closed, and some still wait in it")
        home._closed = False


async def in_batches(ending: Batches[T]) -> list[T]:
    """Exhausts `ending`, a bounded amount per iteration of the loop, and returns all that was
    ended."""
    ended: list[T] = []
    spent = 0
    for batch, steps in ending:
        ended += batch
        spent += steps
        if spent >= MAX_PER_ITERATION:
            spent = 0
            await sleep(0)
    return ended


def cancel_all(purgatory: "Purgatory[Any]") -> Batches[Operation]:
    """Ends all pending operations of a purgatory, one at each step."""
    for key in list(purgatory._by_key):
        yield from cancel_key(purgatory, key, Cause.CLOSED)


def cancel_key(
    purgatory: "Purgatory[Any]", key: Hashable, cause: Cause = Cause.CANCELLED
) -> Batches[Operation]:
    """Ends the operations that watch `key`, one at each step."""
    while found := purgatory._by_key.operations(key, MAX_PER_ITERATION):
        for operation in found:
            keys = operation._op_keys
            # An operation whose outcome was decided has completed instead.
            yield [operation] if cancel(operation, cause) else [], steps_to_leave(keys)
