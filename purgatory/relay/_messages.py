"""What a relay and its store exchange: keys and versions, changes, the results of reads, and
messages on a channel.

A *position* counts the writes of a store, over all keys. Each write has the next one, and each
result of a read and each change message names one. So a gap between the positions of two messages
shows that something is missing, and "what has changed since position 41" costs what has changed.
The messages of a store without such a count come after `NO_POSITION`.

On the wire a message is JSON. An array is a change message: `["8f3a21c0", 41, 43, {"orders/7": 5,
"orders/9": 1}]` says that in this epoch, after position 41 and up to 43, these keys have these
versions. A string is a probe, which a relay sends to itself. An object is an announcement, in which
a process describes itself: `{"id": "5c02d1", "calls": true, "about": {"pid": 7}}`. An array of
keys, `["orders/7", "orders/9"]`, is a hint: these have perhaps changed, and if it is empty,
anything has. A store sends it through a channel that others may write to, and it has the keys read.
`{"settled": ["payments/7"]}` says that replies to these keys were delivered, or, without keys, that
any may have been. It never has the replies: whoever waits for one reads it from the store.
"""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from json import dumps, loads
from operator import index
from secrets import token_bytes
from typing import Any, Final, NamedTuple, SupportsFloat, SupportsIndex, final

from purgatory._core.arguments import describe

NO_POSITION: Final = -1
"""The position before a change in a store that does not count its writes."""

MAX_KEY_BYTES: Final = 512
"""As UTF-8."""

MAX_ANNOUNCEMENT_BYTES: Final = 4_000
"""All channels take 7,000."""

MAX_MESSAGE_BYTES: Final = 1 << 20
"""100 keys of 512 bytes take 310,000."""

MAX_VALUE_BYTES: Final = 1 << 20
"""Of a delivered value, unless a relay sets another limit."""

MAX_TTL: Final = 2.0**31
"""Seconds; 68 years, which every store can add to its clock."""

MAX_NUMBER: Final = 2**53
"""Highest version and position: the largest that all stores and JSON keep exactly."""

MAX_DEPTH: Final = 8
"""Of nested lists and objects in an announcement."""

NAME: Final = re.compile(r"[0-9A-Za-z_.:-]{1,64}")
"""The form of epochs and ids."""


@final
class Change(NamedTuple):
    """What a write does to a key: it raises the version to `floor`, and then by `increment`."""

    key: str
    floor: int
    increment: int


@final
class Delivery(NamedTuple):
    """A value that settles a key, unless another one has."""

    key: str
    value: bytes
    ttl: float
    """Seconds, from when the store takes it."""
    token: bytes
    """16 bytes that tell it from other deliveries, so that it may be sent again."""


@final
class ChangeMessage(NamedTuple):
    """These keys have these versions now: what a write sends to everyone, and what it returns."""

    epoch: str
    after: int
    """The position before the first of these writes, or `NO_POSITION`."""
    position: int
    """That of the last of them; later than any that the store had given out when the write
    began."""
    versions: Mapping[str, int]


@final
class Hint(NamedTuple):
    """These keys have perhaps changed, and are to be read; without keys anything has."""

    keys: tuple[str, ...]


@final
class Settled(NamedTuple):
    """Values were delivered to these keys; without keys, perhaps to any."""

    keys: tuple[str, ...]


@final
class ReadResult(NamedTuple):
    """What a read has found."""

    epoch: str
    position: int
    """Everything up to here is in it: of the requested keys, and, if requested, of all that have
    changed since a position."""
    versions: Mapping[str, int]
    has_more: bool = False
    """Whether more has changed than is in it."""
    latest: int = NO_POSITION
    """The latest position that the store has given out, where that is not `position`. It falls only
    if the store has lost something."""
    is_incomplete: bool = False
    """Whether a key that has changed since the requested position was forgotten, and so is not in
    it."""


@final
class Announcement(NamedTuple):
    """What a process tells the others about itself."""

    id: str
    calls: bool
    """Whether the others are to announce themselves, too."""
    about: Mapping[str, Any] | None
    """None if the process does not want to be listed."""


def encode(message: ChangeMessage) -> bytes:
    """A change message, as it is sent."""
    return dumps(message, separators=(",", ":")).encode()


def encode_hint(hint: Hint) -> bytes:
    """A hint, as it is sent."""
    return dumps(hint.keys, separators=(",", ":")).encode()


def encode_settled(keys: Iterable[str], max_bytes: int) -> list[bytes]:
    """The messages that name these keys, none of them larger than `max_bytes`."""
    names = dumps({"settled": list(keys)}, separators=(",", ":")).encode()
    if len(names) <= max_bytes:
        return [names]
    keys = tuple(keys)
    middle = len(keys) // 2
    return [
        *encode_settled(keys[:middle], max_bytes),
        *encode_settled(keys[middle:], max_bytes),
    ]


def encode_announcement(announcement: Announcement) -> bytes:
    """An announcement, as it is sent.

    Raises:
        ValueError: it is larger than a message may be.
        TypeError: something in it cannot be sent as JSON.
    """
    payload = dumps(announcement._asdict(), separators=(",", ":")).encode()
    if len(payload) > MAX_ANNOUNCEMENT_BYTES:
        raise ValueError(
            f"an announcement takes at most {MAX_ANNOUNCEMENT_BYTES} bytes as JSON, not {len(payload)}"
        )
    return payload


