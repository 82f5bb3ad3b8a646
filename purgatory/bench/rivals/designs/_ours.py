"""Ours: `purgatory.Purgatory` as users have it."""

from collections.abc import Hashable
from typing import Any

from purgatory import DelayedOperation, Purgatory
from purgatory.bench.rivals.designs._interface import PAYLOAD_BYTES, World


class FakeOperation(DelayedOperation[None]):
    """`Request`, as a user of the library writes it."""

    __slots__ = ("completes_at_ms", "payload", "world")

    def __init__(self, world: World, timeout: float, latency_ms: int) -> None:
        super().__init__(timeout)
        self.world = world
        self.completes_at_ms = world.now_ms + latency_ms
        self.payload = bytes(PAYLOAD_BYTES)

    def try_complete(self) -> bool:
        return self.world.now_ms >= self.completes_at_ms and self.force_complete()

    def on_complete(self) -> None:
        self.world.answered += 1

    def on_expiration(self) -> None:
        deadline = self.deadline
        assert deadline is not None
        self.world.expired(deadline)


class Ours:
    """The design of this library."""

    def __init__(self) -> None:
        self._purgatory = Purgatory[DelayedOperation[Any]]("benchmark")
        self.new_request = FakeOperation
        self.watch = self._purgatory.try_complete_else_watch
        self.complete = FakeOperation.force_complete

    def check_and_complete(self, key: Hashable) -> int:
        return self._purgatory.check_and_complete(key)

    def pending(self) -> int:
        return self._purgatory.pending

    def counters(self) -> dict[str, int]:
        statistics = self._purgatory.statistics()
        return {"wake_ups": statistics.wake_ups, "moves": statistics.moves}

    def close(self) -> None:
        assert not self._purgatory.pending
