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
    """The producers of one partition, by their ids: the latest batches of each, in its latest epoch, as the log has them."""

    def __init__(self) -> None:
        self._latest: dict[int, deque[Batch]] = {}

    def repeated(self, batch: Batch) -> Batch | None:
        """What the log has already, if this batch is sent again; None if it is the next.

        Raises:
            Refused: it is neither; nothing has changed.
        """
        latest = self._latest.get(batch.producer_id)
        if latest is None:
            return None
        for kept in latest:
            if kept.numbers == batch.numbers:
                return kept
        epoch = latest[-1].producer_epoch
        if batch.producer_epoch < epoch:
            raise Refused(ErrorCode.invalid_producer_epoch, f"epoch {batch.producer_epoch} after {epoch}")
        expected = latest[-1].next_sequence if batch.producer_epoch == epoch else 0
        if batch.base_sequence != expected:
            message = f"sequence number {batch.base_sequence} of producer {batch.producer_id}, after which {expected} comes"
            raise Refused(ErrorCode.out_of_order_sequence_number, message)
        return None

    def add(self, batch: Batch) -> None:
        """The log has got a batch."""
        if batch.producer_id != NO_PRODUCER:
            latest = self._latest.setdefault(batch.producer_id, deque(maxlen=REMEMBERED))
            if latest and latest[-1].producer_epoch != batch.producer_epoch:
                latest.clear()
            latest.append(batch)
