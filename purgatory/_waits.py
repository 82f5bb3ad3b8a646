"""The engine room of a `ThresholdPurgatory`: its lines, its wheel, and waking those whose wait has ended.

An advance takes all that it reaches out of their line in one go; waking them is bounded work per turn of the loop, so of
very many the rest is woken in the next turns, in order. They are *unanswered* until then, but their outcome is decided,
so neither a deadline nor a `fail` that comes meanwhile changes it.

    advance("orders", 47) takes out 2,000    pending -2,000; 512 are woken, 1,488 unanswered
    their deadline comes                     they are in no line any more, so nothing happens
    the next three turns                     wake 512, 512 and 464; half as many in each if other threads name values
"""

from asyncio import AbstractEventLoop, Future
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextvars import Context
from itertools import islice, repeat
from typing import Any, cast, final

from purgatory._closing import tell_idle, until_idle
from purgatory._errors import PurgatoryFull
from purgatory._lines import UNKNOWN, Line, Place, check_advance, has_reached
from purgatory._observer import Observer
from purgatory._signals import Signals
from purgatory._slots import FULL, Entry
from purgatory._state import CANCELLED, EXPIRED
from purgatory._timer import PORTION, LoopWheel
from purgatory._wait_telling import WaitTeller


@final
class Waiter(Entry):
    """One `wait`, while it waits."""

    __slots__ = ("future", "line", "threshold", "waits")

    def __init__(self, waits: "Waits", line: Line, threshold: Any) -> None:
        self.waits = waits
        self.line = line
        self.threshold = threshold
        self.future: Future[Any] = waits.wheel.loop.create_future()
        """Its result is the value, a `Failure`, or how else it ended: `EXPIRED` or `CANCELLED`."""
        self._wheel_bucket = None

    def _wheel_due(self) -> None:
        self.waits.expire(self)

    def wake(self, outcome: Any) -> None:
        """Lets `wait` return, or raise; the waiter is out of its line."""
        bucket = self._wheel_bucket
        if bucket is not None:
            bucket.leave(self)
        future = self.future
        if not future.done():  # as it is if the task that waits was cancelled
            future.set_result(outcome)


