"""The cost of a report of a day of small files, of the same day compacted, and of the same rows in
one file.

    python tests/pipeline/day_of_files.py --folder DIR [--master 'local[2]']

Eight workers that finish a file every ten seconds leave 69,120 files a day. Each measurement is a
process of its own; the figure is its seconds of a core, from command to page.
"""

import argparse
import os
import random
import resource
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa

from purgatory.journal import OPERATIONS
from purgatory.journal._writer import write_parquet

DAY = 86_400
WORKERS = 8
SECONDS = 10
MIDNIGHT = 1_775_000_000 // DAY * DAY


def rows_of(rng: random.Random, worker: int, first: int, count: int, start: int) -> pa.Table:
    """Operations that began within ten seconds of an instant, which is in seconds since 1970."""
    begun = sorted(start * 1_000_000 + rng.randrange(10_000_000) for _ in range(count))
    waits = [min(int(rng.lognormvariate(11, 1.5)), 1_000_000) for _ in range(count)]
    keys = [f"key-{rng.randrange(1000)}" for _ in range(count)]
    columns = {
        "run_id": [f"{worker:032x}"] * count,
        "purgatory": ["letters"] * count,
        "kind": ["Poll"] * count,
        "operation_id": range(first, first + count),
        "keys": [[key] for key in keys],
        "started_at": begun,
        "ended_at": [at + wait for at, wait in zip(begun, waits, strict=True)],
        "timeout_s": [1.0] * count,
        "outcome": ["completed" if wait < 1_000_000 else "expired" for wait in waits],
        "attempts": [2] * count,
        "ended_by": [
            key if wait < 1_000_000 else None for key, wait in zip(keys, waits, strict=True)
        ],
        "missed_trigger": [False] * count,
    }
    return pa.table(
        [pa.array(columns[field.name], field.type) for field in OPERATIONS], schema=OPERATIONS
    )


def write(folder: Path, files: int, rows: int) -> None:
    """Writes a journal twice: ``small`` with many files, ``one`` with the same rows in one."""
    rng, written = random.Random(1), []
    for name in ("small", "one"):
        (folder / name / "operations").mkdir(parents=True)
    for number in range(files):
        worker, place = number % WORKERS, number // WORKERS
        start = MIDNIGHT + place * DAY * WORKERS // files
        table = rows_of(rng, worker, place * rows, rows, start)
        file = folder / "small" / "operations" / f"{worker:032x}-{place:06d}.parquet"
        write_parquet(table, file)
        finished = start + SECONDS
        os.utime(file, (finished, finished))
        written.append(table)
    write_parquet(pa.concat_tables(written), folder / "one" / "operations" / "all.parquet")


def cost(*arguments: str) -> str:
    """Runs a program of the pipeline, and returns its cost."""
    before, since = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "purgatory.pipeline", *arguments],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return f"{cpu:6.1f} s of a core, {time.monotonic() - since:6.1f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--folder", type=Path, required=True, metavar="DIR", help="a new folder for the journals"
    )
    parser.add_argument(
        "--files", type=int, default=69_120, metavar="N", help="how many (default: %(default)s)"
    )
    parser.add_argument(
        "--rows",
        type=int,
        default=14,
        metavar="N",
        help="operations in each (default: %(default)s)",
    )
    parser.add_argument(
        "--master", metavar="URL", help="of Spark, for reports (default: they run on DuckDB)"
    )
    chosen = parser.parse_args()
    write(chosen.folder, chosen.files, chosen.rows)
    small, one, out = (str(chosen.folder / name) for name in ("small", "one", "out"))

    on = ["--master", chosen.master] if chosen.master else []

    def report(journal: str, what: str) -> None:
        print(
            f"report of {what:34} {cost('report', journal, '--out', out, *on)}",
            flush=True,
        )

    def left() -> str:
        return f"{len([*Path(small, 'operations').iterdir()]):,}"

    report(one, "one file")
    report(small, f"{left()} files")
    before_the_last_hour = int(time.time()) - (MIDNIGHT + DAY - 3600)
    print(
        "compact all but the last hour "
        f"{cost('compact', small, '--older-than', f'{before_the_last_hour}s'):>40}",
        flush=True,
    )
    report(small, f"the {left()} files left")
    print(f"compact {cost('compact', small, '--older-than', '1s'):>62}", flush=True)
    report(small, f"what is left: {left()}")


if __name__ == "__main__":
    main()
