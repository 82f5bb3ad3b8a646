"""Tests that wait for hours and take milliseconds: an event loop on virtual time.

An event loop sleeps in one place only, in the `select` of its selector. The selector of
`VirtualTimeLoop` never sleeps for a timer: when nothing else is ready, it sets the clock to the
next timer instead. So a run depends on nothing but the program, and is the same each time:

    async def main() -> float:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 3600)   # the clock jumps from 0 to 3600
        return loop.time()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        assert runner.run(main()) == 3600.0

When nothing is ready, the loop does the first of these that applies:

1. Time is held: by a thread of `run_in_executor`, `asyncio.to_thread` or `anyio.to_thread.run_sync`
   that still works, or by `VirtualTimeLoop.hold_time`. The loop waits in real time. A thread that
   is no longer awaited does not hold it; but a thread abandoned by anyio does, until it ends.
2. A timer is set: the clock jumps to it.
3. A file descriptor is watched, a signal handler is set, or a child process runs: the loop waits
   for it in real time, as any loop does.
4. Nothing can ever wake the loop again: it raises `DeadlockError`.

So I/O that is ready always comes before the clock moves, but the clock does not wait for I/O that
is not: what another process sends may come an hour late, by the clock of the loop. To wait for it,
use `hold_time`.

The clock is frozen while callbacks run and while anything is ready. A task that spins on
`asyncio.sleep(0)` until the clock has moved spins for ever, and so does a thread that holds time
and itself waits for time to pass on the loop.

The idea comes from trio's `MockClock` with `autojump_threshold=0`, and from tokio's paused time.
"""

import asyncio
import contextlib
import math
import selectors
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import Any, Final, TypeVar, TypeVarTuple, final

__all__ = ["DeadlockError", "VirtualTimeLoop"]

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

MAX_TASKS_SHOWN: Final = 10


class DeadlockError(RuntimeError):
    """Nothing can ever wake the loop, so it would hang.

    Raised out of `run_forever`, `run_until_complete` and `asyncio.Runner.run`; no task sees it. The
    message lists the tasks that wait. The loop can be run again, for instance to cancel them, as
    `asyncio.Runner` does.
    """


class _Selector(selectors.DefaultSelector):
    """A selector that calls `jump` before it sleeps, and does not sleep if the result is true: then
    the clock has moved."""

    def __init__(self, jump: Callable[[], bool]) -> None:
        super().__init__()
        self._jump = jump

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0 or self._jump():
            return ready
        return super().select(None)


