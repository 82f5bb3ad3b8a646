"""What purgatories say of themselves: snapshots that do not change."""

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, slots=True)
class PurgatoryStatistics:
    """What a purgatory has done so far, and what is in it now."""

    name: str
    pending: int
    """Operations that wait."""
    watched: int
    """Pairs of an operation that waits and a key that it watches."""
    keys: int
    """Keys that somebody watches."""
    completed: int
    """Operations that have completed, at their first try or later."""
    expired: int
    cancelled: int
    missed_triggers: int
    """Of the completed ones, those whose condition was found to hold only when their deadline came: nobody had called
    `check_and_complete`."""
    wake_ups: int
    """Callbacks that the buckets of the wheel had from the loop."""
    moves: int
    """How often an operation was moved to a narrower bucket."""


@final
@dataclass(frozen=True, slots=True)
class ThresholdStatistics:
    """What a threshold purgatory has done so far, and what is in it now."""

    name: str
    pending: int
    """Waits that nothing has ended yet."""
    unanswered: int
    """Waits that have ended, but whose tasks are yet to be woken, in the next iterations of the loop."""
    keys: int
    """Keys that have a value or are waited for."""
    completed: int
    """Waits whose threshold was reached, before they began or later."""
    failed: int
    expired: int
    cancelled: int
    """Waits whose task was cancelled, or that `aclose` ended."""
    wake_ups: int
    """Callbacks that the buckets of the wheel had from the loop."""
    moves: int
    """How often a wait was moved to a narrower bucket."""
