"""The engine of a purgatory: watches operations, checks keys, and cancels what waits when it is closed.

What happens to a single operation is in `lifecycle`; the dispatcher of the loop makes sure that hooks run one at a time.

The engine does not know the `Purgatory` object. The engine lives as long as operations wait, the purgatory as long as user code
refers to it; so the purgatory can warn if it is garbage collected while operations wait.
"""

from asyncio import Future, current_task, wait
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, cast, final

from purgatory import _logs
from purgatory._arguments import describe
from purgatory._errors import OperationReused, PurgatoryClosed, PurgatoryFull
from purgatory._loop import MAX_PER_ITERATION
from purgatory._loop.binding import UNBOUND
from purgatory._loop.closing import notify_idle
from purgatory._loop.dispatcher import Dispatcher, dispatcher_of
from purgatory._loop.inbox import ThreadsafeInbox
from purgatory._observers.observer import Observer, observers_of
from purgatory._operations.key_check import KeyCheck
from purgatory._operations.lifecycle import NO_KEY, NO_RESULT, cancel, check_loop, claim, wake_waiters
from purgatory._operations.notifier import OperationNotifier
from purgatory._operations.operation import DelayedOperation
from purgatory._operations.watch_lists import UNWATCHED, Keys, Watchers, WatchLinks, first_batch, keys_of, steps_to_leave
from purgatory._state import CANCELLED, EXPIRED, PENDING
from purgatory._statistics import PurgatoryStatistics
from purgatory._wheel.loop_wheel import LoopTimingWheel

Operation = DelayedOperation[Any]

_state_slot: Final[Any] = vars(DelayedOperation)["_op_state"]

SNAPSHOT: Final = 8192
"""Keys that are copied at once when all operations are cancelled."""


