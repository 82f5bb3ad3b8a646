"""Moves 1,000,000 signals and 300,000 operations through `stream`, and through Spark without state,
in turn; prints the ratio.

    python tests/benchmarks/throughput_stream.py --folder DIR [--shards 1 2 4] [--master
    'local-cluster[2,1,1024]']

Without state means: the same files, each row once through Python (`mapInArrow`) and out again, and
to Parquet. Spark has started before. CPU is of all processes, the driver, Java and its Python
workers; it needs Linux, and is more reliable than seconds on a busy machine. The
first round warms up and does not count, if there are more.
"""

import argparse
import contextlib
import io
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "pipeline"))
from orders import traffic, write
from pyspark.sql import DataFrame, SparkSession

from purgatory.pipeline._session import spark_session
from purgatory.pipeline.streaming import OPERATIONS, SIGNALS
from purgatory.pipeline.streaming._command import SETTINGS, add_arguments
from purgatory.pipeline.streaming._job import Job

FILES = 60
SECONDS = 3600
"""Of event time, over which the traffic is spread."""
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds() -> tuple[float, float]:
    """Of this process and all that it started, directly or not; and of the Python workers among
    them. 0 without /proc."""
    used: dict[int, float] = {}
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, rest = stat.read_text().rpartition(")")
            fields, number = rest.split(), int(stat.parent.name)
            parents[number], names[number] = int(fields[1]), name.partition("(")[2]
            used[number] = (
                sum(map(int, fields[11:15])) / TICKS
            )  # its own, and of its children that have ended
    ours = {os.getpid()}
    while more := {number for number, parent in parents.items() if parent in ours} - ours:
        ours |= more
    workers = [
        number
        for number in ours
        if names.get(number, "").startswith("python") and number != os.getpid()
    ]
    return sum(used.get(number, 0.0) for number in ours), sum(used[number] for number in workers)


def through_python(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def copy(spark: SparkSession, data: Path, out: Path) -> None:
    """Each row once through Python, without state."""
    for name, schema in (("operations", OPERATIONS), ("signals", SIGNALS)):
        rows: DataFrame = (
            spark.readStream.schema(schema)
            .parquet(str(data / name))
            .mapInArrow(through_python, schema)
        )
        writer = rows.writeStream.option(
            "checkpointLocation", str(out / name / "checkpoint")
        ).trigger(availableNow=True)
        writer.start(str(out / name / "rows"), "parquet", "append").awaitTermination()


def stream(spark: SparkSession, data: Path, out: Path, shards: int) -> None:
    """What `python -m purgatory.pipeline stream --available-now` does."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    folders = {
        "operations": data / "operations",
        "signals": data / "signals",
        "out": out / "out",
        "checkpoint": out / "state",
    }
    words = [word for name, folder in folders.items() for word in (f"--{name}", str(folder))]
    spark.conf.set("spark.sql.shuffle.partitions", shards)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        Job(
            spark,
            parser.parse_args([*words, "--available-now", "--shards", str(shards)]),
            threading.Event(),
        ).run()
    account = said.getvalue().splitlines()[-2]
    if "nothing is missing" not in account:
        raise SystemExit(account)


Took = tuple[float, float, float]
"""Seconds, seconds of CPU, and those of Python among them."""


def measured(work: Callable[[], None]) -> Took:
    began, (used, python) = time.monotonic(), cpu_seconds()
    work()
    seconds, (now_used, now_python) = time.monotonic() - began, cpu_seconds()
    return seconds, now_used - used, now_python - python


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--folder",
        type=Path,
        required=True,
        help="for the rows, which are kept, and for what is made of them",
    )
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--shards", type=int, nargs="+", default=[2])
    parser.add_argument("--operations", type=int, default=300_000)
    parser.add_argument("--signals", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rows = options.operations + options.signals
    data = options.folder / f"{options.operations}-{options.signals}"
    if not data.exists():
        write(traffic(options.operations, options.signals, seconds=SECONDS), data, files=FILES)
    names = ["without state", *(f"stream, {shards} shards" for shards in options.shards)]
    took: dict[str, list[Took]] = {name: [] for name in names}
    with spark_session("throughput", options.master, SETTINGS) as spark:
        works: list[Callable[[Path], None]] = [lambda out: copy(spark, data, out)]
        works += [
            lambda out, shards=shards: stream(spark, data, out, shards) for shards in options.shards
        ]  # type: ignore[misc]
        for number in range(options.rounds):
            for name, work in zip(names, works, strict=True):
                out = options.folder / "out"
                took[name].append(measured(lambda work=work, out=out: work(out)))  # type: ignore[misc]
                shutil.rmtree(out)
                seconds, used, python = took[name][-1]
                print(
                    f"round {number}: {name}: {seconds:.1f} s, CPU {used:.1f} s, Python "
                    f"{python:.1f} s",
                    file=sys.stderr,
                )
    print(f"{rows:,} rows on {options.master}, median of {max(options.rounds - 1, 1)}")
    print(
        f"{'':20}{'seconds':>10}{'rows/s':>12}{'ratio':>8}{'CPU s':>10}{'ratio':>8}{'Python s':>10}"
    )
    first: list[float] | None = None
    for name in names:
        counted = took[name][1:] or took[name]
        figures = [median(each[place] for each in counted) for place in range(3)]
        first = first or figures
        seconds, used, python = figures
        ratios = [figure / one if one else 0.0 for figure, one in zip(figures, first, strict=True)]
        print(
            f"{name:20}{seconds:10.1f}{rows / seconds:12,.0f}{ratios[0]:8.1f}{used:10.1f}{ratios[1]:8.1f}{python:10.1f}"
        )


if __name__ == "__main__":
    main()
