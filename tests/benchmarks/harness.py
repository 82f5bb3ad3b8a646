"""How the benchmarks measure, and what they print.

Contenders alternate, batch by batch, in one process and on one loop, so that other load affects
both alike. The figure of a row is the median of the paired ratios, shown with their quartiles. A
longer batch would measure a heap of cancelled timers that no server collects in one iteration, a
shorter one the clock. The clock is CPU time, and is read twice: after a batch, and after two more
iterations of the loop (`settled`), to which a contender may defer work. The garbage collector stays
on, as in a server.
"""

import argparse
import asyncio
import gc
import importlib.util
import json
import multiprocessing
import os
import platform
import random
import resource
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from types import FunctionType
from typing import Any, Literal, ParamSpec, TypeVar

from benchmarks.passes import passed, shown

BATCH = 1_000
SETTLING_ITERATIONS = 2
WARM_UP_ROUNDS = 5
QUICK_DIVISOR = 100
"""A quick run does a hundredth of everything."""

P = ParamSpec("P")
T = TypeVar("T")
LoopName = Literal["asyncio", "uvloop"]
Row = dict[str, Any]
"""A line of a table: its cells by their headings."""

Batch = Callable[[], Awaitable[None]]
"""Does `BATCH` operations, which are timed."""

Contender = Iterator[Batch]
"""One side of a comparison. Preparing the next batch is not timed."""


class Unmeasurable(Exception):
    """The row cannot be measured on this machine now. The message is the reason."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A row's costs, one for each round, of ours and of the other side, if there is one. `settled`
    is the ratio with the iterations of the loop that clean up after each batch."""

    ours: Sequence[float]
    theirs: Sequence[float] = ()
    settled: float | None = None
    passes: str = ""
    """What ours did in Python instead of C: see `benchmarks.passes`."""

    @property
    def figures(self) -> Sequence[float]:
        """The ratios, or `ours` where there is nothing to compare with."""
        pairs = zip(self.ours, self.theirs, strict=False)
        return [mine / other for mine, other in pairs] or self.ours


@dataclass(frozen=True, slots=True)
class Setting:
    """A row's parameters. Its randomness is seeded anew for each row, so that a row does the same
    alone as among the others."""

    loop_name: LoopName
    random: random.Random
    quick: bool

    def size(self, full: int) -> int:
        """How many to take where a full run takes `full`."""
        return full // QUICK_DIVISOR if self.quick else full

    def rounds(self, full: int = 200) -> Iterable[int]:
        """The rounds to measure, of which a full run does `full`."""
        return range(3 if self.quick else full)


# -- measuring


async def compare(ours: Contender, theirs: Contender, rounds: Iterable[int]) -> Measured:
    """Times `ours` and `theirs` alternately, a batch of each in every round: microseconds of an
    operation."""
    gc.collect()
    for _ in range(WARM_UP_ROUNDS):
        await _time(ours)
        await _time(theirs)
    batch, before = next(ours), passed()
    await batch()
    passes = shown(before, passed(), BATCH)
    pairs = [(await _time(ours), await _time(theirs)) for _ in rounds]
    settled = median(mine[1] / other[1] for mine, other in pairs)
    costs = [mine[0] for mine, _ in pairs], [other[0] for _, other in pairs]
    return Measured(*costs, settled, passes)


async def _time(contender: Contender) -> tuple[float, float]:
    """The cost of the next batch, in microseconds per operation: bare, and settled."""
    batch = next(contender)
    start = time.process_time()
    await batch()
    done = time.process_time()
    for _ in range(SETTLING_ITERATIONS):
        await asyncio.sleep(0)
    settled = time.process_time()
    return (done - start) / BATCH * 1e6, (settled - start) / BATCH * 1e6


