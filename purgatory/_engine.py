"""The engine room of a purgatory: tries operations, and finishes those that have ended.

Every operation goes this way, whoever sends it, and the dispatcher of the loop sees to it that its hooks meet nobody else's:

    try      the first time, at each check of a key, and at the deadline
    claim    `claim` makes it COMPLETED, EXPIRED or CANCELLED, and takes it out of the wheel and the watch lists
    conclude its hooks run and whoever awaits it is answered; then the observer is told

Whoever tries an operation concludes it as well, whatever has claimed it meanwhile. Who claims one that nobody is trying
concludes it at once, or within a hook puts that off until the hook has returned. So nothing is concluded twice.

The engine does not know the `Purgatory` object. It lives for as long as operations wait; the purgatory lives for as long
as somebody has it, and can therefore say when it was dropped too early.
"""

from asyncio import Future
from collections.abc import Hashable, Iterable
from typing import Any, NoReturn, cast, final

from purgatory._checks import KeyCheck
from purgatory._dispatcher import Dispatcher, dispatcher_of
from purgatory._errors import OperationReused, PurgatoryClosed, PurgatoryFull
from purgatory._life import answer, check_loop, claim, fail, run_hooks
from purgatory._observer import DEADLINE, LONG_TIMEOUT, NOBODY, NOTHING, Notes, Observer
from purgatory._operation import DelayedOperation
from purgatory._signals import Signals
from purgatory._state import CANCELLED, COMPLETED, EXPIRED, PENDING
from purgatory._timer import PORTION, LoopWheel
from purgatory._watchers import NO_PLACES, Chunk, Watched, Watchers, keys_of

Operation = DelayedOperation[Any]


