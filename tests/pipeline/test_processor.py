"""The adapter between shards and Spark, without Spark: rows are packed, state is in pages, and
nothing of it is left over."""

import sys
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming import TwsTester
from shards import LABEL, Operation, Signal, operations_batch, outcomes_of, signals_batch

from purgatory.pipeline.streaming._processor import (
    ShardProcessor,
    ShardsChanged,
    send_code_to_workers,
)
from purgatory.pipeline.streaming._rows import (
    DECISIONS,
    NOTHING_DUE,
    RECEIVED_OPERATIONS,
    RECEIVED_SIGNALS,
    from_bytes,
    pack,
    to_bytes,
    unpack,
)


def simulated(processor: ShardProcessor | None = None) -> TwsTester:
    never_drops = sys.maxsize  # as Spark, to which these rows have no event time
    return TwsTester(
        processor or ShardProcessor(4),
        timeMode="eventTime",
        outputMode="append",
        eventTimeExtractor=lambda _: never_drops,
    )


def operation(operation_id: str = "a", *, key: str = "x", deadline: int = 20_000) -> Operation:
    return Operation(operation_id, [(key, 1)], "all", 1_000, deadline)


def row(*rows: Operation | Signal) -> Row:
    are_signals = isinstance(rows[0], Signal)
    events = to_bytes(signals_batch(rows) if are_signals else operations_batch(rows))
    return Row(shard=LABEL, are_signals=are_signals, events=events)


def decided(rows: list[Row]) -> list[tuple[Any, ...]]:
    packed = pa.array([row.decisions for row in rows], pa.binary())
    return outcomes_of(
        unpack(iter([pa.RecordBatch.from_arrays([packed], ["decisions"])]), DECISIONS)
    )


def kinds(tws: TwsTester) -> set[str]:
    return {kind for kind, _ in tws.peekMapState("parts", LABEL)}


def test_state_continues_until_the_last_timer():
    tws = simulated()
    received = tws.test(LABEL, [row(operation()), row(Signal("x", 1, 5_000))])
    first_due = 1  # the registration, in milliseconds
    assert [tuple(each) for each in received] == [(None, LABEL, first_due, 1, 0, 0, 0, 0)]
    assert kinds(tws) == {"signals", "operations"}

    assert decided(tws.setWatermark(4)) == []
    assert decided(tws.setWatermark(5)) == [("completed", "a", 5_000, ("x",))]
    assert decided(tws.test(LABEL, [row(operation())])) == [("late", "a", 1_000, ())]
    tws.test(LABEL, [row(operation("b", key="y", deadline=20_001))])
    assert decided(tws.setWatermark(20)) == []
    late = tws.setWatermark(21)  # the millisecond after its deadline

    assert decided(late) == [("expired", "b", 20_001, ())] and late[0].due == NOTHING_DUE
    assert "waiting" not in kinds(tws)


def test_another_number_of_shards_is_refused():
    tws = simulated()
    tws.test(LABEL, [row(operation())])
    tws.processor.shards = 8

    with pytest.raises(ShardsChanged, match=r"8 shards.*written with 4"):
        tws.test(LABEL, [row(operation("b"))])


def test_rows_are_packed_by_shard_without_ticks():
    def received(batch: pa.RecordBatch, are_ticks: list[bool], **more: Any) -> pa.RecordBatch:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True)) | more
        return pa.RecordBatch.from_pydict({"is_tick": are_ticks, **columns})

    operations = operations_batch(
        [operation("a"), operation("tick"), operation("b"), operation("c")]
    )
    batch = received(operations, [False, True, False, False], shard=pa.array([2, 2, 0, 2]))
    packed = [row for made in pack(iter([batch]), False) for row in made.to_pylist()]
    assert [(row["shard"], row["are_signals"]) for row in packed] == [(0, False), (2, False)]
    assert [
        from_bytes(row["events"], RECEIVED_OPERATIONS)["operation_id"].to_pylist() for row in packed
    ] == [["b"], ["a", "c"]]

    signals = signals_batch([Signal("x", 3, 7), Signal(None, None, None)])
    (made,) = pack(iter([received(signals, [False, True])]), True)
    assert made["shard"].to_pylist() == [None]
    assert from_bytes(made["events"][0].as_py(), RECEIVED_SIGNALS).equals(signals.slice(0, 1))
    assert list(pack(iter([received(signals, [True, True])]), True)) == []


ELSEWHERE = """
import pickle, sys

class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "purgatory":
            raise ImportError(f"{name} is not installed here")

sys.meta_path.insert(0, Nowhere())
processor, packers = pickle.load(sys.stdin.buffer)
print(processor.shards, [list(packer(iter(()))) for packer in packers])
"""


def test_code_on_workers_runs_without_our_package(program):
    send_code_to_workers()
    sent = cloudpickle.dumps(
        (ShardProcessor(4), [partial(pack, are_signals=True), partial(unpack, schema=DECISIONS)])
    )

    said = program("-c", ELSEWHERE, input=sent, text=False).stdout

    assert said.decode() == "4 [[], []]\n"
