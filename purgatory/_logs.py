"""What is logged, under the logger `purgatory`: what goes wrong in silence otherwise.

    WARNING    a missed trigger: an operation whose condition was found to hold at its deadline only
    WARNING    a drain that was over before all had ended, so that `aclose` cancelled the rest
    WARNING    in asyncio's debug mode, a check of 42 that nobody waits for, while somebody waits for "42"

Of the first and last kind at most one message in ten seconds for each purgatory; it says how many were left out.
"""

import os
import sys
from asyncio import AbstractEventLoop
from collections.abc import Callable, Container, Hashable, Iterator
from logging import getLogger
from time import monotonic
from typing import Any, Final, final
from uuid import UUID

log: Final = getLogger("purgatory")

PAUSE: Final = 10.0
"""Seconds between two messages of a kind that may come in thousands."""

MOST_NAMES: Final = 1000
"""Of how many purgatories it is remembered when they were logged last."""


@final
class Rarely:
    """Lets one message of each name through in `PAUSE` seconds, and counts those that it does not.

    Args:
        time: the clock, in seconds.
    """

    __slots__ = ("_left_out", "_next", "time")

    def __init__(self, time: Callable[[], float] = monotonic) -> None:
        self.time = time
        self._next: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def may(self, name: str) -> bool:
        """Whether a message of `name` may be logged now; if not it is counted."""
        now = self.time()
        if now < self._next.get(name, now):
            self._left_out[name] = self._left_out.get(name, 0) + 1
            return False
        if len(self._next) >= MOST_NAMES:
            self._next.clear()
        self._next[name] = now + PAUSE
        return True

    def left_out(self, name: str) -> str:
        """How many messages of `name` were not logged since the last one, in words."""
        count = self._left_out.pop(name, 0)
        return f" ({count:,} more since the last such message)" if count else ""


missed_triggers: Final = Rarely()
lookalikes: Final = Rarely()


def missed_trigger(purgatory: str, kind: str, keys: tuple[Hashable, ...], waited: float | None) -> None:
    """Logs that only the last try has completed an operation.

    Args:
        purgatory: its name.
        kind: the name of the operation's class.
        keys: what it watched.
        waited: how long, in seconds, if that is known.
    """
    if missed_triggers.may(purgatory):
        log.warning(
            "%s: missed trigger: %s on %s completed only at its deadline%s. Its condition held, but nobody had called"
            " check_and_complete for its keys when it came to hold%s",
            purgatory,
            kind,
            ", ".join(map(repr, keys)),
            "" if waited is None else f", after {waited:.3f} s",
            missed_triggers.left_out(purgatory),
        )


def wants_hints(loop: AbstractEventLoop) -> bool:
    """Whether the loop is in asyncio's debug mode, or Python was asked for that and a server, as uvicorn does, has said no."""
    flags = sys.flags
    return loop.get_debug() or flags.dev_mode or (not flags.ignore_environment and bool(os.environ.get("PYTHONASYNCIODEBUG")))


def lookalike(purgatory: str, key: Hashable, watched: Container[Hashable]) -> None:
    """Logs a hint if nobody waits for `key`, but somebody for a key of another type that looks like it. For debug mode."""
    for other in _lookalikes_of(key):
        if other in watched:
            if lookalikes.may(purgatory):
                log.warning(
                    "%s: nobody waits for %r (%s), which was checked, but somebody for %r (%s): keys compare by equality%s",
                    purgatory,
                    key,
                    type(key).__name__,
                    other,
                    type(other).__name__,
                    lookalikes.left_out(purgatory),
                )
            return


def cancelled_by_drain(purgatory: str, count: int, drain: float) -> None:
    """Logs that a drain did not last."""
    log.warning("%s: the drain of %s s was over before all had ended, and the rest was cancelled: %d", purgatory, drain, count)


def _lookalikes_of(key: Any) -> Iterator[Hashable]:
    """Keys of other types that look like it: the number in a text, the text of a number, of bytes or of a UUID."""
    if isinstance(key, str):
        makers: tuple[Any, ...] = (int, float, UUID, str.encode)
    elif isinstance(key, bytes):
        makers = (bytes.decode,)
    else:
        makers = (str,)
    for maker in makers:
        try:
            yield maker(key)
        except Exception:
            continue
