"""The stream job: its outcomes are those of the definition, under all faults."""

import json
import os
import re
import runpy
import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from orders import START, traffic, write
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from readme_blocks import ROOT
from shards import outcomes_of_traffic
from streams import (
    DELAY,
    arguments,
    decided,
    happens,
    late,
    line_with,
    put,
    run,
    running,
    started,
    until,
    waits,
)

from purgatory.metrics import StreamMeter
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
from purgatory.pipeline.streaming._dashboard import dashboard, meter_of
from purgatory.pipeline.streaming._outcomes import spark_hash

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_killed_stream_decides_as_the_definition(spark, tmp_path):
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


def test_stopped_stream_ends_between_two_batches(spark, tmp_path, monkeypatch, capsys):
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
    spark, tmp_path, monkeypatch, capsys, options, complaint
):
    monkeypatch.setattr(_command, "spark_session", lambda *_, **__: nullcontext(spark))
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    assert main(["stream", *arguments(tmp_path, *options)]) == 1

    said = capsys.readouterr().err
    assert said.startswith("cannot stream: ") and complaint in said
    assert list(tmp_path.iterdir()) == []


def test_earlier_signal_takes_nothing_back_at_once(spark, tmp_path):
    put(tmp_path, "operations", waits("a", 1, 600, "x"))
    for number, second in enumerate((50, 10)):
        put(tmp_path, "signals", happens("x", second))
        os.utime(tmp_path / "signals" / f"{number}.json", (number, number))

    assert run(spark, tmp_path, "--format", "json", "--files-per-batch", "1", "--at-once") == 0

    assert [row[2] for row in decided(spark, tmp_path)] == [START + 50_000_000]


def test_outcomes_of_another_checkpoint_are_refused(spark, tmp_path):
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


def test_files_older_than_those_read_count(spark, tmp_path, capsys):
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


REFUSED = {
    "signals lacks the column 'value'": lambda operations, signals: outcomes(
        operations, signals.drop("value")
    ),
    "'value' must be bigint, got string": lambda operations, signals: outcomes(
        operations, signals.withColumn("value", F.lit("1"))
    ),
    "operations must be a streaming DataFrame": lambda operations, signals: outcomes(
        operations.sparkSession.createDataFrame([], OPERATIONS), signals
    ),
    "shards must be at least 1, got 0": partial(outcomes, shards=0),
    "delay must be zero or more seconds, got nan": partial(outcomes, delay=float("nan")),
    "multipleWatermarkPolicy must be min, got max": outcomes,
    "'hdfs://host/a #b': choose a name without ' ' '#'": lambda operations, _: reconcile(
        "hdfs://host/a #b", operations.sparkSession
    ),
    "--out with --out-topic must have none of": lambda operations, _: run(
        operations.sparkSession, Path("a[1]"), "--out-topic=outcomes"
    ),
    "--signals must have none of": lambda operations, _: run(
        operations.sparkSession, Path("a"), r"--signals=a\1"
    ),
}


@pytest.mark.parametrize("complaint", REFUSED)
def test_unsuitable_argument_is_refused(complaint, spark, tmp_path):
    session = spark.newSession()
    if "Policy" in complaint:
        session.conf.set("spark.sql.streaming.multipleWatermarkPolicy", "max")
    streams = [
        session.readStream.schema(schema).json(str(tmp_path)) for schema in (OPERATIONS, SIGNALS)
    ]

    with pytest.raises(ValueError, match=complaint):
        REFUSED[complaint](*streams)


def test_shards_have_partitions_of_their_own(spark):
    numbers = [0, 1, 7, 2**31 - 1, -1]
    row = spark.range(1).select(*(F.hash(F.lit(number)) for number in numbers)).head()

    assert row is not None and [*row] == list(map(spark_hash, numbers))


def test_example_prints_what_its_docstring_shows(spark, capsys, monkeypatch):
    monkeypatch.setenv("TZ", "UTC")  # in which collected instants are shown
    example = runpy.run_path(str(ROOT / "examples" / "stream_orders.py"))
    shown = example["__doc__"].partition("    after the first")

    example["show"](spark)

    expected = dedent((shown[1] + shown[2]).partition("\n\n")[0])
    assert capsys.readouterr().out.strip() == expected.strip()


TIMEOUT = 300.0
"""Seconds that an answer may take while Spark has the machine."""


def answer(url: str) -> bytes:
    with urlopen(url, timeout=TIMEOUT) as found:
        return bytes(found.read())


def told(url: str) -> dict[str, Any]:
    """What the page is told of the stream."""
    found: dict[str, Any] = json.loads(answer(f"{url}state"))["stream"]
    return found


