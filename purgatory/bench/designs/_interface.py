"""What every design looks like to the benchmark: Kafka's `new FakeOperation`, `tryCompleteElseWatch`, `forceComplete`.

The three are attributes and not methods, so that a design can hand out its own functions as they are: no design pays for an
adapter. A request is any object with the hooks of `Request`; ours is a `DelayedOperation`, the others inherit from `Request`.
"""

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Hashable, Sequence
from time import monotonic
from typing import Any, Protocol

PAYLOAD_BYTES = 100
NEVER_MS = 65_535
"""The latency of a request that nobody will complete."""


class Run:
    """What the requests of one run share: the clock of those who complete them, and what became of them."""

    __slots__ = ("answered", "lateness", "now_ms")

    def __init__(self) -> None:
        self.now_ms = 0
        """Moved on by whoever completes requests; a condition holds from `completes_at_ms` on."""
        self.answered = 0
        """How many requests have been completed or have expired."""
        self.lateness = array("d")
        """For each that has expired, in seconds, by the clock of the machine: uvloop's own shows whole milliseconds."""

    def expired(self, deadline: float) -> None:
        """A request with that deadline, in the loop's time, has just expired."""
        self.lateness.append(monotonic() - deadline)


class Request(ABC):
    """A fake request: 100 bytes of payload, a condition that holds once its time has come, and an end that is counted."""

    __slots__ = ("completes_at_ms", "deadline", "done", "keys", "payload", "run", "timeout")

    deadline: float
    keys: Sequence[Hashable]

    def __init__(self, run: Run, timeout: float, latency_ms: int) -> None:
        self.run = run
        self.timeout = timeout
        self.completes_at_ms = run.now_ms + latency_ms
        self.payload = bytes(PAYLOAD_BYTES)
        self.done = False

    def try_complete(self) -> bool:
        """Completes the request if its condition holds."""
        return self.run.now_ms >= self.completes_at_ms and self.force_complete()

    @abstractmethod
    def force_complete(self) -> bool:
        """Ends the request, and takes it out of wherever the design keeps it; False if it had ended before."""

    def on_complete(self) -> None:
        """Called once, however the request has ended."""
        self.run.answered += 1

    def on_expiration(self) -> None:
        """Called after `on_complete`, if the request has expired."""
        self.run.expired(self.deadline)


class Design(Protocol):
    """A purgatory, made on the running loop."""

    @property
    def new_request(self) -> Callable[[Run, float, int], Any]:
        """Makes a request from a run, a timeout in seconds and a latency in milliseconds."""
        ...

    @property
    def watch(self) -> Callable[[Any, Sequence[Hashable]], object]:
        """Has a new request wait under different keys, unless it can be completed at once."""
        ...

    @property
    def complete(self) -> Callable[[Any], object]:
        """Ends a request, as another party would; without effect if it has ended."""
        ...

    def check_and_complete(self, key: Hashable) -> object:
        """Completes those who watch `key` and whose condition holds, at once or in the next turns of the loop."""
        ...

    def pending(self) -> int:
        """How many requests wait."""
        ...

    def counters(self) -> dict[str, int]:
        """What the design has counted of its own work, for instance `wake_ups`: its callbacks by the loop."""
        ...

    def close(self) -> None:
        """Lets go of the loop. Called when nothing is pending."""
