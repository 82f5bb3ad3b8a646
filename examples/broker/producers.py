"""Idempotence: what a partition remembers of each producer, so that a batch that is sent again is not kept twice.

A producer numbers its records from 0 on, for each partition. The last five batches are remembered, as many as a client may have
under way: one of them again is a repetition, and is answered as the first time. Any other but the next one is refused.
"""

from collections import deque
from typing import Final

from kio.schema.errors import ErrorCode

from .batches import NO_PRODUCER, BadBatch, Batch

REMEMBERED: Final = 5


class Producer:
    """The latest batches of one producer: first and last sequence number, offset of the first record and after the last."""

    __slots__ = ("batches", "epoch")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: deque[tuple[int, int, int, int]] = deque(maxlen=REMEMBERED)


class Producers:
    """The producers of one partition, by their ids."""

    def __init__(self) -> None:
        self._producers: dict[int, Producer] = {}

    def repeated(self, batch: Batch) -> tuple[int, int] | None:
        """The offset of its first record and that after its last, if the log has this batch already; None if it is the next.

        Raises:
            BadBatch: it is neither; nothing has changed.
        """
        known = self._producers.get(batch.producer_id)
        if batch.producer_id == NO_PRODUCER or known is None:
            return None
        if batch.producer_epoch < known.epoch:
            raise BadBatch(ErrorCode.invalid_producer_epoch, f"epoch {batch.producer_epoch} after {known.epoch}")
        if batch.producer_epoch > known.epoch:
            expected = 0
        else:
            for first, last, offset, next_offset in known.batches:
                if (first, last) == (batch.base_sequence, batch.last_sequence):
                    return offset, next_offset
            expected = (known.batches[-1][1] + 1) & 0x7FFFFFFF
        if batch.base_sequence != expected:
            message = f"sequence number {batch.base_sequence} of producer {batch.producer_id}, after which {expected} comes"
            raise BadBatch(ErrorCode.out_of_order_sequence_number, message)
        return None

    def add(self, batch: Batch, offset: int) -> None:
        """The log has got a batch."""
        if batch.producer_id == NO_PRODUCER:
            return
        known = self._producers.get(batch.producer_id)
        if known is None or known.epoch != batch.producer_epoch:
            known = self._producers[batch.producer_id] = Producer(batch.producer_epoch)
        known.batches.append((batch.base_sequence, batch.last_sequence, offset, offset + batch.last_delta + 1))
