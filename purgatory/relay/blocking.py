"""A relay for code without an event loop: workers of a task queue, migrations, synchronous views.

    from purgatory.relay.blocking import Relay

    with Relay("redis://localhost:6379/0") as relay:
        relay.bump("orders/7")      # completes waits in asynchronous processes
        relay.deliver("payments/7", b"paid", ttl=600)

It writes and reads, and has no waits. An own thread with a loop does the work, so all threads may
share one relay. Enter it after a fork, as in Celery's `worker_process_init` or gunicorn's
`post_fork`.
"""

import os
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any, final

from anyio.from_thread import BlockingPortal, start_blocking_portal

from purgatory import PurgatoryClosed
from purgatory.relay._client import StoreClient
from purgatory.relay._messages import MAX_VALUE_BYTES, Change, check_key, check_version
from purgatory.relay._store import Store, open_store

__all__ = ["Relay"]


@final
class Relay:
    """Versions of keys in a store, for code without an event loop.

    Args:
        store: as in `purgatory.relay.Relay`.
        timeout: seconds after which a call fails.
        prefix: as in `purgatory.relay.Relay`.
        max_value: as in `purgatory.relay.Relay`.

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
    ) -> None:
        self._make_client: Callable[[], StoreClient] = lambda: StoreClient(
            open_store(store, prefix), timeout, max_value=max_value
        )
        self._client = self._make_client()
        self._portal: BlockingPortal | None = None
        self._process = 0
        """Id of the process that entered the relay, 0 for none; a fork does not copy the relay's thread."""
        self._stack = ExitStack()

    def __enter__(self) -> "Relay":
        """Opens the store; retries for `timeout` while the store is unavailable. A closed relay may
        be entered again.

        Raises:
            RelayUnavailable: the store could not be reached within `timeout`.
            ValueError: the store's address holds data that is not a relay's.
            RuntimeError: the relay is open already.
        """
        if self._portal is not None:
            raise RuntimeError(f"the relay at {self._client.store.address} is open already")
        portal = self._stack.enter_context(start_blocking_portal())
        try:
            portal.call(self._open)
        except BaseException:
            self._stack.close()
            raise
        self._portal, self._process = portal, os.getpid()
        return self

    async def _open(self) -> None:
        client = self._client = self._make_client()
        try:
            await client.open()
        except BaseException:
            await client.close()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection; calls in flight end with `OperationCancelled`.
        Idempotent."""
        portal, self._portal = self._portal, None
        if portal is not None and self._process == os.getpid():
            try:
                portal.call(self._client.close)
            finally:
                self._stack.close()

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
        return self._change("advance", key, check_version(version, "version", 52), 0)

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

    def _call(self, action: str, key: str, call: Callable[[], Awaitable[Any]]) -> Any:
        portal, key = self._portal, check_key(key)
        if portal is None:
            message = f"cannot {action} {key!r}: the relay at {self._client.store.address} is"
            if not self._process:
                raise RuntimeError(f"{message} not open: use it in `with`")
            raise PurgatoryClosed(f"{message} closed: use it in `with`")
        if self._process != os.getpid():
            raise RuntimeError(
                f"cannot {action} {key!r}: the relay at {self._client.store.address} was entered "
                f"in process {self._process}, and this is {os.getpid()}; enter one after the fork"
            )
        return portal.call(call)
