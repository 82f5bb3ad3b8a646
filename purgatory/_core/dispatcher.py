"""One hook at a time on each event loop; work that a hook causes runs after the hook has returned,
a bounded amount per iteration.

Hooks may call anything. If their calls took effect at once, a chain of ten thousand completions
would be a stack of ten thousand frames, an operation could be entered twice, and the waiters of a
key would be tried out of order. So while a hook runs, whatever would run another one is queued,
whichever purgatory of the loop it belongs to:

    a hook of A    completes B           queue: finish B
                   checks "k"            queue: finish B, check "k"
    A is over      finish B              queue: check "k"
                   128 tries of "k"      queue: check "k", which goes to the end of the queue
    512 steps      the rest follows in the next iteration of the loop

There is one queue, in order of the calls. A check of many operations is done in slices of 128
steps, so the work that is queued behind it is not blocked. Everything runs in the `contextvars`
context of the code that caused it.

Kafka runs nested completions on the stack of the caller, under locks, and has met both deadlocks
and deep recursion (KAFKA-14197); Redis keeps a list of ready keys, as here.
"""

from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any, Final, final

from purgatory._core.kernel import fields
from purgatory._core.loop import MAX_PER_ITERATION

SLICE: Final = MAX_PER_ITERATION // 4
"""Steps of one check before other work is served."""

Work = Callable[[int], int | None]
"""Called with a budget, in steps; returns how many steps it took, or None for one. It queues itself
again if something is left."""


@final
@fields
class Dispatcher:
    """Makes sure that the hooks of all operations of a loop run one after another.

    Attributes:
        current: the operation with the running hook, or other running work that excludes hooks.
        queue: deferred work, and the contexts in which it runs.
        completed: how many operations checks have completed.
        failed: operations of this iteration with an exception that is not retrieved yet.
    """

    __slots__ = ("_continuation_scheduled", "_loop", "completed", "current", "failed", "queue")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self.current: object = None
        self.queue: deque[tuple[Work, Context]] = deque()
        self.completed = 0
        self.failed: list[Any] = []
        self._continuation_scheduled = False

    def defer(self, work: Work, context: Context | None = None) -> None:
        """Queues `work`, which is done in `context`, by default the current one."""
        self.queue.append((work, context or copy_context()))

    def perform(self, work: Work) -> None:
        """Does `work` now; or, within a hook, when that has returned."""
        if self.current is not None:
            self.defer(work)
            return
        self.current, left = work, 0  # nothing else follows at once if it raises
        try:
            left = MAX_PER_ITERATION - (work(MAX_PER_ITERATION) or 1)
        finally:
            self.current = None
            if self.queue:
                self.run_queue(left)

    def run_queue(self, budget: int = MAX_PER_ITERATION) -> int:
        """Does work for up to `budget` steps, unless the next iteration of the loop continues.

        Returns:
            How many operations checks have completed.
        """
        if self._continuation_scheduled:
            return 0
        queue, before = self.queue, self.completed
        try:
            while queue and budget > 0:
                work, context = queue.popleft()
                self.current = work
                budget -= context.run(work, min(budget, SLICE) if queue else budget) or 1
        finally:
            self.current = None
            self.continue_later()
        return self.completed - before

    def continue_later(self) -> None:
        """Has the rest done in the next iteration of the loop."""
        if self.queue and not self._continuation_scheduled and not self._loop.is_closed():
            self._loop.call_soon(self._continue, context=Context())
            self._continuation_scheduled = True

    def _continue(self) -> None:
        self._continuation_scheduled = False
        self.run_queue()


def dispatcher_of(loop: Any) -> Dispatcher:
    """The dispatcher of a loop. It is an attribute of the loop."""
    try:
        dispatcher: Dispatcher = loop._purgatory_dispatcher
    except AttributeError:
        dispatcher = loop._purgatory_dispatcher = Dispatcher(loop)
    return dispatcher
