"""``python tests/benchmarks load``: the benchmark with which Kafka's purgatory was compared with
the one before it.

A million requests arrive at a given rate. Most are completed from outside when their time
comes; the rest expire after 200 ms. `workload` describes them, `driver` makes them,
`implementations` keep them. For each rate the implementations are measured one after the other,
each in a process of its own. Before them comes the empty purgatory: its cost is the
generator's own share, and the *net* cost of an implementation is its cost without that share. With
several rounds the median of each figure counts, and the lowest and the highest are shown beside it.
"""

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from math import inf, isinf
from statistics import median
from typing import Any

from rich.table import Table

from benchmarks.baselines.driver import DriveResult, drive
from benchmarks.baselines.implementations import (
    BY_NAME,
    EMPTY,
    OURS,
    Named,
    add_implementations,
    chosen,
)
from benchmarks.baselines.workload import LATENCIES, Latency, Workload
from benchmarks.cases import QUICK_DIVISOR, LoopName, run_on
from benchmarks.options import positive
from benchmarks.process import in_fresh_process
from benchmarks.report import opened_console, plain_table, write_report
from purgatory.pipeline._programs import Program

REQUESTS = 1_000_000
RATES = (
    10_000.0,
    25_000.0,
    40_000.0,
    70_000.0,
    105_000.0,
    150_000.0,
    200_000.0,
    250_000.0,
    300_000.0,
    inf,
)
PERCENTILES = (50, 99, 99.9, 100)
"""Of the lateness."""
SPREAD = ("actual_rate", "cpu_us", "net_us")
"""The figures whose lowest and highest are shown."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The measurements of an implementation with a workload. `rate` is `None` for as fast as
    possible.

    Attributes:
        own_us: the CPU time of the generator, per request; `net_us` is `cpu_us` without it.
        lateness_ms: at each of `PERCENTILES`; empty if nothing expired.
        max_stall_ms: the longest CPU time that the implementation took between two ticks of the
            generator.
        spread: the lowest and the highest of some figures over the rounds.
    """

    loop: LoopName
    latency: str
    rate: float | None
    implementation: str
    requests: int
    actual_rate: float
    cpu_us: float
    own_us: float
    net_us: float
    expired: float
    lateness_ms: list[float]
    max_stall_ms: float
    spread: dict[str, tuple[float, float]]


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
    try:
        value = inf if text == "max" else float(text.replace(",", ""))
    except ValueError:
        value = 0.0
    if not 1.0 <= value <= 1e7 and value != inf:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither 'max' nor a number of requests per second from 1 to 10,000,000"
        )
    return value


