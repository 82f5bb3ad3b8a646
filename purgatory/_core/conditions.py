"""The operations behind `wait_for` and `receive`: a condition, plain or asynchronous, and a value
that is delivered.

A check cannot await what an asynchronous predicate returns. So the waiting task awaits it, and from
then on calls the predicate itself, after each check that has requested a run:

    the task              run, false; no request: wait             run, false; requested: run, true:
                                                                   complete
    check_and_complete                                      request              request
    shortly before the    requests the last run, which finds a missed trigger
    deadline
    the deadline          ends the operation, and with it a run in progress, as `asyncio.timeout`
                          would

The operation is registered in the same step in which the predicate is called first, and stays
registered until it has ended, so the next run finds a change that came during a run. There is at
least one iteration of the loop between two runs.

Such a wait has one end, as any operation: a run that is true claims the operation. If that has
ended otherwise meanwhile, the caller gets that end, and the value goes to `give_back`.

Predicates run in the context of their wait, as with `asyncio.Condition.wait_for`. During a check
that is a copy of the waiting task's context.
"""

from asyncio import Future, InvalidStateError, current_task, events, isfuture, sleep
from collections.abc import Callable, Coroutine, Generator, Hashable, Iterable
from contextvars import copy_context
from inspect import isawaitable
from typing import Any, Final, TypeVar, final

from purgatory._core.arguments import describe, require_kind
from purgatory._core.errors import OperationCancelled, OperationTimeout
from purgatory._core.failure import Failure
from purgatory._core.home import Home
from purgatory._core.loop import call_on
from purgatory._core.observers import DEADLINE, FIRST_TRY, KEY, NO_KEY, Cause
from purgatory._core.operation import (
    EXITS,
    DelayedOperation,
    abandon,
    claim,
    fail,
    wake_owner,
)
from purgatory._core.states import CANCELLED, COMPLETED, PENDING
from purgatory._core.timeouts import Timeout, running_wheel
from purgatory._core.watch_lists import keys_of, unique_keys
from purgatory._core.wheel import TimerEntry

T = TypeVar("T")

NO_VALUE: Final[Any] = object()

LAST_RUN_WITHIN: Final = 0.1
"""The last run of an asynchronous predicate starts within the last tenth of the timeout."""

_PLAIN: Final = frozenset({bool, type(None), int, float, str, bytes, list, tuple, dict, set})
"""Types that are not awaitable; `inspect.isawaitable` costs more than most predicates."""


class Condition(DelayedOperation[T | None]):
    """Waits until a predicate is true; the result is its first true value.

    Attributes:
        keys: the watched keys.
        runs: the runs of an asynchronous predicate; None while the predicate is plain.
        value: the first true value, or None.
    """

    __slots__ = ("_op_kind", "context", "keys", "predicate", "runs", "value")

    def __init__(
        self,
        predicate: Callable[[], Any],
        keys: Iterable[Hashable],
        timeout: float | None,
        kind: str | None,
    ) -> None:
        if not callable(predicate):
            raise TypeError(f"predicate must be a function, got {describe(predicate)}")
        require_kind(kind)
        super().__init__(timeout)
        self._op_kind = kind
        self.predicate = predicate
        self.keys = keys_of(unique_keys(keys))
        self.context = copy_context()
        self.runs: Runs | None = None
        self.value: T | None = None

    def try_complete(self) -> bool:
        if self.runs is not None:
            self.runs.request()
            return False
        value = self.context.run(self.predicate)
        if type(value) not in _PLAIN and isawaitable(value):
            self.runs = Runs(value)
            wake_owner(self)
            return False
        if not value:
            return False
        self.value = value
        return self.force_complete()

    def on_complete(self) -> T | None:
        return self.value

    def _op_is_asynchronous(self) -> bool:
        return self.runs is not None

    def take_key(self) -> Any:
        """Key of the check that requested the next run; `NO_KEY` without one, and without
        observers."""
        record = self._op_record
        if record is None:
            return NO_KEY
        key, record.key = record.key, NO_KEY
        return key

    def __repr__(self) -> str:
        return f"<wait for {[*self.keys]!r} {self.state.value}>"


