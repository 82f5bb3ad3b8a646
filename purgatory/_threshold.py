"""Waiting until a key's value has reached a threshold: offsets, versions, sequence numbers, watermarks.

Most conditions in servers have this form, and then nobody needs to be tried: the waiters of a key are kept in the order of
their thresholds, and an advance takes them off the front. What is above the new value is not looked at.

    the value of "orders" is 41, and for it wait      42: A, D     45: B     60: C
    advance("orders", 47) -> 3                        A, D and B get 47, in this order; C waits on
    wait("orders", 46)                                returns 47 at once
    advance("orders", 46)                             ValueError, and nothing has changed: values never fall

The order is kept in *runs*: sorted lists of up to 512 different thresholds, where Python's `bisect` finds a place with
O(log n) comparisons and C moves at most 4 KB to make room. Equal thresholds share a place, in order of arrival. A heap
would do, but its `pop` is what an advance does most, and costs it O(log n) cold steps; here it is the first of a list.

Whoever takes a waiter out of its run decides its outcome, and nobody else finds it there: that is what makes an outcome
the only one. An advance takes all that it reaches in one go, a slice of each run; waking them is bounded work per turn of
the loop, so of very many the rest is woken in the next turns, in order. It is decided all the same, so neither a deadline
nor a `fail` that comes meanwhile changes what they get.

Source: Kafka, `raft/internals/ThresholdPurgatory.java`, a skip list of (threshold, serial number) for one log; and the
index of Consul's blocking queries: who asks again names the version that he has seen, so what comes between two questions
is not lost. Hence a key's value is remembered until it is told to be forgotten.
"""

from asyncio import Future, sleep
from asyncio import wait as until_done
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from contextvars import Context
from dataclasses import dataclass
from itertools import islice, pairwise
from math import ceil, isnan
from operator import index, itemgetter
from threading import Lock, get_ident
from types import TracebackType
from typing import Any, Final, Generic, Protocol, TypeVar, cast, final

from purgatory._errors import OperationCancelled, OperationTimeout, PurgatoryClosed, PurgatoryFull
from purgatory._operation import CANCELLED, EXPIRED, Failure
from purgatory._signals import Signals
from purgatory._timer import PORTION, LoopWheel
from purgatory._wheel import DEFAULT_WHEEL_SIZE, Entry


class Ordered(Protocol):
    """What values are: all those of a key can be compared with each other, and are in one order."""

    def __lt__(self, other: Any, /) -> bool: ...
    def __le__(self, other: Any, /) -> bool: ...


K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Ordered)

# -- what decides: no loop, no clock


UNKNOWN: Final[Any] = object()
"""The value of a key that has none."""

LONGEST_RUN: Final = 512

_last = itemgetter(-1)


def has_reached(key: object, value: Any, threshold: Any) -> bool:
    """Whether a key whose value is `value` has reached `threshold`.

    Raises:
        ValueError: `threshold` is NaN.
        TypeError: the two cannot be compared, or are not in one order, as two sets may be.
    """
    try:
        if threshold != threshold:
            raise ValueError(f"cannot wait for {key!r} to reach {threshold!r}: nothing ever does; {_it_has(value)}")
        if value is UNKNOWN:
            return False
        if threshold <= value:
            return True
        if value < threshold:
            return False
    except (TypeError, ArithmeticError) as error:  # the latter is what Decimal says of a signalling NaN
        raise TypeError(f"cannot tell whether {key!r} has reached {threshold!r}: {_it_has(value)}, and {error}") from error
    raise TypeError(f"cannot tell whether {key!r} has reached {threshold!r}: {_it_has(value)}, neither below nor past it")


def check_advance(key: object, value: Any, known: Any) -> None:
    """Sees to it that a key whose value is `known` may go on to `value`.

    Raises:
        ValueError: `value` is NaN, or below `known`.
        TypeError: the two cannot be compared.
    """
    try:
        if value == value if known is UNKNOWN else known <= value:
            return
        why = "values never go backwards" if value == value else "NaN is no value"
    except (TypeError, ArithmeticError) as error:
        raise TypeError(f"cannot advance {key!r} to {value!r}: {_it_has(known)}, and {error}") from error
    raise ValueError(f"cannot advance {key!r} to {value!r}: {_it_has(known)}, and {why}")