def run(options: argparse.Namespace) -> int:
    """Measures all rates, prints the tables and writes the JSON."""
    requests = max(1, options.requests // QUICK_DIVISOR) if options.quick else options.requests
    rates: Sequence[float] = options.rates or RATES
    latencies = [
        latency
        for latency in LATENCIES
        if options.latencies is None or latency.name in options.latencies
    ]
    compared = chosen(options)
    console = opened_console(
        f"load: {requests:,} requests for each of {len(compared)} implementations at "
        f"{len(rates)} rates"
    )
    figures: list[Figures] = []
    for loop_name in options.loops:
        for latency in latencies:
            for asked in rates:
                workloads = [
                    (requests, asked, latency, options.seed + number)
                    for number in range(options.rounds)
                ]
                rounds = [round_of(loop_name, workload, compared) for workload in workloads]
                medians = [medians_of(same) for same in zip(*rounds, strict=True)]
                for each in medians:
                    console.print(line(each))
                figures += medians
    for loop_name in options.loops:
        for latency in latencies:
            same = [
                each for each in figures if (each.loop, each.latency) == (loop_name, latency.name)
            ]
            console.print(table(same, f"{latency.name} timeouts on {loop_name}"))
    console.print(caption(requests, options.rounds, options.quick))
    details = {"seed": options.seed, "rounds": options.rounds, "percentiles": PERCENTILES}
    write_report(console, options, "load", **details, runs=list(map(asdict, figures)))
    return 0


def round_of(
    loop_name: LoopName,
    workload: tuple[int, float, Latency, int],
    compared: Iterable[Named],
) -> list[Figures]:
    """The figures of each implementation with the same workload, after the generator alone."""
    own = in_fresh_process(_measure, loop_name, EMPTY.name, *workload)
    results = []
    for each in compared:
        driven = in_fresh_process(_measure, loop_name, each.name, *workload)
        results.append(figures_of(loop_name, each.name, workload, driven, own))
    return results


def _measure(
    loop_name: LoopName, name: str, requests: int, asked: float, latency: Latency, seed: int
) -> DriveResult:
    return run_on(loop_name, drive(BY_NAME[name].make, Workload(requests, asked, latency, seed)))


def figures_of(
    loop_name: LoopName,
    name: str,
    workload: tuple[int, float, Latency, int],
    driven: DriveResult,
    own: DriveResult,
) -> Figures:
    """The figures of an implementation, given the cost of the generator alone."""
    requests, asked, latency, _ = workload
    late = driven.lateness_s
    return Figures(
        loop=loop_name,
        latency=latency.name,
        rate=None if isinf(asked) else asked,
        implementation=name,
        requests=requests,
        actual_rate=requests / driven.created_s,
        cpu_us=driven.cpu_s / requests * 1e6,
        own_us=own.cpu_s / requests * 1e6,
        net_us=(driven.cpu_s - own.cpu_s) / requests * 1e6,
        expired=len(late) / requests,
        lateness_ms=[late[round((len(late) - 1) * part / 100)] * 1e3 for part in PERCENTILES]
        if late
        else [],
        max_stall_ms=driven.max_stall_s * 1e3,
        spread={},
    )


def medians_of(rounds: Sequence[Figures]) -> Figures:
    """The median of each figure over the rounds, and the spread of some."""
    merged: dict[str, Any] = asdict(rounds[0])
    for name, value in merged.items():
        values = [getattr(each, name) for each in rounds]
        if isinstance(value, float) and name != "rate":
            merged[name] = median(values)
        elif isinstance(value, list):
            merged[name] = [median(column) for column in zip(*values, strict=False)]
    for name in SPREAD:
        values = [getattr(each, name) for each in rounds]
        merged["spread"][name] = (min(values), max(values))
    return Figures(**merged)


def line(each: Figures) -> str:
    """The line that is printed as soon as an implementation is measured."""
    asked = "max" if each.rate is None else f"{each.rate:,.0f}"
    return (
        f"{each.latency:<5}{asked:>9}/s "
        f"{each.implementation:<11}{each.actual_rate:>10,.0f}/s{each.cpu_us:>8.2f} µs"
    )


def table(figures: Sequence[Figures], title: str) -> Table:
    """A line for each rate and implementation."""
    numbers = (
        "asked/s",
        "had/s",
        "cpu µs",
        "net µs",
        "ours/",
        "expired",
        "late ms",
        "max stall ms",
    )
    result = plain_table(title, "", ("implementation",), numbers)
    ours = {each.rate: each.net_us for each in figures if each.implementation == OURS.name}
    last_rate: float | None = -1.0
    for each in figures:
        if each.rate != last_rate:
            result.add_section()
        last_rate = each.rate
        comparable = each.rate in ours and each.implementation != OURS.name and each.net_us > 0.0
        late = (
            [f"{each.lateness_ms[PERCENTILES.index(part)]:.1f}" for part in (50, 99, 100)]
            if each.lateness_ms
            else []
        )
        result.add_row(
            each.implementation,
            "max" if each.rate is None else f"{each.rate:,.0f}",
            with_spread(each, "actual_rate", ",.0f"),
            f"{each.cpu_us:.2f}",
            with_spread(each, "net_us", ".2f"),
            f"{ours[each.rate] / each.net_us:.2f}" if comparable else "",
            f"{each.expired:.1%}",
            "/".join(late),
            f"{each.max_stall_ms:.1f}",
        )
    return result


def with_spread(each: Figures, name: str, form: str) -> str:
    """A figure, with its lowest and highest if these differ."""
    low, high = each.spread[name]
    text = format(getattr(each, name), form)
    return text if low == high else f"{text} ({format(low, form)} to {format(high, form)})"


def caption(requests: int, rounds: int, quick: bool) -> str:
    text = (
        f"{requests:,} requests a run, medians of {rounds}. cpu: CPU time per request; net: "
        "without the generator's own share."
        "\nours/: our net cost divided by this one's. late: how long after the deadline "
        "requests expired, p50/p99/max."
        "\nmax stall: longest CPU time between two ticks of the generator."
    )
    return text + ("\nQUICK: far too few requests; these figures prove nothing." if quick else "")


PROGRAM = Program(
    "load",
    "A million requests at rates up to as fast as possible: this purgatory, Kafka's, and timers "
    "of the loop.",
    add_arguments,
    run,
)
