"""Cancelling all operations of a key or of a purgatory, and closing a purgatory: it refuses new
operations, lets pending ones end for a while, and cancels the rest.

OPEN ─> DRAINING, for up to `drain` seconds ─> CANCELLING the rest, in batches ─> CLOSED: all
waiters are answered
            └───── the closing task is cancelled: all the rest at once ─────┘

Entering a closed purgatory as a context manager opens it again, so that an object at the top of a
module can serve one lifespan after another.
"""

from asyncio import Event, current_task, sleep, wait
from collections import deque
from collections.abc import Hashable, Iterable, Iterator

from purgatory._core import logs
from purgatory._core.arguments import printable
from purgatory._core.errors import PurgatoryClosed
from purgatory._core.home import Home
from purgatory._core.loop import MAX_PER_ITERATION, call_on
from purgatory._core.observers import Cause
from purgatory._core.operation import Operation, cancel
from purgatory._core.watch_lists import steps_to_leave


async def close(home: Home, drain: float) -> list[Operation]:
    """Closes a purgatory, and returns the operations it cancelled. See `Purgatory.aclose`."""
    home._closed = True
    try:
        if drain > 0.0 and home._pending:
            idle = home._idle_waiter or home._loop.create_future()
            home._idle_waiter = idle
            await wait((idle,), timeout=drain)
        cancelled = await cancel_watching(home, list(home._by_key), Cause.CLOSED)
        if cancelled and drain > 0.0:
            logs.cancelled_by_drain(home.name, len(cancelled), drain)
        if home._dispatcher.queue:
            answered = Event()
            home._dispatcher.defer(lambda _: answered.set())
            await answered.wait()
    except BaseException:
        rest = _cancel_each(home, list(home._by_key), Cause.CLOSED, [])
        call_on(home._loop, deque, rest, 0)  # exhausts it
        raise  # deferred work runs in the next iterations
    here = current_task()
    while others := [over for over, task in home._async_waits.items() if task is not here]:
        await wait(others)
    return cancelled


def open_again(home: Home) -> None:
    """Reopens a purgatory, if it is closed.

    Raises:
        PurgatoryClosed: the purgatory is still being closed.
        WrongLoop: the purgatory is bound to another loop, which is not closed.
    """
    if home._closed:
        action = f"open {printable(home.name)} again"
        home._bind(action)
        if home._pending:
            raise PurgatoryClosed(f"cannot {action}: it is being closed, and some still wait in it")
        home._closed = False


async def cancel_watching(
    home: Home, keys: Iterable[Hashable], cause: Cause = Cause.CANCELLED
) -> list[Operation]:
    """Ends the operations that watch one of the keys, a bounded amount per iteration of the loop, and
    returns the cancelled operations."""
    ended: list[Operation] = []
    for _ in _cancel_each(home, keys, cause, ended):
        await sleep(0)
    return ended


def _cancel_each(
    home: Home, keys: Iterable[Hashable], cause: Cause, ended: list[Operation]
) -> Iterator[None]:
    """Pauses when it has done the work of an iteration. A decided operation completes instead, and
    is not among the `ended` ones."""
    by_key, spent = home._by_key, 0
    for key in keys:
        while key in by_key and (found := by_key.operations(key, MAX_PER_ITERATION)):
            for operation in found:
                spent += steps_to_leave(operation._op_keys)
                if cancel(operation, cause):
                    ended.append(operation)
                if spent >= MAX_PER_ITERATION:
                    spent = 0
                    yield
