"""The cost of a report, on both engines and on clusters of one to three workers, and the data that
Spark shuffles for it.

    python tests/pipeline/report_cost.py --folder DIR [--operations 5000,1000000] [--workers
    0,1,2,3]

Each report is a process of its own, measured from command to page, with the processes that it
starts; with 0 workers Spark has two cores of one process, with a heap of 4 GB. The jobs, the data
shuffled and spilled, and how unequal the tasks of the slowest stage were, are from Spark's event
log.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow.parquet as pq

from purgatory.pipeline.report._queries import TABLES

sys.path.insert(0, str(Path(__file__).parent.parent))

MIB = 1024 * 1024
PYTHON = re.compile(r'"nodeName":"[^"]*(?:InArrow|InPandas|Python)[^"]*"')
"""An operator of a plan that runs in Python."""


def report(
    journal: Path, out: Path, *options: str, environment: dict[str, str] | None = None
) -> str:
    """Makes a report, and returns its seconds, seconds of a core, and peak memory."""
    since = time.monotonic()
    command = [
        sys.executable,
        "-m",
        "purgatory.pipeline",
        "report",
        str(journal),
        "--out",
        str(out),
    ]
    process = subprocess.Popen(
        [*command, *options],
        stdout=subprocess.DEVNULL,
        env={**os.environ, **(environment or {})},
        start_new_session=True,
    )
    cpu: dict[int, float] = {}
    memory: dict[int, int] = {}
    while process.poll() is None:  # Java is a child of a child, which no rusage includes
        for pid in processes_of(process.pid):
            with suppress(OSError, IndexError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                cpu[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
                status = Path(f"/proc/{pid}/status").read_text()
                memory[pid] = int(status.partition("VmHWM:")[2].split()[0])
        time.sleep(0.2)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    seconds = time.monotonic() - since
    peak = sum(memory.values()) / MIB
    return f"{seconds:7.1f} s, {sum(cpu.values()):7.1f} s of a core, {peak:.2f} GiB"


def processes_of(leader: int) -> list[int]:
    """The processes of a session of processes."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if path.read_text().rpartition(")")[2].split()[3] == str(leader):
                found.append(int(path.parent.name))
    return found


def with_event_log(folder: Path) -> dict[str, str]:
    """The environment in which Spark writes its event log to a new folder."""
    (folder / "events").mkdir(parents=True)
    settings = {
        "enabled": "true",
        "dir": f"file://{folder}/events",
        "compress": "false",
        "rolling.enabled": "false",
    }
    lines = [f"spark.eventLog.{name} {value}\n" for name, value in settings.items()]
    lines.append("spark.driver.memory 4g\n")
    (folder / "spark-defaults.conf").write_text("".join(lines))
    return {"SPARK_CONF_DIR": str(folder)}


def shuffled(folder: Path) -> str:
    """The data that the tasks of an event log read, shuffled and spilled, and how unequal they
    were."""
    sums: dict[str, int] = defaultdict(int)
    seconds: dict[int, list[float]] = defaultdict(list)
    for file in (folder / "events").iterdir():
        for line in file.open():
            event = json.loads(line)
            sums["jobs"] += event["Event"] == "SparkListenerJobStart"
            if event["Event"].endswith("SQLExecutionStart"):
                sums["python"] += len(PYTHON.findall(line))
            if event["Event"] == "SparkListenerTaskEnd" and "Task Metrics" in event:
                metrics = event["Task Metrics"]
                sums["tasks"] += 1
                sums["shuffled"] += metrics["Shuffle Write Metrics"]["Shuffle Bytes Written"]
                sums["spilled"] += metrics["Disk Bytes Spilled"]
                seconds[event["Stage ID"]].append(metrics["Executor Run Time"] / 1000)
    longest = max(seconds.values(), key=max)
    skew = (
        f"longest task {max(longest):.1f} s, of its stage the one in the middle "
        f"{median(longest):.1f} s"
    )
    sizes = f"shuffled {sums['shuffled'] / MIB:,.1f} MiB, spilled {sums['spilled'] / MIB:,.1f} MiB"
    work = (
        f"{sums['jobs']} jobs, {len(seconds)} stages, {sums['tasks']} tasks, {sums['python']} "
        "operators in Python"
    )
    return f"{work}; {sizes}; {skew}"


def compared(one: Path, other: Path) -> str:
    """Compares the tables of two reports.

    Raises:
        SystemExit: they differ by more than sums in another order do.
    """
    worst = 0.0
    for name in TABLES:
        rows = [pq.read_table(out / "tables" / name).to_pylist() for out in (one, other)]
        for table in rows:
            table.sort(key=lambda row: [str(v) for v in row.values() if not isinstance(v, float)])
        if len(rows[0]) != len(rows[1]):
            raise SystemExit(f"{name}: {len(rows[0])} and {len(rows[1])} rows")
        for first, second in zip(*rows, strict=True):
            for column, value in first.items():
                is_, should_be = value, second[column]
                if isinstance(is_, float) and isinstance(should_be, float):
                    difference = abs(is_ - should_be) / max(abs(should_be), 1e-12)
                    worst = max(worst, difference)
                elif is_ != should_be:
                    raise SystemExit(f"{name}: {first} and {second}")
    if worst > 1e-9:
        raise SystemExit(f"the tables differ by {worst:.1e}")
    return f"tables as DuckDB's, quotients within {worst:.0e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--folder",
        type=Path,
        required=True,
        metavar="DIR",
        help="for journals, which are kept, and reports",
    )
    parser.add_argument(
        "--operations",
        default="5000,1000000",
        metavar="N,…",
        help="sizes of journals (default: %(default)s)",
    )
    parser.add_argument(
        "--workers", default="0", metavar="N,…", help="of Spark (default: %(default)s)"
    )
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
        print(
            f"{operations:,} operations, DuckDB: {report(journal, chosen.folder / 'duckdb')}",
            flush=True,
        )
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
        said = report(
            journal,
            folder / "out",
            "--master",
            master,
            environment=environment,
        )
    same = compared(folder / "out", folder.parent / "duckdb")
    print(f"  Spark, {workers} workers: {said}\n    {shuffled(folder)}\n    {same}", flush=True)


if __name__ == "__main__":
    main()
