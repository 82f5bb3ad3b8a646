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

from purgatory._core import logs
from purgatory._core.engine import Engine
from purgatory._core.errors import PurgatoryClosed
from purgatory._core.loop import MAX_PER_ITERATION
from purgatory._core.operation import Operation, cancel
from purgatory._core.watch_lists import first_batch, steps_to_leave

Cancelled = tuple[Operation | None, int]
"""An operation, or None if it has completed instead, and the work that this was, in operations."""


async def close(engine: Engine, drain: float) -> list[Operation]:
    """Closes a purgatory, and returns the operations it cancelled. See `Purgatory.aclose`."""
    engine.closed = engine.has_limits = True
    try:
        if drain > 0.0 and not engine.is_idle:
            engine.idle_waiter = idle = engine.idle_waiter or engine.loop.create_future()
            await wait((idle,), timeout=drain)
        cancelled = await in_batches(cancel_all(engine))
        if cancelled and drain > 0.0:
            logs.cancelled_by_drain(engine.name, len(cancelled), drain)
        await _wait_answered(engine)
    except BaseException:
        for _ in cancel_all(engine):
            pass
        raise  # deferred hooks run in the next iterations
    return cancelled


async def _wait_answered(engine: Engine) -> None:
    """Waits until all waiters whose wait has ended are answered."""
    await engine.dispatcher.wait_for_queued_hooks()
    here = current_task()
    while others := [over for over, task in engine.async_waits.items() if task is not here]:
        await wait(others)


def reopen(engine: Engine) -> None:
    """Reopens a closed purgatory; an open one is unchanged.

    Raises:
        PurgatoryClosed: it is still being closed.
        WrongLoop: it is bound to another loop, which is not closed.
    """
    if engine.closed:
        engine.bind(f"open {engine.name} again")
        if not engine.is_idle:
            raise PurgatoryClosed(
                f"cannot open {engine.name} again: it is being closed, and some still wait in it"
            )
        engine.closed, engine.has_limits = False, engine.max_pending is not None
        if engine.notifier is not None:
            engine.notifier.is_closing = False


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


def cancel_all(engine: Engine) -> Iterator[Cancelled]:
    """Ends all pending operations of a purgatory, one at each step."""
    if engine.notifier is not None:
        engine.notifier.is_closing = True
    for waiting in list(engine.by_key.values()):
        while found := first_batch(waiting):
            yield from _cancel_each(found)


def cancel_key(engine: Engine, key: Hashable) -> Iterator[Cancelled]:
    """Ends the operations that watch `key`, one at each step."""
    while found := engine.watchers.first_operations(key):
        yield from _cancel_each(found)


def _cancel_each(operations: list[Operation]) -> Iterator[Cancelled]:
    for operation in operations:
        links = operation._op_links
        yield operation if cancel(operation) else None, steps_to_leave(links)
