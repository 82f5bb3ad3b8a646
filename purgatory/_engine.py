"""The engine room of a purgatory: tries operations, finishes them, one hook at a time, a portion per turn of the loop.

What makes this more than a loop over a list is that hooks may call anything. `current` is the operation whose hook is
running. While there is one, whatever would call another hook is put off until that hook has returned:

    force_complete() in another operation's hook   claims at once, `on_complete` joins `unfinished`, run before the next try
    check_and_complete(key) in any hook            joins `checks`, run when the check in progress has ended

So a chain of ten thousand completions, each set off by the hook of the one before, is a loop and not a stack, no
operation is entered twice, and the waiters of a key are tried in order even when completions nest. The same two queues
bound the work: a check stops after a portion of tries, goes to the end of `checks`, and continues in the next turn.

Kafka runs nested completions on the stack of the caller, under locks, and has met both deadlocks and deep recursion
(KAFKA-14197); Redis keeps a list of ready keys, as here.

The engine does not know the `Purgatory` object. It lives for as long as operations wait; the purgatory lives for as long
as somebody has it, and can therefore say when it was dropped too early.
"""

from asyncio import Future
from collections import deque
from collections.abc import Hashable, Iterable
from contextvars import Context
from threading import get_ident
from typing import Any, NoReturn

from purgatory._errors import OperationReused, PurgatoryClosed, PurgatoryFull
from purgatory._observer import DEADLINE, LONG_TIMEOUT, NOBODY, NOTHING, Among, Notes, Observer
from purgatory._operation import CANCELLED, COMPLETED, EXPIRED, PENDING, DelayedOperation
from purgatory._signals import Signals
from purgatory._timer import PORTION, LoopWheel
from purgatory._watchers import Watched, Watchers

Operation = DelayedOperation[Any]


class Check:
    """A `check_and_complete` that was put off, or that has more waiters than fit into one turn."""

    __slots__ = ("completed", "key", "tried", "waiting")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.waiting: list[Operation] | None = None
        """Who was watching the key when the check began, and is yet to be tried, the next one last; `None` until then."""
        self.tried = 0
        self.completed = 0


