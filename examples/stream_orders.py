"""Orders that wait for their payment and for stock, each with a deadline, decided on Spark as a
stream.

    pip install '.[spark]' && python examples/stream_orders.py

An order is an operation: it waits until `paid-N` has reached 1, and until the delivered pieces of
each article, counted from the start, have reached the need of all orders up to this one. Payments
and deliveries are signals. Both are JSON lines in two folders, as a service would write them; the
second wave has a late delivery, and an order that was sent twice. After each wave it prints
the decisions so far:

    after the first wave, up to 12:03:00
      12:00:50  completed  order-1  has paid-1, oak
      12:02:00  completed  order-3  has pine
    after the second wave, up to 12:12:00
      12:05:00  completed  order-4  has paid-4, oak
      12:10:10  expired    order-2  has oak
                late       order-1  it is a copy: the operation of this id was registered before
    5 operations = 3 completed + 1 expired + 0 pending + 1 late: nothing is missing; 0 late signals

Order 2 was never paid. Order 3 takes oak or pine, whichever there is enough of first.
"""

import json
import os
import sys
import tempfile
from datetime import datetime, timedelta
from pathlib import Path

from pyspark.sql import SparkSession

from purgatory.pipeline.streaming import (
    OPERATIONS,
    SIGNALS,
    TICKS,
    outcomes,
    reconcile,
    write_ticks,
)

DELAY = 30.0
"""Seconds by which events may be out of order."""


def at(clock: str) -> str:
    return f"2026-01-01T{clock}Z"


def order(
    number: int, clock: str, minutes: int, mode: str = "all", **articles: int
) -> dict[str, object]:
    pieces = [{"key": article, "threshold": count} for article, count in articles.items()]
    registered = datetime.fromisoformat(at(clock))
    return {
        "operation_id": f"order-{number}",
        "requirements": pieces
        if mode == "any"
        else [{"key": f"paid-{number}", "threshold": 1}, *pieces],
        "mode": mode,
        "registered_at": at(clock),
        "deadline": (registered + timedelta(minutes=minutes)).isoformat(),
    }


def signal(key: str, value: int, clock: str) -> dict[str, object]:
    return {"key": key, "value": value, "at": at(clock)}


WAVES = [
    (
        "12:03:00",
        [
            order(1, "12:00:05", 10, oak=3),
            order(2, "12:00:10", 10, oak=5),
            order(3, "12:00:15", 10, mode="any", oak=9, pine=2),
        ],
        [
            signal("oak", 5, "12:00:50"),
            signal("paid-1", 1, "12:00:20"),
            signal("pine", 4, "12:02:00"),
        ],
    ),
    (
        "12:12:00",
        [order(4, "12:04:00", 5, oak=8), order(1, "12:04:30", 10, oak=3)],
        [
            signal("paid-4", 1, "12:04:20"),
            signal("oak", 7, "12:06:00"),
            signal("oak", 8, "12:05:00"),
        ],
    ),
]


def decide(spark: SparkSession, folder: Path) -> None:
    """Decides on the present rows, and ends. The checkpoint keeps the pending operations."""
    operations = spark.readStream.schema(OPERATIONS).json(f"{folder}/operations")
    signals = spark.readStream.schema(SIGNALS).json(f"{folder}/signals")
    ticks = spark.readStream.schema(TICKS).parquet(f"{folder}/ticks")
    decided = outcomes(operations, signals, shards=2, delay=DELAY, ticks=ticks)
    writer = decided.writeStream.option("checkpointLocation", f"{folder}/checkpoint").trigger(
        availableNow=True
    )
    writer.format("parquet").option("path", f"{folder}/outcomes").start().awaitTermination()


def show(spark: SparkSession) -> None:
    """Writes one wave after another, and prints the decisions after each."""
    with tempfile.TemporaryDirectory() as name:
        folder, shown = Path(name), 0
        for number, (until, orders, signals) in enumerate(WAVES):
            for kind, rows in (("operations", orders), ("signals", signals)):
                (folder / kind).mkdir(exist_ok=True)
                (folder / kind / f"{number}.json").write_text(
                    "".join(json.dumps(row) + "\n" for row in rows)
                )
            # No older events will come. Without this tick the last deadlines would wait for newer
            # ones.
            write_ticks(
                spark,
                f"{folder}/ticks",
                datetime.fromisoformat(at(until)) + timedelta(seconds=DELAY),
            )
            decide(spark, folder)
            print(f"after the {('first', 'second')[number]} wave, up to {until}")
            outcomes = spark.read.parquet(f"{folder}/outcomes").collect()
            outcomes.sort(key=lambda row: (row.decided_at is None, row.decided_at))
            for row in outcomes[shown:]:
                clock = f"{row.decided_at:%H:%M:%S}" if row.decided_at else ""
                why = row.reason or f"has {', '.join(row.satisfied_keys)}"
                print(f"  {clock:8}  {row.outcome:9}  {row.operation_id}  {why}")
            shown = len(outcomes)
        print(reconcile(f"{folder}/checkpoint", spark))


def main() -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("orders").master("local[2]")
    for key, value in {
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    show(spark)
    spark.stop()


if __name__ == "__main__":
    main()
