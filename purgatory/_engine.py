"""The engine room of a purgatory: has operations wait, checks keys, and ends what waits when the purgatory is closed.

What happens to a single operation is told in `_life`; the dispatcher of the loop makes sure that hooks run one at a time.

The engine does not know the `Purgatory` object. It lives for as long as operations wait; the purgatory lives for as long
as somebody has it, and can therefore say when it was dropped too early.
"""

from asyncio import Future
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, cast, final

from purgatory import _logs
from purgatory._checks import KeyCheck
from purgatory._closing import tell_idle
from purgatory._dispatcher import Dispatcher, dispatcher_of
from purgatory._errors import OperationReused, PurgatoryClosed, PurgatoryFull
from purgatory._life import answer, check_loop, claim
from purgatory._observer import Observer, observers_of
from purgatory._operation import DelayedOperation
from purgatory._signals import Signals
from purgatory._state import CANCELLED, EXPIRED, PENDING
from purgatory._statistics import PurgatoryStatistics
from purgatory._telling import Teller
from purgatory._timer import PORTION, LoopWheel
from purgatory._watchers import Watched, Watchers, first_in
from purgatory._wheel import SNAPSHOT

Operation = DelayedOperation[Any]


@final
class Engine:
    """A purgatory without the object that users hold: see `Purgatory` for the arguments."""

    __slots__ = (
        "by_key",
        "cancelled",
        "checks",
        "closed",
        "completed",
        "expired",
        "has_more_to_do",
        "home",
        "is_debugging",
        "kinds",
        "loop",
        "max_pending",
        "missed",
        "missed_triggers",
        "name",
        "room",
        "signals",
        "teller",
        "time",
        "watchers",
        "wheel",
        "when_idle",
    )

    def __init__(
        self,
        name: str,
        wheel: LoopWheel,
        max_pending: int | None = None,
        observer: Observer | Sequence[Observer] | None = None,
    ) -> None:
        observers = observers_of(observer)
        self.name = name
        self.max_pending = max_pending
        self.wheel = wheel
        self.watchers = Watchers(self.report)
        wheel.when_cleared = self._cleared
        # What the hot paths need of the wheel and the watch lists, without a second attribute look-up.
        self.by_key = self.watchers.by_key
        self.loop: Any = wheel.loop
        self.home = wheel.home
        self.time = wheel.time
        self.room = Dispatcher(None)
        """That of the loop, once there is one."""

        self.closed = False
        self.is_debugging = False
        """Whether hints were wanted when the purgatory was bound to its loop: asyncio's debug mode."""
        self.kinds: set[type] = set()
        """The classes whose operations are known to compare by identity; empty when it is closed."""
        self.completed = self.expired = self.cancelled = self.missed_triggers = 0
        self.missed: deque[tuple[str, tuple[Hashable, ...], float | None, float]] = deque(maxlen=16)
        """The last missed triggers, for `inspect`."""
        self.checks: dict[Hashable, KeyCheck] = {}
        """Those in line and in progress, by key."""
        self.teller = Teller(name, observers, self.report) if observers else None
        """Tells the observers, if there are any."""
        self.has_more_to_do = max_pending is not None or (self.teller is not None and self.teller.hears_starts)
        """Whether an operation with a timeout needs more than to be put into the lists and the wheel."""
        self.when_idle: Future[None] | None = None
        """For `_closing`."""
        self.signals: Signals[Hashable] = Signals(wheel, self._receive, _distinct)

    def bind(self, doing: str) -> None:
        """Binds the purgatory to the running loop, or raises `WrongLoop` if it is bound to another one."""
        wheel = self.wheel
        is_new = wheel.bind(doing, len(self.watchers))
        self.home = wheel.home
        if is_new:
            self.loop, self.time, self.room = wheel.loop, wheel.time, dispatcher_of(wheel.loop)
            self.is_debugging = _logs.wants_hints(wheel.loop)
            if self.teller is not None:
                self.teller.bind(self.time, self.room)
            self.when_idle = None
            self.checks.clear()
            self.signals.restart()

    def report(self, message: str, error: BaseException | None) -> None:
        """Passes an error in user code to the loop's exception handler. Exits are passed on."""
        context: dict[str, Any] = {"message": f"{self.name}: {message}"}
        if error is not None:
            context["exception"] = error
        self.wheel.loop.call_exception_handler(context)
        if isinstance(error, (SystemExit, KeyboardInterrupt)):
            self.room.continue_later()
            raise error

    # -- beginning to wait

    def refuse_if_unfit(self, operation: Operation) -> None:
        """Raises the reason why `operation` cannot be watched here, if there is one."""
        if self.closed:
            raise PurgatoryClosed(f"cannot watch {operation!r}: {self.name} is closed")
        if not hasattr(operation, "_op_state"):
            raise TypeError(f"cannot watch {operation!r}: its __init__ does not call super().__init__()")
        if operation._op_engine is not None or operation._op_state is not PENDING:
            why = "it is being watched" if operation._op_state is PENDING else "it has ended"
            raise OperationReused(f"cannot watch {operation!r}: {why}, and an operation serves once")
        check_loop(operation, "watch")
        type(operation)._op_require_identity()
        self.kinds.add(type(operation))

    def comes_late(self, operation: Operation, watched: Watched) -> bool:
        """Whether a check of its keys has others to try first, so that `operation` has to wait for its turn.

        False for an operation that cannot wait, because its deadline has passed.
        """
        if not any(check.waiting is not None or check.key in self.by_key for check in self._checks_of(watched)):
            return False
        when = operation._wheel_when if operation._op_timeout is None else None
        return when is None or when > self.time()

    def watch_untried(self, operation: Operation, watched: Watched) -> bool:
        """Has an operation wait for its turn in the checks of its keys. Returns whether it has ended nevertheless."""
        checks = self._checks_of(watched)
        operation._op_engine = self
        has_ended = self.watch(operation, watched, was_tried=False)
        if not has_ended:
            for check in checks:
                check.joined(operation)
        return has_ended

    def _checks_of(self, watched: Watched) -> list[KeyCheck]:
        checks = [self._check_of(key) for key in (watched if type(watched) is tuple else (watched,))]
        return [check for check in checks if check is not None]

    def _check_of(self, key: Hashable) -> KeyCheck | None:
        """The check of `key` that is not over yet."""
        check = self.checks.get(key)
        return None if check is None or check.is_over else check

    def watch(self, operation: Operation, watched: Watched, was_tried: bool = True) -> bool:
        """Has an operation wait. Returns whether it has ended nevertheless."""
        try:
            now = self.time()
            timeout = operation._op_timeout
            when = operation._wheel_when if timeout is None else now + timeout
            if self.closed:  # by the try itself
                claim(operation, CANCELLED)
                self.cancelled += 1
                if operation._op_waiters is not None:
                    answer(operation)
                self.ended_at_once(operation, watched)
                return True
            if when is not None and when <= now:
                operation._wheel_when = max(when, now)
                claim(operation, EXPIRED)
                self.expired += 1
                self._prepare_to_tell(operation, watched)
                self.room.conclude(operation)
                return True
            if self.max_pending is not None and len(self.watchers) >= self.max_pending:
                raise PurgatoryFull(f"cannot watch {operation!r}: {self.max_pending} operations wait in {self.name}")
            bucket = None if when is None else self.wheel.bucket_for(when, now)
            self.watchers.add(operation, watched)
        except BaseException:
            if operation._op_state is PENDING:
                self.take_back(operation)
            raise
        operation._wheel_when = when
        if when is None or bucket is None or bucket is self.wheel.never:
            operation._wheel_bucket = None
        else:
            bucket.join(operation, when)
        if self.teller is not None:
            self.teller.began(operation, now, was_tried)
        if self.room.unsettled and self.room.current is None:
            self.room.settle()
        return operation._op_state is not PENDING

    def take_back(self, operation: Operation) -> None:
        """Forgets an operation that could not be watched: nothing has changed, and it can be watched again."""
        operation._op_engine = None
        self.room.continue_if_unsettled()

    def ended_at_once(self, operation: Operation, watched: Watched) -> None:
        """Finishes an operation that ended at its first try."""
        if operation._op_timeout is not None:
            operation._wheel_when = None
        self._prepare_to_tell(operation, watched)
        room = self.room
        if operation._op_state is not CANCELLED or self.teller is not None:
            room.conclude(operation)
        elif room.unsettled and room.current is None:
            room.settle()

    def _prepare_to_tell(self, operation: Operation, watched: Watched) -> None:
        if self.teller is not None:
            operation._op_places = watched
            if self.teller.hears_starts:
                self.teller.started(operation)

    # -- checks

    def check(self, key: Hashable) -> int:
        """Tries those that wait for `key`, a portion now and the rest in the next turns. Returns how many completed now."""
        check = self._check_of(key)
        if check is not None:
            check.ask_again()
            return 0
        room = self.room
        check = self.checks[key] = KeyCheck(self, key, room.checks)
        check.advance(PORTION)
        completed = check.completed
        if check.is_over or check.waiting is None:
            return completed + room.settle() if room.unsettled else completed
        room.continue_later()
        return completed

    def nobody_watches(self, key: Hashable) -> int:
        """In debug mode: a hint, if `key` is of another type than one that somebody watches; 0, of those that it completes."""
        _logs.lookalike(self.name, key, self.by_key)
        return 0

    def check_later(self, key: Hashable, by_thread: bool = False) -> None:
        """Has `key` checked when the running hook has returned and everything that was put off earlier is done."""
        check = self._check_of(key)
        if check is not None:
            check.ask_again()
            return
        room = self.room
        line = room.named if by_thread else room.checks
        self.checks[key] = check = KeyCheck(self, key, line)
        line.append(check)
        room.unsettled = True

    def forget_check(self, check: KeyCheck) -> None:
        """A check is over."""
        try:
            found = self.checks.pop(check.key, None)
        except BaseException as error:
            self.report(f"cannot find the key {check.key!r} again, which was checked", error)
        else:
            if found is not check and found is not None:
                self.checks[check.key] = found

    def _receive(self, keys: Iterable[Hashable]) -> None:
        """Checks the keys that other threads have named."""
        for key in keys:
            try:
                if key in self.by_key:
                    self.check_later(key, by_thread=True)
            except Exception as error:
                self.report(f"cannot check {key!r}, which another thread has named", error)
        if self.room.unsettled:
            self.room.settle()

    # -- being closed: what `_closing` asks for

    @property
    def is_idle(self) -> bool:
        return not self.watchers.keys

    def refuse(self) -> None:
        self.closed = self.has_more_to_do = True
        self.kinds.clear()  # so that each operation is looked at, and refused

    def cancelling(self) -> Iterator[Operation]:
        if self.teller is not None:
            self.teller.is_closing = True
        most: int | None = SNAPSHOT
        while True:
            is_over = True
            # In snapshots, as to begin anew means to look for the first one behind all that have left. By no key: it may have
            # changed, and not be found again.
            for waiting in list(islice(self.by_key.values(), most)):
                while found := first_in(waiting):
                    is_over = False
                    for operation in found:
                        if operation.cancel():
                            yield operation
            if is_over and most is None:
                return
            if is_over:
                most = None  # strays stay in front of others

    async def answer(self) -> None:
        await self.room.claimed_by_now()

    def answer_at_once(self) -> None:
        pass  # the hooks that are put off follow in the next turns

    def _cleared(self) -> None:
        self.watchers.shrink()
        if self.when_idle is not None and self.is_idle:
            tell_idle(self)

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
            wake_ups=self.wheel.wake_ups,
            moves=self.wheel.moves,
        )

    def _check(self) -> None:
        """Asserts the whole invariant between hooks. For tests. Cost: everything that waits."""
        self.wheel._check()
        self.watchers._check()
        self.room._check()
        waiting = {operation for key in self.by_key for operation in self.watchers.of(key)}
        for operation in waiting:
            assert operation._op_state is PENDING and operation._op_engine is self
            assert not hasattr(operation, "_op_result")
            bucket = operation._wheel_bucket
            assert bucket is None or operation in bucket
        assert len(self.wheel) == sum(operation._wheel_bucket is not None for operation in waiting)
        in_line = cast(list[KeyCheck], [*self.room.checks, *self.room.named])
        assert all(not check.is_over for check in in_line)
        assert set(self.checks.values()) == {check for check in in_line if check.engine is self}


def _distinct(keys: Iterable[Hashable]) -> Iterable[Hashable]:
    """Each key once; or all of them, if they cannot be compared: that error appears when they are checked."""
    keys = list(keys)
    try:
        return list(dict.fromkeys(keys))
    except Exception:
        return keys
