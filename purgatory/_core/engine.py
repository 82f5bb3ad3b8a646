"""The engine of a purgatory: watches operations and checks keys.

The life of a single operation is in `operation`; the dispatcher of the loop makes sure that
hooks run one at a time.

The engine does not refer to the `Purgatory` object. The engine lives as long as operations wait,
because they and the wheel refer to it; the purgatory lives as long as user code refers to it. So a
purgatory that is dropped while operations wait warns at once. As a single object, it would be kept
alive by their deadlines, for a minute or a day, and never warn.
"""

from asyncio import Future, Task
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, cast, final

from purgatory._core import logs
from purgatory._core.arguments import describe, printable
from purgatory._core.dispatcher import Dispatcher, dispatcher_of
from purgatory._core.errors import OperationReused, PurgatoryClosed, PurgatoryFull
from purgatory._core.inbox import ThreadsafeInbox
from purgatory._core.kernel import compiled, fields
from purgatory._core.key_check import KeyCheck
from purgatory._core.loop import (
    MAX_PER_ITERATION,
    REGISTRATIONS_PER_STEP,
    UNBOUND,
    raise_later,
    report,
)
from purgatory._core.loop_wheel import LoopTimingWheel
from purgatory._core.notifier import OperationNotifier
from purgatory._core.observers import Observer, observers_of
from purgatory._core.operation import (
    NO_KEY,
    NO_RESULT,
    UNWATCHED,
    DelayedOperation,
    Operation,
    check_loop,
    state_slot,
    try_once,
    wake_waiters,
)
from purgatory._core.states import CANCELLED, COMPLETED, EXPIRED, PENDING, OperationState
from purgatory._core.statistics import PurgatoryStatistics
from purgatory._core.watch_lists import (
    Keys,
    Watchers,
    WatchLinks,
    keys_of,
    steps_to_leave,
)


