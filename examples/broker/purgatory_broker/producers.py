"""Idempotence: the last batches of each producer of a partition, so that a repeated batch is not
appended again.

A producer numbers its records from 0 on, for each partition. Five batches are remembered, as many
as a client may have in flight: a duplicate of a remembered batch gets the response of the first.
Of all other batches, only the next one in sequence is accepted. A producer that has sent nothing
for a day is forgotten.
"""

from collections import deque
from typing import Final

from .batches import NO_PRODUCER, Batch
from .responses import ApiError, ErrorCode

MAX_BATCHES: Final = 5
EXPIRATION: Final = 86_400_000  # milliseconds; Kafka's producer.id.expiration.ms


class Producers:
    """The producers of one partition, by id: the last batches of each, in its latest epoch, as the
    log has them."""

    def __init__(self) -> None:
        self._latest: dict[int, deque[Batch]] = {}
        self._seen: dict[
            int, int
        ] = {}  # the times of their last appends in milliseconds, in this order

    def __len__(self) -> int:
        return len(self._latest)

    def find_duplicate(self, batch: Batch) -> Batch | None:
        """The batch in the log of which this one is a duplicate; None if it is the next one.

        Raises:
            ApiError: the batch is neither; nothing has changed.
        """
        latest = self._latest.get(batch.producer_id)
        if latest is None:
            return None
        for appended in latest:
            if appended.identity == batch.identity:
                return appended
        epoch = latest[-1].producer_epoch
        if batch.producer_epoch < epoch:
            raise ApiError(
                ErrorCode.invalid_producer_epoch, f"epoch {batch.producer_epoch} after {epoch}"
            )
        expected = latest[-1].next_sequence if batch.producer_epoch == epoch else 0
        if batch.base_sequence != expected:
            message = (
                f"sequence number {batch.base_sequence} of producer {batch.producer_id} instead "
                f"of {expected}"
            )
            raise ApiError(ErrorCode.out_of_order_sequence_number, message)
        return None

    def expire(self, now: int) -> None:
        """Forgets the producers that have appended nothing for a day. Cost: follows their number
        alone."""
        while self._seen and now - next(iter(self._seen.values())) > EXPIRATION:
            producer_id = next(iter(self._seen))
            del self._seen[producer_id], self._latest[producer_id]

    def add(self, batch: Batch, now: int) -> None:
        """Remembers a batch that was appended at a time, in milliseconds."""
        if batch.producer_id != NO_PRODUCER:
            self._seen.pop(batch.producer_id, None)
            self._seen[batch.producer_id] = now
            latest = self._latest.setdefault(batch.producer_id, deque(maxlen=MAX_BATCHES))
            if latest and latest[-1].producer_epoch != batch.producer_epoch:
                latest.clear()
            latest.append(batch)
