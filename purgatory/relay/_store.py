"""The interface of a store, and the stores by the schemes of their addresses."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import import_module
from inspect import isawaitable
from typing import Any, Final, Protocol

from purgatory._core.errors import RelayUnavailable
from purgatory.relay._address import SCHEMES, without_password
from purgatory.relay._messages import Change, ChangeMessage, Delivery, ReadResult

STORES: Final = {
    "file": ("_file", "FileStore"),
    "redis": ("_redis", "RedisStore"),
    "rediss": ("_redis", "RedisStore"),
    "unix": ("_redis", "RedisStore"),
    "postgresql": ("_postgresql", "PostgresStore"),
    "nats": ("_nats", "NatsStore"),
    "tls": ("_nats", "NatsStore"),
}
"""Scheme that the client knows -> module, which may need an extra, and class."""


MAX_SETTLED_BYTES: Final = 4 << 20
"""A read of delivered values ends with the value that exceeds this size in total, in bytes."""


Password = Callable[[], str | Awaitable[str]]
"""Returns the password for a new connection."""


class NotWritten(RelayUnavailable):
    """The write was certainly not made, so it is safe to retry."""


class Refused(NotWritten):
    """The store refuses the call, such as for missing rights, and would refuse it again."""


class Store(Protocol):
    """Versions of keys that processes share, an epoch, and a channel for messages. One object
    serves one relay.

    Reads and writes may be called concurrently, and any call may be cancelled. A method that cannot
    reach the store raises `RelayUnavailable`, and is called again later; it need not wait, retry or
    keep a time limit. A method that finds foreign data raises `ValueError` and leaves the data
    unchanged. No method blocks the loop for long.

    `purgatory.testing.store_checks` tests whether a store keeps these promises:

    - Versions never fall within an epoch. After a loss of data the store starts another epoch.
    - A write is published if and only if it was made, to every listener that had subscribed
      before, as confirmed by the store, unless the channel loses the message.
    - `read(keys, since)` returns every change to any key that was made after a result or message
      with that position.
    """

    address: str
    """Address for errors and logs, without a password."""

    # is_channel_trusted: bool = True
    # If false, strangers can send to the channel. Then a change message only counts as a hint to
    # read its keys.

    # Optional methods: see `StoreWithDeliveries`. Without them a relay can neither deliver nor
    # receive, and lists no workers.

    async def open(self) -> None:
        """Creates its tables, streams or keys unless they exist. Called before all other methods,
        and again if it failed."""
        ...

    async def close(self) -> None:
        """Closes all connections. Only `open` may be called afterwards."""
        ...

    async def listen(
        self, on_subscribed: Callable[[], None], on_message: Callable[[bytes | str], None]
    ) -> None:
        """Subscribes to the channel, and runs until the subscription ends; then it returns or
        raises.

        Args:
            on_subscribed: called as soon as the subscription is confirmed, and again after each
                renewal.
            on_message: called with each message, in the order of sending.
        """
        ...

    async def read(self, keys: Sequence[str], since: int | None) -> ReadResult:
        """The versions of `keys`; with `since`, also the versions of all keys changed after that
        position. A missing key has the floor: the highest version of all forgotten keys, 0 at
        first.

        The result is a consistent snapshot, taken after the call. With too many changes for one
        result, it may end at an earlier position and set `has_more`.
        """
        ...

    async def write(self, changes: Sequence[Change], connection: Any = None) -> ChangeMessage:
        """Makes these changes, at most one for each key, atomically, publishes them, and returns
        them as a message. A missing key starts at the floor.

        A write may leave out keys, such as those that other transactions hold locked: a change of
        a key that is missing from the message was not made, and is tried again by itself.

        Args:
            changes: at most 100 changes. Without any, checks whether the store accepts writes.
            connection: the caller's connection, to write in its transaction, if the store supports
                that.

        Raises:
            TypeError: the store cannot write on such a connection.
            NotWritten: a `RelayUnavailable`; nothing was written. After any other
                `RelayUnavailable` the write may have been made, and a bump is not retried.
        """
        ...

    async def forget(self, keys: Sequence[str]) -> None:
        """Forgets the versions of these keys, at most 100. In the same step, the floor rises to the
        highest forgotten version."""
        ...

    async def forget_unwritten(self, seconds: float) -> bool:
        """Forgets some of the keys that were not written for `seconds`. Returns whether there are
        more. Any process calls this several times within `seconds`; see `_forgetting` for how a
        store finds these keys."""
        ...

    async def renew(self, epoch: str) -> None:
        """Ends `epoch`, if it is still the store's epoch, and publishes the next epoch in a message
        without keys."""
        ...

    async def send(self, payload: bytes) -> None:
        """Sends a probe, at most 100 bytes, through the channel to this relay's own `listen`, and
        perhaps to other listeners."""
        ...


class StoreWithDeliveries(Store, Protocol):
    """A store that also keeps delivered values, each for a limited time. Their keys are separate
    from the keys of versions.

    A settled key has one value, which `settled` returns to all callers. When the time to live is
    over by the store's clock, the key can be settled again, and the store eventually removes all
    its data.
    """

    # max_value: int = 1_000_000
    # Optional size limit of a value, in bytes, known after `open`.

    async def settle(
        self, deliveries: Sequence[Delivery], connection: Any = None
    ) -> Mapping[str, bool]:
        """Settles keys that are not settled yet, each in one atomic step. Publishes the newly
        settled keys with `encode_settled`, unless the channel loses the message.

        Args:
            deliveries: at most 100, with different keys. A key already settled with the token of
                its delivery counts as settled by this call: an earlier attempt succeeded.
            connection: as in `write`.

        Returns:
            For each key, whether it has the value of this delivery. Keys that are left out, such as
            those that other transactions hold locked, were not settled.

        Raises:
            TypeError, NotWritten: as in `write`. After any other `RelayUnavailable` the keys may
                have been settled.
        """
        ...

    async def settled(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        """The values of the settled keys among `keys`, at most 100. If the values exceed
        `MAX_SETTLED_BYTES` in total, further ones may be missing; they are requested again."""
        ...


class SweptStore(StoreWithDeliveries, Protocol):
    """A store that does not remove expired values by itself."""

    async def sweep(self, limit: int) -> int:
        """Removes at most `limit` expired values. Returns the number of removed values. Every
        process calls this now and then, until it returns 0."""
        ...


def refuse_connection(store: Store, connection: Any) -> None:
    """Raises TypeError for a caller's connection, in a store without such transactions."""
    if connection is not None:
        raise TypeError(
            f"the store at {store.address} takes no connection: "
            "it cannot write in the caller's transaction"
        )


