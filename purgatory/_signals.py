"""Keys named by other threads, brought to the loop with one wake-up for however many come before it wakes.

    thread 1   put("a")  -> {"a"}             wakes the loop
    thread 2   put("b")  -> {"a", "b"}        a wake-up is under way
    thread 1   put("a")  -> {"a", "b"}
    the loop                                  takes both, and delivers "a", "b"

A wake-up for each would be a system call for each, and would make the loop's self-pipe its hottest file (dask/distributed
#3223). A lock, and not the GIL, keeps a key from falling between the taking and the next wake-up.
"""

from collections.abc import Callable, Hashable, Iterable
from contextvars import Context
from threading import Lock
from typing import final

from purgatory._timer import LoopWheel


@final
class Signals:
    """Keys on their way to the loop of `wheel`, where `deliver` is called with them."""

    __slots__ = ("_deliver", "_keys", "_lock", "_wheel")

    def __init__(self, wheel: LoopWheel, deliver: Callable[[Iterable[Hashable]], None]) -> None:
        self._wheel = wheel
        self._deliver = deliver
        self._lock = Lock()
        self._keys: dict[Hashable, None] = {}
        """In order; whenever there is one, a wake-up is under way."""

    def put(self, key: Hashable) -> None:
        """Has `key` delivered on the loop soon. From any thread. Without effect if there is no loop yet, or no more.

        Raises:
            TypeError: `key` is not hashable.
        """
        hash(key)
        if self._wheel.thread_id is None or self._wheel.loop.is_closed():
            return
        with self._lock:
            under_way = bool(self._keys)
            self._keys[key] = None
        if under_way:
            return
        try:
            self._wheel.loop.call_soon_threadsafe(self._take, context=Context())
        except RuntimeError:
            # It was closed a moment ago; any other reason is news.
            if not self._wheel.loop.is_closed():
                raise

    def _take(self) -> None:
        with self._lock:
            keys, self._keys = self._keys, {}
        self._deliver(keys)
