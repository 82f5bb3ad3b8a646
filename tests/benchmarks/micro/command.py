"""``python tests/benchmarks micro``: one operation at a time, against what the event loop offers for the same work.

`benchmarks.measure` explains what makes a comparison fair; the functions of the rows say what each of them does. To add a
row, write such a function and list it here with its target.
"""

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product

from benchmarks.cases import Case, LoopName, on_both
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
from purgatory._programs import Program

TIMER_TARGET: dict[LoopName, float] = {"asyncio": 0.4, "uvloop": 1.0}
DIFFERING_TIMER_TARGETS: dict[int, dict[LoopName, float]] = {
    0: {"asyncio": 0.35, "uvloop": 0.65},
    1_000_000: {"asyncio": 0.35, "uvloop": 0.5},
}
"""By how many are pending."""
SPREADS: tuple[tuple[str, float], ...] = (("1s", 1.0), ("60s", 60.0))
PENDING: tuple[tuple[str, int], ...] = (("0", 0), ("1m", 1_000_000))
START = "WheelTimer: call_later(30) + cancel"
OWN = "the loop's own"
OWN_TIMER = "the loop's own call_later + cancel"


def timer_cases() -> Iterator[Case]:
    for name, pending, among in (("0", 0, "nothing"), ("100k", 100_000, "100,000"), ("1m", 1_000_000, "1,000,000")):
        measure = partial(timers.start_and_cancel_among, pending)
        yield Case(f"timer-{name}", f"{START}, with {among} pending", OWN, TIMER_TARGET, "×", measure)


def differing_cases() -> Iterator[Case]:
    """Rows of delays that differ from one to the next, as a server with many kinds of timeouts has them."""
    for (spread_name, spread), (size_name, pending) in product(SPREADS, PENDING):
        name = f"{spread_name}-{size_name}"
        among = f"a delay of its own for each, 30 to {timers.TIMEOUT + spread:g}; {pending:,} pending"
        target = DIFFERING_TIMER_TARGETS[pending]
        start = partial(timers.start_and_cancel_differing, pending, spread)
        yield Case(f"timer-{name}", f"WheelTimer: call_later + cancel, {among}", OWN, target, "×", start)
        cycle = partial(operations.cycle_differing, pending, spread)
        yield Case(f"cycle-{name}", f"as cycle, {among}", OWN_TIMER, {}, "×", cycle)
        enter = partial(timeouts.enter_and_leave_differing, pending, spread)
        yield Case(f"timeout-{name}", f"async with timeout(delay): pass, {among}", "asyncio.timeout", {}, "×", enter)


