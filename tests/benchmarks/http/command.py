"""``python tests/benchmarks http``: long polls on a real server, against the usual handler without
this library.

The server is uvicorn with httptools, in a process of its own; `benchmarks.http.service` has both
handlers.
"""

import argparse
import sys
from functools import partial
from typing import Any

from benchmarks.cases import QUICK_DIVISOR, Case
from benchmarks.http.rows import Load
from benchmarks.options import add_common_options, positive
from benchmarks.process import raise_file_limit
from benchmarks.runner import run_cases
from purgatory.pipeline._programs import Program

POLLS = (1_000, 5_000, 15_000)
OTHER_CONNECTIONS = 100
"""Limit of files that a process needs besides one for each poll."""
THEIRS = "asyncio.wait_for on an asyncio.Event"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_common_options(parser, fastest_loop=True)
    add = parser.add_argument
    polls = "open polls; may be repeated (default: 1000, 5000, 15000)"
    add("--polls", type=positive, action="append", metavar="N", help=polls)
    for name, kind, metavar, default, meaning in (
        ("--rounds", positive, "N", 5, "runs of each handler"),
        ("--seconds", float, "S", 5.0, "length of a run"),
        ("--check-interval", float, "S", 1.0, "their handler's looks for its client"),
    ):
        text = f"{meaning} (default: %(default)s)"
        add(name, type=kind, default=default, metavar=metavar, help=text)


def run(options: argparse.Namespace) -> int:
    """Measures all rows; 2 if this process may not open enough connections."""
    counts = options.polls or POLLS
    connections = max(counts)
    needed = connections // QUICK_DIVISOR if options.quick else connections
    if needed + OTHER_CONNECTIONS > (limit := raise_file_limit()):
        print(
            f"cannot open {connections} connections: the limit of open files is {limit}",
            file=sys.stderr,
        )
        return 2
    loads = [
        Load(count, options.rounds, options.seconds, options.check_interval) for count in counts
    ]
    cases = [case for load in loads for case in load_cases(load)]

    def runs() -> list[dict[str, Any]]:
        return [
            {"polls": load.polls, "loop": loop_name, **run}
            for load in loads
            for loop_name, measured in load.runs.items()
            for run in measured
        ]

    def details() -> dict[str, Any]:
        return {"check_interval": options.check_interval, "runs": runs()}

    return run_cases(options, "http", cases, lambda: caption(options, runs()), details)


def load_cases(load: Load) -> list[Case]:
    """A row for each figure of a load."""
    polls = f"{load.polls:,} open polls"
    rows = [(each, f"from event to answer, {each}", "ms") for each in ("p50", "p99", "p99.9")]
    rows.append(("cpu", "CPU time per answer", "µs"))
    return [
        Case(f"{load.polls}-{name}", f"{polls}: {work}", THEIRS, "×", partial(load.row, name), unit)
        for name, work, unit in rows
    ]


def caption(options: argparse.Namespace, runs: list[dict[str, Any]]) -> str:
    """The text below the table: how it was measured, and whether the clients kept up."""
    rounds = 1 if options.quick else options.rounds
    busiest = max((run["clients_busy"] for run in runs), default=0.0)
    text = (
        f"Medians of {rounds} rounds; ratios are of paired runs. Theirs checks for its client every"
        f" {options.check_interval:g} s. uvicorn with httptools."
        f"\nThe process of the clients was busy for up to {busiest:.0%} of a run."
    )
    return text + (
        " That is too much: these latencies are also the clients' own." if busiest > 0.9 else ""
    )


PROGRAM = Program(
    "http",
    "Long polls on a real server, against the usual handler without this library.",
    add_arguments,
    run,
)
