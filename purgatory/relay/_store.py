"""What a relay needs of a store, and the stores by their addresses."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Final, Protocol

from purgatory._core.errors import RelayUnavailable
from purgatory.relay._address import without_password
from purgatory.relay._messages import Change, ChangeMessage, Delivery, ReadResult

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


MAX_SETTLED_BYTES: Final = 4 << 20
"""A read of delivered values ends with the one that exceeds this."""


class NotWritten(RelayUnavailable):
    """A write that was certainly not made, so it is safe to retry."""


class Refused(NotWritten):
    """The store refuses the call, for lack of rights for instance, and would refuse it again."""


class Store(Protocol):
    """Versions of keys that processes share, an epoch, and a channel for messages. One object
    serves one relay.

    Reads and writes may be called while others are under way, and any of them may be cancelled. A
    method that cannot reach the store raises `RelayUnavailable`, and is called again later; it need
    not wait, try again or keep a time limit by itself. If it finds something that is not its own,
    it raises `ValueError` and leaves that alone. It does not hold the loop for long.

    `purgatory.testing.store_checks` tests whether a store keeps these promises:

    - Versions never fall within an epoch. When a store has lost data, it begins another epoch.
    - A write is published if and only if it was made, to everyone whose subscription was confirmed before, unless the channel
      loses the message.
    - `read(keys, since)` returns every change to any key that was made after a result or message with that position.
    """

    address: str
    """For errors and logs; without any password."""

    # is_channel_trusted: bool = True
    # If it is false, others may send to the channel. So a change message counts as a hint to read
    # its keys, and an announcement as a hint to read `announcements`: see `StoreWithAnnouncements`.
    # Without its methods such a store lists no workers.

    # Methods that it may have: see `StoreWithInterest` (without it `listen` receives all changes,
    # always) and `StoreWithDeliveries` (without it a relay can neither deliver nor receive).

    async def open(self) -> None:
        """Creates what it needs, unless it exists. Called before all else, and again if it
        failed."""
        ...

    async def close(self) -> None:
        """Closes all connections. Nothing is called after that, unless it is opened again."""
        ...

    async def listen(
        self, on_subscribed: Callable[[], None], on_message: Callable[[bytes | str], None]
    ) -> None:
        """Subscribes to the channel, and runs until the subscription ends; then it returns or
        raises.

        Args:
            on_subscribed: to be called as soon as the subscription is confirmed, and again whenever
                it was made anew.
            on_message: to be called with each message, in the order in which they were sent.
        """
        ...

    async def read(self, keys: Sequence[str], since: int | None) -> ReadResult:
        """The versions of `keys`; with `since`, also of all that have changed after that position.
        A key that is not there has the floor: the highest version of all that were forgotten, 0 at
        first.

        The result is a consistent snapshot, taken after the call. If more has changed than is good
        for one result, it may end at an earlier position, with `has_more`.
        """
        ...

    async def write(self, changes: Sequence[Change], connection: Any = None) -> ChangeMessage:
        """Makes these changes, one for each key, in one step, and publishes them; returns them as a
        message. A key that is not there begins at the floor.

        It may leave out keys that others hold locked: a change to a key that is not in the message
            was not made.

        Args:
            changes: at most 100. With none of them it finds out whether the store takes writes.
            connection: a connection of the caller's, to write in its transaction, if the store has
                such.

        Raises:
            TypeError: the store cannot write on such a connection.
            NotWritten: a `RelayUnavailable`; nothing was written. After any other the write was
                perhaps made, and a bump is not tried again.
        """
        ...

    async def forget(self, keys: Sequence[str]) -> None:
        """Forgets the versions of these keys, at most 100. The floor rises to the highest of them
        in the same step."""
        ...

    async def forget_unwritten(self, seconds: float) -> bool:
        """Forgets some of the keys that nobody has written for so long; whether there are more.
        Called several times in that time, by any process; see `_forgetting` for how a store
        knows."""
        ...

    async def renew(self, epoch: str) -> None:
        """Ends `epoch`, if it is still the one of the store, and publishes the next one in a
        message without keys."""
        ...

    async def send(self, payload: bytes) -> None:
        """Sends a message of at most 4,000 bytes through the channel, to everyone who listens,
        including this relay's own `listen`: a probe or an announcement."""
        ...


class StoreWithInterest(Store, Protocol):
    """A store that does not send changes to processes in which nobody waits."""

    async def set_interest(self, is_wanted: bool) -> None:
        """Whether `listen` is to receive what `write` publishes, in the subscription that there is
        and in later ones. After `open` it is. What `renew` and `send` publish it receives in any
        case.

        When this has returned, that is confirmed: `listen` receives each change that is made from
        then on. It may receive some that are made after it was set to false, and what `send`
        publishes twice. Without a subscription it returns at once.
        """
        ...


class StoreWithDeliveries(Store, Protocol):
    """A store that also keeps delivered values, each for a limited time, under keys of their own.

    As long as a key is settled, it has one value, and `settled` returns that to everyone. When the
    time to live is over, by the clock of the store, the key is free; nothing of it stays in the
    store for good.
    """

    # max_value: int = 1_000_000 The largest value that it takes, in bytes, known after `open`; only
    # where there is such a limit.

    async def settle(
        self, deliveries: Sequence[Delivery], connection: Any = None
    ) -> Mapping[str, bool]:
        """Settles these keys with these values, unless they are settled, in one step for each key.
        Publishes the keys that it has settled, as by `encode_settled`, to the listeners that
        receive changes, unless the channel loses the message.

        Args:
            deliveries: of at most 100 different keys. If a key is settled by the token of its
                delivery, that was made before and counts as made now.
            connection: as in `write`.

        Returns:
            For each key whether it has the value of this delivery. Keys that others hold locked are
            left out: they were not settled.

        Raises:
            TypeError, NotWritten: as `write`. After any other `RelayUnavailable` it was perhaps
                settled.
        """
        ...

    async def settled(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        """The values of those of at most 100 keys that are settled. If they exceed
        `MAX_SETTLED_BYTES` together, the rest may be missing, and is requested again."""
        ...


class SweptStore(StoreWithDeliveries, Protocol):
    """A store that does not remove values by itself when their time is over."""

    async def sweep(self, limit: int) -> int:
        """Removes at most so many values whose time is over; how many. Called now and then by every
        process, until it returns 0. If there are none, it may do other work that they have left,
        and return how much."""
        ...


def refuse_connection(store: Store, connection: Any) -> None:
    """Raises TypeError for a connection of the caller's, in a store that has no transactions."""
    if connection is not None:
        raise TypeError(
            f"{store.address} writes in no other transaction than its own, so it takes no connection"
        )


class StoreWithAnnouncements(Store, Protocol):
    """A store to whose channel anyone may send and listen, so that announcements are in the store
    itself."""

    async def announce(self, payload: bytes) -> None:
        """Stores the announcement of this process, at most 4,000 bytes, in the place of its last
        one, and publishes some announcement that says nothing to everyone who listens."""
        ...

    async def announcements(self) -> list[bytes]:
        """The announcements of the last seconds, each one once."""
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
        raise TypeError(
            f"a store is an address or has the methods of purgatory.relay.Store, not {url!r}"
        )
    module, name = STORES.get(url.partition(":")[0].lower(), ("", ""))
    if module:
        store: Store = getattr(import_module(f"purgatory.relay.{module}"), name)(url, prefix)
        return store
    raise ValueError(
        f"cannot open a store at {without_password(url)!r}: "
        "it is none of file://, redis://, rediss://, unix://, postgresql://, nats://"
    )