def decode(payload: bytes | str) -> ChangeMessage | Hint | Settled | Announcement | str:
    """A received message: a change, a hint, an announcement, a probe, or settled keys. Anyone may
    have sent it: types, bounds and names are checked here, for all stores.

    Raises:
        ValueError: it is none of these.
    """
    if len(payload) <= MAX_MESSAGE_BYTES:
        with suppress(ValueError, RecursionError, TypeError, KeyError):
            message = _decoded(loads(payload), len(payload))
            if message is not None:
                return message
    raise ValueError(f"not a message of a relay: {payload[:100]!r}")


def _decoded(message: Any, size: int) -> ChangeMessage | Hint | Settled | Announcement | str | None:
    """The message in decoded JSON, or None. May raise what `decode` suppresses."""
    if type(message) is str:
        return message if size <= MAX_ANNOUNCEMENT_BYTES else None
    if type(message) is dict:
        if "settled" in message:
            keys = message["settled"]
            return Settled(tuple(map(check_key, keys))) if type(keys) is list else None
        id_, calls, about = message["id"], message["calls"], message["about"]
        is_small = size <= MAX_ANNOUNCEMENT_BYTES  # it is stored for a while
        is_described = about is None or (type(about) is dict and _depth(about) <= MAX_DEPTH)
        if is_small and _is_name(id_) and type(calls) is bool and is_described:
            return Announcement(id_, calls, about)
        return None
    if type(message) is not list:
        return None
    if all(type(key) is str for key in message):
        return Hint(tuple(map(check_key, message)))
    epoch, after, position, versions = message
    has_numbers = type(after) is type(position) is int and type(versions) is dict
    if has_numbers and all(type(version) is int for version in versions.values()):
        return check_message(ChangeMessage(epoch, after, position, versions))
    return None


def _depth(value: Any) -> int:
    """How deep lists and objects are nested in JSON."""
    parts = value.values() if type(value) is dict else value if type(value) is list else ()
    return 1 + max(map(_depth, parts)) if parts else 0


def _is_name(value: object) -> bool:
    """Whether it can be an epoch or an id, which go into headers and pages."""
    return isinstance(value, str) and NAME.fullmatch(value) is not None


def check_message(message: ChangeMessage) -> ChangeMessage:
    """A change message, from a store or a channel.

    Raises:
        ValueError, TypeError: a part of it is out of bounds or has another type.
    """
    epoch, after, position, versions = message
    _check_numbers(epoch, position, versions)
    if not NO_POSITION <= index(after) <= position:
        raise ValueError(f"expected a position from -1 to {position}, got {after}")
    return message


def check_result(result: ReadResult) -> ReadResult:
    """The result of a read of a store.

    Raises:
        ValueError, TypeError: a part of it is out of bounds or has another type.
    """
    _check_numbers(result.epoch, result.position, result.versions)
    if not NO_POSITION <= index(result.latest) <= MAX_NUMBER:
        raise ValueError(f"expected a position from -1 to 2**53, got {result.latest}")
    return result


def _check_numbers(epoch: str, position: int, versions: Mapping[str, int]) -> None:
    if not _is_name(epoch):
        raise ValueError(f"expected an epoch like {NAME.pattern}, got {epoch!r}")
    # A store whose first writer has not committed yet may be one before 0.
    if not NO_POSITION <= index(position) <= MAX_NUMBER:
        raise ValueError(f"expected a position from -1 to 2**53, got {position}")
    for key, version in versions.items():
        check_key(key)
        if not 0 <= index(version) <= MAX_NUMBER:
            raise ValueError(f"expected a version of {key!r} from 0 to 2**53, got {version}")


def check_key(key: object) -> str:
    """The key.

    Raises:
        TypeError: it is no `str`.
        ValueError: it is longer than 512 bytes, or cannot be encoded.
    """
    if not isinstance(key, str):
        raise TypeError(f"expected a key of type str, got {describe(key)}")
    # The fast path: short enough at any encoding, and ASCII can always be encoded.
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


def check_delivery(key: object, value: object, ttl: float, max_value: int) -> Delivery:
    """A new delivery.

    Raises:
        TypeError: `value` is no `bytes`, or `ttl` no number.
        ValueError: `value` is larger than `max_value` bytes, or `ttl` is not positive or beyond
            `MAX_TTL`.
    """
    key = check_key(key)
    if not isinstance(value, bytes):
        raise TypeError(f"a delivered value must be bytes, got {describe(value)}")
    if len(value) > max_value:
        raise ValueError(
            f"a delivered value must be at most {max_value} bytes, got {len(value)} for {key!r}"
        )
    if isinstance(ttl, bool) or not isinstance(ttl, SupportsFloat):
        raise TypeError(f"ttl must be a number of seconds, got {describe(ttl)}")
    if not 0.0 < float(ttl) <= MAX_TTL:  # which NaN is not either
        raise ValueError(
            f"ttl must be a positive number of seconds, at most {MAX_TTL:.0f}, got {describe(ttl)}"
        )
    return Delivery(key, bytes(value), float(ttl), token_bytes(16))


def check_version(version: object, name: str, power: int) -> int:
    """The version.

    Raises:
        TypeError: it is no integer.
        ValueError: it is negative or above two to this power.
    """
    if isinstance(version, bool) or not isinstance(version, SupportsIndex):
        raise TypeError(f"{name} must be an integer, got {describe(version)}")
    number = index(version)
    if not 0 <= number <= 2**power:
        raise ValueError(f"{name} must be from 0 to 2**{power}, got {describe(number)}")
    return number
