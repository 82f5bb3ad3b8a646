"""Event time continues while an input is silent, and never passes rows still to be read.

The tests use the real clock: they assert the outcomes, however late."""

import threading
import time
from datetime import UTC, datetime

import pytest
from orders import traffic, write
from shards import outcomes_of_traffic
from streams import (
    Row,
    decided,
    happens,
    known,
    put,
    running,
    until,
    waits,
)

from purgatory.pipeline.streaming import (
    OPERATIONS,
    SIGNALS,
    keep_time,
    outcomes,
    pending,
    read_ticks,
    reconcile,
)
from purgatory.pipeline.streaming._checkpoint import overdue

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

JSON = ("--format", "json", "--delay", "1", "--idle", "2")


def wait(name: str, key: str, seconds: float) -> Row:
    """An operation from now on."""
    return waits(name, 0, seconds, key, since=time.time())


def happening(key: str) -> Row:
    return happens(key, 0, since=time.time())


def test_silence_passes_deadlines_and_restart_waits_for_backlog(spark, tmp_path):
    (tmp_path / "signals").mkdir()
    put(tmp_path, "operations", wait("unpaid", "x", 1), wait("patient", "y", 3600))
    with running(spark, tmp_path, *JSON) as job:
        until(lambda: not job.is_alive() or known(tmp_path) == {"unpaid": "expired"})
        put(tmp_path, "signals", happening("y"))
        until(lambda: not job.is_alive() or "patient" in known(tmp_path))
        put(tmp_path, "operations", wait("both silent", "x", 1), wait("paused", "z", 60))
        until(lambda: not job.is_alive() or "both silent" in known(tmp_path))
    checkpoint = str(tmp_path / "checkpoint")
    (paused,) = pending(checkpoint, spark).collect()
    assert paused[:3] == ("paused", [("z", 1)], "all") and paused.satisfied_keys == []
    near = [datetime.fromtimestamp(paused.deadline.timestamp() + each, UTC) for each in (-1, 1)]
    assert [overdue(spark, checkpoint, each) for each in near] == [0, 1]
    put(tmp_path, "signals", happening("z"))  # while no job reads it
    time.sleep(3)  # longer than `--idle`

    with running(spark, tmp_path, *JSON) as job:
        until(lambda: not job.is_alive() or "paused" in known(tmp_path))

    assert known(tmp_path) == {
        "unpaid": "expired",
        "patient": "completed",
        "both silent": "expired",
        "paused": "completed",
    }


def test_backlog_of_last_year_uses_its_own_time(spark, tmp_path):
    made = traffic(200, 600, seconds=600, keys=20)
    write(made, tmp_path, files=5)
    more = ("--delay", "6", "--idle", "0.5", "--files-per-batch", "1")
    with running(spark, tmp_path, *more) as job:
        until(lambda: not job.is_alive() or len(known(tmp_path)) == 200)

    assert decided(spark, tmp_path) == outcomes_of_traffic(made)
    account = reconcile(str(tmp_path / "checkpoint"), spark)
    assert (account.missing, account.late, account.late_signals) == (0, 0, 0)


def test_own_dataframes_keep_time(spark, tmp_path):
    (tmp_path / "signals").mkdir()
    put(tmp_path, "operations", wait("unpaid", "x", 1))
    checkpoint = str(tmp_path / "checkpoint")
    decided = outcomes(
        spark.readStream.schema(OPERATIONS).json(str(tmp_path / "operations")),
        spark.readStream.schema(SIGNALS).json(str(tmp_path / "signals")),
        shards=2,
        delay=1,
        ticks=read_ticks(spark, checkpoint),
    )
    writer = decided.writeStream.option("checkpointLocation", checkpoint).partitionBy("outcome")
    query = writer.format("parquet").start(str(tmp_path / "out"))
    waiting = threading.Thread(
        target=keep_time, args=(query, checkpoint), kwargs={"idle": 2, "delay": 1, "spark": spark}
    )
    waiting.start()
    try:
        until(lambda: not waiting.is_alive() or known(tmp_path))
    finally:
        query.stop()
        waiting.join()

    assert known(tmp_path) == {"unpaid": "expired"}
    with pytest.raises(ValueError, match="positive number of seconds, got 0"):
        keep_time(query, checkpoint, idle=0)
