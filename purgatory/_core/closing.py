"""Cancelling all operations of a key or of a purgatory, and closing a purgatory: it refuses new
operations, lets pending ones end for a while, and cancels the rest.

OPEN ─> DRAINING, for up to `drain` seconds ─> CANCELLING the rest, in batches ─> CLOSED: all
waiters are answered
            └───── the closing task is cancelled: all the rest at once ─────┘

Entering a closed purgatory as a context manager opens it again, so that an object at the top of a
module can serve one lifespan after another.
"""

from asyncio import current_task, sleep, wait
from collections.abc import Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from purgatory._core import logs
from purgatory._core.errors import PurgatoryClosed
from purgatory._core.loop import MAX_PER_ITERATION
from purgatory._core.observers import Cause
from purgatory._core.operation import Operation, cancel
from purgatory._core.watch_lists import first_batch, steps_to_leave

if TYPE_CHECKING:
    from purgatory._core.purgatory import Purgatory

Cancelled = tuple[Operation | None, int]
"""An operation, or None if it has completed instead, and the work that this was, in operations."""


async def close(purgatory: "Purgatory[Any]", drain: float) -> list[Operation]:
    """Closes a purgatory, and returns the operations it cancelled. See `Purgatory.aclose`."""
    purgatory._closed = purgatory._has_limits = True
    try:
        if drain > 0.0 and not purgatory._is_idle:
            purgatory._idle_waiter = idle = (
                purgatory._idle_waiter or purgatory._loop.create_future()
            )
            await wait((idle,), timeout=drain)
        cancelled = await in_batches(cancel_all(purgatory))
        if cancelled and drain > 0.0:
            logs.cancelled_by_drain(purgatory.name, len(cancelled), drain)
        await _wait_answered(purgatory)
    except BaseException:
        for _ in cancel_all(purgatory):
            pass
        raise  # deferred hooks run in the next iterations
    return cancelled


async def _wait_answered(purgatory: "Purgatory[Any]") -> None:
    """Waits until all waiters whose wait has ended are answered."""
    dispatcher = purgatory._dispatcher
    if dispatcher.queue:
        answered = purgatory._loop.create_future()
        dispatcher.defer(lambda _: answered.done() or answered.set_result(None))
        await answered
    here = current_task()
    while others := [over for over, task in purgatory._async_waits.items() if task is not here]:
        await wait(others)


def reopen(purgatory: "Purgatory[Any]") -> None:
    """Reopens a closed purgatory; an open one is unchanged.

    Raises:
        PurgatoryClosed: it is still being closed.
        WrongLoop: it is bound to another loop, which is not closed.
    """
    if purgatory._closed:
        purgatory._bind(f"open {purgatory.name} again")
        if not purgatory._is_idle:
            raise PurgatoryClosed(
                f"cannot open {purgatory.name} again: it is being closed, and some still wait in it"
            )
        purgatory._closed, purgatory._has_limits = False, purgatory._max_pending is not None


async def in_batches(cancelling: Iterable[Cancelled]) -> list[Operation]:
    """Exhausts `cancelling`, a bounded amount per iteration of the loop, and returns the
    operations that were cancelled."""
    cancelled: list[Operation] = []
    spent = 0
    for operation, steps in cancelling:
        if operation is not None:
            cancelled.append(operation)
        spent += steps
        if spent >= MAX_PER_ITERATION:
            spent = 0
            await sleep(0)
    return cancelled


def cancel_all(purgatory: "Purgatory[Any]") -> Iterator[Cancelled]:
    """Ends all pending operations of a purgatory, one at each step."""
    for waiting in list(purgatory._by_key.values()):
        while found := first_batch(waiting):
            yield from _cancel_each(found, Cause.CLOSED)


def cancel_key(purgatory: "Purgatory[Any]", key: Hashable) -> Iterator[Cancelled]:
    """Ends the operations that watch `key`, one at each step."""
    while found := purgatory._watchers.first_operations(key):
        yield from _cancel_each(found, Cause.CANCELLED)


def _cancel_each(operations: list[Operation], cause: Cause) -> Iterator[Cancelled]:
    for operation in operations:
        links = operation._op_links
        yield operation if cancel(operation, cause) else None, steps_to_leave(links)
