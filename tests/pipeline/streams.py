"""`stream` for tests: its folders, rows and processes, and its decisions."""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from purgatory.pipeline.streaming._command import add_arguments
from purgatory.pipeline.streaming._job import Job

JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A test ends before the better of Java's compilers would have paid."""
JAVA_FOR_TESTS = {"JAVA_TOOL_OPTIONS": JAVA_OPTIONS}
"""Of the environment of a process that starts Java."""
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp()
Row = dict[str, Any]
DELAY = 6.0
"""Seconds by which events may be out of order, as an option of `stream`."""


def arguments(folder: Path, *more: str) -> list[str]:
    names = ("operations", "signals", "out", "checkpoint")
    return [*(f"--{name}={folder / name}" for name in names), "--shards=2", *more]


def job_of(spark: SparkSession, folder: Path, *more: str) -> Job:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return Job(spark, parser.parse_args(arguments(folder, *more)), threading.Event())


def run(spark: SparkSession, folder: Path, *more: str) -> int:
    """The job in this process, until nothing is left to decide."""
    return job_of(spark, folder, "--available-now", *more).run()


@contextmanager
def running(spark: SparkSession, folder: Path, *more: str) -> Iterator[threading.Thread]:
    """The job in a thread of this process, until the end of the block; then it ends its batch."""
    job = job_of(spark, folder, *more)
    thread = threading.Thread(target=job.run)
    thread.start()
    try:
        yield thread
    finally:
        job.stop.set()
        thread.join()


def known(folder: Path) -> dict[str, str]:
    """The committed outcomes of operations so far, by id."""
    logs = (folder / "out" / "_spark_metadata").glob("[0-9]*")
    lines = [line for log in logs for line in log.read_text().splitlines()[1:]]
    found = {}
    for file in {Path(json.loads(line)["path"].removeprefix("file:")) for line in lines}:
        outcome = file.parent.name.removeprefix("outcome=")
        ids = pq.ParquetFile(file).read(["operation_id"])["operation_id"].to_pylist()
        found.update(dict.fromkeys(ids, outcome))
    return found


def decided(spark: SparkSession, folder: Path) -> list[tuple[Any, ...]]:
    rows = (
        spark.read.parquet(str(folder / "out"))
        .selectExpr("*", "unix_micros(decided_at) AS micros")
        .collect()
    )
    return sorted(
        (row.operation_id, row.outcome, row.micros, tuple(row.satisfied_keys))
        for row in rows
        if row.outcome != "late"
    )


def late(spark: SparkSession, folder: Path) -> list[tuple[Any, ...]]:
    rows = spark.read.parquet(str(folder / "out")).where("outcome = 'late'").collect()
    return sorted((str(row.operation_id or row.key), row.reason) for row in rows)


def instant(at: float) -> str:
    """Text of an instant, given in seconds."""
    return datetime.fromtimestamp(at, UTC).isoformat()


def put(folder: Path, name: str, *rows: Row) -> None:
    """A file, which a running stream finds whole."""
    (folder / name).mkdir(exist_ok=True)
    file = folder / name / f"{len(list((folder / name).iterdir()))}.json"
    hidden = folder / name / ".json"
    hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
    hidden.rename(file)


def waits(operation_id: str, at: float, until: float, *keys: str, since: float = NOON) -> Row:
    """An operation; instants are in seconds since noon of a day, or since another instant."""
    return {
        "operation_id": operation_id,
        "requirements": [{"key": key, "threshold": 1} for key in keys],
        "mode": "all",
        "registered_at": instant(since + at),
        "deadline": instant(since + until),
    }


def happens(key: str, at: float, value: int = 1, since: float = NOON) -> Row:
    return {"key": key, "value": value, "at": instant(since + at)}


@contextmanager
def started(folder: Path, *words: str) -> "Iterator[subprocess.Popen[str]]":
    """`stream` as a process of its own, with a log in `folder`; it is killed at the end of the block
    if it still runs."""
    command = [sys.executable, "-m", "purgatory.pipeline", "stream", *words, "--master=local[2]"]
    # From elsewhere: the workers get our code from us.
    options: dict[str, Any] = {"cwd": folder, "env": {**os.environ, **JAVA_FOR_TESTS}}
    with (folder / "log").open("a") as log:
        options |= {"stdout": subprocess.PIPE, "stderr": log, "text": True}
        job = subprocess.Popen(command, start_new_session=True, **options)
    try:
        yield job
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
        job.communicate()


def line_with(job: "subprocess.Popen[str]", word: str) -> str:
    assert job.stdout is not None
    for line in job.stdout:
        if word in line:
            return line
    raise AssertionError(f"it ended with {job.wait()}, and did not say {word!r}")


def until(condition: Callable[[], Any]) -> None:
    """Waits for a condition. The timeout of the test is the limit."""
    while not condition():
        time.sleep(0.2)
