"""One hook at a time on each event loop; what a hook sets off runs after it has returned, a portion per turn of the loop.

Hooks may call anything. If what they call ran at once, a chain of ten thousand completions would be a stack of ten thousand
frames, an operation could be entered twice, and the waiters of a key would be tried out of order. So while a hook runs,
whatever would run another one is put off, whichever purgatory of the loop it belongs to:

    IDLE ────> a hook runs ──────────────────────────> IDLE
                    │
                    └─ it set something off ─> SETTLING ─> IDLE
                                                  │  ^
                              after a portion     v  │  in the next turn
                                                 PUT OFF

    IDLE       `current` is None, `unsettled` is false
    a hook     `current` is the operation whose hook it is
    SETTLING   `unsettled` is true: 512 tries and hooks at most
    PUT OFF    the rest waits for the next turn, for which the loop was asked once; a call from outside meanwhile does
               its own work and none of the backlog

Three kinds of work are put off. Where there are several they take turns, in slices of 128, so that none can block another:

    claimed    operations whose hooks have yet to run
    checks     keys to be checked, begun or not: a slice of each, then it goes to the end of the line
    named      the same for keys that other threads have named

A key that a thread names behind `n` others is therefore begun after at most `n` slices of each kind. Each key of a purgatory
stands in one line once, however often it was asked for.

Kafka runs nested completions on the stack of the caller, under locks, and has met both deadlocks and deep recursion
(KAFKA-14197); Redis keeps a list of ready keys, as here.
"""

from asyncio import AbstractEventLoop, Future, _get_running_loop
from collections import deque
from contextvars import Context
from math import inf
from threading import local
from typing import Any, Final, Protocol, final

from purgatory._failure import Failure
from purgatory._timer import PORTION

SLICE: Final = PORTION // 4
"""How much of a portion goes to one kind of work before the next one has its turn."""


class Claimed(Protocol):
    """An operation that has ended, and whose hooks have yet to run."""

    def _op_conclude(self) -> None: ...


class Check(Protocol):
    """Operations that are to be tried."""

    completed: int

    def advance(self, portion: int) -> int:
        """Tries some of them, and stands in its line again if there are more; what that cost of the portion."""
        ...


