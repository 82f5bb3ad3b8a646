"""The stream job: what it writes equals what tasks in a `ThresholdPurgatory` make of the same events, whatever befalls it."""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from check_stream import by_thresholds
from orders import traffic, write
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType, TimestampType

from purgatory.pipeline import streaming
from purgatory.pipeline._command_line import main
from purgatory.pipeline.streaming import (
    OPERATIONS,
    SIGNALS,
    ShardsChanged,
    _command,
    _job,
    check_out,
    check_shards,
    outcomes,
    reconcile,
)
from purgatory.pipeline.streaming._command import add_arguments
from purgatory.pipeline.streaming._job import Job

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
DELAY = 6.0


def arguments(folder: Path, *more: str) -> list[str]:
    pairs = {name: folder / name for name in ("operations", "signals", "out", "checkpoint")}
    return [*(part for name, path in pairs.items() for part in (f"--{name}", str(path))), "--shards", "2", *more]


def run(spark: SparkSession, folder: Path, *more: str) -> int:
    """The job in this process, until nothing is left to decide."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    options = parser.parse_args(arguments(folder, "--available-now", *more))
    return Job(spark, options, threading.Event()).run()


def decided(spark: SparkSession, folder: Path) -> list[tuple[Any, ...]]:
    rows = spark.read.parquet(str(folder / "out")).selectExpr("*", "unix_micros(decided_at) AS micros").collect()
    return sorted(
        (row.operation_id, row.outcome, row.micros, tuple(row.satisfied_keys)) for row in rows if row.outcome != "late"
    )


def late(spark: SparkSession, folder: Path) -> list[tuple[Any, ...]]:
    rows = spark.read.parquet(str(folder / "out")).where("outcome = 'late'").collect()
    return sorted((str(row.operation_id or row.key), row.reason) for row in rows)


def second(number: float) -> str:
    return (NOON + timedelta(seconds=number)).isoformat()


def put(folder: Path, name: str, *rows: dict[str, Any]) -> None:
    (folder / name).mkdir(exist_ok=True)
    file = folder / name / f"{len(list((folder / name).iterdir()))}.json"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def waits(operation_id: str, at: float, until: float, *keys: str) -> dict[str, Any]:
    requirements = [{"key": key, "threshold": 1} for key in keys]
    return {
        "operation_id": operation_id,
        "requirements": requirements,
        "mode": "all",
        "registered_at": second(at),
        "deadline": second(until),
    }


def happens(key: str, at: float, value: int = 1) -> dict[str, Any]:
    return {"key": key, "value": value, "at": second(at)}


def test_killed_in_the_middle_it_goes_on_and_every_outcome_is_that_of_a_threshold_purgatory(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = traffic(400, 1200, seconds=120, keys=30)
    write(made, tmp_path, files=4, disorder=DELAY - 1)
    more = ("--delay", str(DELAY), "--files-per-batch", "1")
    with started(tmp_path, *more) as job:
        assert "batch 0" in line_with(job, "batch")
        os.killpg(job.pid, signal.SIGKILL)

    assert run(spark, tmp_path, *more) == 0

    newest = max(made.operations[-1][3], made.signals[-1][2])
    assert decided(spark, tmp_path) == [row for row in by_thresholds(made) if row[2] <= newest]
    account = reconcile(str(tmp_path / "checkpoint"), spark)
    assert (account.missing, account.late, account.late_signals) == (0, 0, 0)
    assert account.registered == len(made.operations)
    assert account.pending == len(made.operations) - len(decided(spark, tmp_path))


@pytest.mark.parametrize("asked", [signal.SIGTERM, signal.SIGINT])
def test_told_to_stop_it_ends_between_two_batches_and_says_how_to_go_on(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], asked: int
) -> None:
    put(tmp_path, "operations", waits("paid", 1, 20, "x"))
    put(tmp_path, "signals", happens("x", 5))

    @contextmanager
    def session(*_: Any, **__: Any) -> Iterator[SparkSession]:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # as Spark when it starts
        yield spark

    monkeypatch.setattr(_command, "spark_session", session)
    monkeypatch.setattr(_job, "_in_words", lambda _: str(os.kill(os.getpid(), asked)))
    handlers = [(number, signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT)]
    try:
        assert main(["stream", *arguments(tmp_path, "--format", "json")]) == 0
    finally:
        for number, handler in handlers:
            signal.signal(number, handler)

    assert "1 operations = 0 completed + 0 expired + 1 pending + 0 late: nothing is missing" in (
        said := capsys.readouterr().out
    )
    assert f"go on from {tmp_path / 'checkpoint'}" in said
    assert spark.streams.active == []


def started(folder: Path, *more: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "purgatory.pipeline", "stream", *arguments(folder, *more), "--master", "local[2]"]
    # From elsewhere: the workers get our code from us.
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True, start_new_session=True)


def line_with(job: "subprocess.Popen[str]", word: str) -> str:
    assert job.stdout is not None
    for line in job.stdout:
        if word in line:
            return line
    raise AssertionError(f"it ended with {job.wait()}, and did not say {word!r}")


def test_what_is_late_has_a_row_that_says_why_and_everything_is_accounted_for(spark: SparkSession, tmp_path: Path) -> None:
    tmp_path /= "a folder 100 %"  # whose state Spark does not find by itself
    tmp_path.mkdir()
    put(tmp_path, "operations", waits("paid", 1, 20, "x"), waits("unpaid", 1, 20, "y"), waits("patient", 1, 500, "y"))
    put(tmp_path, "signals", happens("x", 5), happens("z", 60))
    assert run(spark, tmp_path, "--format", "json") == 0
    assert [row[:2] for row in decided(spark, tmp_path)] == [("paid", "completed"), ("unpaid", "expired")]

    put(tmp_path, "operations", waits("tardy", 2, 50, "x"), waits("patient", 100, 600, "x"), {"operation_id": "broken"})
    put(tmp_path, "signals", happens("y", 30), happens("z", 160))
    assert run(spark, tmp_path, "--format", "json") == 0

    reasons = late(spark, tmp_path)
    assert [name for name, _ in reasons] == ["broken", "patient", "tardy", "y"]
    assert ["lacks" in reasons[0][1], "copy" in reasons[1][1], "deadline" in reasons[2][1], "watermark" in reasons[3][1]]
    noon = int(NOON.timestamp())
    ((_, outcome, at, keys),) = [row for row in decided(spark, tmp_path) if row[0] == "patient"]
    assert (outcome, at // 1_000_000, keys) == ("completed", noon + 60, ("y",))  # when the late signal was heard of
    account = reconcile(str(tmp_path / "checkpoint"), spark)
    assert (account.registered, account.completed, account.expired, account.late) == (6, 2, 1, 3)
    assert (account.pending, account.missing, account.late_signals) == (0, 0, 1)

    with pytest.raises(ShardsChanged, match=r"4 shards.*written with 2"):
        run(spark, tmp_path, "--format", "json", "--shards", "4")
    check_shards(spark, str(tmp_path / "checkpoint"), 2)


def test_an_instant_that_nobody_can_show_is_told_and_moves_no_watermark(spark: SparkSession, tmp_path: Path) -> None:
    far, old = (F.timestamp_micros(F.lit(sign * 300_000_000_000_000_000)) for sign in (1, -1))  # in 11476, and long before 1
    at = [NOON + timedelta(seconds=number) for number in (1, 5, 20, 60)]
    sound = spark.createDataFrame([("paid", [("x", 1)], "all", at[0], at[2])], OPERATIONS)
    sound.write.parquet(str(tmp_path / "operations"))
    impossible = sound.withColumns({"operation_id": F.lit("impossible"), "registered_at": far, "deadline": far})
    ancient = impossible.withColumns({"operation_id": F.lit("ancient"), "registered_at": old})
    impossible.union(ancient).write.mode("append").parquet(str(tmp_path / "operations"))
    signals = spark.createDataFrame([("x", 1, at[1]), ("z", 1, at[3])], SIGNALS)
    signals.write.parquet(str(tmp_path / "signals"))
    signals.limit(1).withColumns({"key": F.lit("y"), "at": far}).write.mode("append").parquet(str(tmp_path / "signals"))

    assert run(spark, tmp_path) == 0

    assert [row[:2] for row in decided(spark, tmp_path)] == [("paid", "completed")]
    told = late(spark, tmp_path)
    assert [name for name, _ in told] == ["ancient", "impossible", "y"]
    assert all(reason.endswith("is not between the years 1 and 9999") for _, reason in told)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--format", "kafka"), "topics need --bootstrap-servers"),
        (("--format", "kafka", "--bootstrap-servers", "localhost:9"), "add --packages org.apache.spark:spark-sql-kafka-0-10"),
        ((), "PATH_NOT_FOUND"),
    ],
)
def test_an_input_that_cannot_be_read_is_refused_and_leaves_no_checkpoint(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    complaint: str,
) -> None:
    monkeypatch.setattr(_command, "spark_session", lambda *_, **__: nullcontext(spark))
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    assert main(["stream", *arguments(tmp_path, *options)]) == 1

    said = capsys.readouterr().err
    assert said.startswith("cannot stream: ") and complaint in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("rows_are_in", ["json", "parquet"])
def test_the_name_of_a_folder_is_no_pattern(spark: SparkSession, tmp_path: Path, rows_are_in: str) -> None:
    folder, decoy = tmp_path / "a[1] {x,y}*?", tmp_path / "a1 xyz"
    for each, name in ((folder, "mine"), (decoy, "another")):
        each.mkdir()
        put(each, "operations", waits(name, 1, 20, "x"), waits(f"{name}, unpaid", 2, 30, "y"))
        put(each, "signals", happens("x", 5), happens("z", 40))
        if rows_are_in == "parquet":
            as_parquet(each, {"operations": OPERATIONS, "signals": SIGNALS})

    assert run(spark, folder, "--format", rows_are_in) == 0

    assert [row[:2] for row in decided(spark, folder)] == [("mine", "completed"), ("mine, unpaid", "expired")]
    assert reconcile(str(folder / "checkpoint"), spark).registered == 2


def as_parquet(folder: Path, schemas: dict[str, StructType]) -> None:
    """Writes the rows that were put there as Parquet instead."""
    for name, schema in schemas.items():
        (file,) = (folder / name).iterdir()
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        instants = {field.name for field in schema if field.dataType == TimestampType()}
        columns = {
            field.name: [datetime.fromisoformat(row[field.name]) if field.name in instants else row[field.name] for row in rows]
            for field in schema
        }
        pq.write_table(pa.table(columns), file.with_suffix(".parquet"), coerce_timestamps="us")
        file.unlink()


def test_folders_that_a_pattern_would_not_find_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "a[1]"
    with pytest.raises(AnalysisException, match="PATH_NOT_FOUND"):
        run(spark, folder, "--format", "json")
    with pytest.raises(ValueError, match=r"with --out-topic, the name of --out must have none of \* \? \[ \] \{ \} and \\"):
        run(spark, folder, "--format", "json", "--out-topic", "outcomes")

    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_outcomes_is_refused_to_another_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path, "operations", waits("first", 1, 20, "x"))
    put(tmp_path, "signals", happens("z", 40))
    assert run(spark, tmp_path, "--format", "json") == run(spark, tmp_path, "--format", "json") == 0
    out, checkpoint, another = (str(tmp_path / name) for name in ("out", "checkpoint", "another"))

    with pytest.raises(ValueError, match=f"^the outcomes in {out} are of another checkpoint than {another}: go on"):
        run(spark, tmp_path, "--format", "json", "--checkpoint", another)

    assert not Path(another).exists()
    check_out(another, checkpoint)
    check_out(out, "hdfs://nobody/knows")


def test_a_file_counts_however_old_it_is_and_what_is_broken_is_told(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("operations", "signals"):
        (tmp_path / name).mkdir()
    assert run(spark, tmp_path, "--format", "json") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "nothing has come in yet"

    put(tmp_path, "operations", {"operation_id": "broken"})
    assert run(spark, tmp_path, "--format", "json") == 0
    assert "1 operations = 0 completed + 0 expired + 0 pending + 1 late: nothing is missing" in capsys.readouterr().out

    put(tmp_path, "operations", waits("restored", 1, 20, "x"))
    put(tmp_path, "signals", happens("x", 5))
    for name in ("operations/1.json", "signals/0.json"):
        os.utime(tmp_path / name, (1_000_000_000, 1_000_000_000))  # years before the file that was read
    assert run(spark, tmp_path, "--format", "json") == 0
    assert [row[:2] for row in decided(spark, tmp_path)] == [("restored", "completed")]


def test_what_ended_a_query_is_told_in_one_line_without_what_spark_puts_around_it() -> None:
    error = StreamingQueryException(
        "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [PARQUET_COLUMN_DATA_TYPE_MISMATCH] Error while "
        "reading file:///a.parquet. Expected string, actual DOUBLE. SQLSTATE: KD001 SQLSTATE: XXKST\n=== Streaming Query ===\n"
    )

    assert _command._brief(error) == (
        "[PARQUET_COLUMN_DATA_TYPE_MISMATCH] Error while reading file:///a.parquet. Expected string, actual DOUBLE."
    )
    assert _command._brief(ValueError("as it is")) == "as it is"


def test_a_missing_checkpoint_fits_any_number_of_shards_and_has_nothing_to_reconcile(
    spark: SparkSession, tmp_path: Path
) -> None:
    check_shards(spark, str(tmp_path / "none"), 3)

    with pytest.raises(ValueError, match="no batch was committed"):
        reconcile(str(tmp_path / "none"), spark)


def test_a_checkpoint_whose_state_cannot_be_read_elsewhere_is_refused_with_what_is_wrong(
    spark: SparkSession,
) -> None:
    with pytest.raises(ValueError, match=r"'hdfs://host/a #b': choose a name without ' ' '#'"):
        reconcile("hdfs://host/a #b", spark)


def test_a_stream_without_what_is_needed_is_refused_by_the_name_of_the_column(spark: SparkSession, tmp_path: Path) -> None:
    read = spark.readStream
    operations, signals = read.schema(OPERATIONS).json(str(tmp_path)), read.schema(SIGNALS).json(str(tmp_path))

    with pytest.raises(ValueError, match="signals lacks the column 'value'"):
        outcomes(operations, signals.drop("value"))
    with pytest.raises(ValueError, match="'value' must be bigint, not string"):
        outcomes(operations, signals.selectExpr("key", "string(value) AS value", "at"))
    with pytest.raises(ValueError, match="operations must be a streaming DataFrame"):
        outcomes(spark.createDataFrame([], OPERATIONS), signals)
    with pytest.raises(ValueError, match="shards must be at least 1, not 0"):
        outcomes(operations, signals, shards=0)
    with pytest.raises(ValueError, match="delay must be zero or more seconds, not nan"):
        outcomes(operations, signals, delay=float("nan"))
    narrow = outcomes(operations, signals.selectExpr("key", "int(value) AS value", "at"))
    assert narrow.schema == streaming.OUTCOMES and narrow.isStreaming


def test_a_query_that_fails_takes_the_one_that_sends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the next try could not send: Spark allows one query for each checkpoint."""
    deciding, sending = MagicMock(), MagicMock()
    deciding.awaitTermination.side_effect = StreamingQueryException("the disk is full")
    monkeypatch.setattr(Job, "_start", lambda *_: deciding)
    monkeypatch.setattr(Job, "_send", lambda _: sending)
    options = argparse.Namespace(out="out", checkpoint="checkpoint", every=0.0, out_topic="outcomes", available_now=False)

    with pytest.raises(StreamingQueryException, match="disk"):
        Job(MagicMock(), options, threading.Event())._follow(MagicMock())

    sending.stop.assert_called_once_with()


def test_a_query_whose_worker_was_too_slow_to_start_is_started_again_a_few_times(
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
    assert tries == ["query"] * 2 and "once more" in capsys.readouterr().out

    errors = iter([StreamingQueryException("the disk is full")])
    with pytest.raises(StreamingQueryException, match="disk"):
        job._decide("query")

    errors = (StreamingQueryException("failed to connect back") for _ in range(99))
    with pytest.raises(StreamingQueryException, match="connect"):
        job._decide("query")
    assert len(tries) == 3 + _job.STARTS
