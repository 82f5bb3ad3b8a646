"""The settings of a broker."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Settings:
    """All times are in seconds.

    Attributes:
        directory: for all data; None keeps it in memory.
        fsync: each append is on the disk before its response.
        partitions: of topics that are created automatically.
        auto_create_topics: a topic is created when a client asks for it, as by Kafka's default.
        replicas, replica_lag, replica_timeout: see `Followers`.
        rebalance_delay: how long a group that was empty waits for more members; Kafka's is 3 s.
        clean_interval: between two looks for records that are too old or too many; Kafka's log.retention.check.interval.ms.
        min_session_timeout: shorter session timeouts are refused; Kafka's is 6 s.
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