class Receiver(DelayedOperation[Any]):
    """Waits until a value is delivered under its key."""

    __slots__ = ("_op_kind", "key", "value")

    def __init__(self, key: Hashable, timeout: float | None, kind: str | None = None) -> None:
        require_kind(kind)
        super().__init__(timeout)
        self._op_kind = kind
        self.key = key
        self.value = NO_VALUE

    def _op_is_decided(self) -> bool:  # a receiver that `deliver` has counted gets the value
        return self.value is not NO_VALUE

    def try_complete(self) -> bool:
        return self._op_is_decided() and self.force_complete()

    def on_complete(self) -> Any:
        return self.value

    def received(self, value: Any, timeout: float | None) -> Any:
        """Its result `value`; raises `OperationTimeout` if it has expired."""
        if value is NO_VALUE:
            key = describe(self.key)
            raise OperationTimeout(f"nothing was delivered to {key} within {timeout} s")
        return value

    def __repr__(self) -> str:
        return f"<receive {self.key!r} {self.state.value}>"


class Runs(TimerEntry):
    """The runs of an asynchronous predicate. In the wheel of timeouts, this is the timer of the
    last one.

    Attributes:
        returned: the awaitable that the predicate has returned, until the waiting task awaits it.
        is_requested: whether a check has requested a run.
        is_last_due: whether the last run, shortly before the deadline, has to start.
        last_has_begun: whether the last run has started.
        longest: the duration of the longest run, in seconds.
        sleeper: the future that the waiting task awaits between two runs.
    """

    __slots__ = ("is_last_due", "is_requested", "last_has_begun", "longest", "returned", "sleeper")

    def __init__(self, returned: Any) -> None:
        self._timer_bucket = None
        self.returned = returned
        self.is_requested = self.is_last_due = self.last_has_begun = False
        self.longest = 0.0
        self.sleeper: Future[None] | None = None

    def close(self) -> None:
        """Ends what the predicate has returned, if no task awaits it."""
        if isinstance(self.returned, (Coroutine, Generator)):
            self.returned.close()
        elif isfuture(self.returned):
            self.returned.cancel()

    def request(self) -> None:
        """Requests a run, for a check."""
        self.is_requested = True
        self._wake()

    def _timer_expired(self) -> None:
        self.is_last_due = True
        self._wake()

    def _wake(self) -> None:
        if self.sleeper is not None and not self.sleeper.done():
            self.sleeper.set_result(None)

    async def value(self, time: Callable[[], float]) -> Any:
        """The value of the started run: awaits what the predicate has returned."""
        value, self.returned = self.returned, None
        if isawaitable(value):
            began = time()
            value = await value
            self.longest = max(self.longest, time() - began)
        return value

    async def requested(self, home: Home, condition: Condition[Any]) -> None:
        """Waits until a run is requested; for an iteration of the loop at least."""
        deadline, allowed = condition.deadline, condition._op_timeout
        if deadline is not None and allowed is not None and not self.last_has_begun:
            wheel, now = running_wheel().wheel, home._time()
            # At least a tick, because a run that takes no time could come after the deadline.
            ahead = max(2 * self.longest, wheel.clock.tick, home._wheel.clock.tick)
            when = deadline - min(ahead, LAST_RUN_WITHIN * allowed)
            if when <= now:
                self.is_last_due = True
            elif self._timer_bucket is None:
                wheel.add(self, when, now)
            else:
                wheel.reschedule(self, when, now)
        if self.is_requested or self.is_last_due:
            await sleep(0)
        else:
            self.sleeper = home._loop.create_future()
            await self.sleeper

    def begin(self) -> Cause:
        """Notes that a run starts; returns what it would end the wait by."""
        cause = KEY if self.is_requested else DEADLINE
        self.last_has_begun = self.last_has_begun or self.is_last_due
        self.is_requested = self.is_last_due = False
        return cause


