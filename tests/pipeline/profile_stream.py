"""The cost of the Python side of `stream`, outside of Spark: CPU seconds for packing, receiving,
deciding, state and output.

    python tests/pipeline/profile_stream.py --data DIR [--shards 2] [--batches 1]

DIR is the output of `orders.py`. Rows come as Spark hands them to Python, ten thousand in an
Arrow batch, and the state is a dictionary; so this measures our own code alone, with its calls of
Arrow and numpy.
"""

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from zlib import crc32

import pyarrow as pa
import pyarrow.dataset as ds

from purgatory.pipeline.streaming import _packing, _processor, _state
from purgatory.pipeline.streaming._decisions import Shard
from purgatory.pipeline.streaming._event_queue import EventQueue
from purgatory.pipeline.streaming._processor import ShardProcessor

ROWS = 10_000
spent: Counter[str] = Counter()
stack: list[str] = []
since = [0.0]
"""When the stage on the stack began or went on."""


def stage(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose time counts for a stage, without the time of the stages in it."""

    def staged(*arguments: Any, **named: Any) -> Any:
        enter(name)
        try:
            result = function(*arguments, **named)
            return list(result) if hasattr(result, "send") else result
        finally:
            leave()

    return staged


def enter(name: str) -> None:
    now = time.process_time()
    if stack:
        spent[stack[-1]] += now - since[0]
    stack.append(name)
    since[0] = now


def leave() -> None:
    now = time.process_time()
    spent[stack.pop()] += now - since[0]
    since[0] = now


class Value:
    """As Spark's `ValueState`, for one shard."""

    kept: Any = None

    def get(self) -> Any:
        return self.kept

    def update(self, value: Any) -> None:
        self.kept = value


class Map(dict[Any, Any]):
    """As Spark's `MapState`, for one shard. Counts its calls."""

    calls = 0

    def getValue(self, key: Any) -> Any:  # noqa: N802
        Map.calls += 1
        return self.get(key)

    def updateValue(self, key: Any, value: Any) -> None:  # noqa: N802
        Map.calls += 1
        self[key] = value

    def removeKey(self, key: Any) -> None:  # noqa: N802
        Map.calls += 1
        self.pop(key, None)


class Handle:
    def getValueState(self, *_: Any) -> Value:  # noqa: N802
        return Value()

    def getMapState(self, *_: Any) -> Map:  # noqa: N802
        return Map()

    def registerTimer(self, _: int) -> None:  # noqa: N802
        pass


class Times:
    def __init__(self, watermark: int) -> None:
        self.watermark = watermark

    def getCurrentWatermarkInMs(self) -> int:  # noqa: N802
        return self.watermark // 1000


def rows_of(folder: Path, name: str, shards: int) -> tuple[pa.Table, pa.Array]:
    """The rows of a folder as the query hands them to Python, and their instants."""
    table = (
        ds.dataset(sorted(map(str, (folder / name).glob("*.parquet")))).to_table().combine_chunks()
    )
    owner = table.column("operation_id" if name == "operations" else "key").to_pylist()
    owners = pa.array([crc32(each.encode()) % shards for each in owner], pa.int32())
    columns: dict[str, Any] = {"is_tick": pa.array([False] * len(owners))}
    if name == "operations":
        requirements = table["requirements"].combine_chunks()
        columns |= {"shard": owners, "operation_id": table["operation_id"]}
        for field, column in (("key", "keys"), ("threshold", "thresholds")):
            columns[column] = pa.ListArray.from_arrays(
                requirements.offsets, requirements.values.field(field)
            )
        columns["mode"] = table["mode"]
        columns |= {column: table[column].cast("int64") for column in ("registered_at", "deadline")}
    else:
        columns |= {
            "key": table["key"],
            "value": table["value"],
            "at": table["at"].cast("int64"),
            "reporter": owners,
        }
    return pa.table(columns), columns["registered_at" if name == "operations" else "at"]


def packed(tables: Iterable[pa.Table], shards: int) -> dict[int, list[tuple[int, bool, bytes]]]:
    """What each shard receives."""
    operations, signals = tables
    received: dict[int, list[tuple[int, bool, bytes]]] = {shard: [] for shard in range(shards)}
    for batch in _packing.pack_operations(iter(operations.combine_chunks().to_batches(ROWS))):
        for row in batch.to_pylist():
            received[row["shard"]].append((row["shard"], False, row["events"]))
    for batch in _packing.pack_signals(iter(signals.combine_chunks().to_batches(ROWS))):
        for row in batch.to_pylist():
            for shard, events in received.items():
                events.append((shard, True, row["events"]))
    return received


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument(
        "--batches",
        type=int,
        default=1,
        help="in how many batches the rows come (default: %(default)s)",
    )
    options = parser.parse_args()
    for owner, name, what in (
        (_packing, "pack_operations", "packing"),
        (_packing, "pack_signals", "packing"),
        (Shard, "register", "receiving"),
        (Shard, "signal", "receiving"),
        (_processor, "from_stream", "receiving"),
        (Shard, "advance_to", "deciding"),
        (EventQueue, "save", "state"),
        (_state.PagedStore, "_page", "state"),
        (_state.PagedStore, "save", "state"),
        (_state.ChunkStore, "get", "state"),
        (Shard, "take", "output"),
        (_processor, "pack_decisions", "output"),
        (_packing, "unpack_decisions", "output"),
    ):
        setattr(owner, name, stage(what, getattr(owner, name)))
    tables = [rows_of(options.data, name, options.shards) for name in ("operations", "signals")]
    first = min(instants.to_numpy().min() for _, instants in tables)
    last = max(instants.to_numpy().max() for _, instants in tables)
    shards = {shard: ShardProcessor(options.shards) for shard in range(options.shards)}
    for processor in shards.values():
        processor.init(Handle())  # type: ignore[arg-type]
    watermark = outcomes = 0
    for number in range(options.batches):
        low, high = (
            first + (last + 1 - first) * part // options.batches for part in (number, number + 1)
        )
        some = [
            table.filter(pa.array((at.to_numpy() >= low) & (at.to_numpy() < high)))
            for table, at in tables
        ]
        received = packed(some, options.shards)
        for now in (watermark, int(high) - 1) if number == options.batches - 1 else (watermark,):
            for shard, processor in shards.items():
                made = processor.handleInputRows((shard,), iter(received[shard]), Times(now))  # type: ignore[arg-type]
                values = pa.array([row[0] for row in made if row[0] is not None], pa.binary())
                rows = _packing.unpack_decisions(
                    iter([pa.RecordBatch.from_arrays([values], ["decisions"])])
                )
                outcomes += sum(batch.num_rows for batch in rows)
                received[shard] = []
        watermark = int(high) - 1
    rows = sum(len(table) for table, _ in tables)
    print(
        f"{rows:,} rows in {options.batches} batches, {options.shards} shards: {outcomes:,} "
        f"outcomes, {Map.calls:,} state calls"
    )
    for name in ("packing", "receiving", "deciding", "state", "output"):
        print(f"{name:10}{spent[name]:8.2f} s{spent[name] / rows * 1e6:8.2f} µs a row")
    print(f"{'all':10}{spent.total():8.2f} s{spent.total() / rows * 1e6:8.2f} µs a row")


if __name__ == "__main__":
    main()
