"""Transactions as one partition sees them: the last offset that consumers with `read_committed` may
read, and the batches that they have to skip."""

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Final

from .batches import Batch
from .responses import Response

READ_COMMITTED: Final = 1  # the isolation level


class PartitionTransactions:
    """The transactions in one partition's log.

    Attributes:
        ongoing: the first offset of each that has no marker yet, by the id of its producer.
        ending: first offset, and offset after the marker, of each with a marker that not all
            in-sync replicas have yet.
        aborted: producer, first offset, and offset of the marker, of each that was aborted, in the
            order of their markers.
    """

    def __init__(self) -> None:
        self.ongoing: dict[int, int] = {}
        self.ending: deque[tuple[int, int]] = deque()
        self.aborted: deque[tuple[int, int, int]] = deque()

    def add(self, batch: Batch, committed: bool | None) -> None:
        """Notes an appended batch; `committed` is the outcome if the batch is a marker, else
        None."""
        if not batch.is_transactional:
            return
        if committed is None:
            self.ongoing.setdefault(batch.producer_id, batch.base_offset)
            return
        first = self.ongoing.pop(batch.producer_id, None)
        if first is None:
            return
        self.ending.append((first, batch.next_offset))
        if not committed:
            self.aborted.append((batch.producer_id, first, batch.base_offset))

    def on_watermark(self, high_watermark: int) -> None:
        """All in-sync replicas have the log up to here."""
        while self.ending and self.ending[0][1] <= high_watermark:
            self.ending.popleft()

    def undecided(self) -> Iterator[int]:
        """The first offsets of all transactions of which a consumer cannot know yet how they
        end."""
        return chain(self.ongoing.values(), (first for first, _ in self.ending))

    def aborted_between(self, start: int, end: int) -> list[Response]:
        """Aborted transactions with records between two offsets, in the fields of a response. Cost:
        iterates over all aborted ones."""
        return [
            {"producer_id": producer_id, "first_offset": first}
            for producer_id, first, marker in self.aborted
            if marker >= start and first < end
        ]

    def aborted_batches(self) -> Callable[[Batch], bool]:
        """A function that returns whether a batch is of an aborted transaction. Cost of a call: a
        bisection."""
        spans: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for producer_id, first, marker in self.aborted:
            spans[producer_id].append((first, marker))

        def is_aborted(batch: Batch) -> bool:
            own = spans.get(batch.producer_id, [])
            index = bisect_left(own, (batch.next_offset,)) - 1
            return batch.is_transactional and index >= 0 and batch.base_offset < own[index][1]

        return is_aborted

    def discard_before(self, offset: int) -> None:
        """Forgets transactions after their records were deleted."""
        while self.aborted and self.aborted[0][2] < offset:
            self.aborted.popleft()
