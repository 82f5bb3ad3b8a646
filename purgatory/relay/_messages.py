"""The data that a relay and its store exchange: keys and versions, changes, the results of reads,
and messages on a channel.

A *position* counts the writes of a store, over all keys. Each write has the next position, and each
result of a read and each change message names one. So a gap between the positions of two messages
shows a missing message, and a read of the changes since position 41 costs in proportion to these
changes. In a store without such a count, `NO_POSITION` is the position before each change.

On the wire a message is JSON:

- A change message is an array. `["8f3a21c0", 41, 43, {"orders/7": 5, "orders/9": 1}]` means: in
  epoch 8f3a21c0, the writes after position 41 and up to 43 gave these keys these versions.
- A probe is a string, which a relay sends to itself.
- A hint is an array of keys, `["orders/7", "orders/9"]`, which may have changed; an empty array
  means any key. Stores send hints through channels open to strangers. A hint only causes a read.
- `{"settled": ["payments/7"]}` names keys to which replies were delivered; without keys, any key
  may have a reply. The reply itself is not in the message: waiters read it from the store.
"""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from json import dumps, loads
from math import inf
from operator import index
from secrets import token_bytes
from typing import Any, Final, NamedTuple, SupportsFloat, SupportsIndex, final

from purgatory._core.arguments import describe, seconds

NO_POSITION: Final = -1
"""Position before each change, in a store that does not count its writes."""

MAX_KEY_BYTES: Final = 512
"""Size limit of a key in UTF-8, in bytes."""

MAX_PROBE_BYTES: Final = 100
"""Size limit of a probe, in bytes."""

MAX_MESSAGE_BYTES: Final = 1 << 20
"""Size limit of a message, in bytes; a message with 100 keys of 512 bytes takes 310,000."""

MAX_VALUE_BYTES: Final = 1 << 20
"""Default size limit of a delivered value, in bytes."""

MAX_TTL: Final = 2.0**31
"""Limit of a time to live, in seconds: 68 years, which every store can add to its clock."""

MAX_NUMBER: Final = 2**53
"""Limit of versions and positions: the largest integer that all stores and JSON keep exactly."""

NAME: Final = re.compile(r"[0-9A-Za-z_.:-]{1,64}")
"""The form of epochs."""


@final
class Change(NamedTuple):
    """A change of one key: the version rises to at least `floor`, and then by `increment`."""

    key: str
    floor: int
    increment: int


@final
class Delivery(NamedTuple):
    """A value that settles a key, unless the key is settled already."""

    key: str
    value: bytes
    ttl: float
    """Time to live in seconds, counted from the store's write."""
    token: bytes
    """16 random bytes that identify this delivery, so that it can be sent again safely."""


@final
class ChangeMessage(NamedTuple):
    """New versions of keys: published by a write to all listeners, and also its result."""

    epoch: str
    after: int
    """Position before the first of these writes, or `NO_POSITION`."""
    position: int
    """Position of the last of these writes; later than all positions that the store had used when
    the write began."""
    versions: Mapping[str, int]


@final
class Hint(NamedTuple):
    """Keys that may have changed and need a read; without keys, any key."""

    keys: tuple[str, ...]


@final
class Settled(NamedTuple):
    """Keys to which values were delivered; without keys, perhaps any key."""

    keys: tuple[str, ...]


@final
class ReadResult(NamedTuple):
    """The result of a read."""

    epoch: str
    position: int
    """The result includes all writes up to this position: of the requested keys and, if requested,
    of all keys changed since a position."""
    versions: Mapping[str, int]
    has_more: bool = False
    """Whether there are further changes."""
    latest: int = NO_POSITION
    """Latest position of the store, if it differs from `position`. It falls only if the store has
    lost data."""
    is_incomplete: bool = False
    """Whether the result lacks a key that changed since the requested position and was then
    forgotten."""


def encode(message: ChangeMessage) -> bytes:
    """Encodes a change message for the channel."""
    return dumps(message, separators=(",", ":")).encode()


def encode_settled(keys: Iterable[str], max_bytes: int) -> bytes:
    """Encodes a message that names these settled keys; without keys, if it would be larger than
    `max_bytes`."""
    names = dumps({"settled": list(keys)}, separators=(",", ":")).encode()
    return names if len(names) <= max_bytes else b'{"settled":[]}'


