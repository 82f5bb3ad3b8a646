"""Measures how long `stream` takes from a deadline or a signal to the answer, and its CPU time
while it is idle.

    python tests/benchmarks/latency_stream.py --folder DIR [--idle 5] [--seconds 90] [--warm 30]
        [--at-once]

Runs the program once for each case, with JSON files, one a second. An answer is there when Spark
has committed its batch. Answers to the rows of the first `--warm` seconds are counted apart: Java
compiles then. For the others, the steps of their batches are shown, too, as medians.

    both        an operation and its signal each second
    operations  an operation each second, with a deadline three seconds later; no signal
    signals     operations at the start; a signal for one of them each second
    silent      operations at the start, with a deadline each second; nothing comes
    idle        as `silent`, after the last answer: CPU, batches and files
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles

import pyarrow.parquet as pq

DEADLINE = 3.0
IDLE_SECONDS = 60.0
SECONDS = re.compile(r" in ([\d.]+) s ")
STEP = re.compile(r"(\w+) ([\d.]+) s")
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


class Case:
    """A run of the program in a folder of its own."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.serial = folder, 0
        self.found: dict[str, float] = {}
        self.read: set[str] = set()
        for name in ("operations", "signals"):
            (folder / name).mkdir(parents=True)
        pairs = {name: folder / name for name in ("operations", "signals", "out", "checkpoint")}
        command = [sys.executable, "-m", "purgatory.pipeline", "stream", "--format", "json"]
        command += [part for name, path in pairs.items() for part in (f"--{name}", str(path))]
        command += ["--delay", str(options.delay), "--idle", str(options.idle)]
        command += ["--at-once"] if options.at_once else []
        command.append("--verbose")  # for the steps of batches
        self.began = time.time()
        with (folder / "log").open("w") as log:
            self.job = subprocess.Popen(
                [*command, "--master", "local[2]"], stdout=log, stderr=log, start_new_session=True
            )

    def put(self, name: str, *rows: dict[str, object]) -> None:
        self.serial += 1
        hidden = self.folder / name / f".{self.serial}"
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
        hidden.rename(self.folder / name / f"{self.serial}.json")

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
        self.put("operations", operation("first", now, 600, "first"))
        self.put("signals", happening("first", now))
        first = self.wait_for(1)["first"] - self.began
        cpu = sum(self.cpu_seconds().values())
        print(f"first answer after {first:.0f} s, {cpu:.0f} of CPU; load {os.getloadavg()[0]:.1f}")

    def wait_for(self, count: int) -> dict[str, float]:
        while len(found := self.answers()) < count:
            if self.job.poll() is not None:
                raise SystemExit((self.folder / "log").read_text())
            time.sleep(0.2)
        return found

    def cpu_seconds(self) -> dict[str, float]:
        """The CPU seconds of each process so far, by id. Of workers, many end when idle."""
        seconds = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[3]) == self.job.pid:
                seconds[stat.parent.name] = (int(fields[11]) + int(fields[12])) / CLOCK_TICKS
        return seconds

    def batches_before(self, at: float) -> int:
        """How many batches were committed before an instant. Spark keeps the last 100 commits."""
        commits = (self.folder / "checkpoint" / "commits").glob("[0-9]*")
        return max((int(each.name) + 1 for each in commits if each.stat().st_mtime < at), default=0)

    def batches(self) -> int:
        return (self.folder / "log").read_text().count("batch ")

    def steps(self, since: int) -> str:
        """The medians of the steps of the batches since one of them."""
        lines = (self.folder / "log").read_text().splitlines()
        found = defaultdict(list)
        starts = [number for number, line in enumerate(lines) if line.startswith("batch ")]
        for start in starts[since:]:
            found["batch"].append(float(SECONDS.search(lines[start])[1]))  # type: ignore[index]
            for name, seconds in STEP.findall(lines[start + 1]):
                found[name].append(float(seconds))
        medians = {name: median(seconds) for name, seconds in found.items()}
        longest = sorted(medians.items(), key=lambda each: -each[1])
        return ", ".join(f"{name} {seconds:.2f} s" for name, seconds in longest)

    def end(self) -> None:
        os.killpg(self.job.pid, signal.SIGKILL)
        self.job.wait()


