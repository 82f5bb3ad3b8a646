"""Warnings under the logger `purgatory`, for problems that would otherwise go unnoticed.

    WARNING    a missed trigger: an operation that only the last try, at its deadline, completed
    WARNING    operations that `aclose` cancelled, because they had not ended within the drain
    WARNING    in asyncio's debug mode, a check of 42 without waiters, while an operation waits for
               "42"

The first and last are limited to one message in ten seconds for each purgatory, which says how many
were suppressed.
"""

import os
import sys
from asyncio import AbstractEventLoop
from collections.abc import Callable, Container, Hashable
from contextlib import suppress
from logging import getLogger
from time import monotonic
from typing import Any, Final, final
from uuid import UUID

from purgatory._core.arguments import describe, printable

log: Final = getLogger("purgatory")

MESSAGE_INTERVAL: Final = 10.0
"""Seconds between two messages of a kind that may be frequent."""

KEYS_SHOWN: Final = 8
"""How many keys of an operation a message names."""

MAX_NAMES: Final = 1000
"""The number of purgatories whose last message is remembered."""


@final
class RateLimit:
    """Allows one message of each name in `MESSAGE_INTERVAL` seconds, and counts the others.

    Args:
        time: the clock, in seconds.
    """

    __slots__ = ("_names", "time")

    def __init__(self, time: Callable[[], float] = monotonic) -> None:
        self.time = time
        self._names: dict[str, tuple[float, int]] = {}
        """Of up to `MAX_NAMES`: when a message is allowed again, and the number of suppressed
        ones."""

    def allow(self, name: str) -> bool:
        """Whether a message of `name` may be logged now. If not, it is counted."""
        now = self.time()
        allowed_at, suppressed = self._names.get(name, (now, 0))
        if now < allowed_at:
            self._names[name] = allowed_at, suppressed + 1
            return False
        if len(self._names) >= MAX_NAMES and name not in self._names:
            self._names.clear()
        self._names[name] = now + MESSAGE_INTERVAL, suppressed
        return True

    def suppressed(self, name: str) -> str:
        """How many messages of `name` were suppressed since this was called last, in words."""
        allowed_at, count = self._names.get(name, (0.0, 0))
        if not count:
            return ""
        self._names[name] = allowed_at, 0
        return f" ({count:,} more since the last such message)"


missed_triggers: Final = RateLimit()
similar_keys: Final = RateLimit()


def missed_trigger(
    purgatory: str, kind: str, keys: tuple[Hashable, ...], waited: float | None
) -> None:
    """Logs that only the last try has completed an operation.

    Args:
        purgatory: the name of the purgatory.
        kind: the name of the operation's class.
        keys: the operation's keys.
        waited: the duration of the wait in seconds; None if unknown.
    """
    if missed_triggers.allow(purgatory):
        log.warning(
            "%s: missed trigger: %s on %s completed only at its deadline%s. Its condition held, but"
            " check_and_complete was not called for its keys%s",
            printable(purgatory),
            kind,
            _list(keys),
            "" if waited is None else f", after {waited:.3f} s",
            missed_triggers.suppressed(purgatory),
        )


def wants_hints(loop: AbstractEventLoop) -> bool:
    """Whether the loop is in asyncio's debug mode, or was requested by an option of Python, which
    servers like uvicorn override."""
    flags = sys.flags
    return (
        loop.get_debug()
        or flags.dev_mode
        or (not flags.ignore_environment and bool(os.environ.get("PYTHONASYNCIODEBUG")))
    )


def similar_key(purgatory: str, key: Hashable, watched: Container[Hashable]) -> None:
    """Logs a hint if `key` has no waiters, but a similar key of another type has. For debug
    mode."""
    other = _similar_key(key, watched)
    if other is not None and similar_keys.allow(purgatory):
        log.warning(
            "%s: the checked key %s (%s) has no waiters, but %s (%s) has: keys compare by"
            " equality%s",
            printable(purgatory),
            describe(key),
            type(key).__name__,
            describe(other),
            type(other).__name__,
            similar_keys.suppressed(purgatory),
        )


def cancelled_by_drain(purgatory: str, count: int, drain: float) -> None:
    """Logs that `aclose` cancelled operations after its drain."""
    log.warning(
        "%s: the drain of %s s was over before all had ended: cancelled %d",
        printable(purgatory),
        drain,
        count,
    )


def _similar_key(key: Any, watched: Container[Hashable]) -> Hashable:
    """A watched key of another type: the number in a text, the text of a number, of bytes or of a
    UUID; or None."""
    if isinstance(key, str):
        makers: tuple[Any, ...] = (int, float, UUID, str.encode)
    elif isinstance(key, bytes):
        makers = (bytes.decode,)
    else:
        makers = (str,)
    for maker in makers:
        with suppress(Exception):  # there is no such key, or it cannot be compared
            other: Hashable = maker(key)
            if other in watched:
                return other
    return None


def _list(keys: tuple[Hashable, ...]) -> str:
    """The first of many keys."""
    others = len(keys) - KEYS_SHOWN
    return ", ".join(map(describe, keys[:KEYS_SHOWN])) + (
        f" and {others} others" if others > 0 else ""
    )
