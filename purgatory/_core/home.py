"""The home of operations: what an operation needs of the purgatory in which it waits, below it.

    Purgatory     the face: what users call
    Operation     its life, from first try to result
    Home          counts, watch lists, wheel, dispatcher, notifier. An operation joins it, and leaves
                  it in the step that claims it

So an operation knows a home, and no purgatory. All state of a purgatory is here. The attributes of
an operation are here as well, because each refers to the other.
"""

from abc import ABC, abstractmethod
from asyncio import AbstractEventLoop, Future, Task
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from functools import partial
from typing import Any

from purgatory._core import logs
from purgatory._core.arguments import printable, require_limit
from purgatory._core.dispatcher import Dispatcher, dispatcher_of
from purgatory._core.kernel import fields
from purgatory._core.loop import (
    UNBOUND,
    LoopTimingWheel,
    ThreadsafeInbox,
    raise_later,
    report,
    running_loop,
)
from purgatory._core.observers import NO_KEY, Notifier, Observer, Record, observers_of
from purgatory._core.states import PENDING, OperationState
from purgatory._core.watch_lists import UNWATCHED, Keys, WatchLists, keys_of
from purgatory._core.wheel import DEFAULT_WHEEL_SIZE, TimerEntry


@fields
class OperationSlots(TimerEntry):
    """The attributes of an operation. The kernel keeps them in fields of C."""

    __slots__ = (
        "__weakref__",
        "_op_home",
        "_op_keys",
        "_op_owner",
        "_op_record",
        "_op_result",
        "_op_state",
        "_op_timeout",
        "_op_waiters",
    )

    _op_state: OperationState
    _op_timeout: float | None
    _op_home: "Home | None"
    _op_keys: Keys  # or UNWATCHED
    _op_result: Any  # the result, a Failure, or NO_RESULT until the hooks have run
    _op_owner: Future[None] | None  # awaited by the task that the operation belongs to
    _op_waiters: Future[None] | dict[Future[None], None] | None  # awaited by all other tasks
    _op_record: Record | None  # for observers

    _op_kind: str | None = None
    """Kind of the operation for observers and metrics; None for its class's name."""


