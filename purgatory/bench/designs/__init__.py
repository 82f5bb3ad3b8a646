"""The designs that `load`, `burst` and `memory` compare: ours, and what one could have instead.

Each is a complete purgatory, a timer and watch lists, behind the interface of `_interface`, as honest and as well made as we
could, for comparison only. On an event loop there is one thread: where a design has a reaper thread, a callback of the loop
does its work. A design whose subject is the timer alone has a dictionary of sets for its watch lists (`_watch_sets`).
"""

from collections.abc import Callable
from dataclasses import dataclass

from purgatory.bench.designs._call_later import CallLater
from purgatory.bench.designs._interface import NEVER_MS, Design, Request, Run
from purgatory.bench.designs._kafka import KafkaWheel
from purgatory.bench.designs._linux import LinuxWheel
from purgatory.bench.designs._netty import NettyWheel
from purgatory.bench.designs._nothing import Nothing
from purgatory.bench.designs._old import OldPurgatory
from purgatory.bench.designs._ours import Ours
from purgatory.bench.designs._timeouts import AsyncioTimeouts

__all__ = ["BY_NAME", "DESIGNS", "NEVER_MS", "NOTHING", "OURS", "Design", "Listed", "Request", "Run"]


@dataclass(frozen=True, slots=True)
class Listed:
    """A design by name.

    Attributes:
        late_ms: how late it may expire a request of this benchmark by design.
        most: how many requests it can hold in a few gigabytes.
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
NOTHING = Listed("nothing", "an empty purgatory: the generator's own share", Nothing)
BY_NAME = {design.name: design for design in (*DESIGNS, NOTHING)}
