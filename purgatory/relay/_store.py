"""What a relay needs of a store, and the stores by their addresses."""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Final, Protocol

from purgatory._errors import RelayUnavailable
from purgatory.relay._address import without_password
from purgatory.relay._messages import Change, ChangeMessage, ReadResult

STORES: Final = {
    "file": ("_file", "FileStore"),
    "redis": ("_redis", "RedisStore"),
    "rediss": ("_redis", "RedisStore"),
    "unix": ("_redis", "RedisStore"),
    "postgresql": ("_postgresql", "PostgresStore"),
    "postgres": ("_postgresql", "PostgresStore"),
    "nats": ("_nats", "NatsStore"),
}
"""The scheme of an address -> the module, which may need an extra, and the class in it."""


class NotWritten(RelayUnavailable):
    """A write that was surely not made, so it is safe to try again."""


class Store(Protocol):
    """Versions of keys that processes share, an epoch, and a channel for messages. One object serves one relay.

    Reads and writes may be called while others are under way, and any of them may be cancelled. A method that cannot reach the
    store raises `RelayUnavailable`, and is called again later; it need not wait, try again or keep a time limit by itself. If
    it finds something that is not its own, it raises `ValueError` and leaves that alone. It does not hold the loop for long.

    `purgatory.testing.store_checks` tests whether a store keeps these promises:

    - Versions never fall within an epoch. When a store has lost data, it begins another epoch.
    - A write is published if and only if it was made, to everyone whose subscription was confirmed before, unless the channel
      loses the message.
    - `read(keys, since)` returns every change to any key that was made after a result or message with that position.
    """

    address: str
    """For errors and logs; without any password."""

    # is_channel_trusted: bool = True
    # If it is false, others may send to the channel, so a change message counts as a hint to read its keys.

    # async def set_interest(self, is_wanted: bool) -> None
    # A tenth method, which it may have: see `StoreWithInterest`. Without it `listen` receives all changes, always.

    async def open(self) -> None:
        """Creates what it needs, unless it exists. Called before all else, and again if it failed."""
        ...

    async def close(self) -> None:
        """Closes all connections. Nothing is called after that, unless it is opened again."""
        ...

    async def listen(self, on_subscribed: Callable[[], None], on_message: Callable[[bytes | str], None]) -> None:
        """Subscribes to the channel, and runs until the subscription ends; then it returns or raises.

        Args:
            on_subscribed: to be called as soon as the subscription is confirmed, and again whenever it was made anew.
            on_message: to be called with each message, in the order in which they were sent.
        """
        ...

    async def read(self, keys: Sequence[str], since: int | None) -> ReadResult:
        """The versions of `keys`; with `since`, also of all that have changed after that position. A key that is not there has
        the floor: the highest version of all that were forgotten, 0 at first.

        The result is a consistent snapshot, taken after the call. If more has changed than is good for one result, it may end
        at an earlier position, with `has_more`.
        """
        ...

    async def write(self, changes: Sequence[Change], connection: Any = None) -> ChangeMessage:
        """Makes these changes, one for each key, in one step, and publishes them; returns them as a message. A key that is not
        there begins at the floor.

        It may leave out keys that others hold locked: a change to a key that is not in the message was not made.

        Args:
            changes: at most 100. With none of them it finds out whether the store takes writes.
            connection: a connection of the caller's, to write in its transaction, if the store has such.

        Raises:
            TypeError: the store cannot write on such a connection.
            NotWritten: a `RelayUnavailable`; nothing was written. After any other the write was perhaps made, and a bump is not
                tried again.
        """
        ...

    async def forget(self, keys: Sequence[str]) -> None:
        """Forgets the versions of these keys, at most 100. The floor rises to the highest of them in the same step."""
        ...

    async def forget_unwritten(self, seconds: float) -> bool:
        """Forgets some of the keys that nobody has written for so long; whether there are more. Called several times in that
        time, by any process; see `_forgetting` for how a store knows."""
        ...

    async def renew(self, epoch: str) -> None:
        """Ends `epoch`, if it is still the one of the store, and publishes the next one in a message without keys."""
        ...

    async def send(self, payload: bytes) -> None:
        """Sends a message of at most 4,000 bytes through the channel, to everyone who listens, including this relay's own
        `listen`: a probe or an announcement."""
        ...


class StoreWithInterest(Store, Protocol):
    """A store that does not send changes to processes in which nobody waits."""

    async def set_interest(self, is_wanted: bool) -> None:
        """Whether `listen` is to receive what `write` publishes, in the subscription that there is and in later ones. After
        `open` it is. What `renew` and `send` publish it receives in any case.

        When this has returned, that is confirmed: `listen` receives each change that is made from then on. It may receive some
        that are made after it was set to false, and what `send` publishes twice. Without a subscription it returns at once.
        """
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
        f"cannot open a store at {without_password(url)!r}: "
        "it is none of file://, redis://, rediss://, unix://, postgresql://, nats://"
    )
