"""Calls from other threads, which wake the loop once, however many come before it wakes.

    thread 1   put("a")  -> "a"              wakes the loop
    thread 2   put("b")  -> "a", "b"         a wake-up is scheduled
    thread 1   put("a")  -> "a", "b", "a"
    the loop                                 takes all, and receives "a", "b"

A wake-up for each would be a system call for each, and would make the loop's self-pipe its hottest file (dask/distributed
#3223).

There is no lock: a signal handler, or a `__del__` that the garbage collector runs, may interrupt `put` in its own thread and
call it again, and would then deadlock. `put` appends to a deque, which is atomic; then, if no wake-up is scheduled, it
schedules one. The loop clears that flag *before* it drains the deque, so an item that is too late to be drained schedules
another. At worst the loop is woken twice.
"""

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, Generic, TypeVar, final

from purgatory._loop.binding import LoopBinding

T = TypeVar("T")

COALESCE_ABOVE: Final = 1024
"""When more than this many wait, duplicates are removed."""


@final
class ThreadsafeInbox(Generic[T]):
    """Items for the loop of `binding`.

    Args:
        binding: knows the loop, once there is one.
        receive: called on the loop with what has come.
        coalesce: merges equivalent items. Called in any thread; it does not raise.
    """

    __slots__ = ("_binding", "_coalesce", "_coalesce_above", "_is_waking", "_items", "_receive")

    def __init__(
        self, binding: LoopBinding, receive: Callable[[Iterable[T]], object], coalesce: Callable[[Iterable[T]], Iterable[T]]
    ) -> None:
        self._binding = binding
        self._receive = receive
        self._coalesce = coalesce
        self._items: deque[T] = deque()
        self._is_waking = False
        self._coalesce_above = COALESCE_ABOVE

    def put(self, item: T) -> None:
        """Lets the loop receive `item` soon. From any thread, signal handler or finalizer.

        If the object is not bound yet, the item waits for that; when the loop is closed, it is lost.
        """
        binding = self._binding
        if binding.is_bound and binding.loop.is_closed():
            return
        self._items.append(item)
        if len(self._items) > self._coalesce_above:
            self._coalesce_backlog()
        if binding.is_bound and not self._is_waking:
            self._wake()

    def waiting(self) -> list[T]:
        """The items that have not been received yet."""
        return list(self._items)

    def rebind(self) -> None:
        """Continues on another loop, on which this is called."""
        self._is_waking = False
        if self._items:
            self._drain()

    def _wake(self) -> None:
        self._is_waking = True
        was_called = False
        try:
            was_called = self._binding.call_threadsafe(self._drain)
        finally:
            if not was_called:
                self._is_waking = False

    def _coalesce_backlog(self) -> None:
        """Removes duplicates, because the loop is late. Other threads may do the same concurrently, or add items."""
        items: list[T] = []
        try:
            self._move_to(items)
            items[:] = self._coalesce(items)
        finally:
            self._items.extendleft(reversed(items))
            self._coalesce_above = max(COALESCE_ABOVE, 2 * len(items))

    def _drain(self) -> None:
        self._is_waking = False
        self._coalesce_above = COALESCE_ABOVE
        items: list[T] = []
        self._move_to(items)
        self._receive(self._coalesce(items))

    def _move_to(self, items: list[T]) -> None:
        with suppress(IndexError):  # another thread has removed the rest, and will insert it again
            for _ in range(len(self._items)):
                items.append(self._items.popleft())  # noqa: PERF401 - what has been moved is kept
