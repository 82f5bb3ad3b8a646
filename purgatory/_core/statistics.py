"""The statistics of purgatories: immutable snapshots."""

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, slots=True)
class PurgatoryStatistics:
    """Counts of a purgatory: ends so far, and current contents."""

    name: str
    pending: int
    """Operations that wait."""
    watched: int
    """Pairs of an operation that waits and a key that it watches."""
    keys: int
    """Keys that are watched."""
    completed: int
    """Operations that have completed, at their first try or later."""
    expired: int
    cancelled: int
    missed_triggers: int
    """Operations among the completed ones that only the last try, at their deadline, completed:
    `check_and_complete` was not called."""
    wake_ups: int
    """Callbacks that the loop made to the wheel."""
    moves: int
    """How often an operation was moved to a narrower bucket."""


@final
@dataclass(frozen=True, slots=True)
class ThresholdStatistics:
    """Counts of a threshold purgatory: ends so far, and current contents."""

    name: str
    pending: int
    """Waits that have not ended yet."""
    unanswered: int
    """Waits that have ended, and are answered in the next iterations of the loop."""
    keys: int
    """Keys that have a value or are waited for."""
    completed: int
    """Waits that reached their threshold, at the first look or later."""
    failed: int
    expired: int
    cancelled: int
    """Waits that were cancelled, with their task or by `aclose`."""
    wake_ups: int
    """Callbacks that the loop made to the wheel."""
    moves: int
    """How often a wait was moved to a narrower bucket."""
