"""Batches the deliveries of a process: deliveries submitted during a write form the next one.

Each delivery has a token, which the store keeps beside the value. So a delivery that may have been
made is sent again: the store recognizes the token and returns the lost answer. A delivery to a key
locked by another transaction is retried on its own, so that it delays no other.
"""

from asyncio import Future, Task, get_running_loop, sleep
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, final

from purgatory import OperationCancelled, RelayUnavailable
from purgatory.relay._messages import Delivery
from purgatory.relay._store import NotWritten, Refused

MAX_DELIVERIES_PER_WRITE: Final = 100

MAX_BYTES_PER_WRITE: Final = 1 << 20
"""A write takes no further delivery once its values reach this size, in bytes."""


@final
class PendingDelivery:
    """A delivery whose caller waits for the answer."""

    __slots__ = ("answer", "delivery", "is_in_flight", "is_locked", "is_unsure")

    def __init__(self, delivery: Delivery, answer: Future[bool]) -> None:
        self.delivery, self.answer = delivery, answer
        self.is_in_flight = False
        self.is_locked = False
        """Whether the key was locked by another transaction at the last attempt."""
        self.is_unsure = False
        """Whether an earlier attempt may have reached the store."""

    @property
    def is_perhaps_made(self) -> bool:
        """Whether the store may have the value, though the caller has no answer."""
        return self.is_in_flight or self.is_unsure


@final
class DeliveryBatcher:
    """Batches and retries the deliveries of a process.

    Args:
        settle: writes deliveries, like `StoreWithDeliveries.settle`.
        backoff: maps the number of earlier failures to the delay before a retry, in seconds.
    """

    def __init__(
        self,
        settle: Callable[[Sequence[Delivery]], Awaitable[Mapping[str, bool]]],
        backoff: Callable[[int], float],
    ) -> None:
        self._settle, self._backoff = settle, backoff
        self._queue: deque[PendingDelivery] = deque()
        self._pending: set[PendingDelivery] = set()
        self._task: Task[None] | None = None
        self.last_error: Exception | None = None
        """Error of the last write, or None if it succeeded."""

    def submit(self, delivery: Delivery) -> PendingDelivery:
        """Queues a delivery. Its `answer` tells whether it settled the key."""
        pending = PendingDelivery(delivery, get_running_loop().create_future())
        self._pending.add(pending)
        pending.answer.add_done_callback(lambda _: self._pending.discard(pending))
        self._enqueue(pending)
        return pending

    def close(self) -> None:
        """Cancels unanswered deliveries."""
        if self._task is not None:
            self._task.cancel()
        self._queue.clear()
        for pending in tuple(self._pending):
            key = pending.delivery.key
            if not pending.answer.done():
                pending.answer.set_exception(
                    OperationCancelled(f"{key!r} was perhaps not settled: the relay was closed")
                )

    def _enqueue(self, pending: PendingDelivery) -> None:
        if pending.answer.done():
            return
        self._queue.append(pending)
        if self._task is None:
            self._task = get_running_loop().create_task(
                self._run(), name="purgatory.relay: delivering"
            )

    async def _run(self) -> None:
        failures, limit = 0, MAX_DELIVERIES_PER_WRITE
        try:
            await sleep(0.0)  # gather all calls of one loop iteration into one write
            while batch := self._next_batch(limit):
                try:
                    settled = await self._settle_once(batch)
                except Refused as error:
                    self._fail(batch, error)
                except RelayUnavailable as error:
                    self.last_error = error
                    for pending in batch.values():
                        pending.is_unsure |= not isinstance(error, NotWritten)
                    self._queue.extendleft(reversed(batch.values()))
                    await sleep(self._backoff(min(failures, 2)))
                    failures += 1
                except Exception as error:
                    if len(batch) == 1:
                        self._fail(batch, error)
                    else:  # find a foreign value by halving
                        self._queue.extendleft(reversed(batch.values()))
                        limit = len(batch) // 2
                else:
                    failures, limit = 0, min(limit * 2, MAX_DELIVERIES_PER_WRITE)
                    self.last_error = None
                    self._answer(batch, settled)
        finally:
            self._task = None

    async def _settle_once(self, batch: Mapping[str, PendingDelivery]) -> Mapping[str, bool]:
        for pending in batch.values():
            pending.is_in_flight = True
        try:
            return await self._settle([pending.delivery for pending in batch.values()])
        finally:
            for pending in batch.values():
                pending.is_in_flight = False

    def _next_batch(self, limit: int) -> dict[str, PendingDelivery]:
        """Up to `limit` deliveries, one per key; a second delivery to a key waits for the next
        batch."""
        batch: dict[str, PendingDelivery] = {}
        size = 0
        while self._queue and len(batch) < limit and size < MAX_BYTES_PER_WRITE:
            pending = self._queue[0]
            if not pending.answer.done():
                if pending.delivery.key in batch:
                    break
                batch[pending.delivery.key] = pending
                size += len(pending.delivery.value)
            self._queue.popleft()
        return batch

    def _answer(self, batch: Mapping[str, PendingDelivery], settled: Mapping[str, bool]) -> None:
        loop = get_running_loop()
        for key, pending in batch.items():
            pending.is_locked = key not in settled
            if pending.is_locked:
                loop.call_later(self._backoff(2), self._enqueue, pending)
            elif not pending.answer.done():
                pending.answer.set_result(settled[key])

    def _fail(self, batch: Mapping[str, PendingDelivery], error: Exception) -> None:
        for pending in batch.values():
            if not pending.answer.done():
                pending.answer.set_exception(error)
