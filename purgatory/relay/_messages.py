"""What a relay and its store exchange: keys and versions, changes, the results of reads, and messages on a channel.

A *position* counts the writes of a store, over all keys. Each write has the next one, and each result of a read and each change
message names one. So a gap between the positions of two messages shows that something is missing, and "what has changed since
position 41" costs what has changed. The messages of a store without such a count come after `NO_POSITION`.

On the wire a message is JSON. An array is a change message: `["8f3a21c0", 41, 43, {"orders/7": 5, "orders/9": 1}]` says that in
this epoch, after position 41 and up to 43, these keys have these versions. A string is a probe, which a relay sends to itself.
An object is an announcement, in which a process describes itself: `{"id": "5c02d1", "calls": true, "about": {"pid": 7}}`.
An array of keys, `["orders/7", "orders/9"]`, is a hint: these have perhaps changed, and if it is empty, anything has. A store
sends it through a channel that others may write to, and it has the keys read.
"""

from collections.abc import Mapping
from json import dumps, loads
from operator import index
from typing import Any, Final, NamedTuple, SupportsIndex, final

NO_POSITION: Final = -1
"""The position before a change in a store that does not count its writes."""

MAX_KEY_BYTES: Final = 512
"""As UTF-8."""

MAX_ANNOUNCEMENT_BYTES: Final = 4_000
"""All channels take 7,000."""


@final
class Change(NamedTuple):
    """What a write does to a key: it raises the version to `floor`, and then by `increment`."""

    key: str
    floor: int
    increment: int


@final
class ChangeMessage(NamedTuple):
    """These keys have these versions now: what a write sends to everyone, and what it returns."""

    epoch: str
    after: int
    """The position before the first of these writes, or `NO_POSITION`."""
    position: int
    """That of the last of them; later than any that the store had given out when the write began."""
    versions: Mapping[str, int]


@final
class Hint(NamedTuple):
    """These keys have perhaps changed, and are to be read; without keys anything has."""

    keys: tuple[str, ...]


@final
class ReadResult(NamedTuple):
    """What a read has found."""

    epoch: str
    position: int
    """Everything up to here is in it: of the requested keys, and, if requested, of all that have changed since a position."""
    versions: Mapping[str, int]
    has_more: bool = False
    """Whether more has changed than is in it."""
    latest: int = NO_POSITION
    """The latest position that the store has given out, where that is not `position`. It falls only if the store has lost
    something."""
    is_incomplete: bool = False
    """Whether a key that has changed since the requested position was forgotten, and so is not in it."""


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


def encode_announcement(announcement: Announcement) -> bytes:
    """An announcement, as it is sent.

    Raises:
        ValueError: it is larger than a message may be.
        TypeError: something in it cannot be sent as JSON.
    """
    payload = dumps(announcement._asdict(), separators=(",", ":")).encode()
    if len(payload) > MAX_ANNOUNCEMENT_BYTES:
        raise ValueError(f"an announcement takes at most {MAX_ANNOUNCEMENT_BYTES} bytes as JSON, not {len(payload)}")
    return payload


def decode(payload: bytes | str) -> ChangeMessage | Hint | Announcement | str:
    """A change message, a hint, an announcement or a probe, from what was received.

    Raises:
        ValueError: it is none of these.
    """
    try:
        message: Any = loads(payload)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not a message of a relay: {payload[:100]!r}") from error
    if type(message) is str:
        return message
    try:
        if type(message) is dict:
            id_, calls, about = message["id"], message["calls"], message["about"]
            is_small = len(payload) <= MAX_ANNOUNCEMENT_BYTES  # it is kept for a while, and anyone may write to a store
            if is_small and type(id_) is str and type(calls) is bool and (about is None or type(about) is dict):
                return Announcement(id_, calls, about)
        elif {*map(type, message)} <= {str}:
            return Hint(tuple(message))
        else:
            epoch, after, position, versions = message
            has_integers = type(after) is type(position) is int and {*map(type, versions.values())} <= {int}
            if type(epoch) is str and type(versions) is dict and has_integers:
                return ChangeMessage(epoch, after, position, versions)
    except (AttributeError, KeyError, TypeError, ValueError):
        pass
    raise ValueError(f"not a message of a relay: {payload[:100]!r}")


def check_key(key: object) -> str:
    """The key.

    Raises:
        TypeError: it is no `str`.
        ValueError: it is longer than 512 bytes, or cannot be encoded.
    """
    if not isinstance(key, str):
        raise TypeError(f"a key is a str, not {key!r}")
    # The fast path: short enough at any encoding, and ASCII can always be encoded.
    if len(key) <= MAX_KEY_BYTES // 4 and key.isascii():
        return key
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"a key is text, which {key!r} is not: {error.reason}") from None
    if size > MAX_KEY_BYTES:
        raise ValueError(f"a key has at most {MAX_KEY_BYTES} bytes, not {size} as {key[:40]!r}...")
    return key


def check_version(version: object, name: str, power: int) -> int:
    """The version.

    Raises:
        TypeError: it is no integer.
        ValueError: it is negative or above two to this power.
    """
    if isinstance(version, bool) or not isinstance(version, SupportsIndex):
        raise TypeError(f"{name} is a whole number, not {version!r}")
    number = index(version)
    if not 0 <= number <= 2**power:
        raise ValueError(f"{name} is from 0 to 2**{power}, not {number}")
    return number
