"""Idempotence: what a partition remembers of each producer, so that a batch that is sent again is not kept twice.

A producer numbers its records from 0 on, for each partition. The last five batches are remembered, as many as a client may have
under way: one of them again is a repetition, and is answered as the first time. Any other but the next one is refused.
"""

from collections import deque
from typing import Final

from .answers import ErrorCode, Refused
from .batches import NO_PRODUCER, Batch

REMEMBERED: Final = 5


class Producers:
    """The producers of one partition, by their ids: the epoch of each, and its latest batches.

    Of a batch the first and the last sequence number, the offset of the first record and that after the last.
    """

    def __init__(self) -> None:
        self._producers: dict[int, tuple[int, deque[tuple[int, int, int, int]]]] = {}

    def repeated(self, batch: Batch) -> tuple[int, int] | None:
        """The offset of its first record and that after its last, if the log has this batch already; None if it is the next.

        Raises:
            Refused: it is neither; nothing has changed.
        """
        epoch, batches = self._producers.get(batch.producer_id, (None, deque()))
        if epoch is None:
            return None
        if batch.producer_epoch < epoch:
            raise Refused(ErrorCode.invalid_producer_epoch, f"epoch {batch.producer_epoch} after {epoch}")
        expected = 0
        if batch.producer_epoch == epoch:
            for first, last, offset, next_offset in batches:
                if (first, last) == (batch.base_sequence, batch.last_sequence):
                    return offset, next_offset
            expected = (batches[-1][1] + 1) & 0x7FFFFFFF
        if batch.base_sequence != expected:
            message = f"sequence number {batch.base_sequence} of producer {batch.producer_id}, after which {expected} comes"
            raise Refused(ErrorCode.out_of_order_sequence_number, message)
        return None

    def add(self, batch: Batch, offset: int) -> None:
        """The log has got a batch."""
        if batch.producer_id == NO_PRODUCER:
            return
        epoch, batches = self._producers.get(batch.producer_id, (None, deque()))
        if epoch != batch.producer_epoch:
            batches = deque(maxlen=REMEMBERED)
            self._producers[batch.producer_id] = batch.producer_epoch, batches
        batches.append((batch.base_sequence, batch.last_sequence, offset, offset + batch.last_delta + 1))
