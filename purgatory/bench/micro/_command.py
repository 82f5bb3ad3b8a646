"""``python -m purgatory.bench micro``: one operation at a time, against what the event loop offers for the same work.

`purgatory.bench._measure` explains what makes a comparison fair; the functions of the rows say what each of them does. To add a
row, write such a function and list it here with its target.
"""

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product

from purgatory._programs import Program
from purgatory.bench._cases import Case, LoopName, on_both
from purgatory.bench._measure import BATCH, SETTLING_TURNS
from purgatory.bench._options import add_common_options, checkout
from purgatory.bench._runner import run_cases
from purgatory.bench.micro import _against as against
from purgatory.bench.micro import _idle_rows as idle
from purgatory.bench.micro import _observer_rows as observers
from purgatory.bench.micro import _operation_rows as operations
from purgatory.bench.micro import _threshold_rows as thresholds
from purgatory.bench.micro import _timeout_rows as timeouts
from purgatory.bench.micro import _timer_rows as timers
from purgatory.bench.micro._timer_rows import TIMEOUT

LIMIT_OF_THE_LOOPS_OWN: dict[LoopName, float] = {"asyncio": 0.4, "uvloop": 1.0}

SPREADS: tuple[tuple[str, float], ...] = (("1s", 1.0), ("60s", 60.0))
FULL: tuple[tuple[str, int], ...] = (("0", 0), ("1m", 1_000_000))
NOTHING_PENDING: dict[LoopName, float] = {"asyncio": 0.35, "uvloop": 0.65}
MANY_PENDING: dict[LoopName, float] = {"asyncio": 0.35, "uvloop": 0.5}


def differing_cases() -> Iterator[Case]:
    """Rows of delays that differ from one to the next, as a server with many kinds of timeouts has them."""
    for (name, spread), (size, pending) in product(SPREADS, FULL):
        among = f"a delay of its own for each, 30 to {TIMEOUT + spread:g}; {pending:,} pending"
        yield Case(
            name=f"timer-{name}-{size}",
            work=f"WheelTimer: call_later + cancel, {among}",
            against="the loop's own",
            at_most=MANY_PENDING if pending else NOTHING_PENDING,
            unit="×",
            measure=partial(timers.start_and_cancel_differing, pending, spread),
        )
        yield Case(
            name=f"cycle-{name}-{size}",
            work=f"as cycle, {among}",
            against="the loop's own call_later + cancel",
            at_most={},
            unit="×",
            measure=partial(operations.cycle_differing, pending, spread),
        )
        yield Case(
            name=f"timeout-{name}-{size}",
            work=f"async with timeout(delay): pass, {among}",
            against="asyncio.timeout",
            at_most={},
            unit="×",
            measure=partial(timeouts.enter_and_leave_differing, pending, spread),
        )


