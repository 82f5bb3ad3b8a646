"""The replicas of each partition, and its high watermark: up to where all in-sync replicas have the
log and consumers may read.

This broker, node 1, leads every partition. The followers are simulated: an append reaches each of
them after `replica_lag`, and later appends in that time follow in one piece. A stopped
follower holds the high watermark back until, after `replica_timeout`, it is removed from the
in-sync replicas. From then on `acks=all` waits only for the remaining ones, and is refused if they
are fewer than `min.insync.replicas`.
"""

from collections.abc import Callable, Iterable
from typing import Final

from purgatory import TimerTask, WheelTimer

from .log import Log
from .settings import Settings

LEADER: Final = 1
"""The node's number, as in a Kafka with one node."""


class Replicas:
    """How much of one partition's log each node has.

    Attributes:
        key: key of the partition.
        log: the leader's log.
        nodes: for each node, the first offset of its log and the one after its last record.
        in_sync: the nodes that the high watermark waits for; the leader is always one of them.
        high_watermark: the offset up to which all in-sync replicas have the log.
        in_flight: the followers to which an append is on its way.
    """

    def __init__(self, key: tuple[str, int], factor: int, log: Log) -> None:
        self.key, self.log, self.high_watermark = key, log, log.end
        self.nodes = dict.fromkeys(range(LEADER, LEADER + factor), (log.start, log.end))
        self.in_sync, self.in_flight = set(self.nodes), set[int]()

    @property
    def low_watermark(self) -> int:
        """The least of the first offsets of all replicas."""
        return min(start for start, _ in self.nodes.values())

    def advance(self) -> bool:
        """Moves the high watermark as far as the in-sync replicas allow; returns whether it has
        moved."""
        before = self.high_watermark
        self.high_watermark = max(before, min(self.nodes[node][1] for node in self.in_sync))
        return self.high_watermark > before


class Followers:
    """The simulated nodes 2, 3, ... of the cluster.

    Args:
        settings: `replicas` is how many nodes there are, this one included; `replica_lag`, how long
            an append takes to reach a follower; `replica_timeout`, after which time a stopped one
            is out of sync (Kafka's replica.lag.time.max.ms).
        partitions: the replicas of all partitions.
        on_watermark: called with the key of a partition when one of its watermarks or its in-sync
            replicas have changed.

    Attributes:
        stopped: the followers that receive nothing, each with the timer after which it is out of
            sync.
    """

    def __init__(
        self,
        settings: Settings,
        partitions: Iterable[Replicas],
        on_watermark: Callable[[tuple[str, int]], None],
    ) -> None:
        self.settings = settings
        self.stopped: dict[int, TimerTask] = {}
        self._partitions, self._on_watermark = partitions, on_watermark
        self._timer = WheelTimer()

    def replicate(self, replicas: Replicas) -> bool:
        """Sends the followers the leader's log, which has changed; returns whether the high
        watermark has moved already."""
        replicas.nodes[LEADER] = replicas.log.start, replicas.log.end
        for node in replicas.nodes:
            self._send(replicas, node)
        return replicas.advance()

    def stop(self, node: int) -> None:
        """From now on this follower receives nothing.

        Raises:
            ValueError: there is no such follower, or it is stopped.
        """
        followers = range(LEADER + 1, LEADER + self.settings.replicas)
        if node not in followers or node in self.stopped:
            running = sorted(set(followers) - set(self.stopped))
            raise ValueError(f"node {node} cannot be stopped: {running} can")
        self.stopped[node] = self._timer.call_later(
            self.settings.replica_timeout, self._remove_from_in_sync, node
        )

    def start(self, node: int) -> None:
        """A stopped follower receives again, and catches up.

        Raises:
            ValueError: the follower is not stopped.
        """
        if node not in self.stopped:
            raise ValueError(f"node {node} cannot be started: {sorted(self.stopped)} can")
        self.stopped.pop(node).cancel()
        for replicas in self._partitions:
            self._send(replicas, node)

    def toggle_last(self) -> None:
        """Stops the last follower, or starts it again."""
        last = LEADER + self.settings.replicas - 1
        (self.start if last in self.stopped else self.stop)(last)

    def _send(self, replicas: Replicas, node: int) -> None:
        if (
            node != LEADER
            and node in replicas.nodes
            and node not in self.stopped
            and node not in replicas.in_flight
        ):
            replicas.in_flight.add(node)
            self._timer.call_later(
                self.settings.replica_lag, self._received, replicas, node, replicas.nodes[LEADER]
            )

    def _received(self, replicas: Replicas, node: int, has: tuple[int, int]) -> None:
        replicas.in_flight.discard(node)
        if node in self.stopped:
            return
        before = replicas.low_watermark
        replicas.nodes[node] = has
        if has[1] >= replicas.high_watermark:
            replicas.in_sync.add(node)
        if has != replicas.nodes[LEADER]:
            self._send(replicas, node)
        if replicas.advance() or replicas.low_watermark != before:
            self._on_watermark(replicas.key)

    def _remove_from_in_sync(self, node: int) -> None:
        for replicas in self._partitions:
            if node in replicas.in_sync:
                replicas.in_sync.discard(node)
                replicas.advance()
                self._on_watermark(replicas.key)
