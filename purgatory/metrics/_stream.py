"""What a stream of `purgatory.pipeline` has done so far, updated after each of its batches."""

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
    """Read by this run."""
    batches: int = 0
    """Finished by this run."""
    batch_rows: int = 0
    """Of the last batch, like the next two fields."""
    batch_seconds: float = 0.0
    batch_at: float | None = None
    """When it ended, in seconds since 1970."""
    watermark: float | None = None
    """Up to when everything is decided, in event time, in seconds since 1970."""
    state_rows: int = 0
    state_bytes: int = 0

    @property
    def pending(self) -> int:
        """Operations that wait, or that were registered ahead of the watermark."""
        return self.registered - self.completed - self.expired - self.late


@final
class StreamMeter:
    """Counts what a stream does. One thread writes, any may read."""

    def __init__(self, name: str, *, registered: int = 0, completed: int = 0, expired: int = 0, late: int = 0) -> None:
        self._lock = threading.Lock()
        self._now = StreamStatistics(name, registered=registered, completed=completed, expired=expired, late=late)

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
        """Adds the counts of a batch, and replaces the watermark, unless it is None, and the size of the state."""
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

    def ended(self) -> None:
        """The stream has ended."""
        with self._lock:
            self._now = replace(self._now, is_running=False)

    def statistics(self) -> StreamStatistics:
        """The latest counts. O(1)."""
        return self._now
