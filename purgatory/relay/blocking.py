"""A relay for code without an event loop: workers of a task queue, migrations, synchronous views.

    from purgatory.relay.blocking import Relay

    with Relay("redis://localhost:6379/0") as relay:
        relay.bump("orders/7")      # completes waits in asynchronous processes
        relay.deliver("payments/7", b"paid", ttl=600)

It writes and reads, and has no waits. A thread with an event loop does the work for all blocking
relays of a process, so all threads may share one relay. Enter it after a fork, as in Celery's
`worker_process_init` or gunicorn's `post_fork`. A relay that is still open when the interpreter
exits is closed then.

Under gevent, which runs all threads in one, blocking relays work, but no other event loop can run
beside theirs: use no `asyncio.run` in such a process.
"""

import os
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, final

from purgatory import PurgatoryClosed
from purgatory.relay._client import StoreClient
from purgatory.relay._loop_thread import LOOP_THREAD
from purgatory.relay._messages import MAX_VALUE_BYTES, Change, require_key, require_version
from purgatory.relay._store import Password, Store, open_store

__all__ = ["Relay"]


@final
class Relay:
    """Versions of keys in a store, for code without an event loop.

    Args:
        store: as in `purgatory.relay.Relay`.
        timeout: seconds after which a call fails.
        prefix: as in `purgatory.relay.Relay`.
        max_value: as in `purgatory.relay.Relay`.
        password: as in `purgatory.relay.Relay`; called on another thread than the caller's.

    Raises:
        ValueError, TypeError: an argument is out of bounds or of a wrong type.
        ImportError: the client of the store is not installed.
    """

    def __init__(
        self,
        store: str | Store,
        *,
        timeout: float = 5.0,
        prefix: str = "purgatory",
        max_value: int = MAX_VALUE_BYTES,
        password: Password | None = None,
    ) -> None:
        self._make_client: Callable[[], StoreClient] = lambda: StoreClient(
            open_store(store, prefix, password), timeout, max_value=max_value
        )
        self._client = self._make_client()
        self._is_open = False
        self._process = 0
        """Id of the process that entered the relay, 0 for none; a fork does not copy the thread."""

    def __enter__(self) -> "Relay":
        """Opens the store; retries for `timeout` while the store is unavailable. A closed relay may
        be entered again.

        Raises:
            RelayUnavailable: the store could not be reached within `timeout`.
            ValueError: the store's address holds data that is not a relay's.
            RuntimeError: the relay is open already.
        """
        if self._is_open:
            raise RuntimeError(f"the relay at {self._client.store.address} is open already")
        LOOP_THREAD.acquire(self.close)
        try:
            LOOP_THREAD.call(self._open())
        except BaseException:
            LOOP_THREAD.release(self.close)
            raise
        self._process = os.getpid()
        return self

    async def _open(self) -> None:
        client = self._client = self._make_client()
        try:
            await client.open()
        except BaseException:
            await client.close()
            raise
        self._is_open = True

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection; calls in flight end with `OperationCancelled`.
        Idempotent."""
        was_open, self._is_open = self._is_open, False
        if was_open and self._process == os.getpid():
            try:
                LOOP_THREAD.call(self._client.close())
            finally:
                LOOP_THREAD.release(self.close)

    def bump(self, key: str) -> int:
        """Raises the version of `key` by one, for all processes; see `purgatory.relay.Relay.bump`.

        Raises:
            RelayUnavailable, OperationCancelled, ValueError, TypeError: as in that method.
            RuntimeError: the relay was never opened, or was opened before a fork; a
                `PurgatoryClosed` after `close`.
        """
        return self._change("bump", key, 0, 1)

    def advance(self, key: str, version: int) -> int:
        """Raises the version of `key` to at least `version`; see `purgatory.relay.Relay.advance`.

        Raises:
            RelayUnavailable, OperationCancelled, ValueError, TypeError, RuntimeError: as with
                `bump`.
        """
        return self._change("advance", key, require_version(version, "version", 52), 0)

    def version(self, key: str) -> int:
        """Reads the version of `key` from the store; see `purgatory.relay.Relay.version`.

        Raises:
            RelayUnavailable, OperationCancelled, ValueError, TypeError, RuntimeError: as with
                `bump`.
        """
        version: int = self._call("read", key, partial(self._client.read, key)).version
        return version

    def forget(self, key: str) -> None:
        """Removes `key` from the store; see `purgatory.relay.Relay.forget`.

        Raises:
            RelayUnavailable, OperationCancelled, ValueError, TypeError, RuntimeError: as with
                `bump`.
        """
        self._call("forget", key, partial(self._client.forget, key))

    def deliver(self, key: str, value: bytes, *, ttl: float) -> bool:
        """Delivers `value` to every `receive` of `key`, in any process. Returns whether this call
        settled the key; see `purgatory.relay.Relay.deliver`.

        Raises:
            RelayUnavailable, OperationCancelled, ValueError, TypeError, RuntimeError: as in that
                method or in `bump`.
        """
        call = partial(self._client.deliver, key, value, ttl)
        settled: bool = self._call("deliver to", key, call)
        return settled

    def _change(self, action: str, key: str, floor: int, increment: int) -> int:
        change = Change(key, floor, increment)
        version: int = self._call(action, key, partial(self._client.change, action, change))
        return version

    def _call(self, action: str, key: str, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        require_key(key)
        if not self._is_open:
            message = f"cannot {action} {key!r}: the relay at {self._client.store.address} is"
            if not self._process:
                raise RuntimeError(f"{message} not open: use it in `with`")
            raise PurgatoryClosed(f"{message} closed: use it in `with`")
        if self._process != os.getpid():
            raise RuntimeError(
                f"cannot {action} {key!r}: the relay at {self._client.store.address} was entered "
                f"in process {self._process}, and this is {os.getpid()}; enter one after the fork"
            )
        return LOOP_THREAD.call(call())
