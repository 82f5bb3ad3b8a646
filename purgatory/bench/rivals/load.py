"""``python -m purgatory.bench load``: the benchmark with which Kafka's new purgatory was compared with its old one.

A million requests arrive at a given rate. Most are completed by somebody else when their time comes; the rest expire after 200
ms. `_workload` says what they are like, `_driver` makes them, `designs` keep them. For each rate the designs take turns, each
in a process of its own. Before them the empty purgatory takes its turn: what it costs is the generator's own share, and the
*net* cost of a design is its cost without that share. With several rounds the median of each figure counts, and the lowest and
the highest are shown beside it.
"""

import argparse
import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from math import inf, isinf
from statistics import median
from typing import Any

from rich import box
from rich.table import Table

from purgatory._programs import Program
from purgatory.bench._cases import QUICK_DIVISOR, LoopName, loop_factory
from purgatory.bench._options import add_common_options, add_plot_option, choose_loop, positive
from purgatory.bench._process import in_fresh_process
from purgatory.bench._report import RowProgress, environment, wide_console, write_report
from purgatory.bench.rivals._designs_option import add_designs_option
from purgatory.bench.rivals._driver import Driven, drive
from purgatory.bench.rivals._workload import LATENCIES, Latency, Workload
from purgatory.bench.rivals.designs import BY_NAME, EMPTY, OURS, Listed

REQUESTS = 1_000_000
RATES = (10_000.0, 25_000.0, 40_000.0, 70_000.0, 105_000.0, 150_000.0, 200_000.0, 250_000.0, 300_000.0, inf)
PERCENTILES = (*range(100), 99.5, 99.9, 100)
"""The percentiles of the lateness in the JSON and the plots."""

