"""``python tests/benchmarks micro``: one operation at a time, against the event loop's own means
for the same work.

`benchmarks.measure` explains how comparisons are kept fair; the functions of the rows describe
their work. To add a row, write such a function and list it here.
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from benchmarks.cases import Case, Unit
from benchmarks.measure import BATCH, SETTLING_ITERATIONS
from benchmarks.micro import against
from benchmarks.micro import idle_rows as idle
from benchmarks.micro import observer_rows as observers
from benchmarks.micro import operation_rows as operations
from benchmarks.micro import threshold_rows as thresholds
from benchmarks.micro import timeout_rows as timeouts
from benchmarks.micro import timer_rows as timers
from benchmarks.options import add_common_options, checkout
from benchmarks.runner import run_cases
from purgatory.pipeline._programs import Program

OWN = "the loop's own"
OWN_TIMER = "the loop's own call_later + cancel"
MILLION, CROWD = 1_000_000, 100_000


# fmt: off
ROWS: tuple[tuple[str, str, str, Unit, Callable[..., Any], tuple[Any, ...]], ...] = (
    ("timer-0", "WheelTimer: call_later(30) + cancel, with nothing pending", OWN,
     "×", timers.start_and_cancel_among, (0, 0.0)),
    ("timer-60s", "the same, with a delay of its own for each, 30 to 90 s", OWN,
     "×", timers.start_and_cancel_among, (0, 60.0)),
    ("timer-1m", "WheelTimer: call_later(30) + cancel, with 1,000,000 pending", OWN,
     "×", timers.start_and_cancel_among, (MILLION, 0.0)),
    ("timer-random", "WheelTimer: cancel a random one of 1,000,000, call_later(30)", OWN,
     "×", timers.replace_at_random_among, (MILLION,)),
    ("cycle", "construct an operation, watch it, make its condition true, complete its key",
     OWN_TIMER, "×", operations.cycle, ()),
    ("cycle-shared", "construct an operation, watch it on three of 100 keys that 10,000 others "
     "share, complete it", OWN_TIMER, "×", operations.cycle_shared, (10_000,)),
    ("journal", "the cost that a journal adds to cycle, on the loop's thread", "",
     "µs", observers.journal, ()),
    ("metrics", "the cost that a meter adds", "", "µs", observers.metrics, ()),
    ("journal+metrics", "the cost of both", "", "µs", observers.journal_and_metrics, ()),
    ("scrape", "read all metrics with Prometheus' client, with 1,000,000 pending", "",
     "ms", observers.scrape, (MILLION,)),
    ("look", "one snapshot of purgatory.console, with 1,000,000 pending", "",
     "ms", observers.snapshot, (MILLION,)),
    ("wait", "1,000 tasks each wait for a key and are completed by it; per task",
     "asyncio.timeout around a future", "×", operations.wait, ()),
    ("cancel-crowd", "cancel one of 100,000 operations on one key", "one alone on its key",
     "×", operations.cancel_in_a_crowd, (CROWD,)),
    ("idle-touch", "IdleTracker: touch a random one of 1,000,000",
     "the loop's own cancel + call_later", "×", idle.touch_among, (MILLION,)),
    ("burst", "200,000 operations due in one tick: the longest stall of the loop", "",
     "ms", operations.burst, (200_000,)),
    ("memory", "resident memory of a pending operation, of 1,000,000 on a key each", "",
     "bytes", operations.memory, (MILLION,)),
    ("timeout", "async with timeout(30): pass", "asyncio.timeout",
     "×", timeouts.enter_and_leave, ()),
    ("wait-for", "await wait_for(coroutine, 30), whose coroutine does one sleep(0)",
     "asyncio.wait_for", "×", timeouts.wait_for_an_iteration, ()),
    ("advance-crowd", "ThresholdPurgatory: advance that completes one of 100,000 waiters of a key",
     "one of one", "×", thresholds.complete_one_of, (CROWD,)),
    ("advance-below", "the same without a completion, below 100,000 waiters of its key",
     "a key without waiters", "×", thresholds.advance_below, (CROWD,)),
)
# fmt: on
"""Each: a name, the work, the other side, the unit, the function that measures, and its sizes."""

CASES = tuple(
    Case(name, work, other, unit, partial(measure, *sizes))
    for name, work, other, unit, measure, sizes in ROWS
)
CAPTION = (
    f"Medians, in batches of {BATCH:,} operations. Ratios are of paired batches."
    " CPU time, the garbage collector on."
    f"\nsettled: with the {SETTLING_ITERATIONS} iterations of the loop after each batch, which "
    "remove cancelled operations."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_common_options(parser)
    parser.add_argument(
        "--only",
        dest="cases",
        action="append",
        type=case_named,
        metavar="NAME",
        help="only the row of this name; may be repeated. Rows: "
        + ", ".join(each.name for each in CASES),
    )
    parser.add_argument(
        "--against",
        type=checkout,
        metavar="PATH",
        help="measure an older checkout alternately with this one, and print how each row has "
        "changed",
    )


def case_named(name: str) -> Case:
    """The row of this name."""
    for each in CASES:
        if each.name == name:
            return each
    raise argparse.ArgumentTypeError(
        f"no row is named {name!r}; rows: {', '.join(each.name for each in CASES)}"
    )


def run(options: argparse.Namespace) -> int:
    """Measures the chosen rows."""
    cases: Sequence[Case] = options.cases or CASES
    if options.against is not None:
        return against.run(options, cases)
    return run_cases(options, "micro", cases, lambda: CAPTION, lambda: {"batch": BATCH})


PROGRAM = Program(
    "micro",
    "The cost of one operation, against the event loop's own means for the same work.",
    add_arguments,
    run,
)