def decode(payload: bytes | str) -> ChangeMessage | Hint | Settled | str:
    """Decodes a received message: a change, a hint, a probe, or settled keys. The
    sender may be a stranger, so types, bounds and names are checked here, for all stores.

    Raises:
        ValueError: `payload` is not a message of a relay.
    """
    if len(payload) <= MAX_MESSAGE_BYTES:
        with suppress(ValueError, RecursionError, TypeError, KeyError):
            message = _decoded(loads(payload), len(payload))
            if message is not None:
                return message
    raise ValueError(f"not a message of a relay: {payload[:100]!r}")


def _decoded(message: Any, size: int) -> ChangeMessage | Hint | Settled | str | None:
    """The message in decoded JSON, or None. May raise the exceptions that `decode` suppresses."""
    if type(message) is str:
        return message if size <= MAX_PROBE_BYTES else None
    if type(message) is dict:
        keys = message["settled"]
        return Settled(tuple(map(require_key, keys))) if type(keys) is list else None
    if type(message) is not list:
        return None
    if all(type(key) is str for key in message):
        return Hint(tuple(map(require_key, message)))
    epoch, after, position, versions = message
    has_numbers = type(after) is type(position) is int and type(versions) is dict
    # The epoch appears in headers.
    if (
        not has_numbers
        or not NAME.fullmatch(epoch)
        or not NO_POSITION <= after <= position <= MAX_NUMBER
    ):
        return None
    for key, version in versions.items():
        require_key(key)
        if type(version) is not int or not 0 <= version <= MAX_NUMBER:
            return None
    return ChangeMessage(epoch, after, position, versions)


def require_key(key: object) -> str:
    """A key, as it was given.

    Raises:
        TypeError: the key is not a `str`.
        ValueError: the key is longer than 512 bytes, or cannot be encoded.
    """
    if not isinstance(key, str):
        raise TypeError(f"expected a key of type str, got {describe(key)}")
    # Fast path: short enough in any encoding, and ASCII can always be encoded.
    if len(key) <= MAX_KEY_BYTES // 4 and key.isascii():
        return key
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"cannot encode the key {key!r}: {error.reason}") from None
    if size > MAX_KEY_BYTES:
        raise ValueError(
            f"expected a key of at most {MAX_KEY_BYTES} bytes, got {size} in {key[:40]!r}..."
        )
    return key


def require_delivery(key: object, value: object, ttl: float, max_value: int) -> Delivery:
    """A delivery, made of arguments that are valid.

    Raises:
        TypeError: `value` is not `bytes`, or `ttl` is not a number.
        ValueError: `value` is larger than `max_value` bytes, or `ttl` is not positive or beyond
            `MAX_TTL`.
    """
    key = require_key(key)
    if not isinstance(value, bytes):
        raise TypeError(f"a delivered value must be bytes, got {describe(value)}")
    if len(value) > max_value:
        raise ValueError(
            f"a delivered value must be at most {max_value} bytes, got {len(value)} for {key!r}"
        )
    if isinstance(ttl, bool) or not isinstance(ttl, SupportsFloat):
        raise TypeError(f"ttl must be a number of seconds, got {describe(ttl)}")
    if not 0.0 < float(ttl) <= MAX_TTL:  # false for NaN, too
        raise ValueError(
            f"ttl must be a positive number of seconds, at most {MAX_TTL:.0f}, got {describe(ttl)}"
        )
    return Delivery(key, bytes(value), float(ttl), token_bytes(16))


def require_duration(name: str, value: float) -> None:
    """Requires a number of seconds as the argument `name`.

    Raises:
        TypeError: it is no number.
        ValueError: it is not positive and finite.
    """
    if not 0.0 < seconds(name, value) < inf:
        raise ValueError(f"{name} must be a positive, finite number of seconds, got {value!r}")


def require_version(version: object, name: str, power: int) -> int:
    """A version as an `int`.

    Raises:
        TypeError: the version is not an integer.
        ValueError: the version is negative or above two to this power.
    """
    if isinstance(version, bool) or not isinstance(version, SupportsIndex):
        raise TypeError(f"{name} must be an integer, got {describe(version)}")
    number = index(version)
    if not 0 <= number <= 2**power:
        raise ValueError(f"{name} must be from 0 to 2**{power}, got {describe(number)}")
    return number
