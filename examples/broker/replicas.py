"""The copies of each partition, and up to where all of them have it: the high watermark, up to which consumers may read.

This broker, node 0, leads every partition. The followers are simulated: an append reaches each of them after `lag`, and what is
appended meanwhile after another one. A follower that is stopped keeps the high watermark where it is, until after `patience` it
is not counted as in sync any more; then `acks=all` asks the others alone, and refuses if they are fewer than
`min.insync.replicas`.
"""

from collections.abc import Callable, Iterable
from typing import Final

from purgatory import TimerTask, WheelTimer

LEADER: Final = 0


class Copies:
    """The followers of one partition.

    Attributes:
        key: of the partition.
        ends: of each node up to which offset it has the log.
        starts: of each node from which offset on it has the log.
        in_sync: the nodes that have to have an offset before it counts; the leader is always one.
        under_way: the nodes that something is on its way to.
    """

    __slots__ = ("ends", "high_watermark", "in_sync", "key", "nodes", "starts", "under_way")

    def __init__(self, key: tuple[str, int], factor: int, start: int, end: int) -> None:
        self.key = key
        self.nodes = tuple(range(factor))
        self.ends = dict.fromkeys(self.nodes, end)
        self.starts = dict.fromkeys(self.nodes, start)
        self.in_sync = set(self.nodes)
        self.under_way: set[int] = set()
        self.high_watermark = end

    @property
    def low_watermark(self) -> int:
        """Before this offset nobody has anything any more."""
        return min(self.starts.values())

    def advance(self) -> bool:
        """Moves the high watermark to where all that are in sync have the log; tells whether that is further."""
        reached = min(self.ends[node] for node in self.in_sync)
        if reached <= self.high_watermark:
            return False
        self.high_watermark = reached
        return True


class Replicas:
    """The nodes of a cluster that is not there.

    Args:
        count: nodes, this one included.
        lag: seconds from an append until a follower has it.
        patience: seconds until a stopped follower is out of sync; Kafka's replica.lag.time.max.ms.
        all_copies: of all partitions.
        on_change: told the key of a partition when one of its watermarks or who is in sync has changed.
    """

    def __init__(
        self,
        count: int,
        lag: float,
        patience: float,
        all_copies: Callable[[], Iterable[Copies]],
        on_change: Callable[[tuple[str, int]], None],
    ) -> None:
        self.count, self.lag, self.patience = count, lag, patience
        self.stopped: set[int] = set()
        self._all_copies, self._on_change = all_copies, on_change
        self._timer = WheelTimer()
        self._patience: dict[int, TimerTask] = {}

    def appended(self, copies: Copies, end: int) -> bool:
        """The leader has the log up to `end`; tells whether the high watermark has moved already."""
        copies.ends[LEADER] = end
        for node in copies.nodes[1:]:
            self._send(copies, node)
        return copies.advance()

    def cut(self, copies: Copies, start: int) -> None:
        """The leader has let go of what is before `start`; followers hear of it as of an append."""
        copies.starts[LEADER] = start
        for node in copies.nodes[1:]:
            self._send(copies, node)

    def stop(self, node: int) -> None:
        """A follower hears nothing any more.

        Raises:
            ValueError: there is no such follower, or it is stopped.
        """
        if not 0 < node < self.count or node in self.stopped:
            raise ValueError(f"node {node} cannot be stopped: {sorted(set(range(1, self.count)) - self.stopped)} can")
        self.stopped.add(node)
        self._patience[node] = self._timer.call_later(self.patience, self._give_up, node)

    def start(self, node: int) -> None:
        """It hears again, and catches up.

        Raises:
            ValueError: it is not stopped.
        """
        if node not in self.stopped:
            raise ValueError(f"node {node} cannot be started: {sorted(self.stopped)} can")
        self.stopped.remove(node)
        self._patience.pop(node).cancel()
        for copies in self._all_copies():
            self._send(copies, node)

    def _send(self, copies: Copies, node: int) -> None:
        if node in copies.ends and node not in self.stopped and node not in copies.under_way:
            copies.under_way.add(node)
            self._timer.call_later(self.lag, self._received, copies, node, copies.starts[LEADER], copies.ends[LEADER])

    def _received(self, copies: Copies, node: int, start: int, end: int) -> None:
        copies.under_way.discard(node)
        if node in self.stopped:
            return
        before = copies.low_watermark
        copies.starts[node], copies.ends[node] = start, end
        if end >= copies.high_watermark:
            copies.in_sync.add(node)
        if (start, end) != (copies.starts[LEADER], copies.ends[LEADER]):
            self._send(copies, node)
        if copies.advance() or copies.low_watermark != before:
            self._on_change(copies.key)

    def _give_up(self, node: int) -> None:
        for copies in self._all_copies():
            if node in copies.in_sync:
                copies.in_sync.discard(node)
                copies.advance()
                self._on_change(copies.key)
