"""Warnings under the logger `purgatory`, for problems that would otherwise go unnoticed.

    WARNING    a missed trigger: an operation that only the last try, at its deadline, completed
    WARNING    operations that `aclose` cancelled, because they had not ended within the drain

The first is limited to one message in ten seconds for each purgatory, which says how many were
suppressed.
"""

from collections.abc import Hashable
from logging import getLogger
from math import inf
from time import monotonic
from typing import Final, final

from purgatory._core.arguments import describe, printable

log: Final = getLogger("purgatory")

MESSAGE_INTERVAL: Final = 10.0
"""Seconds between two messages of a kind that may be frequent."""

KEYS_SHOWN: Final = 8
"""How many keys of an operation a message names."""


@final
class RateLimit:
    """Allows one message in `MESSAGE_INTERVAL` seconds, and counts the suppressed ones."""

    __slots__ = ("_allowed_at", "_suppressed")

    def __init__(self) -> None:
        self._allowed_at = -inf
        self._suppressed = 0

    def allow(self) -> str | None:
        """The end of a message that may be logged now: how many were suppressed before it. None if
        it is suppressed."""
        now = monotonic()
        if now < self._allowed_at:
            self._suppressed += 1
            return None
        count, self._suppressed = self._suppressed, 0
        self._allowed_at = now + MESSAGE_INTERVAL
        return f" ({count:,} more since the last such message)" if count else ""


def missed_trigger(
    purgatory: str,
    kind: str,
    keys: tuple[Hashable, ...],
    waited: float | None,
    limit: RateLimit,
) -> None:
    """Logs that only the last try has completed an operation.

    Args:
        purgatory: the name of the purgatory.
        kind: the name of the operation's class.
        keys: the operation's keys.
        waited: the duration of the wait in seconds; None if unknown.
        limit: rate limit of this purgatory.
    """
    suppressed = limit.allow()
    if suppressed is not None:
        log.warning(
            "%s: missed trigger: %s on %s completed only at its deadline%s. Its condition held, but"
            " check_and_complete was not called for its keys%s",
            printable(purgatory),
            kind,
            _list(keys),
            "" if waited is None else f", after {waited:.3f} s",
            suppressed,
        )


def cancelled_by_drain(purgatory: str, count: int, drain: float) -> None:
    """Logs that `aclose` cancelled operations after its drain."""
    message = "%s: the drain of %s s was over before all had ended: cancelled %d"
    log.warning(message, printable(purgatory), drain, count)


def _list(keys: tuple[Hashable, ...]) -> str:
    """The first of many keys."""
    others = len(keys) - KEYS_SHOWN
    return ", ".join(map(describe, keys[:KEYS_SHOWN])) + (
        f" and {others} others" if others > 0 else ""
    )
