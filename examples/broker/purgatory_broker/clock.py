"""The time of day."""

import time


class Clock:
    """The time of day, which can be moved forward: for timestamps of records, and for retention
    times.

    Attributes:
        offset: seconds that it is ahead of the system's.
    """

    def __init__(self) -> None:
        self.offset = 0.0

    def time(self) -> float:
        """Seconds since 1970."""
        return time.time() + self.offset

    def milliseconds(self) -> int:
        """The same, as records have it."""
        return int(self.time() * 1000)