def _it_has(value: Any) -> str:
    return "it has no value" if value is UNKNOWN else f"it has {value!r}"


class Waits(Protocol):
    """Who waits in a line."""

    threshold: Any


Place = Waits | dict[Waits, None]
"""The one who waits for a threshold, or several in order of arrival."""


class Run(list[Any]):
    """Different thresholds, ascending, and who waits for each."""

    __slots__ = ("places", "size")

    def __init__(self, thresholds: Iterable[Any], places: list[Place], size: int) -> None:
        super().__init__(thresholds)
        self.places = places
        self.size = size
        """How many waiters there are."""


class Line:
    """A key, its value, and those who wait for it, by threshold and then by arrival."""

    __slots__ = ("key", "runs", "value")

    def __init__(self, key: Any) -> None:
        self.key = key
        self.value: Any = UNKNOWN
        self.runs: list[Run] = []
        """Ascending; none is empty."""

    def join(self, waiter: Waits) -> None:
        """Lets `waiter` wait. Cost: O(log n) comparisons.

        Raises:
            TypeError: its threshold cannot be compared with those of others; nothing has changed.
        """
        threshold, runs = waiter.threshold, self.runs
        if not runs:
            runs.append(Run((threshold,), [waiter], 1))
            return
        try:
            at = min(bisect_left(runs, threshold, key=_last), len(runs) - 1)
            run = runs[at]
            place = bisect_left(run, threshold)
            is_new = place == len(run) or bool(threshold < run[place])
            if not is_new and not threshold <= run[place]:
                raise TypeError(f"it is neither below nor past {run[place]!r}")
        except (TypeError, ArithmeticError) as error:
            raise TypeError(f"cannot wait for {self.key!r} to reach {threshold!r}: others wait there, and {error}") from error
        run.size += 1
        if is_new:
            run.insert(place, threshold)
            run.places.insert(place, waiter)
            if len(run) > LONGEST_RUN:
                self._split(at)
        else:
            others = run.places[place]
            if type(others) is dict:
                others[waiter] = None
            else:
                run.places[place] = {cast(Waits, others): None, waiter: None}

    def _split(self, at: int) -> None:
        run, half = self.runs[at], LONGEST_RUN // 2
        upper = Run(run[half:], run.places[half:], _count(run.places[half:]))
        del run[half:], run.places[half:]
        run.size -= upper.size
        self.runs.insert(at + 1, upper)

    def leave(self, waiter: Waits) -> bool:
        """Takes `waiter` out; False if another came first. Cost: O(log n) comparisons."""
        threshold, runs = waiter.threshold, self.runs
        at = bisect_left(runs, threshold, key=_last)
        if at == len(runs):
            return False
        run = runs[at]
        place = bisect_left(run, threshold)
        waiting = run.places[place]
        if type(waiting) is dict:
            if waiter not in waiting:
                return False
            del waiting[waiter]
        elif waiting is not waiter:
            return False
        run.size -= 1
        if waiting is waiter or not waiting:
            del run[place], run.places[place]
            if not run:
                del runs[at]
        return True

    def advance(self, value: Any) -> tuple[int, list[Place]]:
        """Takes out those whose threshold is at most `value`: how many there are, and where they stood, in order.

        Cost: one comparison if there is none; otherwise one for each run, and O(log n) of those it takes from the last.

        Raises:
            ValueError, TypeError: see `check_advance`; nothing has changed.
        """
        check_advance(self.key, value, self.value)
        runs = self.runs
        try:
            whole, part = _reached(runs, value) if runs and runs[0][0] <= value else (0, 0)
        except (TypeError, ArithmeticError) as error:
            raise TypeError(f"cannot advance {self.key!r} to {value!r}: {_it_has(self.value)}, and {error}") from error
        self.value = value
        if not whole and not part:
            return NOBODY
        size, places = _join(runs[:whole]) if whole else (0, list[Place]())
        if whole:
            del runs[:whole]
        if part:
            run = runs[0]
            first = run.places[:part]
            del run[:part], run.places[:part]
            reached = _count(first)
            run.size -= reached
            size += reached
            places += first
        return size, places

    def clear(self) -> tuple[int, list[Place]]:
        """Takes everybody out: how many there are, and where they stood, in order. Cost: one pointer for each."""
        runs, self.runs = self.runs, []
        return _join(runs)

    def _check(self, waiters: list[Any]) -> None:
        """Asserts the whole invariant, and appends who waits to `waiters`. For tests."""
        thresholds = [threshold for run in self.runs for threshold in run]
        assert all(low < high for low, high in pairwise(thresholds))
        assert self.value is UNKNOWN or not thresholds or self.value < thresholds[0]
        assert self.value is not UNKNOWN or thresholds
        for run in self.runs:
            assert 0 < len(run) == len(run.places) <= LONGEST_RUN and run.size == _count(run.places)
            for threshold, waiting in zip(run, run.places, strict=True):
                several: list[Any] = list(waiting) if type(waiting) is dict else [waiting]
                assert several and all(waiter.line is self and waiter.threshold == threshold for waiter in several)
                waiters += several


