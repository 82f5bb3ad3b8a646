"""What a store has to do for a relay, and which one an address stands for."""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Final, Protocol

from purgatory.relay._address import without_password
from purgatory.relay._messages import Answer, Change, News

STORES: Final = {
    "file": ("_file", "FileStore"),
    "redis": ("_redis", "RedisStore"),
    "rediss": ("_redis", "RedisStore"),
    "unix": ("_redis", "RedisStore"),
    "postgresql": ("_postgresql", "PostgresStore"),
    "postgres": ("_postgresql", "PostgresStore"),
}
"""The scheme of an address -> the module, which may need an extra, and the class in it."""


class Store(Protocol):
    """Versions of keys that processes share, an epoch, and a channel for news. One object serves one relay.

    Reads and writes may be called while others are under way, and any of them may be cancelled. What cannot reach the store
    raises `RelayUnavailable`, and is called again later; it need not wait or try again by itself, nor keep a time limit. What
    finds there something that is not its own raises `ValueError` and leaves it alone.

    `purgatory.testing.store_checks` tells whether a store keeps these promises:

    - Versions never fall within an epoch. When a store has lost what it had, its epoch is another one.
    - A write is told if and only if it was made, to everyone whose subscription was confirmed before, if nothing is lost.
    - `read(keys, since)` has every change to any key that was made after an answer or news with that position.
    """

    address: str
    """Where it is, for errors and logs; without any password."""

    async def open(self) -> None:
        """Makes what it needs, where that is not there yet. Called before all else, and again if it failed."""
        ...

    async def close(self) -> None:
        """Ends all connections. Nothing is called after that."""
        ...

    async def listen(self, confirmed: Callable[[], None], heard: Callable[[bytes | str], None]) -> None:
        """Subscribes to the channel; returns or raises when the subscription has ended, and runs until then.

        Args:
            confirmed: to be called as soon as the subscription stands, and again whenever it was made anew.
            heard: to be called with each message, in the order in which they were sent.
        """
        ...

    async def read(self, keys: Sequence[str], since: int | None) -> Answer:
        """The versions of `keys`, 0 for those never written; with `since`, also of all that have changed after that position.

        The answer is one look at the store, taken after the call. If more has changed than is good for one answer, it may stop
        at an earlier position, which it names, and say so.
        """
        ...

    async def write(self, changes: Sequence[Change], connection: Any = None) -> News:
        """Makes these changes, one for each key, at once, and tells everyone; what it answers is what it tells.

        Args:
            changes: at most 100.
            connection: a connection of the caller's, on which to do so in his own transaction, if the store has such.

        Raises:
            TypeError: the store cannot write on such a connection.
        """
        ...

    async def renew(self, epoch: str) -> None:
        """Ends `epoch`, if it is still the one of the store, and tells everyone by news of the next one, which name no keys."""
        ...

    async def send(self, payload: bytes) -> None:
        """Sends a message of at most 4,000 bytes through the channel, to everyone who listens, this relay's own `listen` among
        them: a probe, or what makes a process known to the others."""
        ...


def open_store(url: str | Store, prefix: str) -> Store:
    """The store at an address, unless it is one already.

    Raises:
        TypeError, ValueError: it is no address of a store.
        ImportError: its client is not installed; the message says how to get it.
    """
    if not isinstance(url, str) and hasattr(url, "listen"):
        return url
    if not isinstance(url, str):
        raise TypeError(f"a store is an address or has the methods of purgatory.relay.Store, not {url!r}")
    module, name = STORES.get(url.partition(":")[0].lower(), ("", ""))
    if module:
        store: Store = getattr(import_module(f"purgatory.relay.{module}"), name)(url, prefix)
        return store
    raise ValueError(
        f"cannot open a store at {without_password(url)!r}: it is none of file://, redis://, rediss://, unix://, postgresql://"
    )