class Engine:
    """What a purgatory consists of, but for the object that users hold: see `Purgatory` for the arguments."""

    __slots__ = (
        "_arrived",
        "_checks",
        "_continuing",
        "_observer",
        "_queued",
        "by_key",
        "cancelled",
        "closed",
        "completed",
        "current",
        "drained",
        "expired",
        "is_running",
        "max_pending",
        "missed_triggers",
        "name",
        "notes",
        "observed",
        "rate",
        "recent",
        "signals",
        "thread_id",
        "time",
        "unfinished",
        "unsettled",
        "watchers",
        "wheel",
    )

    def __init__(self, name: str, wheel: LoopWheel, max_pending: int | None = None, observer: Observer | None = None) -> None:
        self.name = name
        self.max_pending = max_pending
        self.wheel = wheel
        self.watchers = Watchers()
        wheel.when_cleared = self.watchers.shrink
        # What the hot paths need of the wheel and the watch lists, one step nearer.
        self.by_key = self.watchers.by_key
        self.recent = wheel.recent
        self.rate = wheel.rate
        self.thread_id: int | None = None
        self.is_running = wheel.is_running
        self.time = wheel.time

        self.closed = False
        self.completed = 0
        self.expired = 0
        self.cancelled = 0
        self.missed_triggers = 0
        self.current: Operation | None = None
        """The operation whose hook is running."""
        self.unsettled = False
        """Whether `settle` has work: set by whatever was put off while a hook was running."""
        self.unfinished: deque[Operation] = deque()
        """Claimed, but their hooks have yet to run."""
        self._checks: deque[Check] = deque()
        """Checks to begin or to continue."""
        self._queued: set[Hashable] = set()
        """The keys of those that have yet to begin: one of each is enough."""
        self._arrived: deque[Hashable] = deque()
        """Keys that other threads have named, and that have yet to be checked."""
        self._continuing = False
        self._observer = observer
        self.notes = Notes()
        self.drained: list[Future[None]] = []
        """Of those who wait until nothing is pending any more; whoever adds one also sets `observed`."""
        self.observed = observer is not None
        """Whether anybody wants to know when an operation has ended, or a key was checked."""
        self.signals = Signals(wheel, self._receive)

    def bind(self, doing: str) -> None:
        """Binds the purgatory to the running loop, or raises `WrongLoop` if it is bound to another one."""
        wheel = self.wheel
        wheel.bind(doing)
        self.thread_id, self.is_running, self.time = wheel.thread_id, wheel.is_running, wheel.time

    def check_loop(self, doing: str, operation: Operation) -> None:
        """Raises `WrongLoop` if this is not the loop and thread of the purgatory."""
        if get_ident() != self.thread_id or not self.is_running():
            self.bind(f"{doing} {operation!r}")

    # -- one operation

    def refuse(self, operation: Operation) -> None:
        """Raises the reason why `operation` cannot be watched here, if there is one."""
        if self.closed:
            raise PurgatoryClosed(f"cannot watch {operation!r}: {self.name} is closed")
        if not hasattr(operation, "_op_state"):
            raise TypeError(f"cannot watch {operation!r}: its __init__ does not call super().__init__()")
        if operation._op_engine is not None or operation._op_state is not PENDING:
            why = "it is being watched" if operation._op_state is PENDING else "it has ended"
            raise OperationReused(f"cannot watch {operation!r}: {why}, and an operation serves once")

    def try_else_watch(self, operation: Operation, watched: Watched) -> bool:
        """`Purgatory.try_complete_else_watch` for any operation and any keys."""
        operation._op_engine = self
        outer, self.current = self.current, operation
        try:
            if operation.try_complete() and operation._op_state is PENDING:
                self.refuse_true(operation)
        except BaseException as error:
            self.try_failed(operation, error)
        finally:
            self.current = outer
        if operation._op_state is PENDING:
            return self.watch(operation, watched)
        self.ended_at_once(operation, watched)
        return True

    def watch(self, operation: Operation, watched: Watched) -> bool:
        """Has an operation that was tried wait; whether it has ended all the same."""
        try:
            now = self.time()
            timeout = operation._op_timeout
            when = operation._wheel_when if timeout is None else now + timeout
            if when is not None and when <= now:
                operation._wheel_when = max(when, now)
                operation._op_claim(EXPIRED)
                operation._op_keys = watched
                self.expired += 1
                self.finish_soon(operation)
                return True
            if self.max_pending is not None and len(self.watchers) >= self.max_pending:
                raise PurgatoryFull(f"cannot watch {operation!r}: {self.max_pending} operations wait in {self.name}")
            hash(operation)
            hash(watched)
            bucket = None if when is None else self.wheel.bucket_for(when, now)
        except BaseException:
            if operation._op_state is PENDING:
                operation._op_engine = None
                self.continue_if_unsettled()
            raise
        self.watchers.add(operation, watched)
        if self._observer is not None and (timeout is None or timeout > LONG_TIMEOUT):
            self.notes.started[operation] = now
        operation._wheel_when = when
        operation._op_keys = watched
        if bucket is None or bucket is self.wheel.never:
            operation._wheel_bucket = None
        else:
            operation._wheel_bucket = bucket
            bucket[operation] = None
        if self.unsettled and self.current is None:
            self.settle()
        return operation._op_state is not PENDING

    def forget(self, operation: Operation) -> None:
        """Takes back an operation that could not be watched, because it or its key is not hashable."""
        operation._op_engine = None
        self.continue_if_unsettled()
        for watched in [watched for watched, waiting in self.by_key.items() if waiting is operation]:
            del self.by_key[watched]

    def ended_at_once(self, operation: Operation, watched: Watched) -> None:
        """Finishes an operation that ended at its first try."""
        operation._op_keys = watched
        if operation._op_timeout is not None:
            operation._wheel_when = None
        if operation._op_state is COMPLETED:
            self.finish_soon(operation)
        elif self.unsettled and self.current is None:
            self.settle()

    def refuse_true(self, operation: Operation) -> NoReturn:
        """Raises for a try that said yes and did nothing: the operation would wait for its deadline."""
        raise TypeError(f"try_complete of {operation!r} returned true, but did not call force_complete()")

    def try_failed(self, operation: Operation, error: BaseException) -> None:
        """Ends an operation whose `try_complete` raised."""
        if operation._op_state is not PENDING:
            # It was claimed before it raised, so its outcome stands.
            if isinstance(error, (SystemExit, KeyboardInterrupt)):
                self.unfinished.append(operation)
                self.unsettled = True
            self._report(f"try_complete of {operation!r} raised", error)
            return
        operation._op_claim(CANCELLED)
        try:
            operation._op_failed(error)
        finally:
            if operation._op_waiters is not None:
                operation._op_answer()
            self.cancelled_one(operation)

    def finish(self, operation: Operation, cause: Hashable = NOTHING) -> None:
        """Runs the hooks of the `current` operation, which has been claimed, and tells the observer."""
        try:
            if operation._op_state is not CANCELLED:
                operation._op_finish()
        finally:
            if self.observed:
                self._tell(operation, cause)

    def finish_soon(self, operation: Operation) -> None:
        """Runs the hooks of an operation that was claimed: now, or after the hook that is running."""
        if self.current is None and not self.unsettled:
            self.current = operation
            try:
                self.finish(operation)
            finally:
                self.current = None
        else:
            self.unfinished.append(operation)
            self.unsettled = True
        if self.unsettled and self.current is None:
            self.settle()

    def expire(self, operation: Operation) -> None:
        """Ends an operation whose deadline has come: a last try, and only then expiry."""
        self.current = operation
        try:
            try:
                if operation.try_complete() and operation._op_state is PENDING:
                    self.refuse_true(operation)
            except BaseException as error:
                self.try_failed(operation, error)
            if operation._op_state is COMPLETED:
                self.missed_triggers += 1
                self.finish(operation, DEADLINE)
            elif operation._op_claim(EXPIRED):
                self.expired += 1
                if self.observed:
                    self.finish(operation, DEADLINE)
                else:
                    operation._op_finish()
            elif self._observer is not None:
                self.notes.retried(operation)
        finally:
            self.current = None
        # Others may be due in this turn as well, so what the hooks have set off is left to the next one.
        if self.unsettled:
            self.continue_later()

    def cancelled_one(self, operation: Operation) -> None:
        """Counts an operation that was cancelled."""
        self.cancelled += 1
        if self.observed:
            self.finish_soon(operation)

    def _tell(self, operation: Operation, cause: Hashable) -> None:
        if self._observer is not None:
            self.notes.cause = cause
            try:
                self._observer.operation_finished(operation)
            except BaseException as error:
                self._report(f"operation_finished of {self._observer!r} raised", error)
            finally:
                self.notes.forget(operation)
        if self.drained and not self.by_key:
            for future in self.drained:
                if not future.done():
                    future.set_result(None)

    def _tell_checked(self, key: Hashable, tried: int, completed: int) -> None:
        assert self._observer is not None
        self.current = NOBODY
        try:
            self._observer.keys_checked(key, tried, completed)
        except BaseException as error:
            self._report(f"keys_checked of {self._observer!r} raised", error)
        finally:
            self.current = None

    def tell_of_one(self, operation: Operation, key: Hashable, completed: int) -> None:
        """Tells of a check of `key` that tried one operation, the `current` one."""
        observer, notes = self._observer, self.notes
        if observer is None or self.drained or notes.retries or notes.started or not completed:
            try:
                if completed:
                    self._tell(operation, key)
                elif observer is not None:
                    notes.retried(operation)
            finally:
                self.current = None
                if observer is not None:
                    self._tell_checked(key, 1, completed)
            return

        # From here on the common case, in fewer calls.
        notes.cause = key
        try:
            try:
                observer.operation_finished(operation)
            except BaseException as error:
                self._report(f"operation_finished of {observer!r} raised", error)
            self.current = NOBODY
            try:
                observer.keys_checked(key, 1, 1)
            except BaseException as error:
                self._report(f"keys_checked of {observer!r} raised", error)
        finally:
            self.current = None

    def _report(self, message: str, error: BaseException) -> None:
        self.wheel.loop.call_exception_handler({"message": f"{self.name}: {message}", "exception": error})
        if isinstance(error, (SystemExit, KeyboardInterrupt)):
            self.continue_later()
            raise error

    # -- many operations

    def check(self, key: Hashable) -> int:
        """Tries who waits for `key`, a portion now and the rest in the next turns; how many completed now."""
        check = Check(key)
        check.waiting = self.watchers.of(key)[::-1]
        self._advance(check, PORTION)
        completed = check.completed
        return completed + self.settle() if self.unsettled else completed

    def check_later(self, key: Hashable) -> None:
        """Has `key` checked by `settle`."""
        if key not in self._queued:
            self._queued.add(key)
            self._checks.append(Check(key))
            self.unsettled = True

    def settle(self) -> int:
        """Does what was put off, a portion of it; how many operations the checks among it completed.

        While an earlier portion has left work to the next turn, only operations that are claimed are finished now.
        """
        if self._continuing:
            self.finish_claimed()
            return 0
        portion, completed = PORTION, 0
        try:
            while portion > 0:
                if self.unfinished:
                    portion -= self.finish_claimed(portion)
                elif self._checks:
                    check = self._checks.popleft()
                    before = check.completed
                    portion -= self._advance(check, portion)
                    completed += check.completed - before
                elif self._arrived:
                    check = Check(self._arrived.popleft())
                    portion -= self._advance(check, portion)
                    completed += check.completed
                else:
                    break
        finally:
            self.unsettled = bool(self.unfinished or self._checks or self._arrived)
            if self.unsettled:
                self.continue_later()
        return completed

    def continue_later(self) -> None:
        """Has `settle` called in the next turn of the loop."""
        if not self._continuing:
            self._continuing = True
            self.wheel.loop.call_soon(self._continue, context=Context())

    def continue_if_unsettled(self) -> None:
        """For the ways out by an exception, on which nobody settles."""
        if self.unsettled and self.current is None:
            self.continue_later()

    def _continue(self) -> None:
        self._continuing = False
        self.settle()

    def _receive(self, keys: Iterable[Hashable]) -> None:
        """Checks the keys that other threads have named."""
        self._arrived.extend(keys)
        self.settle()

    def finish_claimed(self, portion: int = PORTION) -> int:
        """Runs the hooks of up to `portion` claimed operations; of how many."""
        done = 0
        try:
            while self.unfinished and done < portion:
                done += 1
                self.current = operation = self.unfinished.popleft()
                # It may have been claimed deep inside its own try, and finished right after that.
                if operation._op_state is CANCELLED or not operation._op_is_answered():
                    self.finish(operation)
        finally:
            self.current = None
        return done

    def _advance(self, check: Check, portion: int) -> int:
        """Tries up to `portion` of the operations of a check; what that cost of the portion."""
        waiting = check.waiting
        if waiting is None:
            self._queued.discard(check.key)
            waiting = check.waiting = self.watchers.of(check.key)[::-1]
        cause = NOTHING if self._observer is None else Among(check.key)
        done = 1
        try:
            while waiting and done <= portion:
                operation = waiting.pop()
                done += 1
                state = operation._op_state
                if state is not PENDING:
                    continue
                check.tried += 1
                self.current = operation
                try:
                    if operation.try_complete() and operation._op_state is PENDING:
                        self.refuse_true(operation)
                except BaseException as error:
                    self.try_failed(operation, error)
                if operation._op_state is COMPLETED:
                    check.completed += 1
                    self.finish(operation, cause)
                elif self._observer is not None:
                    self.notes.retried(operation)
                if self.unfinished:
                    done += self.finish_claimed(portion - done)
        finally:
            self.current = None
            if waiting:
                self._checks.append(check)
                self.unsettled = True
                self.continue_later()
            elif check.tried and self._observer is not None:
                self._tell_checked(check.key, check.tried, check.completed)
        return done

    def _check(self) -> None:
        """Asserts the whole invariant between hooks. For tests. Cost: everything that waits."""
        self.wheel._check()
        self.watchers._check()
        waiting = {operation for key in self.by_key for operation in self.watchers.of(key)}
        for operation in waiting:
            assert operation._op_state is PENDING and operation._op_engine is self
            assert not hasattr(operation, "_op_result")
            bucket = operation._wheel_bucket
            assert bucket is None or operation in bucket
        assert len(self.wheel) == sum(operation._wheel_bucket is not None for operation in waiting)
        assert self.current is None and self.unsettled == bool(self.unfinished or self._checks or self._arrived)
        assert self._continuing >= self.unsettled
        assert self._queued == {check.key for check in self._checks if check.waiting is None}
