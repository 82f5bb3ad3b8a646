"""The event loop of a process's blocking relays: one loop in one daemon thread, from the first relay
that is opened to the last one that is closed.

All relays share it because gevent runs all threads in one, and a thread runs one loop at a time.
When the interpreter exits, daemon threads freeze, so a call to the loop would never return. That is
why relays that are still open are closed by `atexit`, which runs earlier, and nothing else waits
for the thread. A fork copies no thread, so a child starts its own.
"""

import atexit
import os
from asyncio import (
    AbstractEventLoop,
    Event,
    all_tasks,
    current_task,
    gather,
    new_event_loop,
    run_coroutine_threadsafe,
)
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from threading import Lock, Thread
from typing import Any, TypeVar, final

T = TypeVar("T")


@final
class LoopThread:
    """An event loop in a thread, shared by its users."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._closers: list[Callable[[], None]] = []
        """One for each user: closes the user, which then calls `release`."""
        self._loop: AbstractEventLoop
        self._thread: Thread
        self._stop: Event

    def acquire(self, close: Callable[[], None]) -> None:
        """Starts the loop unless it runs, and keeps it until `release`.

        Args:
            close: closes the user; called when the interpreter exits.

        Raises:
            RuntimeError: this thread runs another loop already, which happens under gevent.
        """
        with self._lock:
            if not self._closers:
                started: Future[None] = Future()
                self._thread = Thread(
                    target=self._run, args=(started,), name="purgatory.relay.blocking", daemon=True
                )
                self._thread.start()
                started.result()
            self._closers.append(close)

    def release(self, close: Callable[[], None]) -> None:
        """Ends the loop, if this was its last user."""
        with self._lock:
            self._closers.remove(close)
            if not self._closers:
                self._loop.call_soon_threadsafe(self._stop.set)
                self._thread.join()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the loop, and returns its result."""
        return run_coroutine_threadsafe(coroutine, self._loop).result()

    def _run(self, started: "Future[None]") -> None:
        self._loop = loop = new_event_loop()
        serving = self._serve(started)
        try:
            loop.run_until_complete(serving)
        except RuntimeError as error:
            serving.close()
            message = (
                "cannot run the loop of blocking relays: another loop runs in this thread; under "
                "gevent, where all threads are one, use either blocking relays or asyncio"
            )
            started.set_exception(RuntimeError(message).with_traceback(error.__traceback__))
        finally:
            loop.close()

    async def _serve(self, started: "Future[None]") -> None:
        self._stop = Event()
        started.set_result(None)
        await self._stop.wait()
        rest = all_tasks() - {current_task()}
        for task in rest:
            task.cancel()
        await gather(*rest, return_exceptions=True)

    def close_users(self) -> None:
        """Closes all users."""
        for close in tuple(self._closers):
            with suppress(Exception):  # such as of a store that gives no answer
                close()


LOOP_THREAD = LoopThread()
"""The one of this process."""

atexit.register(LOOP_THREAD.close_users)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=LOOP_THREAD.__init__)
