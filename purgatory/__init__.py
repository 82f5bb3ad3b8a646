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
from purgatory._idle import IdleTracker
from purgatory._observer import Observer
from purgatory._operation import DelayedOperation, OperationState
from purgatory._purgatory import Purgatory, PurgatoryStatistics
from purgatory._threshold import ThresholdPurgatory, ThresholdStatistics
from purgatory._timeouts import Timeout, timeout, timeout_at, wait_for
from purgatory._timer import TimerTask, WheelTimer

__all__ = [
    "DelayedOperation",
    "IdleTracker",
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
    "ThresholdPurgatory",
    "ThresholdStatistics",
    "Timeout",
    "TimerTask",
    "WheelTimer",
    "WrongLoop",
    "timeout",
    "timeout_at",
    "wait_for",
]
