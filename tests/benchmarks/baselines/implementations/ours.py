"""Ours: `purgatory.Purgatory` as users have it."""

from collections.abc import Hashable
from typing import Any

from benchmarks.baselines.implementations.interface import PAYLOAD_BYTES, RunState
from purgatory import DelayedOperation, Purgatory


class FakeOperation(DelayedOperation[None]):
    """`Request`, as a user of the library writes it."""

    __slots__ = ("completes_at_ms", "payload", "run_state")

    def __init__(self, run_state: RunState, timeout: float, latency_ms: int) -> None:
        super().__init__(timeout)
        self.run_state = run_state
        self.completes_at_ms = run_state.now_ms + latency_ms
        self.payload = bytes(PAYLOAD_BYTES)

    def try_complete(self) -> bool:
        return self.run_state.now_ms >= self.completes_at_ms and self.force_complete()

    def on_complete(self) -> None:
        self.run_state.answered += 1

    def on_expiration(self) -> None:
        deadline = self.deadline
        assert deadline is not None
        self.run_state.expired(deadline)


class Ours:
    """A `Purgatory`."""

    def __init__(self) -> None:
        self._purgatory = Purgatory[DelayedOperation[Any]]("benchmark")
        self.new_request = FakeOperation
        self.watch = self._purgatory.try_complete_else_watch
        self.complete = FakeOperation.force_complete

    def check_and_complete(self, key: Hashable) -> int:
        return self._purgatory.check_and_complete(key)

    def pending(self) -> int:
        return self._purgatory.pending

    def close(self) -> None:
        assert not self._purgatory.pending