def _reached(runs: list[Run], value: Any) -> tuple[int, int]:
    """How many of `runs` are wholly at most `value`, and how many thresholds of the next one; the very first one is."""
    whole = 0
    for run in runs:
        if not run[-1] <= value:
            break
        whole += 1
    else:
        return whole, 0
    if whole and not run[0] <= value:
        return whole, 0
    # Looked for from its front, as most advances are small.
    bound = 1
    while run[bound] <= value:
        bound *= 2
        if bound >= len(run):
            bound = len(run) - 1
            break
    return whole, bisect_right(run, value, bound // 2 + 1, bound)


NOBODY: Final = (0, list[Place]())


def _count(places: list[Place]) -> int:
    return sum(len(waiting) if type(waiting) is dict else 1 for waiting in places)


def _join(runs: list[Run]) -> tuple[int, list[Place]]:
    size, places = 0, list[Place]()
    for run in runs:
        size += run.size
        places += run.places
    return size, places


# -- what waits, and wakes up


class Waiter(Entry):
    """One `wait`, while it waits."""

    __slots__ = ("future", "line", "purgatory", "threshold")

    def __init__(self, purgatory: "ThresholdPurgatory[Any, Any]", line: Line, threshold: Any) -> None:
        self.purgatory = purgatory
        self.line = line
        self.threshold = threshold
        self.future: Future[Any] = purgatory._wheel.loop.create_future()
        """Its result is the value, a `Failure`, or how else it ended: `EXPIRED` or `CANCELLED`."""
        self._wheel_bucket = None

    def _wheel_due(self) -> None:
        self.purgatory._expire(self)

    def wake(self, outcome: Any) -> None:
        """Lets `wait` return, or raise; the waiter is out of its line."""
        bucket = self._wheel_bucket
        if bucket is not None:
            del bucket[self]
            self._wheel_bucket = None
            if not bucket and not bucket.wheel.resting:
                bucket.wheel.emptied()
        future = self.future
        if not future.done():  # as it is if the task that waits was cancelled
            future.set_result(outcome)


def _one_by_one(places: list[Place]) -> Iterator[Waiter]:
    for waiting in places:
        yield from cast("Iterable[Waiter]", waiting if type(waiting) is dict else (waiting,))


@final
@dataclass(frozen=True, slots=True)
class ThresholdStatistics:
    """What a threshold purgatory has done so far, and what is in it now."""

    name: str
    pending: int
    """Waits that nothing has ended yet."""
    unanswered: int
    """Waits that have ended, but whose tasks are yet to be woken, in the next turns of the loop."""
    keys: int
    """Keys that have a value or are waited for."""
    completed: int
    """Waits whose threshold was reached, before they began or later."""
    failed: int
    expired: int
    cancelled: int
    """Waits whose task was cancelled, or that `aclose` ended."""
    wake_ups: int
    """Callbacks that the buckets of the wheel had from the loop."""
    moves: int
    """How often a wait was moved to a narrower bucket."""


@final
class ThresholdPurgatory(Generic[K, V]):
    """Holds those who wait for a key's value to reach a threshold, until it does or their deadline comes, exactly once.

    The values of a key never fall, and are remembered, so whoever names the threshold that he waits for misses nothing
    between two waits. They are anything that is in one order and does not change: numbers, strings, tuples of them.

    Bound to the running event loop at first use; every method but `advance_threadsafe` belongs on its thread. As an async
    context manager it is closed on exit.

    Args:
        name: for errors, logs and statistics.
        tick: the grain of deadlines in seconds, positive and finite: a wait expires at most so late.
        wheel_size: how many buckets a level of the timing wheel has in reach, at least 2.
        max_pending: how many may wait at once; `None` for no limit.
        max_keys: how many keys may have a value or be waited for at once; `None` for no limit. One more is refused: to
            forget another one silently would lose the very update that somebody is about to ask for. `forget` makes room.

    Raises:
        ValueError, TypeError: an argument is out of its bounds or of another type.
    """

    __slots__ = (
        "__weakref__",
        "_arrived",
        "_cancelled",
        "_closed",
        "_completed",
        "_continuing",
        "_drained",
        "_expired",
        "_failed",
        "_is_running",
        "_lines",
        "_lock",
        "_max_keys",
        "_max_pending",
        "_pending",
        "_received",
        "_signals",
        "_thread_id",
        "_to_wake",
        "_unanswered",
        "_wheel",
        "name",
    )

    def __init__(
        self,
        name: str = "thresholds",
        *,
        tick: float = 0.001,
        wheel_size: int = DEFAULT_WHEEL_SIZE,
        max_pending: int | None = None,
        max_keys: int | None = None,
    ) -> None:
        for limit, number in (("max_pending", max_pending), ("max_keys", max_keys)):
            if number is not None and index(number) < 1:
                raise ValueError(f"{limit} must be at least 1, or None for no limit, not {number!r}")
        self.name = name
        self._max_pending = max_pending
        self._max_keys = max_keys
        self._wheel = wheel = LoopWheel(tick, wheel_size)
        self._thread_id: int | None = None
        self._is_running = wheel.is_running
        self._lines: dict[Hashable, Line] = {}
        """Those that have a value or waiters."""
        self._pending = self._completed = self._failed = self._expired = self._cancelled = 0
        self._to_wake: deque[tuple[Iterator[Waiter], Any]] = deque()
        """Waiters that are out of their line, with their outcome."""
        self._unanswered = 0
        """How many that are."""
        self._continuing = False
        self._closed = False
        self._drained: Future[None] | None = None
        """Is done when nothing is pending or unanswered any more; set by `aclose`, which waits for that."""
        self._lock = Lock()
        self._arrived: dict[Any, Any] = {}
        """Under the lock: the values that other threads have named."""
        self._received: deque[tuple[Any, Any]] = deque()
        """The same on the loop, to be applied."""
        self._signals = Signals(wheel, self._receive)

    async def wait(self, key: K, threshold: V, timeout: float | None = None) -> V:
        """Waits until the value of `key` is at least `threshold`.

        Among those who wait for equal thresholds of a key, who comes first is served first.

        Args:
            key: need not have a value yet.
            threshold: of the kind of the key's values.
            timeout: in seconds; `None` and `inf` for no limit, zero and less to look once.

        Returns:
            The value that reached it: the one that the key has, at once, or else the one that it is advanced to.

        Cost: O(log n) comparisons with the thresholds that others wait for on this key, when it begins to wait and when
        it ends early.

        Raises:
            OperationTimeout: a `TimeoutError`; the threshold was not reached in time.
            OperationCancelled: `aclose` ended the wait.
            BaseException: what `fail` was given.
            PurgatoryClosed: `aclose` was called before.
            PurgatoryFull: it would have to wait, and `max_pending` do already, or for one key more than `max_keys`.
            ValueError, TypeError: the threshold is NaN, or cannot be compared with the key's value or with other
                thresholds; `timeout` is NaN; `key` is not hashable.
            WrongLoop: called from another loop or thread than the first time.
        """
        is_running = self._is_running
        if get_ident() != self._thread_id or not is_running():
            self._bind(f"wait for {key!r}")
        if self._closed:
            raise PurgatoryClosed(f"cannot wait for {key!r} to reach {threshold!r}: {self.name} is closed")
        if timeout != timeout:
            raise ValueError("timeout cannot be NaN")
        line = self._lines.get(key)
        value = UNKNOWN if line is None else line.value
        if has_reached(key, value, threshold):
            self._completed += 1
            return cast(V, value)
        wheel, when = self._wheel, None
        if timeout is not None:
            when = (now := wheel.time()) + timeout
            if when <= now:
                self._expired += 1
                raise OperationTimeout(f"{key!r} has not reached {threshold!r}: {_it_has(value)}")
        waiter = self._join(key, line, threshold)
        if when is not None:
            try:
                bucket = wheel.recent[ceil(when * wheel.rate)]
            except (KeyError, OverflowError):
                bucket = wheel.bucket_at(when)
            waiter._wheel_when = when
            waiter._wheel_bucket = bucket
            bucket[waiter] = None
        try:
            outcome = await waiter.future
        except BaseException:
            # If this is a generator being closed when its loop is gone, there is nothing left to clean up.
            if get_ident() == self._thread_id and self._is_running():
                self._abandon(waiter)
            raise
        if outcome is EXPIRED:
            raise OperationTimeout(f"{key!r} did not reach {threshold!r} within {timeout} s: {_it_has(self._known(key))}")
        if outcome is CANCELLED:
            raise OperationCancelled(f"{key!r} did not reach {threshold!r}: {self.name} was closed")
        if type(outcome) is Failure:
            try:
                raise outcome.exception.with_traceback(outcome.traceback)
            finally:
                del outcome, waiter  # which would make a cycle with the exception's traceback
        return cast(V, outcome)

    def advance(self, key: K, value: V) -> int:
        """Sets the value of `key`, and completes all who wait for a threshold of at most that, in order of threshold and
        arrival.

        Returns:
            How many it completed. All of them have ended when it returns, and none can expire or fail any more; of very
            many, 512 are woken at once and the rest in the next turns of the loop, as many in each.

        Cost: that of those it completes; if it completes none, one comparison, however many wait for more.

        Raises:
            ValueError: `value` is below the one that the key has, or NaN.
            TypeError: it cannot be compared with that, or with what is waited for; or `key` is not hashable.
            PurgatoryFull: `max_keys` keys have a value or are waited for, and this is not one of them.
            WrongLoop: called from another loop or thread than the first time, or outside any loop.
            In each case nothing has changed.
        """
        is_running = self._is_running
        if get_ident() != self._thread_id or not is_running():
            self._bind(f"advance {key!r}")
        line = self._lines.get(key)
        if line is None:
            check_advance(key, value, UNKNOWN)
            line = self._lines[key] = self._new_line(f"advance {key!r} to {value!r}", key)
            line.value = value
            return 0
        count, places = line.advance(value)
        if count:
            self._completed += count
            self._end(count, places, value)
        return count

    def advance_threadsafe(self, key: K, value: V) -> None:
        """Has `advance(key, value)` called on the loop soon; to be called from any thread.

        However many calls come before the loop wakes up, it is woken once and advances each key once, to the greatest
        value named. What the key has passed by then is ignored, since threads overtake each other; what `advance` raises
        otherwise goes to the loop's exception handler. Values named before first use wait for that.

        Raises:
            ValueError: `value` is NaN.
            TypeError: it cannot be compared with one named before; or `key` is not hashable.
        """
        check_advance(key, value, UNKNOWN)
        if self._wheel.thread_id is not None and self._wheel.loop.is_closed():
            return
        with self._lock:
            if not has_reached(key, self._arrived.get(key, UNKNOWN), value):
                self._arrived[key] = value
        self._signals.put(self.name)

    def value(self, key: K) -> V | None:
        """The value of `key`, or `None` if it has none. Cost: O(1)."""
        value = self._known(key)
        return None if value is UNKNOWN else cast(V, value)

    def _known(self, key: K) -> Any:
        line = self._lines.get(key)
        return UNKNOWN if line is None else line.value

    def fail(self, key: K, exception: BaseException) -> int:
        """Ends every wait for `key` with `exception`; the value of the key stays, and new waits are welcome.

        Returns:
            How many it ended. As with `advance`, of very many the rest is woken in the next turns of the loop.

        Raises:
            TypeError: `exception` is not an exception, but a class for instance; or `key` is not hashable.
            WrongLoop: called from another loop or thread than the first time, or outside any loop.
        """
        if not isinstance(exception, BaseException):
            raise TypeError(f"cannot fail {key!r} with {exception!r}: it is not an instance of an exception")
        self._bind(f"fail {key!r}")
        line = self._lines.get(key)
        count = 0 if line is None else self._end_all(line, Failure(exception))
        self._failed += count
        return count

    def forget(self, key: K) -> bool:
        """Forgets the value of `key`; it may begin anew, at a lower one.

        Those who wait for the key wait on, for the values that are to come; to tell them, call `fail` as well.

        Returns:
            Whether it had a value.

        Raises:
            TypeError: `key` is not hashable.
            WrongLoop: called from another loop or thread than the first time, or outside any loop.
        """
        self._bind(f"forget {key!r}")
        line = self._lines.get(key)
        if line is None or line.value is UNKNOWN:
            return False
        line.value = UNKNOWN
        self._drop_if_vacant(line)
        return True

    async def aclose(self, drain: float = 0.0) -> int:
        """Refuses new waits, lets those that are pending end by themselves for a while, then ends the rest with
        `OperationCancelled`.

        When it returns, nothing is pending and every wait has been answered. If its own task is cancelled, it ends the
        rest at once before it raises. Calling it again is allowed, also while it drains. Values are kept.

        Args:
            drain: how long pending waits may take, in seconds; zero and more.

        Returns:
            How many waits this call ended.

        Raises:
            ValueError: `drain` is negative or NaN; nothing has changed.
            WrongLoop: called from another loop or thread than the first time.
        """
        if isnan(drain) or drain < 0.0:
            raise ValueError(f"drain must be zero or more seconds, not {drain!r}")
        self._bind(f"close {self.name}")
        self._closed = True
        ended = 0
        try:
            if drain > 0.0:
                await self._until_drained(drain)
            portion = PORTION
            for line in list(self._lines.values()) if self._pending else ():
                count = self._cancel(line)
                ended += count
                portion -= count or 1
                if portion <= 0:
                    portion = PORTION
                    await sleep(0)
            await self._until_drained(None)
        except BaseException:
            for line in list(self._lines.values()):
                self._cancel(line)
            self._wake(self._unanswered)
            raise
        return ended

    async def __aenter__(self) -> "ThresholdPurgatory[K, V]":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    @property
    def pending(self) -> int:
        """How many waits nothing has ended yet. Exact. Cost: O(1)."""
        return self._pending

    def statistics(self) -> ThresholdStatistics:
        """A snapshot. Cost: O(1)."""
        return ThresholdStatistics(
            name=self.name,
            pending=self._pending,
            unanswered=self._unanswered,
            keys=len(self._lines),
            completed=self._completed,
            failed=self._failed,
            expired=self._expired,
            cancelled=self._cancelled,
            wake_ups=self._wheel.wake_ups,
            moves=self._wheel.moves,
        )

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<ThresholdPurgatory {self.name!r} {state} pending={self._pending} keys={len(self._lines)}>"

    # -- beginning to wait

    def _bind(self, doing: str) -> None:
        """Binds the purgatory to the running loop, or raises `WrongLoop` if it is bound to another one."""
        wheel = self._wheel
        is_new = wheel.thread_id is None
        wheel.bind(doing)
        self._thread_id, self._is_running = wheel.thread_id, wheel.is_running
        if is_new:
            self._receive()

    def _join(self, key: K, line: Line | None, threshold: V) -> Waiter:
        if self._max_pending is not None and self._pending >= self._max_pending:
            raise PurgatoryFull(
                f"cannot wait for {key!r} to reach {threshold!r}: {self._max_pending} waits are pending in {self.name}"
            )
        is_new = line is None
        if line is None:
            line = self._new_line(f"wait for {key!r} to reach {threshold!r}", key)
        waiter = Waiter(self, line, threshold)
        line.join(waiter)
        if is_new:
            self._lines[key] = line
        self._pending += 1
        return waiter

    def _new_line(self, doing: str, key: K) -> Line:
        """A line that is yet to be put into `_lines`."""
        if self._max_keys is not None and len(self._lines) >= self._max_keys:
            raise PurgatoryFull(f"cannot {doing}: {self._max_keys} other keys are in {self.name}")
        return Line(key)

    # -- ending

    def _end(self, count: int, places: list[Place], outcome: Any) -> None:
        """Wakes `count` waiters that were taken out of their line: a portion now, unless others are to be woken before."""
        self._pending -= count
        if count <= PORTION and not self._unanswered:
            for waiting in places:
                for waiter in waiting if type(waiting) is dict else (waiting,):
                    cast(Waiter, waiter).wake(outcome)
        else:
            is_first = not self._unanswered
            self._to_wake.append((_one_by_one(places), outcome))
            self._unanswered += count
            if is_first:
                self._wake(PORTION)
            self._continue_later()
        if self._drained is not None:
            self._tell_if_drained()

    def _end_all(self, line: Line, outcome: Any) -> int:
        count, places = line.clear()
        if count:
            self._drop_if_vacant(line)
            self._end(count, places, outcome)
        return count

    def _cancel(self, line: Line) -> int:
        count = self._end_all(line, CANCELLED)
        self._cancelled += count
        return count

    def _expire(self, waiter: Waiter) -> None:
        """Ends a wait whose deadline has come, unless it has ended and is only yet to be woken."""
        self._expired += self._end_one(waiter, EXPIRED)

    def _abandon(self, waiter: Waiter) -> None:
        """Ends a wait whose task was cancelled, unless it has ended."""
        self._cancelled += self._end_one(waiter, CANCELLED)

    def _end_one(self, waiter: Waiter, outcome: Any) -> bool:
        if not waiter.line.leave(waiter):
            return False
        self._pending -= 1
        self._drop_if_vacant(waiter.line)
        waiter.wake(outcome)
        if self._drained is not None:
            self._tell_if_drained()
        return True

    def _drop_if_vacant(self, line: Line) -> None:
        if line.value is UNKNOWN and not line.runs:
            del self._lines[line.key]

    def _tell_if_drained(self) -> None:
        if self._drained is not None and not (self._pending or self._unanswered or self._drained.done()):
            self._drained.set_result(None)

    async def _until_drained(self, timeout: float | None) -> None:
        """Waits until nothing is pending, and everybody has been woken."""
        if self._pending or self._unanswered:
            if self._drained is None:
                self._drained = self._wheel.loop.create_future()
            await until_done((self._drained,), timeout=timeout)

    # -- in the next turns of the loop

    def _wake(self, portion: int) -> None:
        """Wakes the next `portion` of those that have ended."""
        while self._to_wake and portion > 0:
            waiters, outcome = self._to_wake[0]
            woken = 0
            for waiter in islice(waiters, portion):
                waiter.wake(outcome)
                woken += 1
            self._unanswered -= woken
            if woken < portion:
                self._to_wake.popleft()
            portion -= woken
        if self._drained is not None:
            self._tell_if_drained()

    def _continue_later(self) -> None:
        if (self._to_wake or self._received) and not self._continuing:
            self._continuing = True
            self._wheel.loop.call_soon(self._continue, context=Context())

    def _continue(self) -> None:
        """Does a portion of what was put off; those who have ended come first."""
        self._continuing = False
        portion = PORTION
        if self._to_wake:
            self._wake(portion)
        else:
            while self._received and portion > 0:
                portion -= self._advance_received(*self._received.popleft()) or 1
        self._continue_later()

    def _receive(self, _: object = None) -> None:
        """Takes over what other threads have named."""
        with self._lock:
            arrived, self._arrived = self._arrived, {}
        self._received.extend(arrived.items())
        if not self._continuing:
            self._continue()

    def _advance_received(self, key: K, value: V) -> int:
        try:
            line = self._lines.get(key)
            return 0 if line is not None and has_reached(key, line.value, value) else self.advance(key, value)
        except Exception as error:
            message = f"{self.name}: cannot advance {key!r} to {value!r}, as another thread asked for"
            self._wheel.loop.call_exception_handler({"message": message, "exception": error})
            return 0

    def _check(self) -> None:
        """Asserts the whole invariant between turns of the loop. For tests. Cost: everything that waits."""
        waiters: list[Waiter] = []
        for key, line in self._lines.items():
            assert line.key is key
            line._check(waiters)
        assert self._pending == len(waiters)
        assert all(waiter._wheel_bucket is None or waiter in waiter._wheel_bucket for waiter in waiters)
        in_wheel = sum(waiter._wheel_bucket is not None for waiter in waiters)
        assert in_wheel <= len(self._wheel) <= in_wheel + self._unanswered
        assert bool(self._to_wake) >= bool(self._unanswered) and self._continuing >= bool(self._to_wake or self._received)
        self._wheel._check()