async def run_until_true(
    home: Home, condition: Condition[T], runs: Runs, timeout: float | None
) -> T:
    """Runs an asynchronous predicate whenever that is requested, until it is true; returns its
    value.

    Raises:
        BaseException: the error of a wait that has ended otherwise; or of a run, which ends it.
    """
    loop = events.get_running_loop()
    limit = Timeout(None)
    over, ended = loop.create_future(), loop.create_future()
    home._async_waits[over] = current_task()

    def interrupt(_: object) -> None:  # a run in progress, as the deadline of a timeout would
        if not over.done():
            limit.reschedule(loop.time())

    ended.add_done_callback(interrupt)
    condition._op_owner = ended
    try:
        async with limit:
            if condition._op_state is not PENDING:
                interrupt(None)
            key = condition.take_key()  # of the check that has called the predicate first, if any
            cause = FIRST_TRY if key is NO_KEY else KEY
            while True:
                value = await runs.value(home._time)
                if condition._op_state is not PENDING:  # since it may swallow its cancellation
                    condition.value = value or None  # to be given back
                    break
                if cause is DEADLINE and runs.is_requested:  # a check came during the run
                    cause, key = KEY, condition.take_key()
                condition.value = value or None
                _end_run(home, condition, cause, key)
                if value:
                    return value  # type: ignore[no-any-return]
                await runs.requested(home, condition)
                if condition._op_state is not PENDING:
                    break
                cause, key = runs.begin(), condition.take_key()
                runs.returned = condition.predicate()
    except (Exception, *EXITS) as error:
        is_interrupt = limit.expired() and type(error) is TimeoutError
        if condition._op_state is PENDING:
            fail(condition, error)
        elif not isinstance(error, EXITS):
            raise end_error(condition, timeout) from (None if is_interrupt else error)
        raise
    finally:
        call_on(loop, _forget_runs, home, runs, over)
    raise end_error(condition, timeout)


def _forget_runs(home: Home, runs: Runs, over: Future[None]) -> None:
    """Ends what the runs of a wait have left: its entry among the waits that closing awaits, and the
    timer of the last run."""
    del home._async_waits[over]
    over.set_result(None)
    if runs._timer_bucket is not None:
        runs._timer_bucket.remove(runs)


def _end_run(home: Home, condition: Condition[Any], cause: Cause, key: Any) -> None:
    """Completes a wait after a run that was true. Notifies observers of the run, as of a check that
    has tried one operation."""
    keys, record, is_true = condition._op_keys, condition._op_record, condition.value is not None
    if is_true:
        claim(condition, home, COMPLETED, cause, key)
        home._dispatcher.perform(condition._op_finish)
        if cause is DEADLINE:
            home._count_missed_trigger(condition, keys_of(keys))
    elif record is not None:
        record.failed_tries += 1
    if key is not NO_KEY:
        home._notify_check(key, 1, int(is_true))


def end_error(condition: Condition[Any], timeout: float | None) -> BaseException:
    """Why a wait has ended without a value."""
    if type(failure := condition._op_result) is Failure:
        return failure.exception.with_traceback(failure.traceback)
    if condition.state is CANCELLED:
        return OperationCancelled(f"{describe(condition)} was cancelled")
    return OperationTimeout(
        f"the condition on {describe([*condition.keys])} did not hold within {timeout} s"
    )


@final
class Reply:
    """A value that is expected under a key; made by `Purgatory.expect`. A context manager: the
    value is accepted from entering on, and `await` it within the block.

    A cancelled `await` may be repeated within the block.
    """

    __slots__ = ("_receiver", "_timeout", "_watch")

    def __init__(
        self,
        watch: Callable[[Receiver, Iterable[Hashable]], bool],
        key: Hashable,
        timeout: float | None,
        kind: str | None,
    ) -> None:
        self._watch = watch
        self._receiver = Receiver(key, timeout, kind)
        self._timeout = timeout

    def __enter__(self) -> "Reply":
        self._watch(self._receiver, (self._receiver.key,))
        return self

    def __exit__(self, *_: object) -> None:
        abandon(self._receiver)

    def __await__(self) -> Generator[Any, None, Any]:
        """The value.

        Raises:
            OperationTimeout: a `TimeoutError`; nothing was delivered in time.
            OperationCancelled: the wait was ended by `cancel_for_key`, `aclose` or the end of the
                block.
            asyncio.InvalidStateError: the block has not been entered.
        """
        if self._receiver._op_home is None:
            raise InvalidStateError(f"cannot await {describe(self)}: its block was not entered")
        value = yield from self._receiver.__await__()
        return self._receiver.received(value, self._timeout)

    def __repr__(self) -> str:
        return f"<Reply {self._receiver.key!r} {self._receiver.state.value}>"
