"""The purgatories that `load` and `memory` compare, each with the interface of
`interface`:

- *ours*: this library;
- *kafka*: Kafka's of today, which is the model of ours: the difference is the cost of our promises;
- *call-later*: the usual way on asyncio without a library: a timer of the loop for each request.

The others are for comparison only, but made as faithfully and as well as we could. An event loop
has one thread: where Kafka has a reaper thread, a callback of the loop does its work here. Kafka's
old purgatory, wheels after Netty's and Linux's, and a task in `asyncio.timeout` for each request
were measured once; the figures are on the page.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.baselines.implementations.call_later import CallLater
from benchmarks.baselines.implementations.empty import EmptyPurgatory
from benchmarks.baselines.implementations.interface import (
    NEVER_MS,
    Implementation,
    Request,
    RunState,
)
from benchmarks.baselines.implementations.kafka import KafkaWheel
from benchmarks.baselines.implementations.ours import Ours
from benchmarks.options import add_common_options

__all__ = [
    "BY_NAME",
    "EMPTY",
    "IMPLEMENTATIONS",
    "NEVER_MS",
    "OURS",
    "Implementation",
    "Named",
    "Request",
    "RunState",
]


@dataclass(frozen=True, slots=True)
class Named:
    """An implementation and its name."""

    name: str
    summary: str
    make: Callable[[], Implementation]


OURS = Named("ours", "this library", Ours)
IMPLEMENTATIONS = (
    OURS,
    Named("kafka", "Kafka's purgatory: wheel of 20, watch lists purged by an estimate", KafkaWheel),
    Named("call-later", "loop.call_later for each request; sets of watchers", CallLater),
)
EMPTY = Named("empty", "an empty purgatory: the generator's own share", EmptyPurgatory)
BY_NAME = {each.name: each for each in (*IMPLEMENTATIONS, EMPTY)}


def add_implementations(parser: argparse.ArgumentParser, random: bool = False) -> None:
    """Adds ``--implementation``, which may be repeated, and the common options. By default all
    implementations are measured."""
    add_common_options(parser, random=random, fastest_loop=True)
    parser.add_argument(
        "--implementation",
        dest="implementations",
        action="append",
        choices=[each.name for each in IMPLEMENTATIONS],
        help="only this one; may be repeated. "
        + "; ".join(f"{each.name}: {each.summary}" for each in IMPLEMENTATIONS),
    )


def chosen(options: argparse.Namespace) -> list[Named]:
    """The implementations to measure, in the order in which they were named."""
    names = options.implementations or [each.name for each in IMPLEMENTATIONS]
    return [BY_NAME[name] for name in dict.fromkeys(names)]
