"""``python tests/benchmarks micro``: one operation at a time, against the event loop's own means
for the same work.

`benchmarks.measure` explains how comparisons are kept fair; the functions of the rows describe
their work. To add a row, write such a function and list it here with its target.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

from benchmarks.cases import Case, LoopName, Unit, on_both
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
TIMER_TARGET: dict[LoopName, float] = {"asyncio": 0.4, "uvloop": 1.0}
SPREADS: tuple[tuple[str, float], ...] = (("1s", 1.0), ("60s", 60.0))
PENDING: tuple[tuple[str, int, dict[LoopName, float]], ...] = (
    ("0", 0, {"asyncio": 0.35, "uvloop": 0.65}),
    ("1m", 1_000_000, {"asyncio": 0.35, "uvloop": 0.5}),
)
"""Number of pending timers, and the target for timers whose delays differ."""
MILLION, CROWD = 1_000_000, 100_000

START = "WheelTimer: call_later(30) + cancel, with {} pending"
CYCLE = "construct an operation, watch it, make its condition true, complete its key"
CYCLE_SHARED = (
    "construct an operation, watch it on three of 100 keys that 10,000 others share, complete it"
)
SCRAPE = "read all metrics with Prometheus' client, with 1,000,000 pending"
LOOK = "one snapshot of purgatory.asgi.console, with 1,000,000 pending"
WAIT = "1,000 tasks each wait for a key and are completed by it; per task"
MEMORY = "resident memory of a pending operation, of 1,000,000 on a key each"
BURST = "200,000 operations due in one tick: the longest stall of the loop"
REPLACE = "WheelTimer: cancel a random one of 1,000,000, call_later(30)"
REPLACE_VARIED = "the same, with a delay of its own for each: 20 to 50"
TICK = "IdleTracker: one tick of 100,000, of which 0.1 % fall idle"
WAIT_FOR = "await wait_for(coroutine, 30), whose coroutine does one sleep(0)"
ADVANCE = "ThresholdPurgatory: advance that completes one of 100,000 waiters of a key"
ADVANCE_BELOW = "the same without a completion, below 100,000 waiters of its key"


def differing_cases() -> Iterator[Case]:
    """Rows of delays that differ from one to the next, as a server with many kinds of timeouts has
    them."""
    for (spread_name, spread), (size_name, pending, target) in product(SPREADS, PENDING):
        name = f"{spread_name}-{size_name}"
        among = (
            f"a delay of its own for each, 30 to {timers.TIMEOUT + spread:g}; {pending:,} pending"
        )
        start = partial(timers.start_and_cancel_among, pending, spread)
        yield Case(
            f"timer-{name}", f"WheelTimer: call_later + cancel, {among}", OWN, target, "×", start
        )
        cycle = partial(operations.cycle, pending, spread)
        yield Case(f"cycle-{name}", f"as cycle, {among}", OWN_TIMER, {}, "×", cycle)
        enter = partial(timeouts.enter_and_leave, pending, spread)
        yield Case(
            f"timeout-{name}",
            f"async with timeout(delay): pass, {among}",
            "asyncio.timeout",
            {},
            "×",
            enter,
        )


def case(
    name: str,
    work: str,
    against: str,
    targets: Mapping[LoopName, float],
    unit: Unit,
    measure: Callable[..., Any],
    *sizes: Any,
) -> Case:
    return Case(name, work, against, targets, unit, partial(measure, *sizes))


CASES = (
    case(
        "timer-0",
        START.format("nothing"),
        OWN,
        TIMER_TARGET,
        "×",
        timers.start_and_cancel_among,
        0,
        0.0,
    ),
    case(
        "timer-100k",
        START.format("100,000"),
        OWN,
        TIMER_TARGET,
        "×",
        timers.start_and_cancel_among,
        CROWD,
        0.0,
    ),
    case(
        "timer-1m",
        START.format("1,000,000"),
        OWN,
        TIMER_TARGET,
        "×",
        timers.start_and_cancel_among,
        MILLION,
        0.0,
    ),
    case(
        "timer-flat",
        START.format("1,000,000"),
        "with nothing pending",
        on_both(1.3),
        "×",
        timers.full_against_empty,
        MILLION,
    ),
    case(
        "timer-random",
        REPLACE,
        OWN,
        {"uvloop": 0.8},
        "×",
        timers.replace_at_random_among,
        MILLION,
        (30.0, 30.0),
    ),
    case(
        "timer-varied",
        REPLACE_VARIED,
        OWN,
        {},
        "×",
        timers.replace_at_random_among,
        MILLION,
        (20.0, 50.0),
    ),
    case("cycle", CYCLE, OWN_TIMER, {"uvloop": 2.2}, "×", operations.cycle, 0, 0.0),
    case("cycle-shared", CYCLE_SHARED, OWN_TIMER, {}, "×", operations.cycle_shared, 10_000),
    case(
        "journal",
        "the cost that a journal adds to cycle, on the loop's thread",
        "",
        on_both(1.0),
        "µs",
        observers.journal,
    ),
    case("metrics", "the cost that a meter adds", "", on_both(0.5), "µs", observers.metrics),
    case(
        "journal+metrics", "the cost of both", "", on_both(1.2), "µs", observers.journal_and_metrics
    ),
    case("scrape", SCRAPE, "", on_both(2), "ms", observers.scrape, MILLION),
    case("look", LOOK, "", on_both(1), "ms", observers.snapshot, MILLION),
    case("wait", WAIT, "asyncio.timeout around a future", on_both(0.75), "×", operations.wait),
    case(
        "cancel-crowd",
        "cancel one of 100,000 operations on one key",
        "one alone on its key",
        on_both(1.5),
        "×",
        operations.cancel_in_a_crowd,
        CROWD,
    ),
    case(
        "idle-touch",
        "IdleTracker: touch a random one of 1,000,000",
        "the loop's own cancel + call_later",
        {"uvloop": 0.3},
        "×",
        idle.touch_among,
        MILLION,
    ),
    case("idle-tick", TICK, "a scan of all", on_both(0.02), "×", idle.tick_among, CROWD),
    case("burst", BURST, "", on_both(10), "ms", operations.burst, 200_000),
    case("memory", MEMORY, "", on_both(320), "bytes", operations.memory, MILLION),
    case(
        "timeout",
        "async with timeout(30): pass",
        "asyncio.timeout",
        {"asyncio": 0.6, "uvloop": 0.7},
        "×",
        timeouts.enter_and_leave,
        0,
        0.0,
    ),
    case(
        "wait-for", WAIT_FOR, "asyncio.wait_for", on_both(0.8), "×", timeouts.wait_for_an_iteration
    ),
    case(
        "advance-crowd", ADVANCE, "one of one", on_both(1.5), "×", thresholds.complete_one_of, CROWD
    ),
    case(
        "advance-below",
        ADVANCE_BELOW,
        "a key without waiters",
        {},
        "×",
        thresholds.advance_below,
        CROWD,
    ),
    *differing_cases(),
)
CAPTION = (
    f"Medians, in batches of {BATCH:,} operations. Ratios are of paired batches and judged by "
    "their median."
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