@final
@fields
class Engine:
    """The state of a `Purgatory`, without the user's object. See `Purgatory` for the arguments."""

    __slots__ = (
        "async_waits",
        "by_key",
        "cancelled",
        "checks",
        "closed",
        "completed",
        "dispatcher",
        "expired",
        "has_limits",
        "idle_waiter",
        "inbox",
        "log_limit",
        "loop",
        "loop_wheel",
        "max_pending",
        "missed_triggers",
        "name",
        "notifier",
        "recent_missed_triggers",
        "time",
        "watchers",
        "wheel",
    )

    def __init__(
        self,
        name: str,
        loop_wheel: LoopTimingWheel,
        max_pending: int | None = None,
        observer: Observer | Sequence[Observer] | None = None,
    ) -> None:
        observers = observers_of(observer)
        self.name = name
        self.max_pending = max_pending
        self.loop_wheel = loop_wheel
        self.watchers = Watchers()
        loop_wheel.on_idle = self._on_wheel_idle
        # Saves the hot paths a second attribute look-up.
        self.wheel = loop_wheel.wheel
        self.by_key = self.watchers.by_key
        self.loop: Any = UNBOUND
        self.time = loop_wheel.time
        self.dispatcher = Dispatcher(None)
        """The dispatcher of the loop, once bound to a loop."""

        self.closed = False
        self.has_limits = max_pending is not None
        """Whether a limit or `closed` may forbid operations to wait."""
        self.completed = self.expired = self.cancelled = self.missed_triggers = 0
        self.recent_missed_triggers: deque[
            tuple[str, tuple[Hashable, ...], float | None, float]
        ] = deque(maxlen=16)
        """The last missed triggers: kind, keys, timeout and deadline of the operation."""
        self.log_limit = logs.RateLimit()
        """Of messages about missed triggers."""
        self.checks: dict[Hashable, KeyCheck] = {}
        """Checks queued or in progress, by key."""
        self.async_waits: dict[Future[None], Task[Any] | None] = {}
        """Waits with an asynchronous predicate: a future that is done at the end of the wait -> the
        task of the wait."""
        self.notifier = OperationNotifier(name, observers, self.report) if observers else None
        """Notifies the observers; None without observers."""
        self.idle_waiter: Future[None] | None = None
        """Done when nothing is pending; created when `aclose` waits for that."""
        self.inbox: ThreadsafeInbox[Hashable] = ThreadsafeInbox(
            loop_wheel, self._check_from_threads
        )

    def bind(self, action: str, value: object = UNBOUND, threadsafe: str = "") -> None:
        """Binds the purgatory to the running loop, or raises `WrongLoop` if it is bound to another
        loop."""
        if self.loop_wheel.bind(action, value, len(self.watchers), threadsafe):
            self.loop, self.time = self.loop_wheel.loop, self.loop_wheel.time
            self.dispatcher = dispatcher_of(self.loop)
            if self.notifier is not None:
                self.notifier.bind(self.time, self.dispatcher)
            self.idle_waiter = None
            self.checks.clear()
            self.async_waits.clear()
            self.inbox.rebind()

    def report(self, message: str, error: BaseException | None) -> None:
        """Passes an error in user code to the loop's exception handler. Does not raise: SystemExit
        and KeyboardInterrupt are raised in the next iteration of the loop."""
        report(self.loop, f"{printable(self.name)}: {message}", error)
        if isinstance(error, (SystemExit, KeyboardInterrupt)):
            raise_later(self.loop, error)

    # -- starting to wait

    def validate(self, operation: Operation) -> None:
        """Raises an exception if `operation` cannot be watched here."""
        if self.closed:
            raise PurgatoryClosed(f"cannot watch {describe(operation)}: {self.name} is closed")
        if not isinstance(operation, DelayedOperation):
            raise TypeError(f"cannot watch {describe(operation)}: it is no DelayedOperation")
        try:
            state_slot.__get__(operation)  # a subclass may override the attribute
        except AttributeError:
            raise TypeError(
                f"cannot watch {describe(operation)}: its __init__ does not call super().__init__()"
            ) from None
        if operation._op_home is not None or operation._op_state is not PENDING:
            why = "it is being watched" if operation._op_state is PENDING else "it has ended"
            raise OperationReused(
                f"cannot watch {describe(operation)}: {why}, and an operation serves once"
            )
        check_loop(operation, "watch")
        type(operation)._op_require_identity()
        type(operation)._op_is_known = True

    def checks_ahead(self, keys: Keys) -> Sequence[KeyCheck]:
        """The checks that must try other operations before a new operation, which then waits."""
        checks = [self._check_of(key) for key in (keys if type(keys) is tuple else (keys,))]
        return [each for each in checks if each and (each.has_begun or each.key in self.by_key)]

    def _check_of(self, key: Hashable) -> KeyCheck | None:
        """The unfinished check of `key`, or None."""
        check = self.checks.get(key)
        return None if check is None or check.is_done else check

    def key_being_checked(self, links: WatchLinks) -> Any:
        """The first key, among an operation's links, whose check is queued or in progress; `NO_KEY`
        without such a key."""
        for key in keys_of(links) if self.checks else ():
            if self._check_of(key) is not None:
                return key
        return NO_KEY

    def may_wait(self, operation: Operation, when: float | None, now: float) -> bool:
        """Whether a newcomer may wait until `when`. Ends the newcomer if it is too late.

        Raises:
            PurgatoryFull: `max_pending` operations are pending.
        """
        if self.closed:  # closed by the newcomer's own try
            self.claim(operation, CANCELLED)
            wake_waiters(operation)
        elif when is not None and when <= now and not operation._op_may_outlast():
            operation._timer_deadline = max(when, now)
            self.claim(operation, EXPIRED)
        elif self.max_pending is not None and len(self.watchers) >= self.max_pending:
            raise PurgatoryFull(
                f"cannot watch {describe(operation)}: {self.max_pending} operations wait in "
                f"{self.name}"
            )
        return operation._op_state is PENDING

    def undo_watch(self, operation: Operation) -> None:
        """Forgets an operation that cannot wait: its state is restored, and it can be watched
        again. If it has ended meanwhile, its hooks follow."""
        self.leave(operation)
        if operation._op_state is PENDING:
            operation._op_home = operation._op_record = None
        else:
            self.dispatcher.defer(operation)
        if self.dispatcher.has_backlog:
            self.dispatcher.continue_later()

    def finish_newcomer(self, operation: Operation) -> None:
        """Finishes an operation that ended without waiting."""
        notifier = self.notifier
        if notifier is not None and notifier.wants_starts:
            notifier.started(operation)
        if operation._op_state is not CANCELLED or notifier is not None:
            self.dispatcher.finish(operation)
        elif self.dispatcher.has_backlog and self.dispatcher.current is None:
            self.dispatcher.run_backlog()

    # -- ending: the methods of `operation.Home`

    @compiled
    def claim(self, operation: Operation, state: OperationState) -> bool:
        if operation._op_state is not PENDING:
            return False
        operation._op_state = state
        if state is COMPLETED:
            self.completed += 1
        elif state is EXPIRED:
            self.expired += 1
        else:
            self.cancelled += 1
        if operation._timer_chunk is not None:
            self.wheel.remove(operation)
        links = operation._op_links
        if links is not UNWATCHED:
            operation._op_links = UNWATCHED
            watchers = self.watchers
            watchers.pending -= 1
            watchers.remove(operation, links)
            if not watchers.pending and self.wheel.notify_empty:
                self.loop_wheel.check_idle_later()
        return True

    def leave(self, operation: Operation) -> None:
        """Removes an operation from the watch lists, if it is still in them."""
        links = operation._op_links
        if links is not UNWATCHED:
            operation._op_links = UNWATCHED
            self.watchers.pending -= 1
            self.watchers.remove(operation, links)

    @compiled
    def expire(self, operation: Operation) -> int:
        """Ends an operation at its deadline: by a last try, and only then by expiry.

        A completion by the last try counts as a missed trigger, unless a check of one of its keys
        is queued or in progress.
        """
        dispatcher, links = self.dispatcher, operation._op_links
        queued = self._queue_from_threads(self.inbox.take()) if self.inbox else 0
        key = self.key_being_checked(links)
        dispatcher.current = operation
        was_pending = operation._op_state is PENDING
        try:
            try_once(self, operation, key, is_last=True)
        finally:
            dispatcher.current = None
            # More operations may be due in this iteration, so work caused by the hooks waits for
            # the next iteration.
            dispatcher.continue_if_backlog()
        if was_pending and operation._op_state is COMPLETED and key is NO_KEY:
            self._count_missed_trigger(operation, keys_of(links))
        return queued + steps_to_leave(links)

    def _count_missed_trigger(self, operation: Operation, keys: tuple[Hashable, ...]) -> None:
        kind, timeout = type(operation).__name__, operation._op_timeout
        deadline = operation._timer_deadline
        self.missed_triggers += 1
        self.recent_missed_triggers.append((kind, keys, timeout, deadline))
        waited = None if timeout is None else self.time() - (deadline - timeout)
        logs.missed_trigger(self.name, kind, keys, waited, self.log_limit)

    # -- checks

    def check(self, key: Hashable) -> int:
        """Tries the operations that wait for `key`, a bounded number now and the rest in the next
        iterations. Returns the number completed now."""
        check = self._check_of(key)
        if check is not None:
            check.request_recheck()
            return 0
        dispatcher = self.dispatcher
        check = self.checks[key] = KeyCheck(self, key, dispatcher.checks)
        check.run(MAX_PER_ITERATION)
        completed = check.completed
        if check.is_done or not check.has_begun:
            return completed + dispatcher.run_backlog() if dispatcher.has_backlog else completed
        dispatcher.continue_later()
        return completed

    def check_later(self, key: Hashable, from_thread: bool = False) -> None:
        """Queues a check of `key`, to run after the running hook and all work deferred earlier."""
        check = self._check_of(key)
        if check is not None:
            check.request_recheck()
            return
        dispatcher = self.dispatcher
        check = self.checks[key] = KeyCheck(
            self, key, dispatcher.threadsafe_checks if from_thread else dispatcher.checks
        )
        check.enqueue()

    def discard_check(self, check: KeyCheck) -> None:
        """Removes a finished check."""
        self.checks.pop(check.key, None)

    def _check_from_threads(self, keys: Iterable[Hashable]) -> None:
        """Checks keys requested by other threads."""
        self._queue_from_threads(keys)
        if self.dispatcher.has_backlog:
            self.dispatcher.run_backlog()

    def _queue_from_threads(self, keys: Iterable[Hashable]) -> int:
        """Queues checks of a bounded number of `keys`. Returns the amount of this work, in
        operations."""
        before, taken = len(self.checks), 0
        for key in keys:
            taken += 1
            try:
                if key in self.by_key:
                    self.check_later(key, from_thread=True)
            except BaseException as error:
                self.report(f"cannot check {describe(key)}, as another thread requested", error)
            if len(self.checks) - before >= MAX_PER_ITERATION:
                break
        return len(self.checks) - before + taken // REGISTRATIONS_PER_STEP

    # -- when nothing waits

    @property
    def is_idle(self) -> bool:
        """Whether nothing is pending."""
        return not self.watchers.pending

    def _on_wheel_idle(self) -> None:
        self.watchers.shrink()
        if self.idle_waiter is not None and self.is_idle:
            idle, self.idle_waiter = self.idle_waiter, None
            if not idle.done():
                idle.set_result(None)

    def statistics(self) -> PurgatoryStatistics:
        """A snapshot of the counters. Cost: O(1)."""
        return PurgatoryStatistics(
            name=self.name,
            pending=len(self.watchers),
            watched=self.watchers.registrations,
            keys=len(self.by_key),
            completed=self.completed,
            expired=self.expired,
            cancelled=self.cancelled,
            missed_triggers=self.missed_triggers,
            wake_ups=self.loop_wheel.wake_ups,
            moves=self.wheel.moves,
        )

    def _check(self) -> None:
        """Asserts the whole invariant between hooks. For tests. Cost: O(all waits)."""
        self.loop_wheel._check()
        self.watchers._check()
        self.dispatcher._check()
        waiting = {operation for key in self.by_key for operation in self.watchers.operations(key)}
        for operation in waiting:
            assert operation._op_state is PENDING and operation._op_home is self
            assert operation._op_result is NO_RESULT
            chunk = operation._timer_chunk
            assert chunk is None or operation in chunk
        assert self.wheel.size == sum(operation._timer_chunk is not None for operation in waiting)
        queued = cast(
            "list[KeyCheck]", [*self.dispatcher.checks, *self.dispatcher.threadsafe_checks]
        )
        assert all(not check.is_done for check in queued)
        assert set(self.checks.values()) == {check for check in queued if check._home is self}
