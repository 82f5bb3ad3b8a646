"""The copies of each partition, and up to where all of them have it: the high watermark, up to which consumers may read.

This broker, node 0, leads every partition. The followers are simulated: an append reaches each of them after `lag`, and what is
appended meanwhile after another one. A follower that is stopped keeps the high watermark where it is, until after `patience` it
is not counted as in sync any more; then `acks=all` asks the others alone, and refuses if they are fewer than
`min.insync.replicas`.
"""

from collections.abc import Callable, Iterable
from typing import Final

from purgatory import TimerTask, WheelTimer

from .log import Log
from .settings import Settings

LEADER: Final = 0


class Copies:
    """What the nodes have of one partition.

    Attributes:
        key: of the partition.
        log: of the leader.
        nodes: for each the first offset of its log, and the one after the last.
        in_sync: the nodes that have to have an offset before it counts; the leader is always one.
        high_watermark: up to where all that are in sync have it, and consumers may read.
        under_way: the nodes that something is on its way to.
    """

    def __init__(self, key: tuple[str, int], factor: int, log: Log) -> None:
        self.key, self.log, self.high_watermark = key, log, log.end
        self.nodes = dict.fromkeys(range(factor), (log.start, log.end))
        self.in_sync, self.under_way = set(self.nodes), set[int]()

    @property
    def low_watermark(self) -> int:
        """Before this offset nobody has anything any more."""
        return min(start for start, _ in self.nodes.values())

    def advance(self) -> bool:
        """Moves the high watermark to where all that are in sync have the log; tells whether that is further."""
        before = self.high_watermark
        self.high_watermark = max(before, min(self.nodes[node][1] for node in self.in_sync))
        return self.high_watermark > before


class Replicas:
    """The nodes of a cluster that is not there.

    Args:
        settings: how many nodes there are, this one included, how long an append takes to a follower, and after which time a
            stopped one is out of sync (Kafka's replica.lag.time.max.ms).
        all_copies: of all partitions.
        on_change: told the key of a partition when one of its watermarks or who is in sync has changed.

    Attributes:
        stopped: the followers that hear nothing, and what will count them out.
    """

    def __init__(self, settings: Settings, all_copies: Iterable[Copies], on_change: Callable[[tuple[str, int]], None]) -> None:
        self.count, self.lag, self.patience = settings.replicas, settings.replica_lag, settings.replica_patience
        self.stopped: dict[int, TimerTask] = {}
        self._all_copies, self._on_change = all_copies, on_change
        self._timer = WheelTimer()

    def moved(self, copies: Copies) -> bool:
        """The leader's log begins or ends elsewhere; tells whether the high watermark has moved already."""
        copies.nodes[LEADER] = copies.log.start, copies.log.end
        for node in copies.nodes:
            self._send(copies, node)
        return copies.advance()

    def stop(self, node: int) -> None:
        """A follower hears nothing any more.

        Raises:
            ValueError: there is no such follower, or it is stopped.
        """
        if not 0 < node < self.count or node in self.stopped:
            raise ValueError(f"node {node} cannot be stopped: {sorted(set(range(1, self.count)) - set(self.stopped))} can")
        self.stopped[node] = self._timer.call_later(self.patience, self._give_up, node)

    def start(self, node: int) -> None:
        """It hears again, and catches up.

        Raises:
            ValueError: it is not stopped.
        """
        if node not in self.stopped:
            raise ValueError(f"node {node} cannot be started: {sorted(self.stopped)} can")
        self.stopped.pop(node).cancel()
        for copies in self._all_copies:
            self._send(copies, node)

    def toggle_last(self) -> None:
        """Stops the last follower, or starts it again."""
        last = self.count - 1
        (self.start if last in self.stopped else self.stop)(last)

    def _send(self, copies: Copies, node: int) -> None:
        if node != LEADER and node in copies.nodes and node not in self.stopped and node not in copies.under_way:
            copies.under_way.add(node)
            self._timer.call_later(self.lag, self._received, copies, node, copies.nodes[LEADER])

    def _received(self, copies: Copies, node: int, has: tuple[int, int]) -> None:
        copies.under_way.discard(node)
        if node in self.stopped:
            return
        before = copies.low_watermark
        copies.nodes[node] = has
        if has[1] >= copies.high_watermark:
            copies.in_sync.add(node)
        if has != copies.nodes[LEADER]:
            self._send(copies, node)
        if copies.advance() or copies.low_watermark != before:
            self._on_change(copies.key)

    def _give_up(self, node: int) -> None:
        for copies in self._all_copies:
            if node in copies.in_sync:
                copies.in_sync.discard(node)
                copies.advance()
                self._on_change(copies.key)