@final
class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop with a clock that jumps to the next timer whenever nothing else is ready.

    A timer runs when `time()` is exactly the instant it was set for, or as soon as it is set if
    that lies in the past; that holds at any loop time, also where `time() + 1e-9 == time()`, and
    however far ahead. A jump costs one iteration of the loop.

    Args:
        start: The loop time at the start, in seconds; finite. For code that must also be right
            far from zero.

    Raises:
        ValueError: `start` is infinite or NaN.
    """

    # This and _clock_resolution are the only private attributes of asyncio that are used. When
    # select is called with a timeout, the head of this heap is the next timer that is not
    # cancelled. The timeout itself is rounded, and at most a day.
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self, *, start: float = 0.0) -> None:
        self._files = _Selector(self._jump)
        super().__init__(self._files)
        if not math.isfinite(start):
            self.close()
            raise ValueError(f"start must be a finite number of seconds, not {start!r}")
        self._set_time(start)
        self._holds = 0
        self._own_files = len(self._files.get_map())  # the self-pipe
        self._signals: set[int] = set()
        self._children: weakref.WeakSet[asyncio.SubprocessTransport] = weakref.WeakSet()

    def time(self) -> float:
        """Return the virtual time, in seconds."""
        return self._now

    @contextlib.contextmanager
    def hold_time(self) -> Iterator[None]:
        """Stop the time while the loop waits for something outside.

        Inside the block the loop waits in real time, for `call_soon_threadsafe`, for I/O or for a
        signal, and no timer runs that is not already due: nothing inside may wait for one. Blocks
        may nest and overlap, and are entered and left on the loop's thread. To wait for a thread of
        your own, for example:

            with loop.hold_time():
                threading.Thread(target=work, args=(loop, future)).start()
                await future        # work ends in loop.call_soon_threadsafe(future.set_result, ...)
        """
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1

    def _jump(self) -> bool:
        """Set the clock to the next timer; false if the loop must wait in real time instead."""
        if self._holds or self._anyio_thread_works():
            return False
        due = self._scheduled[0].when() if self._scheduled else math.inf
        if due < math.inf:
            self._set_time(due)
            return True
        if self._can_be_woken():
            return False
        raise DeadlockError(self._describe_deadlock())

    def _set_time(self, now: float) -> None:
        self._now = now
        # asyncio runs timers that are due before now + resolution. With the real clock's
        # resolution, that is too early near zero, and never far from zero (cpython#145703). With
        # the distance to the next float, timers run that are due at or before now.
        self._clock_resolution = math.nextafter(now, math.inf) - now

    def _anyio_thread_works(self) -> bool:
        # anyio has no interface for this. Its limiters count threads, but each caller may use its
        # own limiter.
        backend = sys.modules.get("anyio._backends._asyncio")
        worker_type = getattr(backend, "WorkerThread", None)
        if worker_type is None:
            return False
        workers: list[Any] = [
            thread for thread in threading.enumerate() if isinstance(thread, worker_type)
        ]
        return any(
            worker.loop is self and not worker.stopping and worker not in worker.idle_workers
            for worker in workers
        )

    def _can_be_woken(self) -> bool:
        return (
            len(self._files.get_map()) > self._own_files
            or bool(self._signals)
            or any(child.get_returncode() is None for child in self._children)
        )

    def _describe_deadlock(self) -> str:
        tasks = sorted(
            asyncio.all_tasks(self), key=lambda task: (len(task.get_name()), task.get_name())
        )
        lines = [
            f"nothing can wake this loop any more, at loop time {self._now!r}: no timer is set, "
            "no file or signal is"
            " watched, and no thread is awaited (for a thread of your own, use hold_time());"
            f" tasks that wait for ever: {len(tasks)}",
            *(f"  {task!r}" for task in tasks[:MAX_TASKS_SHOWN]),
        ]
        if len(tasks) > MAX_TASKS_SHOWN:
            lines.append(f"  and {len(tasks) - MAX_TASKS_SHOWN} more")
        return "\n".join(lines)

    # These methods behave as asyncio's, and count the calls that the loop may have to wait for.

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*_Ts], _T], *args: *_Ts
    ) -> asyncio.Future[_T]:
        """As asyncio's; time does not advance until the future is done or cancelled."""
        future = super().run_in_executor(executor, func, *args)
        hold = contextlib.ExitStack()
        hold.enter_context(self.hold_time())
        future.add_done_callback(lambda _: hold.close())
        return future

    async def shutdown_default_executor(self, *args: Any, **kwargs: Any) -> None:
        """As asyncio's; time does not advance until the threads have ended, so its timeout never
        expires."""
        with self.hold_time():
            await super().shutdown_default_executor(*args, **kwargs)

    def add_signal_handler(self, sig: int, callback: Callable[[*_Ts], Any], *args: *_Ts) -> None:
        """As asyncio's; with a handler, the loop is never deadlocked."""
        super().add_signal_handler(sig, callback, *args)
        self._signals.add(sig)

    def remove_signal_handler(self, sig: int) -> bool:
        """As asyncio's."""
        self._signals.discard(sig)
        return super().remove_signal_handler(sig)

    async def subprocess_exec(
        self, *args: Any, **kwargs: Any
    ) -> tuple[asyncio.SubprocessTransport, Any]:
        """As asyncio's; while the child runs the loop is not deadlocked, but its clock does not
        wait."""
        transport, protocol = await super().subprocess_exec(*args, **kwargs)
        self._children.add(transport)
        return transport, protocol

    async def subprocess_shell(
        self, *args: Any, **kwargs: Any
    ) -> tuple[asyncio.SubprocessTransport, Any]:
        """As `subprocess_exec`."""
        transport, protocol = await super().subprocess_shell(*args, **kwargs)
        self._children.add(transport)
        return transport, protocol
