"""The settings of a broker."""

from dataclasses import dataclass, fields
from math import isfinite
from pathlib import Path
from typing import Any

LEAST = {"partitions": 1, "replicas": 1}
"""The least values of counts. Times are zero or more, or more than zero if they are `POSITIVE`."""
POSITIVE = {"clean_interval"}
MOST = {"partitions": 10_000, "replicas": 100}


@dataclass(frozen=True, slots=True)
class Settings:
    """All times are in seconds.

    Attributes:
        directory: folder of all data; None keeps it in memory.
        fsync: whether each append is on the disk before its response.
        partitions: number for topics that are created automatically, up to 10,000.
        auto_create_topics: whether a topic is created when a client asks for it, as by Kafka.
        replicas, replica_lag, replica_timeout: see `Followers`.
        rebalance_delay: time for which an empty group waits for more members; Kafka's is 3 s.
        clean_interval: time between two cleanings; Kafka's log.retention.check.interval.ms.
        min_session_timeout: the shortest session timeout; Kafka's is 6 s.
    """

    directory: Path | None = None
    fsync: bool = False
    partitions: int = 1
    auto_create_topics: bool = True
    replicas: int = 1
    replica_lag: float = 0.005
    replica_timeout: float = 30.0
    rebalance_delay: float = 0.1
    clean_interval: float = 300.0
    min_session_timeout: float = 0.1

    def __post_init__(self) -> None:
        """Checks all values.

        Raises:
            TypeError: a value is of another type than the field.
            ValueError: a count or a time is out of its bounds.
        """
        for field in fields(self):
            _check(field.name, field.type, getattr(self, field.name))


def _check(name: str, kind: object, value: Any) -> None:
    if kind is bool:
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False, got {value!r}")
    elif kind is int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{name} must be an integer, got {value!r}")
        if not LEAST[name] <= value <= MOST[name]:
            raise ValueError(f"{name} must be {LEAST[name]} to {MOST[name]}, got {value!r}")
    elif kind is float:
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise TypeError(f"{name} must be a number of seconds, got {value!r}")
        if not isfinite(value) or value < 0:
            raise ValueError(f"{name} must be zero or more seconds, got {value!r}")
        if name in POSITIVE and not value:
            raise ValueError(f"{name} must be more than zero seconds, got {value!r}")
    elif not isinstance(value, Path | None):
        raise TypeError(f"{name} must be a pathlib.Path or None, got {value!r}")
