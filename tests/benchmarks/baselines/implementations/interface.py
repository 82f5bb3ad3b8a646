"""The interface of all implementations: Kafka's `new FakeOperation`, `tryCompleteElseWatch` and
`forceComplete`.

These three are attributes, not methods, so that each can hand out its own functions as they are,
and none pays for an adapter. A request is any object with the hooks of `Request`: ours is a
`DelayedOperation`, the others are subclasses of `Request`.
"""

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Hashable, Sequence
from time import monotonic
from typing import Any, Protocol

PAYLOAD_BYTES = 100
NEVER_MS = 65_535
"""The latency of a request that is never completed."""


class RunState:
    """The state that the requests of one measurement share: the time, and their outcomes."""

    __slots__ = ("answered", "lateness", "now_ms")

    def __init__(self) -> None:
        self.now_ms = 0
        """The time in ms, set by the code that completes requests; the condition of a request holds
        from `completes_at_ms` on."""
        self.answered = 0
        """Number of requests that were completed or have expired."""
        self.lateness = array("d")
        """Lateness of each expired request, in seconds by the machine's clock, because uvloop's
        clock has only whole milliseconds."""

    def expired(self, deadline: float) -> None:
        """Notes that a request has just expired, whose deadline is given in the loop's time."""
        self.lateness.append(monotonic() - deadline)


class Request(ABC):
    """A fake request: it has 100 bytes of payload, its condition holds from a certain time on, and
    its end is counted."""

    __slots__ = ("completes_at_ms", "deadline", "done", "keys", "payload", "run_state", "timeout")

    deadline: float
    keys: Sequence[Hashable]

    def __init__(self, run_state: RunState, timeout: float, latency_ms: int) -> None:
        self.run_state = run_state
        self.timeout = timeout
        self.completes_at_ms = run_state.now_ms + latency_ms
        self.payload = bytes(PAYLOAD_BYTES)
        self.done = False

    def try_complete(self) -> bool:
        """Completes the request if its condition holds."""
        return self.run_state.now_ms >= self.completes_at_ms and self.force_complete()

    @abstractmethod
    def force_complete(self) -> bool:
        """Ends the request, and removes it from all structures. False if it had ended before."""

    def on_complete(self) -> None:
        """Called once, however the request has ended."""
        self.run_state.answered += 1

    def on_expiration(self) -> None:
        """Called after `on_complete`, if the request has expired."""
        self.run_state.expired(self.deadline)


class Implementation(Protocol):
    """A purgatory, made on the running loop."""

    @property
    def new_request(self) -> Callable[[RunState, float, int], Any]:
        """Makes a request of a run, with a timeout in seconds and a latency in milliseconds."""
        ...

    @property
    def watch(self) -> Callable[[Any, Sequence[Hashable]], object]:
        """Lets a new request wait under keys that differ from each other, unless it can be
        completed at once."""
        ...

    @property
    def complete(self) -> Callable[[Any], object]:
        """Ends a request from outside. No effect if it has ended."""
        ...

    def check_and_complete(self, key: Hashable) -> object:
        """Completes the requests that watch `key` and whose condition holds, now or in the next
        iterations of the loop."""
        ...

    def pending(self) -> int:
        """The number of waiting requests."""
        ...

    def close(self) -> None:
        """Frees leftovers on the loop. Called when nothing is pending."""
