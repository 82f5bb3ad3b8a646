"""Runs `stream` on one, two and four times the traffic, and prints how long batches took and how
large the state was.

    python tests/pipeline/rate_stream.py --folder DIR [--master 'local-cluster[2,1,1024]']

Each batch takes one file of each input, twenty seconds of traffic. After the last comes a signal of
an hour later, by which every operation is decided: then the state holds only the values of the
keys.
"""

import argparse
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import pyarrow as pa
import pyarrow.parquet as pq
from orders import SIGNALS, traffic, write

BATCH = re.compile(r"batch \d+: ([\d,]+) rows in ([\d.]+) s .* state ([\d,]+) rows, ([\d.]+) MiB")
FILES = 30
LAST = {"key": "k0", "value": 1, "at": datetime(2026, 1, 1, 13, 10, tzinfo=UTC)}


def number(text: str) -> float:
    return float(text.replace(",", ""))


def batches(folder: Path, master: str, shards: int) -> list[tuple[float, float, float, float]]:
    """Of each batch: rows, seconds, rows of state, and its MiB."""
    pairs = {name: folder / name for name in ("operations", "signals", "out", "checkpoint")}
    command = [
        sys.executable,
        "-m",
        "purgatory.pipeline",
        "stream",
        "--master",
        master,
        "--available-now",
    ]
    command += [part for name, path in pairs.items() for part in (f"--{name}", str(path))]
    command += ["--files-per-batch", "1", "--shards", str(shards)]
    said = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout
    print(said.splitlines()[-2], file=sys.stderr)
    found = [BATCH.match(line) for line in said.splitlines()]
    return [(number(m[1]), number(m[2]), number(m[3]), number(m[4])) for m in found if m]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--operations", type=int, default=30_000, help="at the single rate")
    options = parser.parse_args()
    print(
        "rate   rows/batch   s/batch   rows/s   state rows: most   in the end   MiB: most   in "
        "the end"
    )
    for factor in (1, 2, 4):
        folder, operations = options.folder / str(factor), options.operations * factor
        made = traffic(operations, 3 * operations, seconds=600)
        write(made, folder, files=FILES)
        pq.write_table(
            pa.Table.from_pylist([LAST], SIGNALS), folder / "signals" / f"{FILES:05}.parquet"
        )
        seen = batches(folder, options.master, options.shards)
        busy = seen[2:FILES]  # the first ones warm up
        rows, seconds = median(batch[0] for batch in busy), median(batch[1] for batch in busy)
        most = [max(batch[place] for batch in seen) for place in (2, 3)]
        print(
            f"{factor} x   {rows:10,.0f}   {seconds:7.2f}   {rows / seconds:6,.0f}   "
            f"{most[0]:16,.0f}   {seen[-1][2]:10,.0f}"
            f"   {most[1]:9.1f}   {seen[-1][3]:10.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
