"""The stream job: its outcomes are those of the definition, under all faults."""

import os
import runpy
import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from orders import START, traffic, write
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from readme_blocks import ROOT
from shards import outcomes_of_traffic
from streams import (
    DELAY,
    NOON,
    arguments,
    decided,
    happens,
    late,
    line_with,
    put,
    run,
    started,
    waits,
)

from purgatory.pipeline import streaming
from purgatory.pipeline._command_line import main
from purgatory.pipeline.streaming import (
    OPERATIONS,
    SIGNALS,
    _command,
    _job,
    check_out,
    outcomes,
    reconcile,
)
from purgatory.pipeline.streaming._outcomes import spark_hash

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_killed_stream_decides_as_the_definition(spark: SparkSession, tmp_path: Path) -> None:
    made = traffic(200, 600, seconds=90, keys=20)
    write(made, tmp_path, files=3, disorder=DELAY - 1)
    more = ("--delay", str(DELAY), "--files-per-batch", "1")
    with started(tmp_path, *arguments(tmp_path, *more)) as job:
        assert "batch 0" in line_with(job, "batch")
        os.killpg(job.pid, signal.SIGKILL)

    assert run(spark, tmp_path, *more) == 0

    newest = max(made.operations[-1][3], made.signals[-1][2])
    assert decided(spark, tmp_path) == [
        row for row in outcomes_of_traffic(made) if row[2] <= newest
    ]
    account = reconcile(str(tmp_path / "checkpoint"), spark)
    assert (account.missing, account.late, account.late_signals) == (0, 0, 0)
    assert account.registered == len(made.operations)
    assert account.pending == len(made.operations) - len(decided(spark, tmp_path))


def test_stopped_stream_ends_between_two_batches(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    put(tmp_path, "operations", waits("paid", 1, 20, "x"))
    put(tmp_path, "signals", happens("x", 5))

    @contextmanager
    def session(*_: Any, **__: Any) -> Iterator[SparkSession]:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # as Spark when it starts
        yield spark

    monkeypatch.setattr(_command, "spark_session", session)
    monkeypatch.setattr(_job, "_describe", lambda _: str(os.kill(os.getpid(), signal.SIGINT)))
    handlers = [(number, signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT)]
    try:
        assert main(["stream", *arguments(tmp_path, "--format", "json")]) == 0
    finally:
        for number, handler in handlers:
            signal.signal(number, handler)

    assert "1 operations = 0 completed + 0 expired + 1 pending + 0 late: nothing is missing" in (
        said := capsys.readouterr().out
    )
    assert f"continue from {tmp_path / 'checkpoint'}" in said
    assert spark.streams.active == []
    assert spark.conf.get(_command.CHECKPOINT_FILES) == _command.WITHOUT_PROCESSES
    spark.conf.unset(_command.CHECKPOINT_FILES)


def test_impossible_instant_is_late_and_moves_no_watermark(
    spark: SparkSession, tmp_path: Path
) -> None:
    far, old = (
        F.timestamp_micros(F.lit(sign * 300_000_000_000_000_000)) for sign in (1, -1)
    )  # in 11476, and long before 1
    at = [datetime.fromtimestamp(NOON + number, UTC) for number in (1, 5, 20, 60)]
    sound = spark.createDataFrame([("paid", [("x", 1)], "all", at[0], at[2])], OPERATIONS)
    sound.write.parquet(str(tmp_path / "operations"))
    impossible = sound.withColumns(
        {"operation_id": F.lit("impossible"), "registered_at": far, "deadline": far}
    )
    ancient = impossible.withColumns({"operation_id": F.lit("ancient"), "registered_at": old})
    impossible.union(ancient).write.mode("append").parquet(str(tmp_path / "operations"))
    signals = spark.createDataFrame([("x", 1, at[1]), ("z", 1, at[3])], SIGNALS)
    signals.write.parquet(str(tmp_path / "signals"))
    signals.limit(1).withColumns({"key": F.lit("y"), "at": far}).write.mode("append").parquet(
        str(tmp_path / "signals")
    )

    assert run(spark, tmp_path) == 0

    assert [row[:2] for row in decided(spark, tmp_path)] == [("paid", "completed")]
    told = late(spark, tmp_path)
    assert [name for name, _ in told] == ["ancient", "impossible", "y"]
    assert all(reason.endswith("is not between the years 1 and 9999") for _, reason in told)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--format", "kafka"), "topics need --bootstrap-servers"),
        (
            ("--format", "kafka", "--bootstrap-servers", "localhost:9"),
            "add --packages org.apache.spark:spark-sql-kafka-0-10",
        ),
        ((), "PATH_NOT_FOUND"),
    ],
)
def test_unreadable_input_is_refused_without_a_checkpoint(
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


def test_earlier_signal_takes_nothing_back_at_once(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path, "operations", waits("a", 1, 600, "x"))
    for number, second in enumerate((50, 10)):
        put(tmp_path, "signals", happens("x", second))
        os.utime(tmp_path / "signals" / f"{number}.json", (number, number))

    assert run(spark, tmp_path, "--format", "json", "--files-per-batch", "1", "--at-once") == 0

    assert [row[2] for row in decided(spark, tmp_path)] == [START + 50_000_000]


def test_topic_needs_out_without_pattern_characters(spark: SparkSession, tmp_path: Path) -> None:
    names = r"with --out-topic, the name of --out must have none of \* \? \[ \] \{ \} and \\"
    with pytest.raises(ValueError, match=names):
        run(spark, tmp_path / "a[1]", "--format", "json", "--out-topic", "outcomes")

    assert list(tmp_path.iterdir()) == []


def test_outcomes_of_another_checkpoint_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path, "operations", waits("first", 1, 20, "x"))
    put(tmp_path, "signals", happens("z", 40))
    assert run(spark, tmp_path, "--format", "json") == run(spark, tmp_path, "--format", "json") == 0
    out, checkpoint, another = (str(tmp_path / name) for name in ("out", "checkpoint", "another"))

    with pytest.raises(
        ValueError,
        match=f"^the outcomes in {out} are of another checkpoint than {another}: continue",
    ):
        run(spark, tmp_path, "--format", "json", "--checkpoint", another)

    assert not Path(another).exists()
    check_out(another, checkpoint, spark)
    with pytest.raises(ValueError, match="are of another checkpoint"):
        check_out(f"file://{out}", f"file://{another}", spark)


