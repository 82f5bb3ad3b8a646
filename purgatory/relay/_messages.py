"""What passes between a relay and its store: keys and versions, changes, answers and news.

A *position* counts the writes of a store, over all keys: each write has the next one, and it stands in each answer and in each
news. So a gap between the positions of two news tells that some are missing, and "what has changed since position 41" is a
question that costs what has changed. The news of a store that has no such count came after `NOWHERE`.

On the wire news are JSON, `["8f3a21c0", 41, 43, {"orders/7": 5, "orders/9": 1}]`: of this epoch, after position 41 and up to
43, these keys have these versions. A string is a probe, which a relay sends to itself. An object is a card, by which a process
makes itself known: `{"id": "5c02d1", "calls": true, "about": {"pid": 7}}`.
"""

from collections.abc import Mapping
from json import dumps, loads
from operator import index
from typing import Any, Final, NamedTuple, SupportsIndex, final

NOWHERE: Final = -1
"""The position before news in a store that does not count its writes."""

LONGEST_KEY: Final = 512
"""Bytes, as UTF-8."""

LARGEST_CARD: Final = 4_000
"""Bytes. All channels take 7,000."""

HIGHEST_VERSION: Final = 2**52
"""What `advance` may name. All stores count in numbers that are exact to 2**53, so 2**52 bumps are left after that."""


@final
class Change(NamedTuple):
    """What a write does to a key: its version is raised to `at_least`, and then by `more`."""

    key: str
    at_least: int
    more: int


@final
class News(NamedTuple):
    """That keys have these versions: what a write tells everyone, and what it answers."""

    epoch: str
    after: int
    """The position before the first of these writes, or `NOWHERE`."""
    position: int
    """That of the last of them; later than anything that the store had given out when the write began."""
    versions: Mapping[str, int]


@final
class Answer(NamedTuple):
    """What a read has found."""

    epoch: str
    position: int
    """Everything up to here is in it: of the keys that were asked for, and of all that have changed since, if that was."""
    versions: Mapping[str, int]
    has_more: bool = False
    """Whether more has changed than is in it."""
    latest: int = NOWHERE
    """The latest position that the store has given to anything, where that is not `position`. It falls only if something was
    lost."""


@final
class Card(NamedTuple):
    """By which a process makes itself known to the others."""

    id: str
    calls: bool
    """Whether the others are to do the same."""
    about: Mapping[str, Any] | None
    """What is to be known of it; None if nothing is."""


def encode(news: News) -> bytes:
    """News as they are sent."""
    return dumps(news, separators=(",", ":")).encode()


def encode_card(card: Card) -> bytes:
    """A card as it is sent.

    Raises:
        ValueError: there is more in it than a message takes.
        TypeError: something in it cannot be sent as JSON.
    """
    payload = dumps(card._asdict(), separators=(",", ":")).encode()
    if len(payload) > LARGEST_CARD:
        raise ValueError(f"what a process tells of itself takes at most {LARGEST_CARD} bytes as JSON, not {len(payload)}")
    return payload


def decode(payload: bytes | str) -> News | Card | str:
    """News, a card, or a probe, as they were received.

    Raises:
        ValueError: it is none of these.
    """
    try:
        message: Any = loads(payload)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"neither news nor a card nor a probe: {payload[:100]!r}") from error
    if type(message) is str:
        return message
    try:
        if type(message) is dict:
            id_, calls, about = message["id"], message["calls"], message["about"]
            is_small = len(payload) <= LARGEST_CARD  # it is kept for a while, and strangers may write to a store
            if is_small and type(id_) is str and type(calls) is bool and (about is None or type(about) is dict):
                return Card(id_, calls, about)
        else:
            epoch, after, position, versions = message
            is_whole = type(after) is type(position) is int and {*map(type, versions.values())} <= {int}
            if type(epoch) is str and type(versions) is dict and is_whole:
                return News(epoch, after, position, versions)
    except (AttributeError, KeyError, TypeError, ValueError):
        pass
    raise ValueError(f"neither news nor a card nor a probe: {payload[:100]!r}")


def check_key(key: object) -> str:
    """The key.

    Raises:
        TypeError: it is no `str`.
        ValueError: it is longer than 512 bytes, or no text that can be sent.
    """
    if not isinstance(key, str):
        raise TypeError(f"a key is a str, not {key!r}")
    # Most are short enough, whatever they consist of; those of ASCII can all be sent.
    if len(key) <= LONGEST_KEY // 4 and key.isascii():
        return key
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"a key is text, which {key!r} is not: {error.reason}") from None
    if size > LONGEST_KEY:
        raise ValueError(f"a key has at most {LONGEST_KEY} bytes, not {size} as {key[:40]!r}...")
    return key


def check_version(version: object, name: str = "version") -> int:
    """The version.

    Raises:
        TypeError: it is no whole number.
        ValueError: it is negative or above 2**52.
    """
    if isinstance(version, bool) or not isinstance(version, SupportsIndex):
        raise TypeError(f"{name} is a whole number, not {version!r}")
    number = index(version)
    if not 0 <= number <= HIGHEST_VERSION:
        raise ValueError(f"{name} is from 0 to 2**52, not {number}")
    return number
