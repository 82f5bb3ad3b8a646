"""Await delayed operations on asyncio: each is completed early by a key, or expires at its deadline, exactly once."""

from purgatory._errors import (
    OperationCancelled,
    OperationReused,
    OperationTimeout,
    PurgatoryClosed,
    PurgatoryError,
    PurgatoryFull,
    RelayUnavailable,
    WrongLoop,
)
from purgatory._inspect import (
    Inspection,
    MissedTrigger,
    ThresholdInspection,
    WaitingOperation,
    WatchedKey,
    WatchedThreshold,
    WheelLevel,
    inspect,
)
from purgatory._observers.observer import Cause, Ended, Observer
from purgatory._operations.operation import DelayedOperation
from purgatory._operations.purgatory import Purgatory
from purgatory._state import OperationState
from purgatory._statistics import PurgatoryStatistics, ThresholdStatistics
from purgatory._thresholds.threshold import ThresholdPurgatory
from purgatory._timers.idle_tracker import IdleTracker
from purgatory._timers.timeouts import Timeout, timeout, timeout_at, wait_for
from purgatory._timers.wheel_timer import TimerTask, WheelTimer

__version__: str
"""Of the distribution that is installed, `asyncio-purgatory`."""


def __getattr__(name: str) -> str:
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415 - it takes longer to import than all of this

        return version("asyncio-purgatory")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
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
    "ThresholdInspection",
    "ThresholdPurgatory",
    "ThresholdStatistics",
    "Timeout",
    "TimerTask",
    "WaitingOperation",
    "WatchedKey",
    "WatchedThreshold",
    "WheelLevel",
    "WheelTimer",
    "WrongLoop",
    "inspect",
    "timeout",
    "timeout_at",
    "wait_for",
]