def instant(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()


def operation(name: str, at: float, seconds: float, key: str) -> dict[str, object]:
    requirements = [{"key": key, "threshold": 1}]
    times = {"registered_at": instant(at), "deadline": instant(at + seconds)}
    return {"operation_id": name, "requirements": requirements, "mode": "all", **times}


def happening(key: str, at: float) -> dict[str, object]:
    return {"key": key, "value": 1, "at": instant(at)}


def each_second(seconds: int, do: Callable[[int, float], None]) -> None:
    for number in range(seconds):
        do(number, time.time())
        time.sleep(1)


def both(case: Case, seconds: int, due: dict[str, float]) -> None:
    def put(number: int, now: float) -> None:
        case.put("operations", operation(f"o{number}", now, 600, f"k{number}"))
        case.put("signals", happening(f"k{number}", now + 0.001))
        due[f"o{number}"] = now

    each_second(seconds, put)
    for name in ("operations", "signals"):  # the last rows have to move event time
        now = time.time() + 600
        row = operation("end", now, 1, "end") if name == "operations" else happening("end", now)
        case.put(name, row)


def operations(case: Case, seconds: int, due: dict[str, float]) -> None:
    def put(number: int, now: float) -> None:
        case.put("operations", operation(f"o{number}", now, DEADLINE, "never"))
        due[f"o{number}"] = now + DEADLINE

    each_second(seconds, put)


def signals(case: Case, seconds: int, due: dict[str, float]) -> None:
    now = time.time()
    case.put("operations", *(operation(f"o{n}", now, 600, f"k{n}") for n in range(seconds)))

    def put(number: int, now: float) -> None:
        case.put("signals", happening(f"k{number}", now))
        due[f"o{number}"] = now

    each_second(seconds, put)


def silent(case: Case, seconds: int, due: dict[str, float]) -> None:
    now = time.time()
    made = [operation(f"o{n}", now, DEADLINE + n, "never") for n in range(seconds)]
    case.put("operations", *made)
    due.update({f"o{n}": now + DEADLINE + n for n in range(seconds)})


def described(late: list[float]) -> str:
    p90 = quantiles(late, n=10)[-1] if len(late) > 1 else late[0]
    return (
        f"{len(late)} answers, median {median(late):.1f} s, p90 {p90:.1f} s, most {late[-1]:.1f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--idle", default="5")
    parser.add_argument("--delay", type=float, default=1.0)
    parser.add_argument("--seconds", type=int, default=90)
    parser.add_argument("--warm", type=float, default=30)
    parser.add_argument("--at-once", action="store_true")
    parser.add_argument("--cases", nargs="+", default=["both", "operations", "signals", "silent"])
    options = parser.parse_args()
    for name in options.cases:
        case, due = Case(options.folder / name, options), dict[str, float]()
        try:
            case.warm_up()
            warm = time.time() + options.warm
            globals()[name](case, options.seconds, due)
            found = case.wait_for(len(due) + 1)
            print(f"{name}, load {os.getloadavg()[0]:.1f}")
            for part, ids in (
                ("first", [each for each, at in due.items() if at < warm]),
                ("later", [each for each, at in due.items() if at >= warm]),
            ):
                if late := sorted(found[each] - due[each] for each in ids):
                    print(f"  {part}  {described(late)}")
            print(f"  {case.steps(case.batches_before(warm))}", flush=True)
            if name == "silent":
                idle(case)
        finally:
            case.end()


def idle(case: Case) -> None:
    time.sleep(10)
    cpu, batches, files = case.cpu_seconds(), case.batches(), sum(1 for _ in case.folder.rglob("*"))
    time.sleep(IDLE_SECONDS)
    spent = sum(now - cpu.get(pid, 0) for pid, now in case.cpu_seconds().items())
    more = sum(1 for _ in case.folder.rglob("*")) - files
    print(
        f"idle        {spent:.1f} s of CPU, {case.batches() - batches} batches and "
        f"{more} files in {IDLE_SECONDS:.0f} s; load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
