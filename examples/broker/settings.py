"""What can be chosen of a broker."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Settings:
    """Times are in seconds.

    Attributes:
        directory: where everything is kept; None keeps it in memory.
        fsync: each append is on the disk before it is answered.
        partitions: of topics that nobody has created.
        creates_topics: who asks for a topic that is not there gets it, as by Kafka's default.
        replicas, replica_lag, replica_patience: see `Replicas`.
        rebalance_delay: how long a group that was empty waits for more members; Kafka's is 3 s.
        shortest_session: session timeouts below this are refused; Kafka's is 6 s.
    """

    directory: Path | None = None
    fsync: bool = False
    partitions: int = 1
    creates_topics: bool = True
    replicas: int = 1
    replica_lag: float = 0.005
    replica_patience: float = 30.0
    rebalance_delay: float = 0.1
    shortest_session: float = 0.1
