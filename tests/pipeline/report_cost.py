"""What a report costs, on both engines and on clusters of one to three workers, and what Spark shuffles for it.

    python tests/pipeline/report_cost.py --folder DIR [--operations 5000,1000000] [--workers 0,1,2,3]

Each report is a process of its own, from command to page; with 0 workers Spark has two cores of one process. What Spark has
shuffled and spilled, and how unequal the tasks of its slowest stage were, is from its event log.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

sys.path[:0] = [str(Path(__file__).parent.parent / "kafka"), str(Path(__file__).parent.parent)]

MIB = 1024 * 1024


def report(journal: Path, out: Path, *options: str, environment: dict[str, str] | None = None) -> str:
    """Makes a report, and tells what it took."""
    before, since = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    command = [sys.executable, "-m", "purgatory.pipeline", "report", str(journal), "--out", str(out), *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, **(environment or {})})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return f"{time.monotonic() - since:7.1f} s, {cpu:7.1f} s of a core, largest process so far {after.ru_maxrss / MIB:.2f} GiB"


def with_event_log(folder: Path) -> dict[str, str]:
    """The environment in which Spark writes its event log to a new folder."""
    (folder / "events").mkdir(parents=True)
    settings = {"enabled": "true", "dir": f"file://{folder}/events", "compress": "false", "rolling.enabled": "false"}
    lines = [f"spark.eventLog.{name} {value}\n" for name, value in settings.items()]
    (folder / "spark-defaults.conf").write_text("".join(lines))
    return {"SPARK_CONF_DIR": str(folder)}


def shuffled(folder: Path) -> str:
    """What the tasks of an event log read, shuffled and spilled, and how unequal they were."""
    sums: dict[str, int] = defaultdict(int)
    seconds: dict[int, list[float]] = defaultdict(list)
    for file in (folder / "events").iterdir():
        for line in file.open():
            event = json.loads(line)
            if event["Event"] == "SparkListenerTaskEnd" and "Task Metrics" in event:
                metrics = event["Task Metrics"]
                sums["tasks"] += 1
                sums["shuffled"] += metrics["Shuffle Write Metrics"]["Shuffle Bytes Written"]
                sums["spilled"] += metrics["Disk Bytes Spilled"]
                seconds[event["Stage ID"]].append(metrics["Executor Run Time"] / 1000)
    longest = max(seconds.values(), key=max)
    skew = f"longest task {max(longest):.1f} s, of its stage the one in the middle {median(longest):.1f} s"
    sizes = f"shuffled {sums['shuffled'] / MIB:,.1f} MiB, spilled {sums['spilled'] / MIB:,.1f} MiB"
    return f"{len(seconds)} stages, {sums['tasks']} tasks; {sizes}; {skew}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, metavar="DIR", help="for journals, which are kept, and reports")
    parser.add_argument("--operations", default="5000,1000000", metavar="N,…", help="sizes of journals (default: %(default)s)")
    parser.add_argument("--workers", default="0", metavar="N,…", help="of Spark (default: %(default)s)")
    chosen = parser.parse_args()
    for operations in map(int, chosen.operations.split(",")):
        journal = chosen.folder / f"{operations}"
        if not journal.exists():
            synth = [
                sys.executable,
                "-m",
                "purgatory.pipeline",
                "synth",
                "--operations",
                str(operations),
                "--out",
                str(journal),
            ]
            subprocess.run(synth, check=True)
        print(f"{operations:,} operations, DuckDB: {report(journal, chosen.folder / 'duckdb')}", flush=True)
        for workers in map(int, filter(None, chosen.workers.split(","))):
            measure_spark(journal, chosen.folder / f"{operations}-{workers}-{os.getpid()}", workers)


def measure_spark(journal: Path, folder: Path, workers: int) -> None:
    """Makes a report on Spark, with a core for each worker."""
    with ExitStack() as stack:
        environment: dict[str, Any] = with_event_log(folder)
        master = "local[2]"
        if workers:
            from clusters import standalone  # which asks for what local Spark does not need

            master = stack.enter_context(standalone(folder, workers))
            environment["SPARK_LOCAL_IP"] = "127.0.0.1"
        said = report(journal, folder / "out", "--engine", "spark", "--master", master, environment=environment)
    print(f"  Spark, {workers} workers: {said}\n    {shuffled(folder)}", flush=True)


if __name__ == "__main__":
    main()