def test_running_stream_is_scraped_until_its_end(spark, tmp_path, monkeypatch):
    late = waits("later", 60, 500, "q")  # takes the watermark there
    paid, unpaid = waits("paid", 1, 20, "x"), waits("unpaid", 1, 20, "y")
    put(tmp_path, "operations", paid, unpaid, waits("patient", 1, 500, "y"), late)
    put(tmp_path, "signals", happens("x", 5), happens("z", 60))
    urls: list[str] = []

    @contextmanager
    def noted(meter: StreamMeter, where: tuple[str, int]) -> Iterator[str]:
        with dashboard(meter, where) as url:
            urls.append(url)
            yield url

    monkeypatch.setattr(_job, "dashboard", noted)
    more = ("--format", "json", "--serve", "127.0.0.1:0", "--idle", "never")
    with running(spark, tmp_path, *more) as job:
        until(lambda: bool(urls) or not job.is_alive())
        until(lambda: told(urls[0])["expired"] == 1)
        put(tmp_path, "operations", {"operation_id": "broken"})
        put(tmp_path, "signals", happens("y", 30))
        until(lambda: (now := told(urls[0]))["late"] == 1 and now["completed"] == 2)
        now, metrics = told(urls[0]), answer(f"{urls[0]}metrics").decode()
        assert b"<title>purgatory</title>" in answer(urls[0])

    # "patient" is completed by the late signal
    assert [now[name] for name in ("completed", "expired", "late", "pending")] == [2, 1, 1, 1]
    assert (now["rows"], now["name"]) == (8, "checkpoint") and now["batches"] >= 2
    assert now["watermark"] > 0 < now["stateRows"]
    assert 'purgatory_stream_late_signals_total{stream="checkpoint"} 1.0' in metrics
    with pytest.raises(URLError):
        urlopen(urls.pop(), timeout=TIMEOUT)
    again = meter_of("again", spark, str(tmp_path / "checkpoint")).statistics()
    assert (again.completed, again.expired, again.late, again.pending) == (2, 1, 1, 1)


# Parquet files of other types


OPERATION = {
    "operation_id": 7,
    "requirements": [{"key": 3, "threshold": 1}],
    "mode": "all",
    "registered_at": START + 1_000_000,
    "deadline": START + 20_000_000,
}
FAR = 300_000_000_000_000_000  # in 11476; the opposite is long before the year 1
SIGNAL = {"key": 3, "value": 1, "at": START + 5_000_000}
WANTED = pa.list_(pa.struct({"threshold": pa.int16(), "key": pa.int32()}))
LONG, MICROS = pa.int64(), pa.timestamp("us", "UTC")
TYPES = {
    "operations": {"operation_id": LONG, "requirements": WANTED, "mode": pa.string(),
                   "registered_at": MICROS, "deadline": MICROS},
    "signals": {"key": pa.uint64(), "value": LONG, "at": MICROS},
}  # fmt: skip


def put_row(folder: Path, name: str, row: dict[str, Any], file: str = "x", **types: Any) -> Path:
    """One row, with columns of these types, or without one."""
    (folder / name).mkdir(exist_ok=True)
    columns = {
        column: pa.array([row[column]]).cast(type_)
        for column, type_ in (TYPES[name] | types).items()
        if type_ is not None
    }
    pq.write_table(pa.table(columns), folder / name / f"{file}.parquet")
    return folder / name / f"{file}.parquet"


def test_other_types_are_cast_and_impossible_instants_late(spark, tmp_path):
    naive = {"registered_at": pa.timestamp("us"), "deadline": pa.timestamp("us", "Asia/Tokyo")}
    put_row(tmp_path, "operations", OPERATION, "100%", operation_id=pa.int32(), **naive)
    put_row(tmp_path, "operations", OPERATION | {"operation_id": 8})
    put_row(tmp_path, "signals", SIGNAL, value=pa.int8())
    put_row(tmp_path, "signals", SIGNAL | {"at": START + 60_000_000}, "more")
    put_row(tmp_path, "signals", SIGNAL | {"key": 4, "at": FAR}, "far")
    for name, at in ((9, FAR), (10, -FAR)):
        row = OPERATION | {"operation_id": name, "registered_at": at, "deadline": FAR}
        put_row(tmp_path, "operations", row, f"{name}")

    assert run(spark, tmp_path) == 0

    assert decided(spark, tmp_path) == [
        (name, "completed", START + 5_000_000, ("3",)) for name in ("7", "8")
    ]
    found = late(spark, tmp_path)
    assert [name for name, _ in found] == ["10", "4", "9"]
    assert all(reason.endswith("is not between the years 1 and 9999") for _, reason in found)


@pytest.mark.parametrize(
    ("types", "complaint"),
    [
        (
            {"operation_id": pa.float64()},
            "operations: the column 'operation_id' must be string, got double",
        ),
        ({"mode": None}, "operations lacks the column 'mode'"),
        ({"deadline": pa.timestamp("ns")}, "TIMESTAMP(NANOS"),
        ({}, "x.parquet"),
    ],
)
def test_lossy_type_or_damage_is_refused_without_checkpoint(spark, tmp_path, types, complaint):
    file = put_row(tmp_path, "operations", OPERATION, **types)
    if not types:
        file.write_bytes(b"PAR1 and no more")
    put_row(tmp_path, "signals", SIGNAL)

    with pytest.raises((ValueError, PySparkException), match=re.escape(complaint)):
        run(spark, tmp_path)

    assert not (tmp_path / "checkpoint" / "offsets").exists()
