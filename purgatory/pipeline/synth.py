"""``python -m purgatory.pipeline synth``: generates a journal of any size, with known facts for a
report to find.

The workload is taken from the benchmark of Kafka's purgatory: Poisson arrivals, 25,000 a second, a
log-normal time to completion (median 20 ms, three quarters within 60 ms), a timeout of 200 ms,
three of a hundred keys for each operation. Two of the four kinds, ``Fetch`` and ``Produce``, have
longer timeouts here, which suit them. These facts are planted:

- a timeout that is too short: ``Join`` takes 200 ms at the median, and expires after 200 ms;
- a hot key: every fourth operation watches ``key-0``, in addition to operations that draw it;
- a key that is never triggered: every operation of ``Forgotten`` watches ``forgotten`` alone, and
  completes at its deadline.

The same arguments give the same journal: all random values are hashes of the row's number and the
seed.
"""

import argparse
from pathlib import Path

import duckdb
from rich.console import Console


def make_journal(out: str, count: int, seed: int = 1) -> None:
    """Writes a journal of one run. What is in its folders is replaced."""
    Path(out).mkdir(parents=True, exist_ok=True)
    values = {"out": out.replace("'", "''"), "count": count, "seed": seed}
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
        connection.execute(Path(__file__).with_suffix(".sql").read_text("utf-8").format(**values))


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, zero or more")
    return int(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--operations", type=_count, required=True, metavar="N", help="how many")
    text = "the journal's directory; its content is replaced"
    parser.add_argument("--out", required=True, metavar="DIR", help=text)
    text = "of everything random (default: %(default)s)"
    parser.add_argument("--seed", type=int, default=1, metavar="N", help=text)


def run(options: argparse.Namespace) -> int:
    """Writes the journal."""
    make_journal(options.out, options.operations, options.seed)
    Console(highlight=False).print(f"operations in {options.out}: {options.operations:,}")
    return 0
