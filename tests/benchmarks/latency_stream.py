"""How long `stream` takes from a deadline or a signal to the answer, and its CPU time while idle.

    python tests/benchmarks/latency_stream.py --folder DIR [--idle 5] [--cases both silent]

Runs the program once for each case, with JSON files, one a second. An answer is there when Spark
has committed its batch; those of the first `--warm` seconds do not count. *both*: an operation and
its signal each second; *silent*: operations at the start, with a deadline each second.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles

import pyarrow.parquet as pq
from harness import cpu_seconds

sys.path.insert(0, str(Path(__file__).parents[1] / "pipeline"))
from streams import arguments, happens, put, waits

DEADLINE = 3.0
IDLE_SECONDS = 60.0
BATCH = re.compile(r"^batch .* in ([\d.]+) s ", re.MULTILINE)


class Case:
    """A run of the program in a folder of its own."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.seconds = folder, options.seconds
        self.due: dict[str, float] = {}
        """When the outcome of an operation can be known at the earliest, by id."""
        self.found: dict[str, float] = {}
        self.read: set[str] = set()
        for name in ("operations", "signals"):
            (folder / name).mkdir(parents=True)
        more = [f"--delay={options.delay}", f"--idle={options.idle}", "--format=json"]
        more += ["--at-once"] if options.at_once else []
        more += ["--verbose", "--master=local[2]"]  # with a line for each batch
        command = [sys.executable, "-m", "purgatory.pipeline", "stream", *arguments(folder, *more)]
        self.began = time.time()
        with (folder / "log").open("w") as log:
            self.job = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def answers(self) -> dict[str, float]:
        """When the outcome of each operation was committed, by id."""
        batches = (self.folder / "out" / "_spark_metadata").glob("[0-9]*")
        for batch in sorted(batches, key=lambda each: int(each.stem)):
            at = batch.stat().st_mtime
            for line in batch.read_text().splitlines()[1:]:
                path = json.loads(line)["path"].removeprefix("file://")
                if path not in self.read:  # every tenth batch lists those before it, too
                    self.read.add(path)
                    rows = pq.ParquetFile(path).read(["operation_id"])
                    self.found.update(dict.fromkeys(rows["operation_id"].to_pylist(), at))
        return self.found

    def warm_up(self) -> None:
        """Waits for the answer of a first operation."""
        now = time.time()
        put(self.folder, "operations", waits("first", 0, 600, "first", since=now))
        put(self.folder, "signals", happens("first", 0, since=now))
        first = self.wait_for(1)["first"] - self.began
        print(f"first answer after {first:.0f} s, {self.cpu():.0f} of CPU; load {load()}")

    def wait_for(self, count: int) -> dict[str, float]:
        while len(found := self.answers()) < count:
            if self.job.poll() is not None:
                raise SystemExit((self.folder / "log").read_text())
            time.sleep(0.2)
        return found

    def cpu(self) -> float:
        return sum(seconds for _, seconds in cpu_seconds(self.job.pid).values())

    def batches(self) -> list[float]:
        """How long each batch took."""
        return list(map(float, BATCH.findall((self.folder / "log").read_text())))

    def idle(self) -> None:
        time.sleep(10)
        cpu, batches = self.cpu(), len(self.batches())
        files = sum(1 for _ in self.folder.rglob("*"))
        time.sleep(IDLE_SECONDS)
        print(
            f"  idle: {self.cpu() - cpu:.1f} s of CPU, {len(self.batches()) - batches} batches and "
            f"{sum(1 for _ in self.folder.rglob('*')) - files} files in {IDLE_SECONDS:.0f} s; "
            f"load {load()}"
        )


def load() -> str:
    return f"{os.getloadavg()[0]:.1f}"


def both(case: Case) -> None:
    for number in range(case.seconds):
        now = time.time()
        put(case.folder, "operations", waits(f"o{number}", 0, 600, f"k{number}", since=now))
        put(case.folder, "signals", happens(f"k{number}", 0.001, since=now))
        case.due[f"o{number}"] = now
        time.sleep(1)
    now = time.time() + 600  # the last rows have to move event time
    put(case.folder, "operations", waits("end", 0, 1, "end", since=now))
    put(case.folder, "signals", happens("end", 0, since=now))


def silent(case: Case) -> None:
    now = time.time()
    deadlines = [DEADLINE + number for number in range(case.seconds)]
    made = [waits(f"o{at}", 0, at, "never", since=now) for at in deadlines]
    put(case.folder, "operations", *made)
    case.due = {f"o{at}": now + at for at in deadlines}


CASES: dict[str, Callable[[Case], None]] = {"both": both, "silent": silent}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--idle", default="5")
    parser.add_argument("--delay", type=float, default=1.0)
    parser.add_argument("--seconds", type=int, default=90)
    parser.add_argument("--warm", type=float, default=30)
    parser.add_argument("--at-once", action="store_true")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    options = parser.parse_args()
    for name in options.cases:
        case = Case(options.folder / name, options)
        try:
            case.warm_up()
            warm, batches = time.time() + options.warm, len(case.batches())
            CASES[name](case)
            found = case.wait_for(len(case.due) + 1)
            late = [found[each] - at for each, at in case.due.items() if at >= warm]
            print(
                f"{name}: {len(late)} answers, median {median(late):.1f} s, p90 "
                f"{quantiles(late, n=10)[-1]:.1f} s, most {max(late):.1f} s; batches "
                f"{median(case.batches()[batches:]):.1f} s; load {load()}",
                flush=True,
            )
            if name == "silent":
                case.idle()
        finally:
            os.killpg(case.job.pid, signal.SIGKILL)
            case.job.wait()


if __name__ == "__main__":
    main()
