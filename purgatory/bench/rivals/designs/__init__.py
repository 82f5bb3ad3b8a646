"""The designs that `load`, `burst` and `memory` compare: ours, and what one could use instead.

Each is a complete purgatory, a timer and watch lists, with the interface of `_interface`. They are for comparison only, but
made as faithfully and as well as we could. An event loop has one thread: if a design has a reaper thread, a callback of the
loop does its work here. If a design is only about the timer, it gets a dictionary of sets for its watch lists (`_watch_sets`).
"""

from collections.abc import Callable
from dataclasses import dataclass

from purgatory.bench.rivals.designs._call_later import CallLater
from purgatory.bench.rivals.designs._empty import EmptyPurgatory
from purgatory.bench.rivals.designs._interface import NEVER_MS, Design, Request, World
from purgatory.bench.rivals.designs._kafka import KafkaWheel
from purgatory.bench.rivals.designs._linux import LinuxWheel
from purgatory.bench.rivals.designs._netty import NettyWheel
from purgatory.bench.rivals.designs._old import OldPurgatory
from purgatory.bench.rivals.designs._ours import Ours
from purgatory.bench.rivals.designs._timeouts import AsyncioTimeouts

__all__ = ["BY_NAME", "DESIGNS", "EMPTY", "NEVER_MS", "OURS", "Design", "Listed", "Request", "World"]


@dataclass(frozen=True, slots=True)
class Listed:
    """A design and its name.

    Attributes:
        late_ms: how late, by design, a request of this benchmark may expire.
        most: how many requests fit in a few gigabytes of memory.
    """

    name: str
    summary: str
    make: Callable[[], Design]
    late_ms: int = 1
    most: int = 1_000_000


OURS = Listed("ours", "this library", Ours)
DESIGNS = (
    OURS,
    Listed("old", "Kafka's old purgatory: one heap of all requests, purged by threshold", OldPurgatory),
    Listed("kafka", "Kafka's new purgatory: wheel of 20, watch lists purged by an estimate", KafkaWheel),
    Listed("netty", "Netty's timer: one wheel of 512 slots with rounds; sets of watchers", NettyWheel, late_ms=2),
    Listed("linux", "Linux's timer wheel: levels of 64 slots that never cascade; sets of watchers", LinuxWheel, late_ms=8),
    Listed("call-later", "loop.call_later for each request; sets of watchers", CallLater),
    Listed(
        "timeout", "a task for each request, asyncio.timeout around a future; sets of watchers", AsyncioTimeouts, most=100_000
    ),
)
EMPTY = Listed("empty", "an empty purgatory: the generator's own share", EmptyPurgatory)
BY_NAME = {design.name: design for design in (*DESIGNS, EMPTY)}
