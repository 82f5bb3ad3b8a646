"""``python -m purgatory.pipeline simulate``: a journal's traffic with other ticks, wheel sizes and
timeouts."""

import argparse
import sys

from purgatory.pipeline._options import add_master_option
from purgatory.pipeline._session import spark_session
from purgatory.pipeline._shown import shown
from purgatory.pipeline.simulate._job import simulate
from purgatory.pipeline.simulate._replay import Setting
from purgatory.pipeline.simulate._trials import recommendation, table


def numbers(text: str) -> list[float]:
    """Parses a list of numbers such as ``0.001,0.01``."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected a list of numbers such as 0.001,0.01, got {text!r}"
        ) from None
    if not all(0 < number < float("inf") for number in found):
        raise argparse.ArgumentTypeError(f"expected positive numbers, got {text!r}")
    return found


def sizes(text: str) -> list[int]:
    """Parses a list of wheel sizes such as ``20,64``."""
    if not all(part.isdecimal() and int(part) >= 2 for part in text.split(",")):
        raise argparse.ArgumentTypeError(
            f"expected a list of integers of at least 2 such as 20,64, got {text!r}"
        )
    return [int(part) for part in text.split(",")]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("journal", metavar="JOURNAL", help="the directory of a journal, or its URI")
    parser.add_argument(
        "--out", required=True, metavar="DIR", help="where tables and a plot go; may be a URI"
    )
    parser.add_argument(
        "--tick",
        type=numbers,
        default=[0.001],
        metavar="SECONDS,…",
        help="ticks to try (default: 0.001)",
    )
    parser.add_argument(
        "--wheel-size",
        type=sizes,
        default=[512],
        metavar="N,…",
        help="wheel sizes to try (default: 512)",
    )
    parser.add_argument(
        "--timeout",
        type=numbers,
        default=[],
        metavar="SECONDS,…",
        help="timeouts to try, besides those in the journal",
    )
    parser.add_argument(
        "--lateness",
        type=float,
        default=0.01,
        metavar="SECONDS",
        help="how late 99 %% may expire at most (default: 0.01)",
    )
    parser.add_argument(
        "--shards",
        type=int,
        default=1,
        metavar="N",
        help="divide each run by key (default: it is whole)",
    )
    add_master_option(parser)


def run(options: argparse.Namespace) -> int:
    """Replays the journal with every setting, prints the table and the advice, and draws the
    plot."""
    timeouts = [None, *options.timeout]
    settings = [
        Setting(tick, size, timeout)
        for timeout in timeouts
        for tick in options.tick
        for size in options.wheel_size
    ]
    with spark_session("purgatory simulate", options.master, verbose=options.verbose) as spark:
        try:
            trials = simulate(spark, options.journal, options.out, settings, options.shards)
        except ValueError as error:
            print(shown(f"cannot simulate {options.journal}: {error}"), file=sys.stderr)
            return 1
    print(table(trials))
    print(recommendation(trials, options.lateness))
    return 0