@fields
class Home(ABC):
    """The state of a purgatory; for the arguments see `Purgatory`."""

    __slots__ = (
        "__weakref__",
        "_async_waits",
        "_by_key",
        "_cancelled",
        "_checks",
        "_closed",
        "_completed",
        "_dispatcher",
        "_expired",
        "_idle_waiter",
        "_inbox",
        "_log_limit",
        "_loop",
        "_loop_wheel",
        "_max_pending",
        "_missed_triggers",
        "_notifier",
        "_pending",
        "_recent_missed_triggers",
        "_time",
        "_watched",
        "_wheel",
        "name",
    )

    def __init__(
        self,
        name: str = "purgatory",
        *,
        tick: float = 0.001,
        wheel_size: int = DEFAULT_WHEEL_SIZE,
        max_pending: int | None = None,
        observer: Observer | Sequence[Observer] | None = None,
    ) -> None:
        require_limit("max_pending", max_pending)
        self.name = name
        self._max_pending = max_pending
        self._loop_wheel = loop_wheel = LoopTimingWheel(tick, wheel_size)
        observers = observers_of(observer)
        loop_wheel.on_idle = self._on_wheel_idle
        # Saves the hot paths a second attribute look-up.
        self._wheel = loop_wheel.wheel
        self._by_key = WatchLists()
        self._pending = self._watched = 0
        self._loop: AbstractEventLoop = UNBOUND
        self._time = loop_wheel.time
        self._dispatcher: Dispatcher = UNBOUND
        self._closed = False
        self._completed = self._expired = self._cancelled = self._missed_triggers = 0
        self._recent_missed_triggers: deque[
            tuple[str, tuple[Hashable, ...], float | None, float]
        ] = deque(maxlen=16)
        """The last missed triggers: kind, keys, timeout and deadline of the operation."""
        self._log_limit = logs.RateLimit()
        """Rate limit of the messages about missed triggers."""
        self._checks: dict[Hashable, Any] = {}
        """Checks queued or in progress, by key: a `KeyCheck` each."""
        self._async_waits: dict[Future[None], Task[Any] | None] = {}
        """Waits with an asynchronous predicate: a future that is done at the end of the wait -> the
        task of the wait."""
        self._notifier = Notifier(name, observers, self._report) if observers else None
        """Notifies the observers; None without observers."""
        self._idle_waiter: Future[None] | None = None
        """Done when nothing is pending; created when `aclose` waits for that."""
        self._inbox: ThreadsafeInbox[Hashable] = ThreadsafeInbox(
            loop_wheel, self._check_from_threads
        )

    # -- its loop

    def _bind(self, action: str, value: object = UNBOUND, threadsafe: str = "") -> None:
        """Binds the purgatory to the running loop, or raises `WrongLoop` if it is bound to another
        loop."""
        self._loop_wheel.bind(action, value, self._pending, threadsafe)
        loop = self._loop_wheel.loop
        if self._loop is not loop:
            self._time = self._loop_wheel.time
            self._dispatcher = dispatcher_of(loop)
            self._idle_waiter = None
            self._checks.clear()
            self._async_waits.clear()
            self._loop = loop  # last: until then, the next call finishes what Ctrl-C interrupts
            self._inbox.rebind()

    def _is_used_here(self, action: str, key: Hashable = None, threadsafe: str = "") -> bool:
        """False if it was never used: then nothing can wait here, and no loop is needed.

        Raises:
            TypeError: `key` is not hashable.
            WrongLoop: called from another loop or thread than the first time.
        """
        hash(key)
        if self._loop is UNBOUND:
            return False
        if running_loop() is not self._loop:
            self._bind(action, key, threadsafe)
        return True

    def _report(self, message: str, error: BaseException | None) -> None:
        """Passes an error in user code to the loop's exception handler. Does not raise: SystemExit
        and KeyboardInterrupt are raised in the next iteration of the loop."""
        report(self._loop, f"{printable(self.name)}: {message}", error)
        if isinstance(error, (SystemExit, KeyboardInterrupt)):
            raise_later(self._loop, error)

    # -- joining and leaving

    def _join(self, operation: OperationSlots, keys: Keys, when: float | None, now: float) -> None:
        """Has an operation wait under its keys until `when`, in seconds of the loop's time.

        Raises:
            BaseException: the exception of a key's `__hash__` or `__eq__`, or of a loop that takes
                no timer.
        """
        # Most have one key, and are alone there.
        if type(keys) is tuple or self._by_key.setdefault(keys, operation) is not operation:
            self._by_key.join(operation, keys)
        operation._op_keys = keys
        self._pending += 1
        self._watched += len(keys) if type(keys) is tuple else 1
        if when is not None:
            self._wheel.add(operation, when, now)
        if operation._op_state is not PENDING:  # a finalizer has ended it
            self._leave(operation)

    def _leave(self, operation: OperationSlots) -> None:
        """Removes an operation that has ended, or cannot wait, from the wheel and from its watch
        lists, if it is there."""
        bucket, keys = operation._timer_bucket, operation._op_keys
        if bucket is not None:
            bucket.remove(operation)
        if keys is not UNWATCHED:
            operation._op_keys = UNWATCHED
            self._pending -= 1
            self._watched -= len(keys) if type(keys) is tuple else 1
            self._by_key.leave(operation, keys)
            if not self._pending and self._wheel.notify_empty:
                self._loop_wheel.look_if_idle_later()

    def _on_wheel_idle(self) -> None:
        if not self._pending:
            self._by_key.clear()  # which frees its memory
            idle, self._idle_waiter = self._idle_waiter, None
            if idle is not None and not idle.done():
                idle.set_result(None)

    # -- checks, as far as an operation that ends needs to know of them

    @abstractmethod
    def _queue_from_threads(self, keys: Iterable[Hashable], at_once: bool = False) -> int:
        """Queues the checks that other threads have requested; defined by `Purgatory`."""

    def _check_from_threads(self, keys: Iterable[Hashable]) -> None:
        """Checks keys requested by other threads."""
        self._queue_from_threads(keys, at_once=True)
        self._dispatcher.run_queue()

    def _key_being_checked(self, keys: Keys) -> Any:
        """The first of an operation's keys with a queued or running check; `NO_KEY`
        without such a key."""
        for key in keys_of(keys):
            if key in self._checks:
                return key
        return NO_KEY

    def _notify_check(self, key: Hashable, tried: int, completed: int) -> None:
        """Notifies observers of a check; now, or when the running hook has returned."""
        if self._notifier is not None:
            self._dispatcher.perform(partial(self._notifier.key_checked, key, tried, completed))

    def _count_missed_trigger(self, operation: OperationSlots, keys: tuple[Hashable, ...]) -> None:
        """Counts, keeps and logs that only the last try has completed an operation."""
        kind = operation._op_kind or type(operation).__name__
        timeout = operation._op_timeout
        deadline = operation._timer_deadline
        self._missed_triggers += 1
        self._recent_missed_triggers.append((kind, keys, timeout, deadline))
        waited = None if timeout is None else self._time() - (deadline - timeout)
        logs.missed_trigger(self.name, kind, keys, waited, self._log_limit)