@final
class Engine:
    """What a purgatory consists of, but for the object that users hold: see `Purgatory` for the arguments."""

    __slots__ = (
        "by_key",
        "cancelled",
        "checks",
        "closed",
        "completed",
        "drained",
        "expired",
        "kinds",
        "limited",
        "loop",
        "max_pending",
        "missed_triggers",
        "name",
        "notes",
        "observed",
        "observer",
        "rate",
        "recent",
        "room",
        "signals",
        "time",
        "watchers",
        "wheel",
    )

    def __init__(self, name: str, wheel: LoopWheel, max_pending: int | None = None, observer: Observer | None = None) -> None:
        self.name = name
        self.max_pending = max_pending
        self.wheel = wheel
        self.watchers = Watchers(self._report)
        wheel.when_cleared = self.watchers.shrink
        # What the hot paths need of the wheel and the watch lists, one step nearer.
        self.by_key = self.watchers.by_key
        self.recent = wheel.recent
        self.rate = wheel.rate
        self.loop: Any = wheel.loop
        self.time = wheel.time
        self.room = Dispatcher(None)
        """That of the loop, once there is one."""

        self.closed = False
        self.limited = max_pending is not None
        """Whether not every operation may wait."""
        self.kinds: set[type] = set()
        """The classes of operations that were found to be told apart by identity; none when it is closed."""
        self.completed = 0
        self.expired = 0
        self.cancelled = 0
        self.missed_triggers = 0
        self.checks: dict[Hashable, KeyCheck] = {}
        """Those in line and in progress, by key."""
        self.observer = observer
        self.notes = Notes()
        self.drained: list[Future[None]] = []
        """Of those who wait until nothing is pending any more; whoever adds one also sets `observed`."""
        self.observed = observer is not None
        """Whether anybody wants to know when an operation has ended, or a key was checked."""
        self.signals: Signals[Hashable] = Signals(wheel, self._receive, _distinct)

    def bind(self, doing: str) -> None:
        """Binds the purgatory to the running loop, or raises `WrongLoop` if it is bound to another one."""
        wheel = self.wheel
        if wheel.bind(doing, len(self.watchers)):
            self.loop, self.time, self.room = wheel.loop, wheel.time, dispatcher_of(wheel.loop)
            self.checks.clear()
            self.signals.restart()

    # -- beginning to wait

    def refuse(self, operation: Operation) -> None:
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
        """Whether others have yet to be tried in a check of its keys, so that `operation` has to wait for its turn.

        Not if it cannot wait.
        """
        if not any(check.waiting is not None or check.key in self.by_key for check in self._checks_of(watched)):
            return False
        when = operation._wheel_when if operation._op_timeout is None else None
        return when is None or when > self.time()

    def watch_untried(self, operation: Operation, watched: Watched) -> bool:
        """Has an operation wait for its turn in the checks of its keys; whether it has ended all the same."""
        checks = self._checks_of(watched)
        operation._op_engine = self
        has_ended = self.watch(operation, watched)
        if not has_ended:
            for check in checks:
                check.joined(operation)
            if self.observer is not None:
                self.notes.retries[operation] = -1  # of the tries that every operation has, it lacks the first
        return has_ended

    def _checks_of(self, watched: Watched) -> list[KeyCheck]:
        checks = [self._check_of(key) for key in (watched if type(watched) is tuple else (watched,))]
        return [check for check in checks if check is not None]

    def _check_of(self, key: Hashable) -> KeyCheck | None:
        """The check of `key` that has yet to come to its end."""
        check = self.checks.get(key)
        return None if check is None or check.is_over else check

    def watch(self, operation: Operation, watched: Watched) -> bool:
        """Has an operation that was tried wait; whether it has ended all the same."""
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
                self._note_keys(operation, watched)
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
        if self.observer is not None and (timeout is None or timeout > LONG_TIMEOUT):
            self.notes.started[operation] = now
        operation._wheel_when = when
        if bucket is None or bucket is self.wheel.never:
            operation._wheel_bucket = None
        else:
            operation._wheel_bucket = bucket
            bucket[operation] = None
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
        self._note_keys(operation, watched)
        room = self.room
        if operation._op_state is COMPLETED or self.observed:
            room.conclude(operation)
        elif room.unsettled and room.current is None:
            room.settle()

    def _note_keys(self, operation: Operation, watched: Watched) -> None:
        if self.observed:
            operation._op_places = watched

    # -- trying

    def refuse_true(self, operation: Operation) -> NoReturn:
        """Raises for a try that said yes and did nothing: the operation would wait for its deadline."""
        raise TypeError(f"try_complete of {operation!r} returned true, but did not call force_complete()")

    def try_failed(self, operation: Operation, error: BaseException) -> None:
        """Ends an operation whose `try_complete` raised. Whoever tried it concludes it; after an exit, the next turn does."""
        if operation._op_state is PENDING:
            claim(operation, CANCELLED)
            self.cancelled += 1
            try:
                fail(operation, error)
            finally:
                if operation._op_waiters is not None:
                    answer(operation)
            return
        # It was claimed before it raised, so its outcome stands.
        if isinstance(error, (SystemExit, KeyboardInterrupt)):
            self.room.put_off(operation)
        self._report(f"try_complete of {operation!r} raised", error)

    def expire(self, operation: Operation) -> None:
        """Ends an operation whose deadline has come: a last try, and only then expiry."""
        room = self.room
        room.current = operation
        try:
            try:
                if operation.try_complete() and operation._op_state is PENDING:
                    self.refuse_true(operation)
            except BaseException as error:
                self.try_failed(operation, error)
            if operation._op_state is PENDING:
                claim(operation, EXPIRED)
                self.expired += 1
                run_hooks(operation)
                if self.observed:
                    self.tell(operation, DEADLINE)
            else:
                if operation._op_state is COMPLETED:
                    self.missed_triggers += 1
                elif self.observer is not None:
                    self.notes.retried(operation)
                self.conclude(operation, DEADLINE if operation._op_state is COMPLETED else NOTHING)
        finally:
            room.current = None
        # Others may be due in this turn as well, so what the hooks have set off is left to the next one.
        if room.unsettled:
            room.continue_later()

    # -- ending

    def conclude(self, operation: Operation, cause: Hashable = NOTHING) -> None:
        """Runs the hooks of the `current` operation, which has been claimed, and tells the observer."""
        if operation._op_state is not CANCELLED:
            run_hooks(operation)
        if self.observed:
            self.tell(operation, cause)

    def tell(self, operation: Operation, cause: Hashable = NOTHING) -> None:
        """Tells whoever wants to know that an operation has ended and been answered."""
        if self.drained and not len(self.watchers):
            for future in self.drained:
                if not future.done():
                    future.set_result(None)
        if self.observer is not None:
            operation._op_places = keys_of(operation._op_places)
            self.notes.cause = cause
            try:
                self.observer.operation_finished(operation)
            except BaseException as error:
                self._report(f"operation_finished of {self.observer!r} raised", error)
            finally:
                self.notes.forget(operation)
                operation._op_places = NO_PLACES

    def tell_checked(self, key: Hashable, tried: int, completed: int) -> None:
        """Tells the observer of a check."""
        assert self.observer is not None
        room = self.room
        room.current = NOBODY
        try:
            self.observer.keys_checked(key, tried, completed)
        except BaseException as error:
            self._report(f"keys_checked of {self.observer!r} raised", error)
        finally:
            room.current = None

    def tell_of_one(self, operation: Operation, key: Hashable) -> None:
        """Tells of a check of `key` that tried one operation, the `current` one."""
        completed = operation._op_state is COMPLETED
        observer, notes = self.observer, self.notes
        if completed and observer is not None and not (self.drained or notes.retries or notes.started):
            # As below, in fewer calls: the common case.
            places = operation._op_places
            if type(places) is tuple or type(places) is Chunk:
                operation._op_places = keys_of(places)
            notes.cause = key
            try:
                observer.operation_finished(operation)
            except BaseException as error:
                self._report(f"operation_finished of {observer!r} raised", error)
            operation._op_places = NO_PLACES
            self.room.current = NOBODY
            try:
                observer.keys_checked(key, 1, 1)
            except BaseException as error:
                self._report(f"keys_checked of {observer!r} raised", error)
            return
        if completed:
            self.tell(operation, key)
        else:
            if self.observer is not None:
                self.notes.retried(operation)
            if operation._op_state is not PENDING:
                self.tell(operation)
        if self.observer is not None:
            self.tell_checked(key, 1, int(completed))

    def _report(self, message: str, error: BaseException | None) -> None:
        context: dict[str, Any] = {"message": f"{self.name}: {message}"}
        if error is not None:
            context["exception"] = error
        self.wheel.loop.call_exception_handler(context)
        if isinstance(error, (SystemExit, KeyboardInterrupt)):
            self.room.continue_later()
            raise error

    # -- many operations

    def check(self, key: Hashable) -> int:
        """Tries who waits for `key`, a portion now and the rest in the next turns; how many completed now."""
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

    def check_later(self, key: Hashable, by_thread: bool = False) -> None:
        """Has `key` checked when the hook that is running has returned, and what was put off before it is done."""
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
            self._report(f"cannot find the key {check.key!r} again, which was checked", error)
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
                self._report(f"cannot check {key!r}, which another thread has named", error)
        if self.room.unsettled:
            self.room.settle()

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
    """Each key once; all of them if they cannot be compared, which shows when they are checked."""
    keys = list(keys)
    try:
        return list(dict.fromkeys(keys))
    except Exception:
        return keys
