"""``python tests/benchmarks micro``: one operation at a time, against the event loop's own means
for the same work.

`benchmarks.harness` explains how comparisons are kept fair; the functions of the rows describe
their work. To add a row, write such a function and list it in `ROWS`.
"""

import argparse
import random
from collections.abc import Callable
from functools import partial
from itertools import product
from statistics import median, quantiles
from typing import Any

from benchmarks import harness
from benchmarks import purgatory_rows as purgatories
from benchmarks import timer_rows as timers
from benchmarks import wait_rows as waits
from benchmarks.harness import BATCH, SETTLING_ITERATIONS, LoopName, Row, Setting, Unmeasurable

OWN = "the loop's own"
AT_HORIZON = "WheelTimer: call_later + cancel, "
WITH_TIMEOUT = "asyncio.timeout around a future"
BY_HAND = "a dict of futures with asyncio.timeout"
OWN_TIMER = "the loop's own call_later + cancel"
HORIZONS = {"0.1s": 0.1, "200s": 200.0, "10min": 600.0, "1h": 3600.0, "1d": 86_400.0}
MILLION, CROWD = 1_000_000, 100_000

# fmt: off
ROWS: dict[str, tuple[str, str, str, Callable[..., Any]]] = {
    "timer-0": ("WheelTimer: call_later(30) + cancel, with nothing pending", OWN, "µs",
                partial(timers.start_and_cancel_among, 0, 0.0)),
    "timer-60s": ("the same, with a delay of its own for each, 30 to 90 s", OWN, "µs",
                  partial(timers.start_and_cancel_among, 0, 60.0)),
    **{f"timer-{name}": (f"{AT_HORIZON}{name} ahead", OWN, "µs",
                         partial(timers.start_and_cancel_among, 0, 0.0, delay=delay))
       for name, delay in HORIZONS.items()},
    "timer-1m": ("the same as timer-0 with 1,000,000 pending", OWN, "µs",
                 partial(timers.start_and_cancel_among, MILLION, 0.0)),
    "timer-random": ("WheelTimer: cancel a random one of 1,000,000, call_later(30)", OWN, "µs",
                     partial(timers.replace_at_random_among, MILLION)),
    "cycle": ("construct an operation, watch it, make its condition true, complete its key",
              OWN_TIMER, "µs", partial(purgatories.complete_by_key, False)),
    "check-crowd": (f"the same with {BATCH:,} operations of one key, by one check; per operation",
                    OWN_TIMER, "µs", partial(purgatories.complete_by_key, True)),
    "cycle-shared": ("the same on three of 100 keys that 10,000 others share", OWN_TIMER, "µs",
                     partial(purgatories.complete_shared, 10_000)),
    "journal": ("the cost that a journal adds to cycle, on the loop's thread", "", "µs",
                partial(purgatories.observed, True, False)),
    "metrics": ("the cost that a meter adds", "", "µs", partial(purgatories.observed, False, True)),
    "journal+metrics": ("the cost of both", "", "µs", partial(purgatories.observed, True, True)),
    "scrape": ("read all metrics with Prometheus' client, with 1,000,000 pending", "", "ms",
               partial(purgatories.scrape, MILLION)),
    "wait": ("1,000 tasks each wait for a key and are completed by it; per task",
             WITH_TIMEOUT, "µs", purgatories.wait),
    "call-later": ("alone, in one task: a dict of futures with the loop's call_later", BY_HAND, "µs",
                   partial(waits.alone, waits.by_call_later, waits.by_timeout)),
    "receive": ("alone: await receive(key, 30), answered by deliver", BY_HAND, "µs",
                partial(waits.alone, waits.by_receive, waits.by_timeout)),
    "expect": ("alone: with expect(key, 30) as reply: await reply", BY_HAND, "µs",
               partial(waits.alone, waits.by_expect, waits.by_timeout)),
    "wait-alone": ("alone: await wait(operation, (key,)), completed by the key", WITH_TIMEOUT, "µs",
                   partial(waits.alone, waits.by_wait, waits.by_future)),
    "await": ("alone: watch an operation, then await it", WITH_TIMEOUT, "µs",
              partial(waits.alone, waits.by_await, waits.by_future)),
    "wait-for-keys": ("alone: await purgatory.wait_for(predicate, [key, other], 30)", WITH_TIMEOUT,
                      "µs", partial(waits.alone, waits.by_wait_for, waits.by_future)),
    "int-timeout": ("construct an operation with a timeout of 30", "30.0", "µs", waits.construct),
    "aclose": ("aclose, for each of 1,000 operations that wait under a key each",
               "cancel_for_key of 1,000 under one", "µs", waits.close),
    "threadsafe": ("a check that a thread has asked for, on the loop, of a key with one operation",
                   "a direct check", "µs", waits.check_from_thread),
    "cascade": ("a timer that moves to a finer level of the wheel", "", "µs", waits.cascade),
    "idle-touch": ("IdleTracker: touch a random one of 1,000,000",
                   "the loop's own cancel + call_later", "µs", partial(timers.touch_among, MILLION)),
    "memory": ("resident memory of a pending operation, of 1,000,000 on a key each", "", "bytes",
               partial(purgatories.memory, MILLION)),
    "timeout": ("async with timeout(30): pass", "asyncio.timeout", "µs", timers.enter_and_leave),
    "wait-for": ("await wait_for(coroutine, 30), whose coroutine does one sleep(0)",
                 "asyncio.wait_for", "µs", timers.wait_for_an_iteration),
    "advance-crowd": ("ThresholdPurgatory: advance that completes one of 100,000 waiters of a key",
                      "one of one", "µs", partial(purgatories.complete_one_of, CROWD)),
}
# fmt: on
"""By name: the work, the other side or "", the unit of the costs, and the function that measures."""

CAPTION = (
    f"Medians, in batches of {BATCH:,} operations. Ratios are of paired batches."
    " CPU time, the garbage collector on."
    f"\nsettled: with the {SETTLING_ITERATIONS} iterations of the loop after each batch, which "
    "remove cancelled operations.\npasses: compiled functions that call their Python definitions, "
    "and how often for each operation."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    harness.add_loop(parser, both=True)
    add = parser.add_argument
    add("--only", action="append", choices=ROWS, metavar="NAME", help="; ".join(ROWS))


def run(options: argparse.Namespace) -> int:
    """Measures the chosen rows."""
    rows: list[Row] = []
    for name, loop in product(options.only or ROWS, harness.loops(options)):
        _, _, unit, function = ROWS[name]
        rows.append({"row": name, "loop": loop, "unit": unit, **measured(function, loop, options)})
        harness.progress(rows[-1])
    caption = CAPTION
    for name in options.only or ROWS:
        work, other, *_ = ROWS[name]
        caption += f"\n{name}: {work}" + (f", against {other}" if other else "")
    return harness.report(options, rows, caption)


def measured(row: Callable[..., Any], loop: LoopName, options: argparse.Namespace) -> Row:
    """A row on a new loop."""
    try:
        setting = Setting(loop, random.Random(options.seed), options.quick)
        found = harness.run_on(loop, row(setting))
    except (ImportError, Unmeasurable) as error:
        return {"ours": f"not measured: {error}"}
    if not found.theirs:
        return {"ours": median(found.ours)}
    figures = {"ours": median(found.ours), "theirs": median(found.theirs)}
    low, ratio, high = quantiles(found.figures, n=4, method="inclusive")
    figures |= {"ratio": ratio, "low": low, "high": high, "settled": found.settled}
    return {**figures, "passes": found.passes}
