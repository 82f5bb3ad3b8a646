"""One hook at a time on each event loop; work that a hook causes runs after the hook has returned,
a bounded amount per iteration.

Hooks may call anything. If their calls took effect at once, a chain of ten thousand completions
would be a stack of ten thousand frames, an operation could be entered twice, and the waiters of a
key would be tried out of order. So while a hook runs, whatever would run another one is deferred,
whichever purgatory of the loop it belongs to:

    IDLE ────> a hook runs ──────────────────────────> IDLE
                    │
                    └─ it set something off ─> BACKLOG ─> IDLE
                                                 │  ^
                            after 512 steps      v  │  in the next iteration of the loop
                                              CONTINUED

    IDLE         `current` is None, `has_backlog` is false
    a hook       `current` is its operation
    BACKLOG      `has_backlog` is true
    CONTINUED    a callback is scheduled to continue; until then, calls do their own work and none
                 of the backlog

The backlog has three queues. If several have work they alternate, in slices of 128 steps, so that
none can block another:

    finished             operations that have ended, whose hooks have not run yet
    checks               checks of keys, begun or not: after a slice of each, it goes to the end of
                         the queue
    threadsafe_checks    the same for requests of other threads

So the check of a key behind `n` others begins after at most `n` slices of each kind. Each key of a
purgatory is in one queue, and once, however often it was requested. Everything runs in the
`contextvars` context of the code that caused it.

Kafka runs nested completions on the stack of the caller, under locks, and has met both deadlocks
and deep recursion (KAFKA-14197); Redis keeps a list of ready keys, as here.
"""

from asyncio import AbstractEventLoop, Future
from collections import deque
from contextvars import Context, copy_context
from math import inf
from threading import local
from typing import Any, Final, Protocol, final

from purgatory._core.failure import Failure
from purgatory._core.kernel import fields
from purgatory._core.loop import MAX_PER_ITERATION, report, running_loop

SLICE: Final = MAX_PER_ITERATION // 4
"""Steps of one kind of work before another kind is served."""


class Ended(Protocol):
    """An operation that has ended, whose hooks have not run yet."""

    def _op_finish(self) -> None: ...


class Check(Protocol):
    """Operations that are to be tried."""

    completed: int
    context: Context
    """The one in which they are tried."""

    def run(self, budget: int) -> int:
        """Tries some of them, and queues itself again if there are more; returns how many steps
        that took."""
        ...