@final
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
        "known_types",
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
        """That of the loop, once there is one."""

        self.closed = False
        self.has_limits = max_pending is not None
        """Whether operations may be forbidden to wait."""
        self.is_debugging = False
        """Whether hints were wanted when the purgatory was bound to its loop: asyncio's debug mode."""
        self.known_types: set[type] = set()
        """The classes whose operations are known to compare by identity; empty when it is closed."""
        self.completed = self.expired = self.cancelled = self.missed_triggers = 0
        self.recent_missed_triggers: deque[tuple[str, tuple[Hashable, ...], float | None, float]] = deque(maxlen=16)
        """The last ones: the operation's kind, its keys, its timeout and its deadline."""
        self.checks: dict[Hashable, KeyCheck] = {}
        """Those that are queued or in progress, by key."""
        self.async_waits: dict[Future[None], Any] = {}
        """Of each wait with an asynchronous predicate a future that is done when it is over, and its task."""
        self.notifier = OperationNotifier(name, observers, self.report) if observers else None
        """Notifies the observers, if there are any."""
        self.idle_waiter: Future[None] | None = None
        """For `_loop.closing`."""
        self.inbox: ThreadsafeInbox[Hashable] = ThreadsafeInbox(loop_wheel, self._check_from_threads, _unique)

    def bind(self, action: str, value: object = UNBOUND, threadsafe: str = "") -> None:
        """Binds the purgatory to the running loop, or raises `WrongLoop` if it is bound to another one."""
        if self.loop_wheel.bind(action, value, len(self.watchers), threadsafe):
            self.loop, self.time = self.loop_wheel.loop, self.loop_wheel.time
            self.dispatcher = dispatcher_of(self.loop)
            self.is_debugging = _logs.wants_hints(self.loop)
            if self.notifier is not None:
                self.notifier.bind(self.time, self.dispatcher)
            self.idle_waiter = None
            self.checks.clear()
            self.async_waits.clear()
            self.inbox.rebind()

    def report(self, message: str, error: BaseException | None) -> None:
        """Passes an error in user code to the loop's exception handler. Exits are passed on."""
        context: dict[str, Any] = {"message": f"{self.name}: {message}"}
        if error is not None:
            context["exception"] = error
        self.loop.call_exception_handler(context)
        if isinstance(error, (SystemExit, KeyboardInterrupt)):
            self.dispatcher.continue_later()
            raise error

    # -- beginning to wait

    def validate(self, operation: Operation) -> None:
        """Raises the reason why `operation` cannot be watched here, if there is one."""
        if self.closed:
            raise PurgatoryClosed(f"cannot watch {describe(operation)}: {self.name} is closed")
        if not isinstance(operation, DelayedOperation):
            raise TypeError(f"cannot watch {describe(operation)}: it is no DelayedOperation")
        try:
            _state_slot.__get__(operation)  # not as an attribute, which a subclass may make up
        except AttributeError:
            raise TypeError(f"cannot watch {describe(operation)}: its __init__ does not call super().__init__()") from None
        if operation._op_engine is not None or operation._op_state is not PENDING:
            why = "it is being watched" if operation._op_state is PENDING else "it has ended"
            raise OperationReused(f"cannot watch {describe(operation)}: {why}, and an operation serves once")
        check_loop(operation, "watch")
        type(operation)._op_require_identity()
        self.known_types.add(type(operation))

    def checks_ahead(self, keys: Keys) -> Sequence[KeyCheck]:
        """The checks that have other operations to try before a new one, which then waits."""
        checks = [self._check_of(key) for key in (keys if type(keys) is tuple else (keys,))]
        return [check for check in checks if check is not None and (check.has_begun or check.key in self.by_key)]

    def _check_of(self, key: Hashable) -> KeyCheck | None:
        """The check of `key` that is not over yet."""
        check = self.checks.get(key)
        return None if check is None or check.is_done else check

    def key_being_checked(self, links: WatchLinks) -> Any:
        """The first key of an operation, given its links, whose check was requested and is not over; `NO_KEY` if there
        is none."""
        asked_for = self.inbox.waiting()
        if self.checks or asked_for:
            for key in keys_of(links):
                try:
                    if self._check_of(key) is not None or key in asked_for:
                        return key
                except Exception:
                    continue  # a key that has changed is not found by a check either
        return NO_KEY

    def may_wait(self, operation: Operation, when: float | None, now: float) -> bool:
        """Whether a newcomer may wait until `when`. If it is too late for that, the newcomer is ended.

        Raises:
            PurgatoryFull: so many wait already.
        """
        if self.closed:  # by its own try
            claim(operation, CANCELLED)
            wake_waiters(operation)
        elif when is not None and when <= now:
            operation._timer_deadline = max(when, now)
            claim(operation, EXPIRED)
        elif self.max_pending is not None and len(self.watchers) >= self.max_pending:
            raise PurgatoryFull(f"cannot watch {describe(operation)}: {self.max_pending} operations wait in {self.name}")
        return operation._op_state is PENDING

    def undo_watch(self, operation: Operation) -> None:
        """Forgets an operation that cannot wait: nothing has changed, and it can be watched again."""
        if operation._op_state is PENDING:
            if operation._op_links is not UNWATCHED:
                self.watchers.remove(operation, operation._op_links)
                operation._op_links = UNWATCHED
            operation._op_engine = None
        if self.dispatcher.has_backlog:
            self.dispatcher.continue_later()

    def finish_newcomer(self, operation: Operation, keys: Keys) -> None:
        """Finishes an operation that ended before it waited."""
        if operation._timer_chunk is not None:
            self.wheel.remove(operation)
        operation._op_links = UNWATCHED
        if self.notifier is not None:
            operation._op_links = keys
            if self.notifier.wants_starts:
                self.notifier.notify_started(operation)
        if operation._op_state is not CANCELLED or self.notifier is not None:
            self.dispatcher.finish(operation)
        elif self.dispatcher.has_backlog and self.dispatcher.current is None:
            self.dispatcher.run_backlog()

    # -- checks

    def check(self, key: Hashable) -> int:
        """Tries those that wait for `key`, a bounded amount now and the rest in the next iterations. Returns how many completed
        now."""
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
        """Has `key` checked when the running hook has returned and everything that was deferred earlier is done."""
        check = self._check_of(key)
        if check is not None:
            check.request_recheck()
            return
        dispatcher = self.dispatcher
        check = self.checks[key] = KeyCheck(self, key, dispatcher.threadsafe_checks if from_thread else dispatcher.checks)
        check.enqueue()

    def hint_similar_key(self, key: Hashable) -> int:
        """In debug mode: logs a hint if a similar key of another type is watched. Returns 0, the number of completions."""
        _logs.similar_key(self.name, key, self.by_key)
        return 0

    def discard_check(self, check: KeyCheck) -> None:
        """A check is over."""
        try:
            found = self.checks.pop(check.key, None)
        except BaseException as error:
            self.report(f"cannot find the key {describe(check.key)} again, which was checked", error)
        else:
            if found is not check and found is not None:
                self.checks[check.key] = found

    def _check_from_threads(self, keys: Iterable[Hashable]) -> None:
        """Checks the keys that other threads have requested."""
        for key in keys:
            try:
                if key in self.by_key:
                    self.check_later(key, from_thread=True)
            except Exception as error:
                self.report(f"cannot check {describe(key)}, which another thread has asked for", error)
        if self.dispatcher.has_backlog:
            self.dispatcher.run_backlog()

    # -- cancelling

    def iter_cancel_key(self, key: Hashable) -> Iterator[tuple[Operation, int]]:
        """Cancels one operation that watches `key` at each step, and yields it with the work that this was."""
        while found := self.watchers.first_operations(key):
            yield from self._cancel_each(found)

    def _cancel_each(self, operations: list[Operation]) -> Iterator[tuple[Operation, int]]:
        for operation in operations:
            links = operation._op_links
            if cancel(operation):
                yield operation, steps_to_leave(links)

    # -- closing: the methods of `_loop.closing.Closable`

    @property
    def is_idle(self) -> bool:
        return not self.watchers.keys

    def stop_accepting(self) -> None:
        self.closed = self.has_limits = True
        self.known_types.clear()  # so that each operation is validated, and refused

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
            # Iterate over snapshots: restarting a dictionary iterator skips deleted entries one by one. Do not look keys up:
            # they may have changed.
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
            assert operation._op_state is PENDING and operation._op_engine is self
            assert operation._op_result is NO_RESULT
            chunk = operation._timer_chunk
            assert chunk is None or operation in chunk
        assert self.wheel.size == sum(operation._timer_chunk is not None for operation in waiting)
        queued = cast(list[KeyCheck], [*self.dispatcher.checks, *self.dispatcher.threadsafe_checks])
        assert all(not check.is_done for check in queued)
        assert set(self.checks.values()) == {check for check in queued if check._engine is self}


def _unique(keys: Iterable[Hashable]) -> Iterable[Hashable]:
    """Each key once; or all of them, if they cannot be compared: that error appears when they are checked."""
    keys = list(keys)
    try:
        return list(dict.fromkeys(keys))
    except Exception:
        return keys
