"""The rows of a benchmark: a `Case` is a measurement, a `Result` has the figures."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from benchmarks.measure import Measured

T = TypeVar("T")
LoopName = Literal["asyncio", "uvloop"]
Unit = Literal["×", "µs", "ms", "s", "bytes"]

QUICK_DIVISOR = 100
"""A quick run does a hundredth of everything."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A case's parameters: its loop, its randomness and the amount of work.

    Attributes:
        random: seeded anew for each row, so that a row does the same alone as among the others.
        track: like `range`; with ``--against`` it waits before each round for the other side.
    """

    loop_name: LoopName
    random: random.Random
    quick: bool
    track: Callable[[int], Iterable[int]]

    def size(self, full: int) -> int:
        """How many to take where a full run takes `full`."""
        return full // QUICK_DIVISOR if self.quick else full

    def rounds(self, full: int = 200) -> Iterable[int]:
        """The rounds to measure, of which a full run does `full`."""
        return self.track(3 if self.quick else full)


@dataclass(frozen=True, slots=True)
class Case:
    """One row. To add one, write a function that measures, and list it.

    Attributes:
        name: for `--only`.
        work: the sentence in the table.
        against: the other side of the comparison; empty if ours is measured alone.
        unit: of the figure: a ratio (×), or a unit of measurement.
        measure: does the work, on the running loop.
        compared_in: if the figure is a ratio, the unit of both sides.
    """

    name: str
    work: str
    against: str
    unit: Unit
    measure: Callable[[Setting], Coroutine[Any, Any, Measured]]
    compared_in: Unit = "µs"

    @property
    def cost_unit(self) -> Unit:
        """The unit of the figures of both sides."""
        return self.compared_in if self.unit == "×" else self.unit


@dataclass(frozen=True, slots=True)
class Result:
    """The figures of a case on a loop, or the reason why there are none."""

    case: Case
    loop_name: LoopName
    measured: Measured | None
    reason: str = ""


def loop_factory(name: LoopName) -> Callable[[], asyncio.AbstractEventLoop]:
    """The function that makes a loop of this name.

    Raises:
        ImportError: uvloop is not installed.
    """
    if name == "uvloop":
        import uvloop

        return uvloop.new_event_loop
    return asyncio.new_event_loop


def run_on(name: LoopName, coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine on a new loop of this name."""
    with asyncio.Runner(loop_factory=loop_factory(name)) as runner:
        return runner.run(coroutine)
