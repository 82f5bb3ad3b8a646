"""Idempotence: the last batches of each producer of a partition, so that a batch that is sent again is not appended again.

A producer numbers its records from 0 on, for each partition. Five batches are remembered, as many as a client may have in
flight: a duplicate of one of them gets the response that the first one got. Of all others only the next one in sequence is
accepted.
"""

from collections import deque
from typing import Final

from .batches import NO_PRODUCER, Batch
from .responses import ApiError, ErrorCode

MAX_BATCHES: Final = 5


class Producers:
    """The producers of one partition, by id: the last batches of each, in its latest epoch, as the log has them."""

    def __init__(self) -> None:
        self._latest: dict[int, deque[Batch]] = {}

    def find_duplicate(self, batch: Batch) -> Batch | None:
        """The batch in the log of which this one is a duplicate; None if it is the next one.

        Raises:
            ApiError: it is neither; nothing has changed.
        """
        latest = self._latest.get(batch.producer_id)
        if latest is None:
            return None
        for appended in latest:
            if appended.identity == batch.identity:
                return appended
        epoch = latest[-1].producer_epoch
        if batch.producer_epoch < epoch:
            raise ApiError(ErrorCode.invalid_producer_epoch, f"epoch {batch.producer_epoch} after {epoch}")
        expected = latest[-1].next_sequence if batch.producer_epoch == epoch else 0
        if batch.base_sequence != expected:
            message = f"sequence number {batch.base_sequence} of producer {batch.producer_id} instead of {expected}"
            raise ApiError(ErrorCode.out_of_order_sequence_number, message)
        return None

    def add(self, batch: Batch) -> None:
        """Remembers a batch that was appended."""
        if batch.producer_id != NO_PRODUCER:
            latest = self._latest.setdefault(batch.producer_id, deque(maxlen=MAX_BATCHES))
            if latest and latest[-1].producer_epoch != batch.producer_epoch:
                latest.clear()
            latest.append(batch)
