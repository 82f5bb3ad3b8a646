"""Shortens logs: `retention.ms`, `retention.bytes` and compaction.

It looks every five minutes, as Kafka does by default. Where Kafka removes whole segments, this
removes batches; and it compacts a log up to its end, where Kafka spares the segment that is written
to.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Final

from purgatory import TimerTask, WheelTimer

from .clock import Clock
from .settings import Settings
from .topics import Partition

logger: Final = logging.getLogger("purgatory_broker")


class Cleaner:
    """Cleans all partitions.

    Args:
        on_delete: called with a partition after its first records were deleted.
    """

    def __init__(
        self,
        settings: Settings,
        partitions: Iterable[Partition],
        clock: Clock,
        on_delete: Callable[[Partition], None],
    ) -> None:
        self._interval, self._partitions, self._clock, self._on_delete = (
            settings.clean_interval,
            partitions,
            clock,
            on_delete,
        )
        self._timer = WheelTimer()
        self._task: TimerTask | None = None

    def start(self) -> None:
        """Starts to clean, at the end of each interval."""
        self._task = self._timer.call_later(self._interval, self._clean_again)

    def stop(self) -> None:
        """Stops cleaning."""
        if self._task is not None:
            self._task.cancel()

    def _clean_again(self) -> None:
        self.start()
        self.clean()

    def clean(self) -> None:
        """Deletes records beyond the retention, and compacts. Cost: reads and parses all records of
        compacted topics."""
        now = self._clock.milliseconds()
        for partition in self._partitions:
            log, config, end = partition.log, partition.topic.config, partition.last_stable_offset
            if config.compacts:
                try:
                    is_aborted = partition.transactions.aborted_batches()
                    log.compact(
                        end,
                        now - config.min_compaction_lag,
                        now - config.delete_retention,
                        is_aborted,
                    )
                except OSError as error:
                    logger.error("%s-%d cannot be compacted: %s", *partition.key, error)
            if config.deletes:
                before = now - config.retention if config.retention >= 0 else -1
                offset = log.expired(before, config.retention_bytes, end)
                if offset > log.start:
                    log.delete_before(offset)
                    partition.transactions.discard_before(offset)
                    self._on_delete(partition)
