"""The engine of a purgatory: watches operations, checks keys, and cancels the pending operations
when it is closed.

The life of a single operation is in `operation`; the dispatcher of the loop makes sure that
hooks run one at a time.

The engine does not know the `Purgatory` object. The engine lives as long as operations wait, because
they and the wheel refer to it, the purgatory as long as user code refers to it. So a purgatory that
is dropped while operations wait warns at once; as one object it would be kept alive by their
deadlines, for a minute or a day, and warn never.
"""

from asyncio import Future, Task, current_task, wait
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, cast, final

from purgatory._core import logs
from purgatory._core.arguments import describe, printable
from purgatory._core.changed_keys import remove_entry
from purgatory._core.closing import NOT_CANCELLED, notify_idle
from purgatory._core.dispatcher import Dispatcher, dispatcher_of
from purgatory._core.errors import OperationReused, PurgatoryClosed, PurgatoryFull
from purgatory._core.inbox import ThreadsafeInbox
from purgatory._core.kernel import compiled, fields
from purgatory._core.key_check import KeyCheck
from purgatory._core.limits import MAX_PER_ITERATION, REGISTRATIONS_PER_STEP
from purgatory._core.loop import UNBOUND, raise_later, report
from purgatory._core.loop_wheel import LoopTimingWheel
from purgatory._core.notifier import OperationNotifier
from purgatory._core.observers import Observer, observers_of
from purgatory._core.operation import (
    NO_KEY,
    NO_RESULT,
    UNWATCHED,
    DelayedOperation,
    Operation,
    cancel,
    check_loop,
    state_slot,
    try_once,
    wake_waiters,
)
from purgatory._core.states import CANCELLED, COMPLETED, EXPIRED, PENDING, OperationState
from purgatory._core.statistics import PurgatoryStatistics
from purgatory._core.watch_lists import (
    Chunk,
    Keys,
    Watchers,
    WatchLinks,
    first_batch,
    keys_of,
    steps_to_leave,
)

SNAPSHOT: Final = 8192
"""Keys that are copied at once when all operations are cancelled."""


