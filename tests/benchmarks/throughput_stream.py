"""Moves rows through `stream`, and through Spark without state, in turn; prints the ratio.

    python tests/benchmarks/throughput_stream.py --folder DIR [--shards 1 2 4]

Without state means: the same files, each row once through Python (`mapInArrow`) and out again, to
Parquet. CPU is of all processes; it needs Linux. The first round warms up and does not count.
"""

import argparse
import contextlib
import io
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "pipeline"))
from harness import cpu_seconds
from orders import traffic, write
from pyspark.sql import SparkSession
from streams import run

from purgatory.pipeline._session import spark_session
from purgatory.pipeline.streaming import OPERATIONS, SIGNALS
from purgatory.pipeline.streaming._command import SETTINGS

FILES = 60
SECONDS = 3600
"""Of event time, over which the traffic is spread."""


def through_python(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def copy(spark: SparkSession, data: Path, out: Path) -> None:
    """Each row once through Python, without state."""
    for name, schema in (("operations", OPERATIONS), ("signals", SIGNALS)):
        rows = spark.readStream.schema(schema).parquet(str(data / name))
        writer = rows.mapInArrow(through_python, schema).writeStream.trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(out / name / "checkpoint"))
        writer.start(str(out / name / "rows"), "parquet", "append").awaitTermination()


def stream(shards: int, spark: SparkSession, data: Path, out: Path) -> None:
    """What `python -m purgatory.pipeline stream --available-now` does."""
    spark.conf.set("spark.sql.shuffle.partitions", shards)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        run(
            spark,
            data,
            f"--out={out / 'out'}",
            f"--checkpoint={out / 'state'}",
            f"--shards={shards}",
        )
    account = said.getvalue().splitlines()[-2]
    if "nothing is missing" not in account:
        raise SystemExit(account)


def measured(work: Callable[[], None]) -> list[float]:
    """Seconds, seconds of CPU, and those of Python's workers among them."""

    def used() -> list[float]:
        spent = cpu_seconds(os.getpid())
        workers = {p: e for p, e in spent.items() if p != os.getpid() and e[0].startswith("python")}
        sums = [sum(seconds for _, seconds in each.values()) for each in (spent, workers)]
        return [time.monotonic(), *sums]

    before = used()
    work()
    return [now - then for now, then in zip(used(), before, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True, help="for the rows, which are kept")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--shards", type=int, nargs="+", default=[2])
    parser.add_argument("--operations", type=int, default=300_000)
    parser.add_argument("--signals", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rows = options.operations + options.signals
    data, out = options.folder / f"{options.operations}-{options.signals}", options.folder / "out"
    if not data.exists():
        write(traffic(options.operations, options.signals, seconds=SECONDS), data, files=FILES)
    works: dict[str, Callable[[SparkSession, Path, Path], None]] = {"without state": copy}
    works |= {f"stream, {shards} shards": partial(stream, shards) for shards in options.shards}
    took: dict[str, list[list[float]]] = {name: [] for name in works}
    with spark_session("throughput", options.master, SETTINGS) as spark:
        for number in range(options.rounds):
            for name, work in works.items():
                took[name].append(measured(partial(work, spark, data, out)))
                shutil.rmtree(out)
                print(f"round {number}: {name}: {took[name][-1]}", file=sys.stderr)
    print(f"{rows:,} rows on {options.master}, median of {max(options.rounds - 1, 1)}")
    print(f"{'':20}{'seconds':>10}{'ratio':>8}{'CPU s':>10}{'ratio':>8}{'Python s':>10}")
    medians = {
        name: [*map(median, zip(*each[1:] or each, strict=True))] for name, each in took.items()
    }
    first = medians["without state"]
    for name, (seconds, used, python) in medians.items():
        cells = f"{seconds:10.1f}{seconds / first[0]:8.1f}{used:10.1f}{used / first[1]:8.1f}"
        print(f"{name:20}{cells}{python:10.1f}")


if __name__ == "__main__":
    main()
