"""Calls from other threads, which wake the loop once, however many come before it wakes.

    thread 1   put("a")  -> "a"              wakes the loop
    thread 2   put("b")  -> "a", "b"         a wake-up is scheduled
    thread 2   put("b")  -> "a", "b"         the same as the last one, which the loop has yet to
                                             receive
    the loop                                 receives "a", "b": 2,048 at most, the rest in the next
                                             iterations

A wake-up for each would be a system call for each, and would make the loop's self-pipe its hottest
file (dask/distributed #3223).

There is no lock: a signal handler, or a `__del__` that the garbage collector runs, may interrupt
`put` in its own thread and call it again, and would then deadlock. `put` appends to a deque, which
is atomic; then, if no wake-up is scheduled, it schedules one. The loop clears that flag *before* it
drains the deque, so an item that is too late to be drained schedules another. At worst the loop is
woken twice.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextvars import Context
from typing import Final, Generic, TypeVar, final

from purgatory._core.loop import MAX_PER_ITERATION, LoopBinding

T = TypeVar("T")

MAX_ITEMS: Final = 4 * MAX_PER_ITERATION
"""Items received in one iteration. Most of a burst are repetitions, which cost little."""


@final
class ThreadsafeInbox(Generic[T]):
    """Items for the loop of `binding`.

    Args:
        binding: knows the loop, once there is one.
        receive: called on the loop with what `take` returns.
    """

    __slots__ = ("_binding", "_is_waking", "_items", "_receive")

    def __init__(self, binding: LoopBinding, receive: Callable[[Iterable[T]], object]) -> None:
        self._binding = binding
        self._receive = receive
        self._items: deque[T] = deque()
        self._is_waking = False
        """Whether the loop will drain the deque, without another wake-up."""

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: T) -> None:
        """Lets the loop receive `item` soon. From any thread, signal handler or finalizer.

        If the object is not bound yet, the item waits for that; when the loop is closed, it is
        lost.
        """
        binding, items = self._binding, self._items
        if binding.is_bound and binding.loop.is_closed():
            return
        try:
            is_repeated = items[-1] is item
        except IndexError:
            is_repeated = False
        if not is_repeated:
            items.append(item)
        if binding.is_bound and not self._is_waking:
            self._wake()

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

    def _drain(self) -> None:
        self._is_waking = False
        try:
            self._receive(self.take())
        finally:
            if self._items and not self._is_waking:
                self._is_waking = True
                self._binding.loop.call_soon(self._drain, context=Context())

    def take(self) -> Iterator[T]:
        """The items that have come, up to `MAX_ITEMS`. Items that are left in the iterator
        stay here."""
        for _ in range(MAX_ITEMS):
            if not self._items:
                return
            yield self._items.popleft()