class _Milestone:
    """Stands in line behind operations, and tells when its turn has come."""

    def __init__(self, future: Future[None]) -> None:
        self.future = future

    def _op_conclude(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


@final
class Dispatcher:
    """Makes sure that the hooks of all operations of a loop run one after another."""

    __slots__ = ("_loop", "checks", "claimed", "current", "is_put_off", "named", "outer", "unseen", "unsettled")

    def __init__(self, loop: AbstractEventLoop | None) -> None:
        self._loop = loop
        self.current: object = None
        """Whose hook is running."""
        self.outer: list[object] = []
        """Whose hooks are interrupted: `current` is an operation that one of them had tried for the first time."""
        self.unsettled = False
        """Whether anything was put off."""
        self.claimed: deque[Claimed] = deque()
        self.checks: deque[Check] = deque()
        self.named: deque[Check] = deque()
        self.is_put_off = False
        """Whether the loop was asked for another turn."""
        self.unseen: list[tuple[str, Failure]] = []
        """The failures of this turn that nobody has seen yet."""

    def is_trying(self, operation: object) -> bool:
        """Whether `operation` is being tried: then the code that tries it also concludes it."""
        return self.current is operation or (bool(self.outer) and any(each is operation for each in self.outer))

    def conclude(self, operation: Claimed) -> None:
        """Runs the hooks of an operation that was claimed: now, or when the hook that is running has returned."""
        if self.current is None:
            self.current = operation
            try:
                operation._op_conclude()
            finally:
                self.current = None
            if self.unsettled:
                self.settle()
        else:
            self.put_off(operation)

    def put_off(self, operation: Claimed) -> None:
        """Has the hooks of `operation` run later."""
        self.claimed.append(operation)
        self.unsettled = True

    async def claimed_by_now(self) -> None:
        """Waits until the hooks of all operations that are put off now have run, and of none that come later."""
        if self.claimed:
            assert self._loop is not None
            reached = _Milestone(self._loop.create_future())
            self.put_off(reached)
            self.continue_later()
            await reached.future

    def settle(self) -> int:
        """Does a portion of what was put off, unless that waits for the next turn. Returns how many operations checks
        completed."""
        return 0 if self.is_put_off else self._serve()

    def continue_later(self) -> None:
        """Has the rest done in the next turn of the loop."""
        if not self.is_put_off and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon(self._continue, context=Context())
            self.is_put_off = True

    def continue_if_unsettled(self) -> None:
        """To be called where an exception leaves, because then nothing else settles."""
        if self.unsettled and self.current is None:
            self.continue_later()

    def report_soon(self, message: str, failure: Failure) -> None:
        """Reports a failure that nobody has seen in the turn after the next, with one callback for all of a turn."""
        assert self._loop is not None
        self.unseen.append((message, failure))
        if len(self.unseen) == 1:
            self._loop.call_soon(self._report_in_next_turn, context=Context())

    def _report_in_next_turn(self) -> None:
        assert self._loop is not None
        unseen, self.unseen = self.unseen, []
        self._loop.call_soon(self._report, unseen, context=Context())

    def _report(self, unseen: list[tuple[str, Failure]]) -> None:
        assert self._loop is not None
        for message, failure in unseen:
            if not failure.seen:
                self._loop.call_exception_handler({"message": message, "exception": failure.exception})
                failure.let_go()

    def conclude_claimed(self, portion: int) -> int:
        """Runs the hooks of up to `portion` operations that were put off; returns of how many."""
        claimed, done = self.claimed, 0
        try:
            while claimed and done < portion:
                done += 1
                self.current = operation = claimed.popleft()
                operation._op_conclude()
        finally:
            self.current = None
        return done

    def _serve(self) -> int:
        portion: float = inf if self._loop is None else PORTION  # without a loop there is no next turn
        completed = 0
        try:
            while portion > 0 and (self.claimed or self.checks or self.named):
                if self.claimed:
                    portion -= self.conclude_claimed(self._share(portion))
                for line in (self.checks, self.named):
                    if line and portion > 0:
                        share = self._share(portion)
                        check = line.popleft()
                        before = check.completed
                        portion -= check.advance(share)
                        completed += check.completed - before
        finally:
            self.unsettled = bool(self.claimed or self.checks or self.named)
            if self.unsettled:
                self.continue_later()
        return completed

    def _share(self, portion: float) -> int:
        """How much of what is left goes to one kind of work: all of it if there is no other."""
        is_alone = bool(self.claimed) + bool(self.checks) + bool(self.named) == 1
        return int(portion if is_alone and portion < inf else min(portion, SLICE))

    def _continue(self) -> None:
        self.is_put_off = False
        self._serve()

    def _check(self) -> None:
        """Asserts the whole invariant between hooks. For tests."""
        assert self.current is None and not self.outer
        assert self.unsettled == bool(self.claimed or self.checks or self.named)
        assert self.is_put_off >= self.unsettled


class _Loopless(local):
    """The dispatcher of a thread in which no loop is running: for operations that were never watched."""

    def __init__(self) -> None:
        self.dispatcher = Dispatcher(None)


_loopless: Final = _Loopless()


def dispatcher_of(loop: Any) -> Dispatcher:
    """The dispatcher of a loop. It is an attribute of the loop, and goes with it."""
    try:
        dispatcher: Dispatcher = loop._purgatory_dispatcher
    except AttributeError:
        dispatcher = loop._purgatory_dispatcher = Dispatcher(loop)
    return dispatcher


def running_dispatcher() -> Dispatcher:
    """That of the running loop, or of the thread if none is running."""
    loop = _get_running_loop()
    return _loopless.dispatcher if loop is None else dispatcher_of(loop)