@final
class Waits:
    """A threshold purgatory without the object that users hold: see there for the arguments."""

    __slots__ = (
        "_continuing",
        "_max_keys",
        "_max_pending",
        "_named",
        "_signals",
        "_to_wake",
        "cancelled",
        "closed",
        "completed",
        "expired",
        "failed",
        "lines",
        "name",
        "pending",
        "teller",
        "unanswered",
        "wheel",
        "when_idle",
    )

    def __init__(
        self, name: str, wheel: LoopWheel, max_pending: int | None, max_keys: int | None, observers: Sequence[Observer] = ()
    ) -> None:
        self.name = name
        self.wheel = wheel
        self.teller = WaitTeller(name, observers, self._report) if observers else None
        """Tells the observers, if there are any."""
        self._max_pending = max_pending
        self._max_keys = max_keys
        self.lines: dict[Hashable, Line] = {}
        """Those that have a value or waiters."""
        self.pending = self.completed = self.failed = self.expired = self.cancelled = 0
        self._to_wake: deque[tuple[Iterator[Waiter], Any]] = deque()
        """Waiters that are out of their line, with their outcome."""
        self.unanswered = 0
        """How many that are."""
        self._continuing = False
        self.closed = False
        self.when_idle: Future[None] | None = None
        """For `_closing`."""
        self._named: dict[Any, Any] = {}
        """The values that other threads have named, to be applied."""
        self._signals: Signals[tuple[Any, Any]] = Signals(wheel, self._receive, _greatest)

    def bind(self, doing: str) -> None:
        """Binds the wheel to the running loop, or raises `WrongLoop` if it is bound to another one."""
        if self.wheel.bind(doing, self.pending):
            if self.teller is not None:
                self.teller.bind(self.wheel.time)
            self._to_wake.clear()
            self.when_idle = None
            self.unanswered = 0
            self._continuing = False
            self._signals.restart()

    # -- beginning to wait

    def join(self, key: Any, line: Line | None, threshold: Any, when: float | None) -> Waiter:
        """Has a new waiter wait for `key`, whose line is `line` if it has one, until the loop's time is `when`.

        Raises:
            PurgatoryFull, TypeError: see `ThresholdPurgatory.wait`; nothing has changed.
        """
        if self._max_pending is not None and self.pending >= self._max_pending:
            raise PurgatoryFull(
                f"cannot wait for {key!r} to reach {threshold!r}: {self._max_pending} waits are pending in {self.name}"
            )
        is_new = line is None
        if line is None:
            line = self._new_line(f"wait for {key!r} to reach {threshold!r}", key)
        waiter = Waiter(self, line, threshold)
        line.join(waiter)
        if is_new:
            self.lines[key] = line
        self.pending += 1
        if when is not None:
            wheel = self.wheel
            bucket = wheel.last
            if not (bucket.after < when <= bucket.until and len(bucket) < FULL):
                bucket = wheel.bucket_at(when)
            bucket.join(waiter, when)
        if self.teller is not None:
            self.teller.began(waiter, when)
        return waiter

    def _new_line(self, doing: str, key: Any) -> Line:
        """A line that is yet to be put into `lines`."""
        if self._max_keys is not None and len(self.lines) >= self._max_keys:
            raise PurgatoryFull(f"cannot {doing}: {self._max_keys} other keys are in {self.name}")
        return Line(key)

    # -- ending

    def advance(self, key: Any, value: Any) -> int:
        """`ThresholdPurgatory.advance`, on its loop."""
        line = self.lines.get(key)
        if line is None:
            check_advance(key, value, UNKNOWN)
            line = self.lines[key] = self._new_line(f"advance {key!r} to {value!r}", key)
            line.value = value
            return 0
        count, places = line.advance(value)
        if count:
            self.completed += count
            self._end(count, places, value)
        return count

    def end_all(self, line: Line, outcome: Any) -> int:
        """Ends every wait in `line`; how many there were."""
        count, places = line.clear()
        if count:
            self.drop_if_vacant(line)
            self._end(count, places, outcome)
        return count

    def expire(self, waiter: Waiter) -> None:
        """Ends a wait whose deadline has come, unless it has ended and is only yet to be woken."""
        self.expired += self._end_one(waiter, EXPIRED)

    def abandon(self, waiter: Waiter) -> None:
        """Ends a wait whose task was cancelled, unless it has ended."""
        self.cancelled += self._end_one(waiter, CANCELLED)

    def drop_if_vacant(self, line: Line) -> None:
        """Forgets a line that has neither a value nor waiters."""
        if line.value is UNKNOWN and not line.segments:
            try:
                found = self.lines.pop(line.key, None)
            except BaseException as error:
                self._has_strayed(line, error)
            else:
                if found is not line:
                    if found is not None:
                        self.lines[found.key] = found
                    self._has_strayed(line, None)

    def _has_strayed(self, line: Line, error: BaseException | None) -> None:
        """Reports a line that cannot be found by its key any more; it stays, with nobody in it."""
        self._report(
            f"cannot find a {type(line.key).__name__} again that was a key: its hash, or what it equals, has changed", error
        )

    def _end(self, count: int, places: list[Place], outcome: Any) -> None:
        """Wakes `count` waiters that were taken out of their line: a portion now, unless others are to be woken before."""
        self.pending -= count
        if count <= PORTION and not self.unanswered:
            wake = Waiter.wake if self.teller is None else self.teller.wake
            for waiting in places:
                for waiter in waiting if type(waiting) is dict else (waiting,):
                    wake(cast(Waiter, waiter), outcome)
        else:
            is_first = not self.unanswered
            self._to_wake.append((_one_by_one(places), outcome))
            self.unanswered += count
            if is_first:
                self._wake(PORTION)
            self._continue_later()
        self._tell_if_idle()

    def _end_one(self, waiter: Waiter, outcome: Any) -> bool:
        if not waiter.line.leave(waiter):
            return False
        self.pending -= 1
        self.drop_if_vacant(waiter.line)
        if self.teller is None:
            waiter.wake(outcome)
        else:
            self.teller.wake_one(waiter, outcome)
        self._tell_if_idle()
        return True

    def _wake(self, portion: int) -> None:
        """Wakes the next `portion` of those that have ended."""
        wake = Waiter.wake if self.teller is None else self.teller.wake
        while self._to_wake and portion > 0:
            waiters, outcome = self._to_wake[0]
            woken = 0
            for waiter in islice(waiters, portion):
                wake(waiter, outcome)
                woken += 1
            self.unanswered -= woken
            if woken < portion:
                self._to_wake.popleft()
            portion -= woken
        self._tell_if_idle()

    # -- being closed: what `_closing` asks for

    @property
    def loop(self) -> AbstractEventLoop:
        return self.wheel.loop

    @property
    def is_idle(self) -> bool:
        return not (self.pending or self.unanswered)

    def refuse(self) -> None:
        self.closed = True

    def cancelling(self) -> Iterator[None]:
        for line in list(self.lines.values()) if self.pending else ():
            count = self.end_all(line, CANCELLED)
            self.cancelled += count
            yield from repeat(None, count)

    async def answer(self) -> None:
        await until_idle(self)

    def answer_at_once(self) -> None:
        self._wake(self.unanswered)

    def _tell_if_idle(self) -> None:
        if self.when_idle is not None and self.is_idle:
            tell_idle(self)

    # -- in the next turns of the loop

    def _continue_later(self) -> None:
        if (self._to_wake or self._named) and not self._continuing:
            self._continuing = True
            self.wheel.loop.call_soon(self._continue, context=Context())

    def _continue(self) -> None:
        """Does a portion of what was put off: those who have ended come first, but leave half of it to the others."""
        self._continuing = False
        portion = PORTION
        if self._to_wake:
            portion = portion // 2 if self._named else portion
            self._wake(portion)
        while self._named and portion > 0:
            key = next(iter(self._named))
            portion -= self._advance_named(key, self._named.pop(key)) or 1
        self._continue_later()

    # -- from other threads

    def advance_soon(self, key: Any, value: Any) -> None:
        """`ThresholdPurgatory.advance_threadsafe`."""
        hash(key)
        check_advance(key, value, UNKNOWN)
        self._signals.put((key, value))

    def _receive(self, named: Iterable[tuple[Any, Any]]) -> None:
        """Takes over what other threads have named."""
        for key, value in named:
            try:
                if not has_reached(key, self._named.get(key, UNKNOWN), value):
                    self._named[key] = value
            except Exception:
                self._advance_named(key, value)  # it cannot be compared with the other one; perhaps this is the right one
        if not self._continuing:
            self._continue()

    def _advance_named(self, key: Any, value: Any) -> int:
        try:
            line = self.lines.get(key)
            return 0 if line is not None and has_reached(key, line.value, value) else self.advance(key, value)
        except Exception as error:
            message = f"{self.name}: cannot advance {key!r} to {value!r}, as another thread asked for"
            self.wheel.loop.call_exception_handler({"message": message, "exception": error})
            return 0

    def _report(self, message: str, error: BaseException | None) -> None:
        context: dict[str, Any] = {"message": f"{self.name}: {message}"}
        if error is not None:
            context["exception"] = error
        self.wheel.loop.call_exception_handler(context)

    def _check(self) -> None:
        """Asserts the whole invariant between turns of the loop. For tests. Cost: everything that waits."""
        waiters: list[Waiter] = []
        for key, line in self.lines.items():
            assert line.key is key
            line._check(waiters)
        assert self.pending == len(waiters)
        assert all(waiter._wheel_bucket is None or waiter in waiter._wheel_bucket for waiter in waiters)
        in_wheel = sum(waiter._wheel_bucket is not None for waiter in waiters)
        assert in_wheel <= len(self.wheel) <= in_wheel + self.unanswered
        assert bool(self._to_wake) >= bool(self.unanswered) and self._continuing >= bool(self._to_wake or self._named)
        self.wheel._check()


def _one_by_one(places: list[Place]) -> Iterator[Waiter]:
    for waiting in places:
        yield from cast("Iterable[Waiter]", waiting if type(waiting) is dict else (waiting,))


def _greatest(named: Iterable[tuple[Any, Any]]) -> Iterable[tuple[Any, Any]]:
    """The greatest value of each key, and values that cannot be compared: that error appears when they are applied."""
    greatest: dict[Any, Any] = {}
    others = []
    for key, value in named:
        try:
            if not has_reached(key, greatest.get(key, UNKNOWN), value):
                greatest[key] = value
        except Exception:
            others.append((key, value))
    return [*greatest.items(), *others]