SPREAD = ("actual_rate", "cpu_us", "net_us")
"""The figures whose lowest and highest are shown."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured for a design with a workload. `rate` is `None` for as fast as possible.

    Attributes:
        own_us: the CPU time of the generator, per request; `net_us` is `cpu_us` without it.
        hold_ms: the longest CPU time that the design took between two ticks of the generator.
        lateness_ms: at each of `PERCENTILES`; empty if nothing expired.
        per_second: what the design has counted of its own work.
        spread: the lowest and the highest of some figures over the rounds.
    """

    loop: LoopName
    latency: str
    rate: float | None
    design: str
    requests: int
    actual_rate: float
    cpu_us: float
    own_us: float
    net_us: float
    expired: float
    lateness_ms: list[float]
    hold_ms: float
    peak_bytes: float
    per_second: dict[str, float]
    spread: dict[str, tuple[float, float]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_common_options(parser)
    choose_loop(parser)
    add_designs_option(parser)
    add_plot_option(parser)
    parser.add_argument("--requests", type=positive, default=REQUESTS, metavar="N", help="in each run (default: %(default)s)")
    parser.add_argument(
        "--rate",
        dest="rates",
        action="append",
        type=rate,
        metavar="R",
        help="requests per second, or 'max' for as fast as it goes; may be repeated (default: 10,000 to 300,000, and max)",
    )
    parser.add_argument(
        "--timeouts",
        dest="latencies",
        choices=[latency.name for latency in LATENCIES],
        action="append",
        help="the share of requests that expire; may be repeated (default: both)",
    )
    parser.add_argument(
        "--rounds", type=positive, default=1, metavar="N", help="how often to measure; the median counts (default: %(default)s)"
    )
    parser.add_argument("--markdown", action="store_true", help="print the tables for a page, in Markdown")


def rate(text: str) -> float:
    """A rate of requests, `inf` for ``max``."""
    try:
        value = inf if text == "max" else float(text.replace(",", ""))
    except ValueError:
        value = 0.0
    if not 1.0 <= value <= 1e7 and value != inf:
        raise argparse.ArgumentTypeError(f"{text!r} is neither 'max' nor a number of requests per second from 1 to 10,000,000")
    return value


def run(options: argparse.Namespace) -> int:
    """Measures all rates, prints the tables, writes the JSON and draws the plots."""
    console = wide_console()
    where = environment()
    requests = max(1, options.requests // QUICK_DIVISOR) if options.quick else options.requests
    rates: Sequence[float] = options.rates or RATES
    latencies = [latency for latency in LATENCIES if options.latencies is None or latency.name in options.latencies]
    console.print(f"load: {requests:,} requests for each of {len(options.designs)} designs at {len(rates)} rates")
    console.print(", ".join(f"{name} {value}" for name, value in where.items()), style="dim")
    figures: list[Figures] = []
    progress = RowProgress(console)
    with progress.shown():
        for loop_name in options.loops:
            for latency in latencies:
                progress.start(f"{latency.name} timeouts on {loop_name}")
                steps = iter(progress.track(len(rates) * options.rounds * (len(options.designs) + 1)))
                for asked in rates:
                    at_rate = []
                    for number in range(options.rounds):
                        workload = (requests, asked, latency, options.seed + number)
                        at_rate.append(round_of(loop_name, workload, options.designs, steps))
                    figures += [middle(same) for same in zip(*at_rate, strict=True)]
                    for each in figures[-len(options.designs) :]:
                        console.print(line(each))
    for loop_name in options.loops:
        for latency in latencies:
            same = [each for each in figures if (each.loop, each.latency) == (loop_name, latency.name)]
            console.print(table(same, loop_name, latency.name))
            if options.markdown:
                lines = (f"\n{latency.name} timeouts on {loop_name}:\n", *markdown(same))
                console.print(*lines, sep="\n", markup=False, soft_wrap=True)
    console.print(caption(requests, options.rounds, options.quick))
    head = {"program": "load", "environment": where, "seed": options.seed, "quick": options.quick, "rounds": options.rounds}
    report = {**head, "percentiles": PERCENTILES, "runs": [asdict(each) for each in figures]}
    write_report(console, options.json, report)
    if options.plot:
        from purgatory.bench.rivals import _plots  # noqa: PLC0415  # matplotlib takes half a second to import

        for file in _plots.load(report, options.plot):
            console.print(f"drawn: {file}")
    return 0


def round_of(
    loop_name: LoopName, workload: tuple[int, float, Latency, int], designs: Iterable[Listed], steps: Iterable[int]
) -> list[Figures]:
    """The figures of each design on the same workload, after the generator alone."""
    steps = iter(steps)
    next(steps)
    own = in_fresh_process(_measure, loop_name, EMPTY.name, *workload)
    results = []
    for design in designs:
        next(steps)
        driven = in_fresh_process(_measure, loop_name, design.name, *workload)
        results.append(figures_of(loop_name, design, workload, driven, own))
    return results


def _measure(loop_name: LoopName, design: str, requests: int, asked: float, latency: Latency, seed: int) -> Driven:
    workload = Workload(requests, asked, latency, seed)
    with asyncio.Runner(loop_factory=loop_factory(loop_name)) as runner:
        return runner.run(drive(BY_NAME[design].make, workload))


def figures_of(
    loop_name: LoopName, design: Listed, workload: tuple[int, float, Latency, int], driven: Driven, own: Driven
) -> Figures:
    """What was measured for a design, given what the generator alone has cost."""
    requests, asked, latency, _ = workload
    late = driven.lateness_s
    return Figures(
        loop=loop_name,
        latency=latency.name,
        rate=None if isinf(asked) else asked,
        design=design.name,
        requests=requests,
        actual_rate=requests / driven.created_s,
        cpu_us=driven.cpu_s / requests * 1e6,
        own_us=own.cpu_s / requests * 1e6,
        net_us=(driven.cpu_s - own.cpu_s) / requests * 1e6,
        expired=len(late) / requests,
        lateness_ms=[late[round((len(late) - 1) * part / 100)] * 1e3 for part in PERCENTILES] if late else [],
        hold_ms=driven.hold_s * 1e3,
        peak_bytes=driven.peak_bytes,
        per_second={name: count / driven.elapsed_s for name, count in driven.counters.items()},
        spread={},
    )


def middle(rounds: Sequence[Figures]) -> Figures:
    """The median of each figure over the rounds, and the spread of some."""
    merged: dict[str, Any] = asdict(rounds[0])
    for name, value in merged.items():
        values = [getattr(each, name) for each in rounds]
        if isinstance(value, float) and name != "rate":
            merged[name] = median(values)
        elif isinstance(value, list):
            merged[name] = [median(column) for column in zip(*values, strict=False)]
        elif isinstance(value, dict):
            merged[name] = {key: median(counted[key] for counted in values) for key in value}
    for name in SPREAD:
        values = [getattr(each, name) for each in rounds]
        merged["spread"][name] = (min(values), max(values))
    return Figures(**merged)


def line(each: Figures) -> str:
    """The line that is printed as soon as a design is measured."""
    asked = "max" if each.rate is None else f"{each.rate:,.0f}"
    return f"{each.latency:<5}{asked:>9}/s {each.design:<11}{each.actual_rate:>10,.0f}/s{each.cpu_us:>8.2f} µs"


def table(figures: Sequence[Figures], loop_name: LoopName, latency: str) -> Table:
    """A line for each rate and design."""
    result = Table(title=f"{latency} timeouts on {loop_name}", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    result.add_column("design", no_wrap=True)
    for heading in ("asked/s", "had/s", "cpu µs", "net µs", "ours/", "expired", "late ms", "hold ms", "peak MB", "calls/s"):
        result.add_column(heading, justify="right", no_wrap=True)
    ours = {each.rate: each.net_us for each in figures if each.design == OURS.name}
    place: float | None = -1.0
    for each in figures:
        if each.rate != place:
            result.add_section()
        place = each.rate
        comparable = each.rate in ours and each.design != OURS.name and each.net_us > 0.0
        late = [f"{each.lateness_ms[PERCENTILES.index(part)]:.1f}" for part in (50, 99, 100)] if each.lateness_ms else []
        result.add_row(
            each.design,
            "max" if each.rate is None else f"{each.rate:,.0f}",
            with_spread(each, "actual_rate", ",.0f"),
            f"{each.cpu_us:.2f}",
            with_spread(each, "net_us", ".2f"),
            f"{ours[each.rate] / each.net_us:.2f}" if comparable else "",
            f"{each.expired:.1%}",
            "/".join(late),
            f"{each.hold_ms:.1f}",
            f"{each.peak_bytes / 1e6:.1f}" if each.peak_bytes > 0 else "",
            f"{each.per_second.get('wake_ups', 0.0):,.0f}",
        )
    return result


def with_spread(each: Figures, name: str, form: str) -> str:
    """A figure, with its lowest and highest if these differ."""
    low, high = each.spread[name]
    text = format(getattr(each, name), form)
    return text if low == high else f"{text} ({format(low, form)} to {format(high, form)})"


def markdown(figures: Sequence[Figures]) -> list[str]:
    """The lines of two tables for a page.

    What each design costs at each rate, net, and how many requests it takes at most; and ours as a share of what others cost.
    """
    rates = list(dict.fromkeys(each.rate for each in figures))
    asked = ["as fast as it goes: requests a second" if rate is None else f"net µs at {rate:,.0f}/s" for rate in rates]
    lines = ["| | " + " | ".join(asked) + " |", "|---" * (len(rates) + 1) + "|"]
    for design in dict.fromkeys(each.design for each in figures):
        found = {each.rate: each for each in figures if each.design == design}
        cells = [with_spread(found[rate], *(("actual_rate", ",.0f") if rate is None else ("net_us", ".1f"))) for rate in rates]
        lines.append(f"| *{design}* | " + " | ".join(cells) + " |")
    named = ["as fast as it goes" if rate is None else f"{rate:,.0f}/s" for rate in rates]
    lines += ["", "| net, ours as a share of | " + " | ".join(named) + " |", "|---" * (len(rates) + 1) + "|"]
    net = {(each.design, each.rate): each.net_us for each in figures}
    for design in dict.fromkeys(each.design for each in figures if each.design != OURS.name):
        pairs = [(net.get((OURS.name, rate), 0.0), net[design, rate]) for rate in rates]
        cells = [f"{ours / theirs:.2f}" if ours > 0.0 and theirs > 0.0 else "" for ours, theirs in pairs]
        lines.append(f"| *{design}* | " + " | ".join(cells) + " |")
    return lines


def caption(requests: int, rounds: int, quick: bool) -> str:
    text = (
        f"{requests:,} requests a run, medians of {rounds}. cpu: CPU time per request; net: without the generator's own share."
        "\nours/: our net cost divided by this design's. late: how long after the deadline requests expired, p50/p99/max."
        "\nhold: longest CPU time that the design had between two ticks of the generator. calls: by the loop's timers."
    )
    return text + ("\nQUICK: far too few requests; these figures prove nothing." if quick else "")


PROGRAM = Program(
    "load",
    "A million requests at rates up to as fast as possible: this purgatory, Kafka's old and new one, and others.",
    add_arguments,
    run,
)
