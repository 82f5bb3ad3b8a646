"""The adapter between shards and Spark, without Spark: rows are packed, state is in pages, and
nothing of it is left over."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming import TwsTester
from shards import operations_batch, signals_batch

from purgatory.pipeline.streaming._events import (
    DECISIONS,
    Operation,
    from_bytes,
    from_stream,
    to_stream,
)
from purgatory.pipeline.streaming._packing import pack_operations, pack_signals, unpack_decisions
from purgatory.pipeline.streaming._processor import (
    ShardProcessor,
    ShardsChanged,
    send_code_to_workers,
)
from purgatory.pipeline.streaming._state import INITIAL_PAGES, MAX_ENTRIES_PER_PAGE
from purgatory.pipeline.streaming._timekeeper import NOTHING_DUE

SHARD = 6


def simulated() -> TwsTester:
    never_drops = sys.maxsize  # as Spark, to which these rows have no event time
    return TwsTester(
        ShardProcessor(4),
        timeMode="eventTime",
        outputMode="append",
        eventTimeExtractor=lambda _: never_drops,
    )


def operation(operation_id: str = "a", *, key: str = "x", deadline: int = 20_000) -> Operation:
    return Operation(operation_id, ((key, 1),), "all", 1_000, deadline)


def row(*, operations=(), signals=()) -> Row:
    events = signals_batch(signals) if signals else operations_batch(operations)
    return Row(shard=SHARD, are_signals=bool(signals), events=to_stream(events))


def unpacked(rows: list[Row]) -> list[dict[str, Any]]:
    packed = [row.decisions for row in rows if row.decisions is not None]
    return [each for decisions in packed for each in from_bytes(decisions, DECISIONS).to_pylist()]


def brief(rows: list[Row]) -> list[tuple[Any, ...]]:
    names = ("outcome", "operation_id", "decided_at", "satisfied_keys")
    return [tuple(each[name] for name in names) for each in unpacked(rows)]


def entries(tws: TwsTester, name: str) -> int:
    return len(tws.peekMapState(name, SHARD))


def test_completed_operation_leaves_no_state() -> None:
    tws = simulated()
    received = tws.test(
        SHARD, [row(operations=[operation()]), row(signals=[("x", 1, 5_000, SHARD)])]
    )
    first_due = 1  # the registration, in milliseconds
    assert [tuple(each) for each in received] == [(None, SHARD, first_due, 1, 0, 0, 0, 0)]

    assert brief(tws.setWatermark(4)) == []
    assert brief(tws.setWatermark(5)) == [("completed", "a", 5_000, ["x"])]
    (last,) = tws.setWatermark(20)

    assert (last.decisions, last.due) == (None, NOTHING_DUE)
    assert (entries(tws, "operations"), entries(tws, "agenda"), entries(tws, "lines")) == (0, 0, 1)


def test_timer_expires_operation_in_the_millisecond_after_deadline() -> None:
    tws = simulated()
    tws.test(SHARD, [row(operations=[operation(deadline=20_001)])])

    assert brief(tws.setWatermark(20)) == []
    assert brief(tws.setWatermark(21)) == [("expired", "a", 20_001, [])]
    assert (entries(tws, "operations"), entries(tws, "agenda"), entries(tws, "lines")) == (0, 0, 0)


def test_late_signal_is_reported_by_one_shard() -> None:
    tws = simulated()
    tws.setWatermark(10)

    (late,) = unpacked(
        tws.test(SHARD, [row(signals=[("x", 1, 5_000, SHARD), ("y", 1, 5_000, SHARD + 1)])])
    )

    assert (late["outcome"], late["key"], late["at"]) == (
        "late",
        "x",
        5_000,
    ) and "watermark" in late["reason"]


def test_state_continues_from_batch_to_batch() -> None:
    tws = simulated()
    names = [f"o{number}" for number in range(50)]
    tws.test(SHARD, [row(operations=[operation(name, key=name) for name in names])])
    tws.setWatermark(1)
    assert sum(page[0] for page in tws.peekMapState("operations", SHARD).values()) == 50
    for name in names:
        tws.test(SHARD, [row(signals=[(name, 1, 3_000, SHARD)])])

    assert sorted(brief(tws.setWatermark(3))) == sorted(
        ("completed", name, 3_000, [name]) for name in names
    )
    assert sum(page[0] for page in tws.peekMapState("operations", SHARD).values()) == 0


def test_full_pages_are_rehashed_without_loss() -> None:
    tws = simulated()
    names = [f"o{number}" for number in range(3 * INITIAL_PAGES * MAX_ENTRIES_PER_PAGE)]
    half = len(names) // 2
    for some in (names[:half], names[half:]):
        tws.test(SHARD, [row(operations=[operation(name, key=name) for name in some])])
        tws.setWatermark(1 if some[0] == names[0] else 2)

    pages = tws.peekMapState("operations", SHARD)
    assert len(pages) > INITIAL_PAGES and sum(page[0] for page in pages.values()) == len(names)
    tws.test(SHARD, [row(signals=[(name, 1, 3_000, SHARD) for name in names])])
    assert sorted(brief(tws.setWatermark(3))) == sorted(
        ("completed", name, 3_000, [name]) for name in names
    )
    tws.setWatermark(30)
    assert (entries(tws, "operations"), entries(tws, "agenda")) == (0, 0)


def test_another_number_of_shards_is_refused() -> None:
    tws = simulated()
    tws.test(SHARD, [row(operations=[operation()])])
    tws.processor.shards = 8

    with pytest.raises(ShardsChanged, match=r"8 shards.*written with 4"):
        tws.test(SHARD, [row(operations=[operation("b")])])


def test_operations_are_packed_by_shard_without_ticks() -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "is_tick": [False, True, False, False],
            "shard": [2, 2, 0, 2],
            "operation_id": ["a", None, "b", "c"],
            "keys": [["x", "x"], None, ["y"], None],
            "thresholds": [[1, 5], None, [2], None],
            "mode": ["all", None, "any", "all"],
            "registered_at": [1, None, 2, 3],
            "deadline": [10, None, 20, 30],
        }
    )

    packed = [row for made in pack_operations(iter([batch])) for row in made.to_pylist()]

    assert [(row["shard"], row["are_signals"]) for row in packed] == [(0, False), (2, False)]
    names = ("operation_id", "keys", "thresholds", "mode", "registered_at", "deadline")
    assert [from_stream(row["events"]).to_pylist() for row in packed] == [
        [dict(zip(names, ("b", ["y"], [2], "any", 2, 20), strict=True))],
        [
            dict(zip(names, ("a", ["x", "x"], [1, 5], "all", 1, 10), strict=True)),
            dict(zip(names, ("c", None, None, "all", 3, 30), strict=True)),
        ],
    ]


def test_signals_are_packed_as_columns_without_ticks() -> None:
    columns = {
        "is_tick": [False, True],
        "key": ["x", None],
        "value": [3, None],
        "at": [7, None],
        "reporter": [2, 0],
    }

    (packed,) = pack_signals(iter([pa.RecordBatch.from_pydict(columns)]))

    assert from_stream(packed["events"][0].as_py()).to_pylist() == [
        {"key": "x", "value": 3, "at": 7, "reporter": 2}
    ]


ELSEWHERE = """
import pickle, sys

class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "purgatory":
            raise ImportError(f"{name} is not installed here")

sys.meta_path.insert(0, Nowhere())
processor, packers = pickle.load(sys.stdin.buffer)
print(processor.shards, [packer.__name__ for packer in packers], [list(packer(iter(()))) for packer in packers])
"""


def test_code_on_workers_runs_without_our_package(
    program: Callable[..., subprocess.CompletedProcess[bytes]],
) -> None:
    send_code_to_workers()
    sent = cloudpickle.dumps((ShardProcessor(4), [pack_operations, pack_signals, unpack_decisions]))

    said = program("-c", ELSEWHERE, input=sent, text=False).stdout

    assert (
        said.decode() == "4 ['pack_operations', 'pack_signals', 'unpack_decisions'] [[], [], []]\n"
    )