def own_copy(function: Callable[P, T]) -> Callable[P, T]:
    """A copy of `function` with byte code of its own: CPython adapts byte code to the types that it
    meets, and lines that meet two kinds of timer alternately would be adapted to neither."""
    assert isinstance(function, FunctionType)
    code = function.__code__.replace()
    return FunctionType(code, function.__globals__, function.__name__, function.__defaults__)


def run_on(name: LoopName, coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine on a new loop of this name."""
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    if name == "uvloop":
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(coroutine)


@contextmanager
def process(function: Callable[..., object], *arguments: object) -> Iterator[Connection]:
    """A pipe to a new process that calls `function(pipe, *arguments)`, which are pickled. It meets
    no memory and no adapted byte code of other measurements."""
    spawn = multiprocessing.get_context("spawn")
    pipe, its_end = spawn.Pipe()
    child = spawn.Process(target=function, args=(its_end, *arguments))
    child.start()
    its_end.close()
    try:
        yield pipe
    finally:
        child.kill()
        child.join()


def in_fresh_process(function: Callable[..., T], *arguments: object) -> T:
    """What `function` returns in a process of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
        return executor.submit(function, *arguments).result()


def resident_bytes() -> int:
    """The memory of this process that is in RAM now. Unlike tracemalloc, it includes the allocator's
    rounding, and uvloop's memory outside of Python."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except FileNotFoundError:
        raise Unmeasurable("resident memory is read from /proc") from None
    return pages * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(ancestor: int) -> dict[int, tuple[str, float]]:
    """The name and the CPU seconds of a process, and of all that it started, directly or not, by
    id; with children that have ended. Empty without ``/proc``."""
    found: dict[int, tuple[int, str, float]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            name, _, rest = stat.read_text().rpartition(")")
            fields = rest.split()
            used = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
            found[int(stat.parent.name)] = int(fields[1]), name.partition("(")[2], used
    ours = {ancestor}
    while more := {pid for pid, (parent, *_) in found.items() if parent in ours} - ours:
        ours |= more
    return {pid: found[pid][1:] for pid in ours & found.keys()}


def raise_file_limit() -> int:
    """Lets this process open as many files as the system allows; returns how many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


# -- options


def add_loop(parser: argparse.ArgumentParser, both: bool = False) -> None:
    """Adds ``--loop``. By default it is the fastest loop, or `both`."""
    available = ["asyncio", "uvloop"] if importlib.util.find_spec("uvloop") else ["asyncio"]
    default = "both" if both else available[-1]
    parser.add_argument("--loop", choices=[*available, "both"], default=default)
    parser.set_defaults(loops=available)


def loops(options: argparse.Namespace) -> list[LoopName]:
    """The loops that were asked for."""
    return options.loops if options.loop == "both" else [options.loop]


def positive(text: str) -> int:
    """A whole number, at least one."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a positive whole number, got {text!r}")
    return number


# -- output


def cell(value: object) -> str:
    """Three digits of a number that is no integer."""
    if not isinstance(value, float):
        return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
    return f"{value:,.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def report(options: argparse.Namespace, rows: Sequence[Row], caption: str) -> int:
    """Prints the rows with the machine that their figures belong to, and writes the JSON file, if
    one was asked for. Returns the status of the program."""
    headings = list(dict.fromkeys(heading for row in rows for heading in row))
    table = [headings, *([cell(row.get(heading)) for heading in headings] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for cells in table:
        print("  ".join(map(str.ljust, cells, widths)).rstrip())
    print(caption)
    if options.quick:
        print("QUICK: done with a small part of everything; these figures prove nothing.")
    machine = {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.release()}",
        "cores": os.cpu_count(),
    }
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    if options.json is not None:
        written = {
            "environment": machine,
            "quick": options.quick,
            "seed": options.seed,
            "rows": rows,
        }
        options.json.write_text(json.dumps(written, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return 0


def progress(row: Row) -> None:
    """A line while the program runs."""
    print(*map(cell, row.values()), file=sys.stderr, flush=True)
