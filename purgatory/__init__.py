"""Await delayed operations on asyncio: each is completed early by a key, or expires at its
deadline, exactly once."""

from purgatory._core.conditions import Reply
from purgatory._core.errors import (
    OperationCancelled,
    OperationReused,
    OperationTimeout,
    PurgatoryClosed,
    PurgatoryError,
    PurgatoryFull,
    RelayUnavailable,
    WrongLoop,
)
from purgatory._core.idle_tracker import IdleTracker
from purgatory._core.kernel import COMPILED
from purgatory._core.observers import Cause, Ended, Observer
from purgatory._core.operation import DelayedOperation
from purgatory._core.purgatory import Purgatory
from purgatory._core.states import OperationState
from purgatory._core.statistics import PurgatoryStatistics, ThresholdStatistics
from purgatory._core.thresholds import ThresholdPurgatory
from purgatory._core.timeouts import Timeout, timeout, timeout_at, wait_for
from purgatory._core.wheel_timer import TimerTask, WheelTimer
from purgatory._inspect import (
    Inspection,
    MissedTrigger,
    ThresholdInspection,
    WaitingOperation,
    WatchedKey,
    WatchedThreshold,
    inspect,
)

__version__: str
"""Version of the installed distribution, `asyncio-purgatory`."""


def __getattr__(name: str) -> str:
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415 - it takes longer to import than all of this

        return version("asyncio-purgatory")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "COMPILED",
    "Cause",
    "DelayedOperation",
    "Ended",
    "IdleTracker",
    "Inspection",
    "MissedTrigger",
    "Observer",
    "OperationCancelled",
    "OperationReused",
    "OperationState",
    "OperationTimeout",
    "Purgatory",
    "PurgatoryClosed",
    "PurgatoryError",
    "PurgatoryFull",
    "PurgatoryStatistics",
    "RelayUnavailable",
    "Reply",
    "ThresholdInspection",
    "ThresholdPurgatory",
    "ThresholdStatistics",
    "Timeout",
    "TimerTask",
    "WaitingOperation",
    "WatchedKey",
    "WatchedThreshold",
    "WheelTimer",
    "WrongLoop",
    "inspect",
    "timeout",
    "timeout_at",
    "wait_for",
]
