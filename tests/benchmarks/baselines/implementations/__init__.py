"""The purgatories that `load`, `burst` and `memory` compare, each with the interface of `interface`:

- *ours*: this library;
- *old*: the one for which Kafka's benchmark was written, to show what a purge of one heap costs;
- *kafka*: the one that replaced it there and is the model of ours: the difference is what our promises cost;
- *call-later*: what one writes on asyncio without a library.

The others are for comparison only, but made as faithfully and as well as we could. An event loop has one thread: if Kafka has a
reaper thread, a callback of the loop does its work here. Wheels after Netty's and Linux's and a task in `asyncio.timeout` for
each request were measured once; the figures are on the page.
"""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.baselines.implementations.call_later import CallLater
from benchmarks.baselines.implementations.empty import EmptyPurgatory
from benchmarks.baselines.implementations.interface import NEVER_MS, Implementation, Request, RunState
from benchmarks.baselines.implementations.kafka import KafkaWheel
from benchmarks.baselines.implementations.old import OldKafka
from benchmarks.baselines.implementations.ours import Ours

__all__ = ["BY_NAME", "EMPTY", "IMPLEMENTATIONS", "NEVER_MS", "OURS", "Implementation", "Named", "Request", "RunState"]


@dataclass(frozen=True, slots=True)
class Named:
    """An implementation and its name."""

    name: str
    summary: str
    make: Callable[[], Implementation]


OURS = Named("ours", "this library", Ours)
IMPLEMENTATIONS = (
    OURS,
    Named("old", "Kafka's old purgatory: one heap of all requests, purged by threshold", OldKafka),
    Named("kafka", "Kafka's new purgatory: wheel of 20, watch lists purged by an estimate", KafkaWheel),
    Named("call-later", "loop.call_later for each request; sets of watchers", CallLater),
)
EMPTY = Named("empty", "an empty purgatory: the generator's own share", EmptyPurgatory)
BY_NAME = {each.name: each for each in (*IMPLEMENTATIONS, EMPTY)}
