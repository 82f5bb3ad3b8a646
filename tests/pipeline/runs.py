"""Runs of a server, for tests of `simulate`."""

import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from purgatory.journal import OPERATIONS
from purgatory.pipeline.simulate._replay import Recorded

NOON = 1_767_268_800_000_000


def run_of_a_server(seed: int, count: int = 300) -> list[Recorded]:
    chance, rows, now = random.Random(seed), [], NOON
    for number in range(count):
        now += int(chance.expovariate(1) * 50_000)
        keys = [f"k{key}" for key in chance.sample(range(9), chance.randint(1, 2))]
        wait, timeout = chance.expovariate(1), chance.choice((0.5, 2.0))
        completed = wait < timeout
        ended = now + int(min(wait, timeout) * 1e6) + (0 if completed else 700)
        outcome, ended_by = ("completed", keys[0]) if completed else ("expired", None)
        rows.append(Recorded(number, keys, now, ended, timeout, outcome, ended_by, False))
    return rows


def write(folder: Path, runs: dict[str, list[Recorded]]) -> None:
    (folder / "operations").mkdir(parents=True)
    rows = [
        {**row._asdict(), "run_id": run_id, "purgatory": "p", "kind": "Fetch", "attempts": 2}
        for run_id, run in runs.items()
        for row in run
    ]
    rows.append(
        {**rows[0], "run_id": "c", "ended_at": None, "outcome": None}
    )  # its end was never written
    rows.append(rows[0])  # a copy
    columns = {
        field.name: pa.array([row[field.name] for row in rows], to_plain(field.type))
        for field in OPERATIONS
    }
    pq.write_table(pa.table(columns).cast(OPERATIONS), folder / "operations" / "1.parquet")


def to_plain(type_: pa.DataType) -> pa.DataType:
    return pa.int64() if pa.types.is_timestamp(type_) else type_
