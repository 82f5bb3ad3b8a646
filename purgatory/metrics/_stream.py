"""Counts of a stream of `purgatory.pipeline`, updated after each batch."""

import threading
import time
from dataclasses import dataclass, replace
from typing import final


@final
@dataclass(frozen=True, slots=True)
class StreamStatistics:
    """A snapshot. Counts of operations include earlier runs from the same checkpoint."""

    name: str
    is_running: bool = True
    registered: int = 0
    """Operations that were received, copies included."""
    completed: int = 0
    expired: int = 0
    late: int = 0
    """Operations that came behind the watermark, copies, and malformed ones."""
    late_signals: int = 0
    rows: int = 0
    """Rows that this run has read."""
    batches: int = 0
    """Batches that this run has finished."""
    batch_rows: int = 0
    """Rows of the last batch; the next two fields are of the same batch."""
    batch_seconds: float = 0.0
    batch_at: float | None = None
    """The end of the batch, in seconds since 1970."""
    watermark: float | None = None
    """The event time up to which everything is decided, in seconds since 1970."""
    state_rows: int = 0
    state_bytes: int = 0
    next_due: float | None = None
    """The event time of the next decision, in seconds since 1970; None if nothing waits."""
    held_back_by: str | None = None
    """The silent input that holds the watermark back: `operations` or `signals`."""
    silent_since: float | None = None
    """The time of the last rows of this input, or the start of the run, in seconds since 1970."""
    overdue: int = 0
    """Pending operations that were past their deadline at the last count."""

    def behind(self, now: float) -> float:
        """Seconds by which the watermark is behind the clock; 0 if nothing is due by the clock."""
        if self.next_due is None or self.next_due > now:
            return 0.0
        return max(now - (self.watermark or self.next_due), 0.0)

    @property
    def pending(self) -> int:
        """Operations that wait, or that were registered ahead of the watermark."""
        return self.registered - self.completed - self.expired - self.late


@final
class StreamMeter:
    """Counts the work of a stream. One thread writes, any thread may read."""

    def __init__(
        self, name: str, *, registered: int = 0, completed: int = 0, expired: int = 0, late: int = 0
    ) -> None:
        self._lock = threading.Lock()
        self._now = StreamStatistics(
            name, registered=registered, completed=completed, expired=expired, late=late
        )

    def batch_ended(
        self,
        *,
        rows: int,
        seconds: float,
        watermark: float | None,
        state_rows: int,
        state_bytes: int,
        registered: int = 0,
        completed: int = 0,
        expired: int = 0,
        late: int = 0,
        late_signals: int = 0,
    ) -> None:
        """Adds the counts of a batch, and replaces the watermark, unless it is None, and the size
        of the state."""
        with self._lock:
            now = self._now
            self._now = replace(
                now,
                registered=now.registered + registered,
                completed=now.completed + completed,
                expired=now.expired + expired,
                late=now.late + late,
                late_signals=now.late_signals + late_signals,
                rows=now.rows + rows,
                batches=now.batches + 1,
                batch_rows=rows,
                batch_seconds=seconds,
                batch_at=time.time(),
                watermark=now.watermark if watermark is None else watermark,
                state_rows=state_rows,
                state_bytes=state_bytes,
            )

    def looked(
        self,
        *,
        next_due: float | None,
        held_back_by: str | None,
        silent_since: float | None,
        overdue: int,
    ) -> None:
        """Replaces the known event time: after each batch, and each look for new rows."""
        with self._lock:
            self._now = replace(
                self._now,
                next_due=next_due,
                held_back_by=held_back_by,
                silent_since=silent_since,
                overdue=overdue,
            )

    def ended(self) -> None:
        """Records that the stream has ended."""
        with self._lock:
            self._now = replace(self._now, is_running=False)

    def statistics(self) -> StreamStatistics:
        """The latest counts. O(1)."""
        return self._now
