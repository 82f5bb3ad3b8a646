"""What a row of the benchmark is: a `Case` says what is measured and what must be reached, an `Outcome` what was found."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from purgatory.bench._measure import Measured

LoopName = Literal["asyncio", "uvloop"]
Unit = Literal["×", "µs", "ms", "bytes"]
Verdict = Literal["met", "missed", "no target", "not measured"]

QUICK_DIVISOR = 100


@dataclass(frozen=True, slots=True)
class Setting:
    """What a case is told: its loop, its randomness and how much to do.

    Attributes:
        random: seeded afresh for each row, so that a row alone does what it does among the others.
        quick: whether to do a hundredth of everything; shows that the benchmark runs, and proves nothing.
        track: like `range`, and moves the progress bar.
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
    """One row: to add one, write a function that measures, and list it with its target.

    Attributes:
        name: for `--only`.
        work: the sentence in the table.
        against: what ours is compared with; empty where the target is a bound of its own.
        at_most: the target on each loop; on a loop that is not named the row is for information.
        unit: of the target and of the figure: a ratio (×), or what is measured.
        measure: does it, on the running loop.
    """

    name: str
    work: str
    against: str
    at_most: Mapping[LoopName, float]
    unit: Unit
    measure: Callable[[Setting], Coroutine[Any, Any, Measured]]

    @property
    def cost_unit(self) -> str:
        """The unit of the contenders' own figures."""
        return "µs" if self.unit == "×" else self.unit


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a case found on a loop, or why it found nothing."""

    case: Case
    loop_name: LoopName
    measured: Measured | None
    reason: str = ""

    @property
    def target(self) -> float | None:
        return self.case.at_most.get(self.loop_name)

    @property
    def verdict(self) -> Verdict:
        """Judged by the median, without the turns that clean up."""
        if self.measured is None:
            return "not measured"
        if self.target is None:
            return "no target"
        return "met" if self.measured.bare.figure.median <= self.target else "missed"


def loop_factory(name: LoopName) -> Callable[[], asyncio.AbstractEventLoop]:
    """What makes a loop of that name.

    Raises:
        ImportError: uvloop is not installed.
    """
    if name == "uvloop":
        import uvloop  # noqa: PLC0415  # only where it is asked for

        return uvloop.new_event_loop
    return asyncio.new_event_loop