def test_files_older_than_those_read_count(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("operations", "signals"):
        (tmp_path / name).mkdir()
    assert run(spark, tmp_path, "--format", "json") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "no rows yet"

    put(tmp_path, "operations", waits("earlier", 1, 20, "x"))
    assert run(spark, tmp_path, "--format", "json") == 0
    put(tmp_path, "operations", waits("restored", 1, 20, "x"))
    put(tmp_path, "signals", happens("x", 5))
    for name in ("operations/1.json", "signals/0.json"):
        os.utime(
            tmp_path / name, (1_000_000_000, 1_000_000_000)
        )  # years before the file that was read
    assert run(spark, tmp_path, "--format", "json") == 0
    assert ("restored", "completed") in [row[:2] for row in decided(spark, tmp_path)]


def test_unsuitable_columns_are_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    read = spark.readStream
    operations, signals = (
        read.schema(OPERATIONS).json(str(tmp_path)),
        read.schema(SIGNALS).json(str(tmp_path)),
    )

    with pytest.raises(ValueError, match="signals lacks the column 'value'"):
        outcomes(operations, signals.drop("value"))
    with pytest.raises(ValueError, match="'value' must be bigint, got string"):
        outcomes(operations, signals.selectExpr("key", "string(value) AS value", "at"))
    with pytest.raises(ValueError, match="operations must be a streaming DataFrame"):
        outcomes(spark.createDataFrame([], OPERATIONS), signals)
    with pytest.raises(ValueError, match="shards must be at least 1, got 0"):
        outcomes(operations, signals, shards=0)
    with pytest.raises(ValueError, match="delay must be zero or more seconds, got nan"):
        outcomes(operations, signals, delay=float("nan"))
    narrow = outcomes(operations, signals.selectExpr("key", "int(value) AS value", "at"))
    assert narrow.schema == streaming.OUTCOMES and narrow.isStreaming


def test_shards_have_partitions_of_their_own(spark: SparkSession) -> None:
    numbers = [0, 1, 7, 2**31 - 1, -1]
    row = spark.range(1).select(*(F.hash(F.lit(number)) for number in numbers)).head()

    assert row is not None and [*row] == list(map(spark_hash, numbers))


def test_session_whose_fastest_input_counts_is_refused(spark: SparkSession) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.streaming.multipleWatermarkPolicy", "max")
    rows = session.readStream.format("rate").load()

    with pytest.raises(ValueError, match="multipleWatermarkPolicy must be min, got max"):
        outcomes(rows, rows)


def test_unreadable_checkpoint_name_is_refused_with_its_characters(spark: SparkSession) -> None:
    with pytest.raises(ValueError, match=r"'hdfs://host/a #b': choose a name without ' ' '#'"):
        reconcile("hdfs://host/a #b", spark)


def test_example_prints_what_its_docstring_shows(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "UTC")  # in which collected instants are shown
    example = runpy.run_path(str(ROOT / "examples" / "stream_orders.py"))
    shown = example["__doc__"].partition("    after the first")

    example["show"](spark)

    expected = dedent((shown[1] + shown[2]).partition("\n\n")[0])
    assert capsys.readouterr().out.strip() == expected.strip()
