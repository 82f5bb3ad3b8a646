"""The end of a purgatory, of either kind: it refuses new work, gives what is pending time to end by itself, answers the rest.

OPEN ─> DRAINING, for as long as `drain` ─> CANCELLING what is left, a portion per turn ─> CLOSED: everybody is answered
            └───── the task that closes it is cancelled: all the rest at once ─────┘
"""

from asyncio import AbstractEventLoop, Future, sleep, wait
from collections.abc import Callable, Iterator
from itertools import islice
from math import isnan
from typing import Any, Protocol, TypeVar

from purgatory import _logs
from purgatory._timer import PORTION

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


class Closable(Protocol[T_co]):
    """What `close` needs of a purgatory."""

    name: str

    @property
    def loop(self) -> AbstractEventLoop: ...
    @property
    def is_idle(self) -> bool:
        """Whether nothing is pending."""
        ...

    when_idle: Future[None] | None
    """Set by the purgatory when it becomes idle; made by the call that waits for that."""

    def refuse(self) -> None:
        """Refuses everything new."""

    def cancelling(self) -> Iterator[T_co]:
        """Cancels what is pending, one each time the next is asked for."""
        ...

    async def answer(self) -> None:
        """Waits until everybody is answered whose wait has ended."""

    def answer_at_once(self) -> None:
        """Answers everybody, without waiting for that."""


def check_drain(drain: float) -> None:
    """Raises `ValueError` if `drain` is not zero or more seconds."""
    if isnan(drain) or drain < 0.0:
        raise ValueError(f"drain must be zero or more seconds, not {drain!r}")


async def close(room: Closable[T], drain: float) -> list[T]:
    """Closes a purgatory; what it returns are those that it cancelled. See `Purgatory.aclose`."""
    room.refuse()
    cancelled: list[T] = []
    try:
        if drain > 0.0:
            await until_idle(room, drain)
        cancelling = room.cancelling()
        while batch := list(islice(cancelling, PORTION)):
            cancelled += batch
            if len(batch) == PORTION:
                await sleep(0)
        if cancelled and drain > 0.0:
            _logs.cancelled_by_drain(room.name, len(cancelled), drain)
        await room.answer()
    except BaseException:
        for _ in room.cancelling():
            pass
        room.answer_at_once()
        raise
    return cancelled


async def cancel_in_turns(next_some: Callable[[], list[Any]]) -> list[Any]:
    """Cancels in each turn of the loop the operations that `next_some` names, until it names none. Returns those it
    cancelled."""
    cancelled: list[Any] = []
    while found := next_some():
        cancelled += [operation for operation in found if operation.cancel()]
        await sleep(0)
    return cancelled


async def until_idle(room: Closable[Any], timeout: float | None = None) -> None:
    """Waits until nothing is pending, for at most `timeout` seconds."""
    if not room.is_idle:
        if room.when_idle is None:
            room.when_idle = room.loop.create_future()
        await wait((room.when_idle,), timeout=timeout)


def tell_idle(room: Closable[Any]) -> None:
    """To be called by a purgatory that has become idle."""
    idle, room.when_idle = room.when_idle, None
    if idle is not None and not idle.done():
        idle.set_result(None)