class _Barrier:
    """Is queued behind operations, and sets its future when their hooks have run."""

    def __init__(self, future: Future[None]) -> None:
        self.future = future

    def _op_finish(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


@final
class Nested:
    """A hook inside a hook, as a context manager: see `Dispatcher.nested`."""

    __slots__ = ("_dispatcher", "_hook", "_interrupted")

    def __init__(self, dispatcher: "Dispatcher", hook: object) -> None:
        self._dispatcher, self._hook, self._interrupted = dispatcher, hook, dispatcher.current

    def __enter__(self) -> None:
        if self._interrupted is not None:
            self._dispatcher.interrupted.append(self._interrupted)
        self._dispatcher.current = self._hook

    def __exit__(self, *_: object) -> None:
        self._dispatcher.current = self._interrupted
        if self._interrupted is not None:
            self._dispatcher.interrupted.pop()


@final
@fields
class Dispatcher:
    """Makes sure that the hooks of all operations of a loop run one after another.

    Attributes:
        current: the operation whose hook is running. Also set while no hook may run.
        interrupted: earlier values of `current` around the running hook, outermost first: a hook
            may watch an operation, which is tried within it.
        has_backlog: whether anything was deferred.
        continuation_scheduled: whether a callback in the next iteration is scheduled.
    """

    __slots__ = (
        "_loop",
        "_unretrieved",
        "checks",
        "continuation_scheduled",
        "current",
        "finished",
        "has_backlog",
        "interrupted",
        "threadsafe_checks",
    )

    def __init__(self, loop: AbstractEventLoop | None) -> None:
        self._loop = loop
        self.current: object = None
        self.interrupted: list[object] = []
        self.has_backlog = False
        self.finished: deque[tuple[Ended, Context]] = deque()
        self.checks: deque[Check] = deque()
        self.threadsafe_checks: deque[Check] = deque()
        self.continuation_scheduled = False
        self._unretrieved: list[tuple[str, Failure]] = []
        """The failures of this iteration that are not retrieved yet."""

    def is_being_tried(self, operation: object) -> bool:
        """Whether the `try_complete` of `operation` is running: then the code that calls it also
        finishes it."""
        return self.current is operation or (
            bool(self.interrupted) and any(each is operation for each in self.interrupted)
        )

    def nested(self, hook: object) -> Nested:
        """Makes `hook` the current hook, nested in the running one, if any."""
        return Nested(self, hook)

    def finish(self, operation: Ended) -> None:
        """Runs the hooks of an operation that has ended: now, or when the hook that is running has
        returned."""
        if self.current is not None:
            self.defer(operation)
            return
        self.current = operation
        try:
            operation._op_finish()
        finally:
            self.current = None
        if self.has_backlog:
            self.run_backlog()

    def defer(self, operation: Ended) -> None:
        """Queues the hooks of `operation`."""
        self.finished.append((operation, copy_context()))
        self.has_backlog = True

    async def wait_for_queued_hooks(self) -> None:
        """Waits until the hooks of all operations that are deferred now have run, and of none that
        come later."""
        if self.finished:
            assert self._loop is not None
            barrier = _Barrier(self._loop.create_future())
            self.defer(barrier)
            self.continue_later()
            await barrier.future

    def run_backlog(self) -> int:
        """Does a bounded amount of the backlog, unless its continuation is scheduled.

        Returns:
            How many operations checks have completed.
        """
        return 0 if self.continuation_scheduled else self._run_backlog()

    def continue_later(self) -> None:
        """Schedules the rest for the next iteration of the loop."""
        if (
            not self.continuation_scheduled
            and self._loop is not None
            and not self._loop.is_closed()
        ):
            self._loop.call_soon(self._continue, context=Context())
            self.continuation_scheduled = True

    def continue_if_backlog(self) -> None:
        """To be called where an exception propagates, because then nothing else runs the
        backlog."""
        if self.has_backlog and self.current is None:
            self.continue_later()

    def report_unretrieved(self, message: str, failure: Failure) -> None:
        """Reports a failure that is not retrieved two iterations later; one callback for all of
        an iteration."""
        assert self._loop is not None
        self._unretrieved.append((message, failure))
        if len(self._unretrieved) == 1:
            self._loop.call_soon(self._report_in_next_iteration, context=Context())

    def _report_in_next_iteration(self) -> None:
        assert self._loop is not None
        unretrieved, self._unretrieved = self._unretrieved, []
        self._loop.call_soon(self._report, unretrieved, context=Context())

    def _report(self, unretrieved: list[tuple[str, Failure]]) -> None:
        assert self._loop is not None
        for message, failure in unretrieved:
            if not failure.retrieved:
                report(self._loop, message, failure.exception)

    def finish_batch(self, budget: int) -> int:
        """Runs the hooks of up to `budget` operations that were deferred; returns their number."""
        queue, done = self.finished, 0
        try:
            while queue and done < budget:
                done += 1
                operation, context = queue.popleft()
                self.current = operation
                context.run(operation._op_finish)
        finally:
            self.current = None
        return done

    def _run_backlog(self) -> int:
        # Without a loop there is no next iteration.
        budget: float = inf if self._loop is None else MAX_PER_ITERATION
        completed = 0
        try:
            while budget > 0 and (self.finished or self.checks or self.threadsafe_checks):
                if self.finished:
                    budget -= self.finish_batch(self._slice_budget(budget))
                for queue in (self.checks, self.threadsafe_checks):
                    if queue and budget > 0:
                        most = self._slice_budget(budget)
                        check = queue.popleft()
                        before = check.completed
                        budget -= check.context.run(check.run, most)
                        completed += check.completed - before
        finally:
            self.has_backlog = bool(self.finished or self.checks or self.threadsafe_checks)
            if self.has_backlog:
                self.continue_later()
        return completed

    def _slice_budget(self, budget: float) -> int:
        """The part of the budget for one kind of work: all of it if there is no other."""
        is_alone = bool(self.finished) + bool(self.checks) + bool(self.threadsafe_checks) == 1
        return int(budget if is_alone and budget < inf else min(budget, SLICE))

    def _continue(self) -> None:
        self.continuation_scheduled = False
        self._run_backlog()

    def _check(self) -> None:
        """Asserts the whole invariant between hooks. For tests."""
        assert self.current is None and not self.interrupted
        assert self.has_backlog == bool(self.finished or self.checks or self.threadsafe_checks)
        assert self.continuation_scheduled >= self.has_backlog


class _ThreadLocalDispatcher(local):
    """The dispatcher of a thread in which no loop is running: for operations that were never
    watched."""

    def __init__(self) -> None:
        self.dispatcher = Dispatcher(None)


_thread_local: Final = _ThreadLocalDispatcher()


def dispatcher_of(loop: Any) -> Dispatcher:
    """The dispatcher of a loop. It is an attribute of the loop."""
    try:
        dispatcher: Dispatcher = loop._purgatory_dispatcher
    except AttributeError:
        dispatcher = loop._purgatory_dispatcher = Dispatcher(loop)
    return dispatcher


def running_dispatcher() -> Dispatcher:
    """The dispatcher of the running loop, or of the thread if none is running."""
    loop = running_loop()
    return _thread_local.dispatcher if loop is None else dispatcher_of(loop)