MILLION, CROWD = 1_000_000, 100_000
CASES = (
    *timer_cases(),
    Case(
        "timer-flat",
        f"{START}, with 1,000,000 pending",
        "WheelTimer with nothing pending",
        on_both(1.3),
        "×",
        partial(timers.start_and_cancel_full_against_empty, MILLION),
    ),
    Case(
        "timer-random",
        "WheelTimer: cancel a random one of 1,000,000, call_later(30)",
        OWN,
        {"uvloop": 0.8},
        "×",
        partial(timers.replace_at_random_among, MILLION, (30.0, 30.0)),
    ),
    Case(
        "timer-varied",
        "the same, with a delay of its own for each: 20 to 50",
        OWN,
        {},
        "×",
        partial(timers.replace_at_random_among, MILLION, (20.0, 50.0)),
    ),
    Case(
        "cycle",
        "construct an operation, watch it, make its condition true, complete its key",
        OWN_TIMER,
        {"uvloop": 2.2},
        "×",
        operations.cycle,
    ),
    Case(
        "cycle-shared",
        "construct an operation, watch it on three of 100 keys that 10,000 others share, complete it",
        OWN_TIMER,
        {},
        "×",
        partial(operations.cycle_shared, 10_000),
    ),
    Case("journal", "what a journal adds to cycle, on the loop's thread", "", on_both(1.0), "µs", observers.journal),
    Case("metrics", "what a meter adds to the same", "", on_both(0.5), "µs", observers.metrics),
    Case("journal+metrics", "what both add", "", on_both(1.2), "µs", observers.journal_and_metrics),
    Case(
        "scrape",
        "read all metrics with Prometheus' client, with 1,000,000 pending",
        "",
        on_both(2),
        "ms",
        partial(observers.scrape, MILLION),
    ),
    Case(
        "look",
        "one snapshot of purgatory.asgi.console, with 1,000,000 pending",
        "",
        on_both(1),
        "ms",
        partial(observers.snapshot, MILLION),
    ),
    Case(
        "wait",
        "1,000 tasks each wait for a key and are completed by it; per task",
        "asyncio.timeout around a future",
        on_both(0.75),
        "×",
        operations.wait,
    ),
    Case(
        "cancel-crowd",
        "cancel one of 100,000 operations on one key",
        "one alone on its key",
        on_both(1.5),
        "×",
        partial(operations.cancel_in_a_crowd, CROWD),
    ),
    Case(
        "idle-touch",
        "IdleTracker: touch a random one of 1,000,000",
        "the loop's own cancel + call_later",
        {"uvloop": 0.3},
        "×",
        partial(idle.touch_among, MILLION),
    ),
    Case(
        "idle-tick",
        "IdleTracker: one tick of 100,000, of which 0.1 % fall idle",
        "a scan of all",
        on_both(0.02),
        "×",
        partial(idle.tick_among, CROWD),
    ),
    Case(
        "burst",
        "200,000 operations due in one tick: the longest stall of the loop",
        "",
        on_both(10),
        "ms",
        partial(operations.burst, 200_000),
    ),
    Case(
        "memory",
        "resident memory of a pending operation, of 1,000,000 on a key each",
        "",
        on_both(320),
        "bytes",
        partial(operations.memory, MILLION),
    ),
    Case(
        "timeout",
        "async with timeout(30): pass",
        "asyncio.timeout",
        {"asyncio": 0.6, "uvloop": 0.7},
        "×",
        timeouts.enter_and_leave,
    ),
    Case(
        "wait-for",
        "await wait_for(coroutine, 30), whose coroutine does one sleep(0)",
        "asyncio.wait_for",
        on_both(0.8),
        "×",
        timeouts.wait_for_an_iteration,
    ),
    Case(
        "advance-crowd",
        "ThresholdPurgatory: advance that completes one of 100,000 waiters of a key",
        "one of one",
        on_both(1.5),
        "×",
        partial(thresholds.complete_one_of, CROWD),
    ),
    Case(
        "advance-below",
        "the same that completes nobody, below 100,000 waiters of its key",
        "a key that nobody waits for",
        {},
        "×",
        partial(thresholds.advance_below, CROWD),
    ),
    *differing_cases(),
)
CAPTION = (
    f"Medians, in batches of {BATCH:,} operations. Ratios are of paired batches and judged by their median."
    " CPU time, the garbage collector on."
    f"\nsettled: with the {SETTLING_ITERATIONS} iterations of the loop after each batch, in which what was cancelled is cleaned up."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_common_options(parser)
    parser.add_argument(
        "--only",
        dest="cases",
        action="append",
        type=case_named,
        metavar="NAME",
        help="only the row of this name; may be repeated. Rows: " + ", ".join(case.name for case in CASES),
    )
    parser.add_argument(
        "--against",
        type=checkout,
        metavar="PATH",
        help="measure an older checkout alternately with this one, and print how each row has changed",
    )


def case_named(name: str) -> Case:
    """The row of this name."""
    for case in CASES:
        if case.name == name:
            return case
    raise argparse.ArgumentTypeError(f"no row is named {name!r}; rows: {', '.join(case.name for case in CASES)}")


def run(options: argparse.Namespace) -> int:
    """Measures the chosen rows."""
    cases: Sequence[Case] = options.cases or CASES
    if options.against is not None:
        return against.run(options, cases)
    return run_cases(options, "micro", cases, lambda: CAPTION, lambda: {"batch": BATCH})


PROGRAM = Program(
    "micro", "What one operation costs, against what the event loop offers for the same work.", add_arguments, run
)
