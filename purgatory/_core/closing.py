"""Closing a purgatory of either kind: it refuses new work, lets pending operations end for a while,
and cancels the rest.

OPEN ─> DRAINING, for up to `drain` seconds ─> CANCELLING the rest, in batches ─> CLOSED: all
waiters are answered
            └───── the closing task is cancelled: all the rest at once ─────┘

Entering a closed purgatory as a context manager opens it again, so that an object at the top of a
module can serve one lifespan after another.
"""

from asyncio import AbstractEventLoop, Future, sleep, wait
from collections.abc import Iterable, Iterator
from typing import Any, Final, Protocol, TypeVar

from purgatory._core import logs
from purgatory._core.arguments import seconds
from purgatory._core.errors import PurgatoryClosed
from purgatory._core.limits import MAX_PER_ITERATION
from purgatory._core.loop import require_stack_without_kernel

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

NOT_CANCELLED: Final[Any] = object()
"""In place of an operation that has completed instead."""


class Closable(Protocol[T_co]):
    """What `close` needs of a purgatory."""

    name: str
    closed: bool
    """Whether it refuses new work."""

    @property
    def loop(self) -> AbstractEventLoop: ...
    @property
    def is_idle(self) -> bool:
        """Whether nothing is pending."""
        ...

    idle_waiter: Future[None] | None
    """Done when the purgatory becomes idle; created by the call that waits for that."""

    def bind(self, action: str) -> None:
        """Binds it to the running loop, or raises `WrongLoop` if it is bound to another one."""

    def stop_accepting(self) -> None:
        """Makes it refuse new work."""

    def accept_again(self) -> None:
        """Makes it accept new work again."""

    def iter_cancel(self) -> Iterator[tuple[T_co, int]]:
        """Ends one pending operation at each step, and yields it, or `NOT_CANCELLED`, with the work
        that this was, in operations."""
        ...

    async def wait_answered(self) -> None:
        """Waits until all waiters whose wait has ended are answered."""

    def answer_now(self) -> None:
        """Answers all waiters now."""


def check_drain(drain: float) -> float:
    """Raises `ValueError` if `drain` is not zero or more seconds."""
    drain = seconds("drain", drain)
    if drain < 0.0:
        raise ValueError(f"drain must be zero or more seconds, not {drain!r}")
    return drain


async def close(closable: Closable[T], drain: float) -> list[T]:
    """Closes a purgatory, and returns the operations it cancelled. See `Purgatory.aclose`."""
    require_stack_without_kernel()
    closable.stop_accepting()
    try:
        if drain > 0.0:
            await wait_idle(closable, drain)
        cancelled = await cancel_in_batches(closable.iter_cancel())
        if cancelled and drain > 0.0:
            logs.cancelled_by_drain(closable.name, len(cancelled), drain)
        await closable.wait_answered()
    except BaseException:
        for _ in closable.iter_cancel():
            pass
        closable.answer_now()
        raise
    return cancelled


def reopen(closable: Closable[object]) -> None:
    """Reopens a closed purgatory; an open one is unchanged.

    Raises:
        PurgatoryClosed: it is still being closed.
        WrongLoop: it is bound to another loop, which is not closed.
    """
    if closable.closed:
        closable.bind(f"open {closable.name} again")
        if not closable.is_idle:
            raise PurgatoryClosed(
                f"cannot open {closable.name} again: it is being closed, and some still wait in it"
            )
        closable.accept_again()


async def cancel_in_batches(cancelling: Iterable[tuple[T, int]]) -> list[T]:
    """Exhausts `Closable.iter_cancel`, a bounded amount per iteration of the loop, and returns what
    was cancelled."""
    cancelled: list[T] = []
    spent = 0
    for operation, steps in cancelling:
        if operation is not NOT_CANCELLED:
            cancelled.append(operation)
        spent += steps
        if spent >= MAX_PER_ITERATION:
            spent = 0
            await sleep(0)
    return cancelled


async def wait_idle(closable: Closable[object], timeout: float | None = None) -> None:
    """Waits until nothing is pending, for at most `timeout` seconds."""
    if not closable.is_idle:
        if closable.idle_waiter is None:
            closable.idle_waiter = closable.loop.create_future()
        await wait((closable.idle_waiter,), timeout=timeout)


def notify_idle(closable: Closable[object]) -> None:
    """To be called by a purgatory that has become idle."""
    idle, closable.idle_waiter = closable.idle_waiter, None
    if idle is not None and not idle.done():
        idle.set_result(None)