async def current(password: Password) -> str:
    """The password for a new connection.

    Raises:
        NotWritten: the function has raised an exception, or returned something else.
    """
    try:
        given = password()
        if isawaitable(given):
            given = await given
        if not isinstance(given, str):
            raise TypeError(f"expected a str, got an object of type {type(given).__name__}")
    except Exception as error:
        raise NotWritten(f"no password: {error!r}") from error
    return given


def open_store(url: str | Store, prefix: str, password: Password | None = None) -> Store:
    """The store at an address; a store itself is returned unchanged.

    Raises:
        TypeError, ValueError: `url` is not the address of a store, or of one without passwords.
        ImportError: the store's client is not installed; the message names the extra to install.
    """
    if password is not None and not callable(password):
        raise TypeError(f"password must be a function, got an object of type {type(password)}")
    if not isinstance(url, str) and hasattr(url, "listen"):
        if password is not None:
            raise TypeError("password must be None with a store of your own")
        return url
    if not (prefix.isascii() and prefix.replace("_", "a").isalnum() and len(prefix) <= 32):
        raise ValueError(
            f"prefix must consist of at most 32 letters, digits and underscores, got {prefix!r}"
        )
    if not isinstance(url, str):
        raise TypeError(
            f"store must be an address or have the methods of purgatory.relay.Store, got {url!r}"
        )
    scheme = url.partition(":")[0].lower()
    module, name = STORES.get(SCHEMES.get(scheme, scheme), ("", ""))
    if module:
        kind = getattr(import_module(f"purgatory.relay.{module}"), name)
        store: Store = kind(url, prefix, password)
        return store
    raise ValueError(
        f"cannot open a store at {without_password(url)!r}: the address must begin with "
        "file://, redis://, rediss://, valkey://, valkeys://, unix://, redis+sentinel://, "
        "postgresql://, nats:// or tls:// (NATS)"
    )
