"""Operations and signals made with a seed, as they would reach a stream: out of order, repeated,
with hot keys.
"""

import os
import random
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

START = 1_767_268_800_000_000  # 2026-01-01 12:00 UTC, in microseconds
SECOND = 1_000_000
Row = tuple[str, str, int, tuple[str, ...]]
"""An id, its outcome, when it was decided on, and the satisfied keys."""

INSTANT = pa.timestamp("us", "UTC")
OPERATIONS = pa.schema(
    {
        "operation_id": pa.string(),
        "requirements": pa.list_(pa.struct({"key": pa.string(), "threshold": pa.int64()})),
        "mode": pa.string(),
        "registered_at": INSTANT,
        "deadline": INSTANT,
    }
)
SIGNALS = pa.schema({"key": pa.string(), "value": pa.int64(), "at": INSTANT})


@dataclass
class Traffic:
    """Rows in the order of event time: `(id, ((key, threshold), …), mode, registered_at,
    deadline)`, `(key, value, at)`."""

    operations: list[tuple]
    signals: list[tuple]


def traffic(
    operations: int, signals: int, *, seconds: float, keys: int = 2000, seed: int = 7
) -> Traffic:
    """Values of keys that grow by about one with each signal; operations that wait for a little
    more than there is. One signal in five repeats the last value, or has a lower one. One in twenty
    of everything is for one key. All instants differ."""
    chance = random.Random(seed)
    spread = int(seconds * SECOND)
    instants = chance.sample(range(spread), operations + signals)
    registered, at = sorted(instants[:operations]), sorted(instants[operations:])
    values = dict.fromkeys(range(keys), 0)

    def key() -> int:
        return 0 if chance.random() < 0.05 else int(keys * chance.random() ** 2)

    said = []
    for instant in at:
        name = key()
        values[name] += chance.choice((0, 1, 1, 1, 2))
        said.append((f"k{name}", max(0, values[name] - (chance.random() < 0.1)), START + instant))
    per_second = signals / seconds / keys
    asked = []
    for number, instant in enumerate(registered):
        wanted: dict[int, int] = {}
        for _ in range(chance.choice((1, 1, 2, 3))):
            name = key()
            now = values[name] * instant / spread  # its approximate value by then
            wanted[name] = max(1, int(now + chance.uniform(-3, 120 * per_second + 3)))
        deadline = instant + int(chance.expovariate(1 / 60) * SECOND)
        requirements = tuple((f"k{name}", threshold) for name, threshold in wanted.items())
        mode = chance.choice(("all", "any"))
        asked.append((f"o{number}", requirements, mode, START + instant, START + deadline))
    return Traffic(asked, said)


def write(made: Traffic, folder: Path, *, files: int, disorder: float = 5.0, seed: int = 7) -> None:
    """Writes `operations/` and `signals/`, in files by the order of arrival: up to `disorder`
    seconds after the event."""
    chance = random.Random(seed)
    for name, rows, when, schema in (
        ("operations", made.operations, 3, OPERATIONS),
        ("signals", made.signals, 2, SIGNALS),
    ):
        arrived = sorted((row[when] + chance.random() * disorder * SECOND, row) for row in rows)
        (folder / name).mkdir(parents=True, exist_ok=True)
        first, last = START, max(arrived)[0]
        for file in range(files):
            low, high = (first + (last + 1 - first) * share / files for share in (file, file + 1))
            columns = zip(*(row for instant, row in arrived if low <= instant < high), strict=True)
            arrays = [pa.array(*each) for each in zip(columns, schema.types, strict=True)]
            path = folder / name / f"{file:05}.parquet"
            pq.write_table(pa.table(arrays, schema=schema), path)
            # Spark reads files by age, and files of one millisecond in any order.
            os.utime(path, (file, file))
