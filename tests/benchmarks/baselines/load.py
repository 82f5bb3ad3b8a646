"""``python tests/benchmarks load``: the benchmark with which Kafka's purgatory was compared with
the one before it.

A million requests arrive at a given rate. Most are completed from outside when their time comes; the
rest expire after 200 ms. For each rate the implementations are measured one after the other, each in
a process of its own. Before them comes the empty purgatory: its cost is the generator's own share,
and the *net* cost of an implementation is its cost without that share. With several rounds the
median of each figure counts, and the lowest and the highest are shown beside it.
"""

import argparse
from collections.abc import Sequence
from itertools import product
from math import inf, isinf
from statistics import median
from typing import Any

from benchmarks.baselines.driver import DriveResult, drive
from benchmarks.baselines.purgatories import BY_NAME, EMPTY, OURS, add_implementations, chosen
from benchmarks.baselines.workload import LATENCIES, Latency, Workload
from benchmarks.cases import QUICK_DIVISOR, LoopName, run_on
from benchmarks.options import positive
from benchmarks.process import in_fresh_process
from benchmarks.report import opened_console, plain_table, write_report
from purgatory.pipeline._programs import Program

REQUESTS = 1_000_000
RATES = (10_000.0, 40_000.0, 105_000.0, 200_000.0, 300_000.0, inf)
PERCENTILES = (50, 99, 100)
"""Of the lateness."""

Figures = dict[str, Any]
"""Of an implementation with a workload:

    rate           asked for, in requests a second; None for as fast as possible
    actual_rate    at which requests were created
    cpu_us         CPU time of a request; net_us without the generator's own
    expired        share of the requests
    late_ms_50     lateness of the expired, at each of `PERCENTILES`
    max_stall_ms   the longest CPU time that it took between two ticks of the generator
    spread         the lowest and the highest of each figure over the rounds
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_implementations(parser, random=True)
    add = parser.add_argument
    metavar: dict[str, Any] = {"type": positive, "metavar": "N"}
    add("--requests", default=REQUESTS, help="in each run (default: %(default)s)", **metavar)
    add("--rounds", default=1, help="whose median counts (default: %(default)s)", **metavar)
    many = "; may be repeated (default: all)"
    asked = f"requests per second, or 'max' for as fast as it goes{many}"
    add("--rate", dest="rates", action="append", type=rate, metavar="R", help=asked)
    names = [latency.name for latency in LATENCIES]
    shares = f"the share of requests that expire{many}"
    add("--timeouts", dest="latencies", choices=names, action="append", help=shares)


def rate(text: str) -> float:
    """A rate of requests, `inf` for ``max``."""
    return inf if text == "max" else float(positive(text.replace(",", "")))


def run(options: argparse.Namespace) -> int:
    """Measures all rates, prints the tables and writes the JSON."""
    requests = max(1, options.requests // QUICK_DIVISOR) if options.quick else options.requests
    rates: Sequence[float] = options.rates or RATES
    latencies = [each for each in LATENCIES if each.name in (options.latencies or each.name)]
    compared = chosen(options)
    console = opened_console(f"load: {requests:,} requests of {compared} at {len(rates)} rates")
    numbers = ("asked/s", "had/s", "cpu µs", "net µs", "ours/", "expired", "late ms", "stall ms")
    caption = (
        f"{requests:,} requests a run, medians of {options.rounds}. net: CPU without the "
        "generator's own. ours/: our net cost divided by this one's.\nlate: how long after the "
        "deadline requests expired, p50/p99/max. stall: longest CPU time between two ticks."
    )
    runs: list[Figures] = []
    for loop, latency in product(options.loops, latencies):
        title = f"{latency.name} timeouts on {loop}"
        table = plain_table(title, caption, ("implementation",), numbers, options.quick)
        for asked in rates:
            rounds = [
                round_of(loop, (requests, asked, latency, options.seed + number), compared)
                for number in range(options.rounds)
            ]
            figures = {name: medians_of([each[name] for each in rounds]) for name in compared}
            for name, each in figures.items():
                cells = row(each, figures.get(OURS))
                table.add_row(name, *cells)
                console.print(f"{title:<24}{name:<11}", *cells[:4])
                shown = {"loop": loop, "latency": latency.name, "implementation": name}
                runs.append({**shown, "requests": requests, **each})
            table.add_section()
        console.print(table)
    write_report(console, options, "load", seed=options.seed, rounds=options.rounds, runs=runs)
    return 0


def round_of(
    loop: LoopName, workload: tuple[int, float, Latency, int], compared: Sequence[str]
) -> dict[str, Figures]:
    """The figures of each implementation with the same workload, after the generator alone."""
    own = in_fresh_process(_measure, loop, EMPTY, *workload)
    results = {}
    for name in compared:
        driven, (requests, asked, *_) = in_fresh_process(_measure, loop, name, *workload), workload
        late = driven.lateness_s
        results[name] = {
            "rate": None if isinf(asked) else asked,
            "actual_rate": requests / driven.created_s,
            "cpu_us": driven.cpu_s / requests * 1e6,
            "net_us": (driven.cpu_s - own.cpu_s) / requests * 1e6,
            "expired": len(late) / requests,
            "max_stall_ms": driven.max_stall_s * 1e3,
        }
        for part in PERCENTILES if late else ():
            position = round((len(late) - 1) * part / 100)
            results[name][f"late_ms_{part}"] = late[position] * 1e3
    return results


def _measure(
    loop: LoopName, name: str, requests: int, asked: float, latency: Latency, seed: int
) -> DriveResult:
    return run_on(loop, drive(BY_NAME[name], Workload(requests, asked, latency, seed)))


def medians_of(rounds: Sequence[Figures]) -> Figures:
    """The median of each figure over the rounds, and its spread."""
    measured = [name for name in rounds[0] if name != "rate"]
    values = {name: [each[name] for each in rounds if name in each] for name in measured}
    return {
        "rate": rounds[0]["rate"],
        **{name: median(numbers) for name, numbers in values.items()},
        "spread": {name: (min(numbers), max(numbers)) for name, numbers in values.items()},
    }


def row(each: Figures, ours: Figures | None) -> list[str]:
    """The cells of an implementation at a rate."""

    def with_spread(name: str, form: str) -> str:
        low, high = each["spread"][name]
        text = format(each[name], form)
        return text if low == high else f"{text} ({format(low, form)} to {format(high, form)})"

    comparable = ours is not None and ours is not each and each["net_us"] > 0.0
    late = [f"{each[name]:.1f}" for part in PERCENTILES if (name := f"late_ms_{part}") in each]
    return [
        "max" if each["rate"] is None else f"{each['rate']:,.0f}",
        with_spread("actual_rate", ",.0f"),
        f"{each['cpu_us']:.2f}",
        with_spread("net_us", ".2f"),
        f"{ours['net_us'] / each['net_us']:.2f}" if ours and comparable else "",
        f"{each['expired']:.1%}",
        "/".join(late),
        f"{each['max_stall_ms']:.1f}",
    ]


PROGRAM = Program(
    "load",
    "A million requests at rates up to as fast as possible: this purgatory, Kafka's, and timers "
    "of the loop.",
    add_arguments,
    run,
)
