"""The stream job when a query fails, without Spark."""

import argparse
import threading
from typing import Any
from unittest.mock import MagicMock

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from shards import Operation, Signal, Stored

from purgatory.pipeline.streaming import _command, _job, _ticks
from purgatory.pipeline.streaming._job import Job
from purgatory.pipeline.streaming._rows import pending_operations


def test_error_of_a_query_is_one_line() -> None:
    error = StreamingQueryException(
        "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: "
        "[PARQUET_COLUMN_DATA_TYPE_MISMATCH] Error while "
        "reading file:///a.parquet. Expected string, actual DOUBLE. SQLSTATE: KD001 SQLSTATE: "
        "XXKST\n=== Streaming Query ===\n"
    )

    assert _command._brief(error) == (
        "[PARQUET_COLUMN_DATA_TYPE_MISMATCH] Error while reading file:///a.parquet. Expected "
        "string, actual DOUBLE."
    )
    assert _command._brief(ValueError("as it is")) == "as it is"


@pytest.mark.parametrize(
    ("folders", "configured", "changed"),
    [
        (("state", "out"), False, True),
        (("state", "out"), True, False),
        (("state", "hdfs://x/out"), False, False),
        (("hdfs://x/state", "out"), False, False),
    ],
)
def test_only_local_unconfigured_checkpoints_rename_without_processes(
    folders: tuple[str, str], configured: bool, changed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark, hadoop = MagicMock(), MagicMock()
    spark.sparkContext.getConf().contains.return_value = configured
    hadoop.return_value.is_on_this_machine = lambda path: "://" not in path
    monkeypatch.setattr(_command, "Hadoop", hadoop)

    _command._rename_without_processes(spark, *folders)

    assert spark.conf.set.called == changed


def test_steps_of_a_batch_show_longest_first() -> None:
    took = {"walCommit": 20, "addBatch": 1100, "triggerExecution": 1150}

    assert _job._steps({"durationMs": took}) == "  addBatch 1.10 s, walCommit 0.02 s"
    assert len(took) == 3


def test_failed_query_stops_the_sending_query(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the next try could not send: Spark allows one query for each checkpoint."""
    deciding, sending = MagicMock(), MagicMock()
    deciding.awaitTermination.side_effect = StreamingQueryException("the disk is full")
    monkeypatch.setattr(Job, "_start", lambda *_: deciding)
    monkeypatch.setattr(Job, "_send", lambda _: sending)
    options = argparse.Namespace(
        out="out",
        checkpoint="checkpoint",
        every=0.0,
        out_topic="outcomes",
        available_now=False,
        idle=None,
        delay=1.0,
        files_per_batch=None,
        records_per_batch=None,
        kafka_option=[],
    )

    with pytest.raises(StreamingQueryException, match="disk"):
        Job(MagicMock(), options, threading.Event())._follow(MagicMock())

    sending.stop.assert_called_once_with()


def test_slow_worker_restarts_the_query_a_few_times(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    errors = iter([StreamingQueryException("Python worker failed to connect back."), None])
    tries: list[object] = []

    def follow(job: Job, decided: object) -> None:
        tries.append(decided)
        if error := next(errors):
            raise error

    monkeypatch.setattr(Job, "_follow", follow)
    job: Any = Job(None, argparse.Namespace(), threading.Event())  # type: ignore[arg-type]

    job._decide("query")
    assert tries == ["query"] * 2 and "restarting" in capsys.readouterr().out

    errors = iter([StreamingQueryException("the disk is full")])
    with pytest.raises(StreamingQueryException, match="disk"):
        job._decide("query")

    errors = (StreamingQueryException("failed to connect back") for _ in range(99))
    with pytest.raises(StreamingQueryException, match="connect"):
        job._decide("query")
    assert len(tries) == 3 + _job.MAX_STARTS


@pytest.mark.parametrize(("text", "idle"), [("5", 5.0), ("0.5", 0.5), ("never", _command.NEVER)])
def test_idle_is_seconds_or_never(text: str, idle: float) -> None:
    assert _command._idle(text) == idle


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "soon", ""])
def test_idle_that_is_no_positive_number_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=f"positive number .* got '{text}'"):
        _command._idle(text)


def test_idle_is_refused_with_available_now() -> None:
    options = argparse.Namespace(available_now=True, idle=5.0, serve=None)

    with pytest.raises(ValueError, match="there is no --idle"):
        Job(MagicMock(), options, threading.Event()).run()


@pytest.mark.parametrize(
    ("files", "records", "option", "reads_all"),
    [
        (None, None, "kafka.security.protocol", True),
        (1, None, "kafka.security.protocol", False),
        (None, 1, "kafka.security.protocol", False),
        (None, None, "maxOffsetsPerTrigger", False),
    ],
)
def test_limited_batches_may_not_read_all(
    files: int | None, records: int | None, option: str, reads_all: bool
) -> None:
    options = argparse.Namespace(
        files_per_batch=files, records_per_batch=records, kafka_option=[(option, "1")]
    )

    assert Job(MagicMock(), options, threading.Event())._reads_all() is reads_all


def test_idle_progress_is_read_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def progress(batch: int, second: int, **durations: int) -> dict[str, Any]:
        timestamp = f"2026-01-01T12:00:{second:02}.000Z"
        sources = [
            {"description": f"[{name}]", "startOffset": 1, "endOffset": 1, "latestOffset": None}
            for name in ("operations", "checkpoint/ticks", "signals")
        ]
        more = {"durationMs": durations, "sources": sources, "eventTime": {}}
        return {"batchId": batch, "timestamp": timestamp, **more}

    def look(*recent: dict[str, Any]) -> list[dict[str, Any]]:
        query.lastProgress = recent[-1]
        query.recentProgress = recent
        return ticker.take_progress()

    monkeypatch.setattr(_ticks, "due_of_shards", lambda *_: {})
    query = MagicMock()
    ticker = _ticks.Ticker(MagicMock(), query, "checkpoint", idle=60, delay=10)
    batch, idle, later = progress(5, 1, addBatch=9), progress(6, 2), progress(6, 3)
    decided, newest = progress(6, 4, addBatch=9), progress(7, 5)

    assert look(idle, batch) == [batch, idle]
    assert look(batch, idle, later) == [later]
    assert look(batch, idle, later, decided, newest) == [decided, newest]
    assert look(decided, newest) == []


def test_pending_operations_are_read_from_the_state() -> None:
    shard = Stored()
    shard.step(
        Operation("half", [("x", 1), ("y", 2)], "all", 1, 5),
        Operation("ahead", [("z", 3)], "any", 4, 9),
        Signal("y", 2, 2),
        now=3,
    )
    content = [
        data for kind in ("operations", "waiting") for _, data in shard.stores[kind].values()
    ]
    batch = pa.RecordBatch.from_pydict({"content": pa.array(content, pa.binary())})

    found = [row for each in pending_operations(iter([batch])) for row in each.to_pylist()]

    names = ("operation_id", "key", "threshold", "mode", "deadline", "satisfied_keys")
    assert [tuple(row[name] for name in names) for row in found] == [
        ("ahead", ["z"], [3], "any", 9, []),
        ("half", ["x", "y"], [1, 2], "all", 5, ["y"]),
    ]