@final
@fields
class Engine:
    """A purgatory without the object that users hold: see `Purgatory` for the arguments."""

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
        "is_debugging",
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
        self.watchers = Watchers(self.report)
        loop_wheel.on_idle = self._on_wheel_idle
        # Saves the hot paths a second attribute look-up.
        self.wheel = loop_wheel.wheel
        self.by_key = self.watchers.by_key
        self.loop: Any = UNBOUND
        self.time = loop_wheel.time
        self.dispatcher = Dispatcher(None)
        """The dispatcher of the loop, once there is one."""

        self.closed = False
        self.has_limits = max_pending is not None
        """Whether operations may be forbidden to wait."""
        self.is_debugging = False
        """Whether hints were wanted when the purgatory was bound to its loop: asyncio's debug
        mode."""
        self.completed = self.expired = self.cancelled = self.missed_triggers = 0
        self.recent_missed_triggers: deque[
            tuple[str, tuple[Hashable, ...], float | None, float]
        ] = deque(maxlen=16)
        """The last ones: the operation's kind, its keys, its timeout and its deadline."""
        self.checks: dict[Hashable, KeyCheck] = {}
        """Those that are queued or in progress, by key."""
        self.async_waits: dict[Future[None], Task[Any] | None] = {}
        """For each wait with an asynchronous predicate, a future that is done when it is over, and
        its task."""
        self.notifier = OperationNotifier(name, observers, self.report) if observers else None
        """Notifies the observers, if there are any."""
        self.idle_waiter: Future[None] | None = None
        """For `closing`."""
        self.inbox: ThreadsafeInbox[Hashable] = ThreadsafeInbox(
            loop_wheel, self._check_from_threads
        )

    def bind(self, action: str, value: object = UNBOUND, threadsafe: str = "") -> None:
        """Binds the purgatory to the running loop, or raises `WrongLoop` if it is bound to another
        one."""
        if self.loop_wheel.bind(action, value, len(self.watchers), threadsafe):
            self.loop, self.time = self.loop_wheel.loop, self.loop_wheel.time
            self.dispatcher = dispatcher_of(self.loop)
            self.is_debugging = logs.wants_hints(self.loop)
            if self.notifier is not None:
                self.notifier.bind(self.time, self.dispatcher)
            self.idle_waiter = None
            self.checks.clear()
            self.async_waits.clear()
            self.inbox.rebind()

    def report(self, message: str, error: BaseException | None) -> None:
        """Passes an error in user code to the loop's exception handler. Does not raise: exits are
        raised in the next iteration of the loop."""
        report(self.loop, f"{printable(self.name)}: {message}", error)
        if isinstance(error, (SystemExit, KeyboardInterrupt)):
            raise_later(self.loop, error)

    # -- starting to wait

    def validate(self, operation: Operation) -> None:
        """Raises the reason why `operation` cannot be watched here, if there is one."""
        if self.closed:
            raise PurgatoryClosed(f"cannot watch {describe(operation)}: {self.name} is closed")
        if not isinstance(operation, DelayedOperation):
            raise TypeError(f"cannot watch {describe(operation)}: it is no DelayedOperation")
        try:
            state_slot.__get__(operation)  # not as an attribute, which a subclass may make up
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
        """The checks that have other operations to try before a new one, which then waits."""
        checks = [self._check_of(key) for key in (keys if type(keys) is tuple else (keys,))]
        return [
            check
            for check in checks
            if check is not None and (check.has_begun or check.key in self.by_key)
        ]

    def _check_of(self, key: Hashable) -> KeyCheck | None:
        """The check of `key` that is not over yet."""
        check = self.checks.get(key)
        return None if check is None or check.is_done else check

    def key_being_checked(self, links: WatchLinks) -> Any:
        """The first key of an operation, given its links, whose check is queued or in progress;
        `NO_KEY` if there is none."""
        for key in keys_of(links) if self.checks else ():
            try:
                if self._check_of(key) is not None:
                    return key
            except Exception:
                continue  # a key that has changed is not found by a check either
        return NO_KEY

    def may_wait(self, operation: Operation, when: float | None, now: float) -> bool:
        """Whether a newcomer may wait until `when`. If it is too late for that, the newcomer is
        ended.

        Raises:
            PurgatoryFull: `max_pending` operations are pending.
        """
        if self.closed:  # by its own try
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
        """Forgets an operation that cannot wait: nothing has changed, and it can be watched
        again. If it has ended meanwhile, its hooks follow."""
        self.leave(operation)
        if operation._op_state is PENDING:
            operation._op_home = operation._op_record = None
        else:
            self.dispatcher.defer(operation)
        if self.dispatcher.has_backlog:
            self.dispatcher.continue_later()

    def finish_newcomer(self, operation: Operation) -> None:
        """Finishes an operation that ended before it waited."""
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
            if type(links) is tuple or type(links) is Chunk:
                watchers.remove(operation, links)
            else:
                watchers.remove_key(operation, links)
            if not watchers.pending and self.wheel.notify_empty:
                self.loop_wheel.check_idle_later()
        return True

    def leave(self, operation: Operation) -> None:
        """Takes an operation out of the watch lists, if it is still there."""
        links = operation._op_links
        if links is not UNWATCHED:
            operation._op_links = UNWATCHED
            self.watchers.pending -= 1
            self.watchers.remove(operation, links)

    @compiled
    def expire(self, operation: Operation) -> int:
        """Ends an operation whose deadline has come: a last try, and only then expiry.

        If the last try completes it, that is a missed trigger, unless a check of one of its keys is
        queued or in progress.
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
            # More operations may be due in this iteration, so the work that the hooks have caused is
            # left to the next one.
            dispatcher.continue_if_backlog()
        if was_pending and operation._op_state is COMPLETED and key is NO_KEY:
            self._count_missed_trigger(operation, keys_of(links))
        return queued + steps_to_leave(links)

    def _count_missed_trigger(self, operation: Operation, keys: tuple[Hashable, ...]) -> None:
        kind, timeout, deadline = (
            type(operation).__name__,
            operation._op_timeout,
            operation._timer_deadline,
        )
        self.missed_triggers += 1
        self.recent_missed_triggers.append((kind, keys, timeout, deadline))
        waited = None if timeout is None else self.time() - (deadline - timeout)
        logs.missed_trigger(self.name, kind, keys, waited)

    # -- checks

    def check(self, key: Hashable) -> int:
        """Tries those that wait for `key`, a bounded amount now and the rest in the next
        iterations. Returns how many completed now."""
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
        """Has `key` checked when the running hook has returned and everything that was deferred
        earlier is done."""
        check = self._check_of(key)
        if check is not None:
            check.request_recheck()
            return
        dispatcher = self.dispatcher
        check = self.checks[key] = KeyCheck(
            self, key, dispatcher.threadsafe_checks if from_thread else dispatcher.checks
        )
        check.enqueue()

    def hint_similar_key(self, key: Hashable) -> int:
        """In debug mode: logs a hint if a similar key of another type is watched. Returns 0, the
        number of completions."""
        logs.similar_key(self.name, key, self.by_key)
        return 0

    def discard_check(self, check: KeyCheck) -> None:
        """A check is over."""
        try:
            found = self.checks.pop(check.key, None)
            if found is not check and found is not None:
                remove_entry(
                    self.checks,
                    check.key,
                    check,
                    found,
                    lambda each: self.checks.setdefault(each.key, each),
                )
        except BaseException as error:
            self.report(
                f"cannot find the key {describe(check.key)} again, which was checked", error
            )

    def _check_from_threads(self, keys: Iterable[Hashable]) -> None:
        """Checks the keys that other threads have requested."""
        self._queue_from_threads(keys)
        if self.dispatcher.has_backlog:
            self.dispatcher.run_backlog()

    def _queue_from_threads(self, keys: Iterable[Hashable]) -> int:
        """Queues checks of `keys`, a bounded number; returns how much work that was, in
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

    # -- cancelling

    def iter_cancel_key(self, key: Hashable) -> Iterator[tuple[Operation, int]]:
        """As `iter_cancel`, of the operations that watch `key`."""
        while found := self.watchers.first_operations(key):
            yield from self._cancel_each(found)

    def _cancel_each(self, operations: list[Operation]) -> Iterator[tuple[Operation, int]]:
        for operation in operations:
            links = operation._op_links
            yield operation if cancel(operation) else NOT_CANCELLED, steps_to_leave(links)

    # -- closing: the methods of `closing.Closable`

    @property
    def is_idle(self) -> bool:
        return not self.watchers.pending

    def stop_accepting(self) -> None:
        self.closed = self.has_limits = True

    def accept_again(self) -> None:
        self.closed, self.has_limits = False, self.max_pending is not None
        if self.notifier is not None:
            self.notifier.is_closing = False

    def iter_cancel(self) -> Iterator[tuple[Operation, int]]:
        if self.notifier is not None:
            self.notifier.is_closing = True
        most: int | None = SNAPSHOT
        while True:
            is_over = True
            # Iterate over snapshots: restarting a dictionary iterator skips deleted entries one by
            # one. Do not look keys up: they may have changed.
            for waiting in list(islice(self.by_key.values(), most)):
                while found := first_batch(waiting):
                    is_over = False
                    yield from self._cancel_each(found)
            if is_over and most is None:
                return
            if is_over:
                most = None  # orphans stay in front of others

    async def wait_answered(self) -> None:
        await self.dispatcher.wait_for_queued_hooks()
        here = current_task()
        while others := [over for over, task in self.async_waits.items() if task is not here]:
            await wait(others)

    def answer_now(self) -> None:
        pass  # the hooks that are deferred follow in the next iterations

    def _on_wheel_idle(self) -> None:
        self.watchers.shrink()
        if self.idle_waiter is not None and self.is_idle:
            notify_idle(self)

    def statistics(self) -> PurgatoryStatistics:
        """A snapshot."""
        return PurgatoryStatistics(
            name=self.name,
            pending=len(self.watchers),
            watched=self.watchers.registrations,
            keys=self.watchers.keys,
            completed=self.completed,
            expired=self.expired,
            cancelled=self.cancelled,
            missed_triggers=self.missed_triggers,
            wake_ups=self.loop_wheel.wake_ups,
            moves=self.wheel.moves,
        )

    def _check(self) -> None:
        """Asserts the whole invariant between hooks. For tests. Cost: everything that waits."""
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