CASES = (
    Case(
        name="timer-0",
        work="WheelTimer: call_later(30) + cancel, with nothing pending",
        against="the loop's own",
        at_most=LIMIT_OF_THE_LOOPS_OWN,
        unit="×",
        measure=partial(timers.start_and_cancel_among, 0),
    ),
    Case(
        name="timer-100k",
        work="WheelTimer: call_later(30) + cancel, with 100,000 pending",
        against="the loop's own",
        at_most=LIMIT_OF_THE_LOOPS_OWN,
        unit="×",
        measure=partial(timers.start_and_cancel_among, 100_000),
    ),
    Case(
        name="timer-1m",
        work="WheelTimer: call_later(30) + cancel, with 1,000,000 pending",
        against="the loop's own",
        at_most=LIMIT_OF_THE_LOOPS_OWN,
        unit="×",
        measure=partial(timers.start_and_cancel_among, 1_000_000),
    ),
    Case(
        name="timer-flat",
        work="WheelTimer: call_later(30) + cancel, with 1,000,000 pending",
        against="WheelTimer with nothing pending",
        at_most=on_both(1.3),
        unit="×",
        measure=partial(timers.start_and_cancel_full_against_empty, 1_000_000),
    ),
    Case(
        name="timer-random",
        work="WheelTimer: cancel a random one of 1,000,000, call_later(30)",
        against="the loop's own",
        at_most={"uvloop": 0.8},
        unit="×",
        measure=partial(timers.replace_at_random_among, 1_000_000, (30.0, 30.0)),
    ),
    Case(
        name="timer-varied",
        work="the same, with a delay of its own for each: 20 to 50",
        against="the loop's own",
        at_most={},
        unit="×",
        measure=partial(timers.replace_at_random_among, 1_000_000, (20.0, 50.0)),
    ),
    Case(
        name="cycle",
        work="construct an operation, watch it, make its condition true, complete its key",
        against="the loop's own call_later + cancel",
        at_most={"uvloop": 2.2},
        unit="×",
        measure=operations.cycle,
    ),
    Case(
        name="cycle-shared",
        work="construct an operation, watch it on three of 100 keys that 10,000 others share, complete it",
        against="the loop's own call_later + cancel",
        at_most={},
        unit="×",
        measure=partial(operations.cycle_shared, 10_000),
    ),
    Case(
        name="journal",
        work="what a journal adds to the same, on the loop's thread",
        against="",
        at_most=on_both(1.0),
        unit="µs",
        measure=operations.journal,
    ),
    Case(
        name="metrics",
        work="what a meter adds to the same",
        against="",
        at_most=on_both(0.5),
        unit="µs",
        measure=observers.metrics,
    ),
    Case(
        name="journal+metrics",
        work="what both add",
        against="",
        at_most=on_both(1.2),
        unit="µs",
        measure=observers.journal_and_metrics,
    ),
    Case(
        name="scrape",
        work="read all metrics with Prometheus' client, with 1,000,000 pending",
        against="",
        at_most=on_both(2),
        unit="ms",
        measure=partial(observers.scrape, 1_000_000),
    ),
    Case(
        name="look",
        work="one look of purgatory.asgi.console, with 1,000,000 pending",
        against="",
        at_most=on_both(1),
        unit="ms",
        measure=partial(observers.look, 1_000_000),
    ),
    Case(
        name="wait",
        work="1,000 tasks each wait for a key and are completed by it; per task",
        against="asyncio.timeout around a future",
        at_most=on_both(0.75),
        unit="×",
        measure=operations.wait,
    ),
    Case(
        name="cancel-crowd",
        work="cancel one of 100,000 operations on one key",
        against="one alone on its key",
        at_most=on_both(1.5),
        unit="×",
        measure=partial(operations.cancel_in_a_crowd, 100_000),
    ),
    Case(
        name="idle-touch",
        work="IdleTracker: touch a random one of 1,000,000",
        against="the loop's own cancel + call_later",
        at_most={"uvloop": 0.3},
        unit="×",
        measure=partial(idle.touch_among, 1_000_000),
    ),
    Case(
        name="idle-tick",
        work="IdleTracker: one tick of 100,000, of which 0.1 % fall idle",
        against="a scan of all",
        at_most=on_both(0.02),
        unit="×",
        measure=partial(idle.tick_among, 100_000),
    ),
    Case(
        name="burst",
        work="200,000 operations due in one tick: longest hold of the loop",
        against="",
        at_most=on_both(10),
        unit="ms",
        measure=partial(operations.burst, 200_000),
    ),
    Case(
        name="memory",
        work="resident memory of a pending operation, of 1,000,000 on a key each",
        against="",
        at_most=on_both(320),
        unit="bytes",
        measure=partial(operations.memory, 1_000_000),
    ),
    Case(
        name="timeout",
        work="async with timeout(30): pass",
        against="asyncio.timeout",
        at_most={"asyncio": 0.6, "uvloop": 0.7},
        unit="×",
        measure=timeouts.enter_and_leave,
    ),
    Case(
        name="wait-for",
        work="await wait_for(coroutine, 30), whose coroutine does one sleep(0)",
        against="asyncio.wait_for",
        at_most=on_both(0.8),
        unit="×",
        measure=timeouts.wait_for_a_turn,
    ),
    Case(
        name="advance-crowd",
        work="ThresholdPurgatory: advance that completes one of 100,000 waiters of a key",
        against="one of one",
        at_most=on_both(1.5),
        unit="×",
        measure=partial(thresholds.complete_one_of, 100_000),
    ),
    Case(
        name="advance-below",
        work="the same that completes nobody, below 100,000 waiters of its key",
        against="a key that nobody waits for",
        at_most={},
        unit="×",
        measure=partial(thresholds.advance_below, 100_000),
    ),
    *differing_cases(),
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
        help="measure an older checkout in turns with this one, and print what has become of each row",
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


CAPTION = (
    f"Medians, in batches of {BATCH:,} operations. Ratios are of paired batches and judged by their median."
    " CPU time, the garbage collector on."
    f"\nsettled: with the {SETTLING_TURNS} loop turns after each batch, in which what was cancelled is cleaned up."
)
PROGRAM = Program(
    "micro", "What one operation costs, against what the event loop offers for the same work.", add_arguments, run
)
