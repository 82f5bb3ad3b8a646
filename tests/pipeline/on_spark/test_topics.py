"""`stream` on topics of Kafka, filled and read by confluent-kafka."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka_server import KafkaServer, connector, kafka_server
from maven import Unavailable
from orders import START, traffic
from pyspark.sql import SparkSession
from requirements import unavailable
from shards import outcomes_of_traffic
from streams import decided, line_with, until
from topics import (
    TIMEOUT,
    add_partitions,
    decisions,
    happening,
    make_topics,
    operation,
    records_of,
    send,
    send_traffic,
    streaming,
)

from purgatory.pipeline.streaming import reconcile

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture
def kafka(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    try:
        connector()
        with kafka_server(tmp_path_factory.mktemp("kafka")) as server:
            yield server
    except Unavailable as error:
        unavailable(str(error))


CANNOT_CONNECT = "could not be established. Node may not be available."
"""What Kafka's client logs, in Spark, when its broker is gone."""


def at(second: float) -> int:
    return START + round(second * 1_000_000)


def where(rows: list[Any]) -> list[tuple[Any, ...]]:
    return sorted((row.topic, row.partition, row.offset, row.reason.split(":")[0]) for row in rows)


def test_killed_stream_has_each_outcome_in_files_once(
    spark: SparkSession, kafka: KafkaServer, tmp_path: Path
) -> None:
    address = kafka.address
    made = traffic(200, 600, seconds=90, keys=20)
    make_topics(address, 2, "operations", "signals", "outcomes")
    (tombstone,) = send(address, "operations", [(1, None)])
    (garbage,) = send(address, "signals", [(0, b'{"key": "k1", "value": "much"}')])
    send_traffic(address, made, partitions=2)
    more = ("--delay", "6", "--records-per-batch", "300", "--available-now")
    with streaming(tmp_path, address, *more) as job:
        assert "batch 0" in line_with(job, "batch")
        os.killpg(job.pid, signal.SIGKILL)

    with streaming(tmp_path, address, *more) as job:
        said = job.communicate(timeout=TIMEOUT)[0]
    assert job.returncode == 0, said + (tmp_path / "log").read_text()[-2000:]

    newest = max(made.operations[-1][3], made.signals[-1][2])
    expected = [row for row in outcomes_of_traffic(made) if row[2] <= newest]
    assert decided(spark, tmp_path) == expected
    assert decisions(records_of(address, "outcomes")) == set(expected)
    late = spark.read.parquet(str(tmp_path / "out")).where("outcome = 'late'").collect()
    what = "it is not JSON with key string, value bigint, at timestamp"
    assert where(late) == [
        ("operations", 1, tombstone, "it has no value"),
        ("signals", 0, garbage, what),
    ]
    account = reconcile(str(tmp_path / "checkpoint"), spark)
    assert (account.missing, account.late, account.late_signals) == (0, 1, 1)
    assert account.registered == len(made.operations) + 1


def test_stream_outlives_broker_restart_and_reads_added_partitions(
    spark: SparkSession, kafka: KafkaServer, tmp_path: Path
) -> None:
    make_topics(kafka.address, 1, "operations", "signals", "outcomes")
    place, waits = kafka.address, operation
    send(place, "operations", [(0, waits("first", [("x", 1)], "all", at(1), at(500)))])
    send(place, "signals", [(0, happening("x", 1, at(5))), (0, happening("z", 1, at(60)))])
    # Both streams have to move for the watermark to move.
    send(place, "operations", [(0, waits("second", [("y", 1)], "all", at(61), at(62)))])
    with streaming(tmp_path, kafka.address, "--delay=1", "--idle=never", "--verbose") as job:
        until(lambda: job.poll() is not None or [row[0] for row in in_topic(kafka)] == ["first"])
        kafka.stop()
        until(lambda: job.poll() is not None or CANNOT_CONNECT in (tmp_path / "log").read_text())
        kafka.start()
        add_partitions(kafka.address, 3, "operations", "signals")
        send(place, "operations", [(2, waits("third", [("y", 2)], "all", at(70), at(300)))])
        send(place, "signals", [(1, happening("y", 2, at(90))), (2, happening("z", 2, at(120)))])
        send(place, "operations", [(1, waits("fourth", [("y", 3)], "all", at(121), at(300)))])
        until(lambda: job.poll() is not None or len(in_topic(kafka)) == 3)
        job.terminate()
        said = job.communicate(timeout=TIMEOUT)[0]

    assert job.returncode == 0, said + (tmp_path / "log").read_text()[-2000:]
    expected = [
        ("first", "completed", at(5), ("x",)),
        ("second", "expired", at(62), ()),
        ("third", "completed", at(90), ("y",)),
    ]
    assert in_topic(kafka) == decided(spark, tmp_path) == expected
    assert "4 operations = 2 completed + 1 expired + 1 pending + 0 late: nothing is missing" in said


def in_topic(kafka: KafkaServer) -> list[tuple[Any, ...]]:
    return sorted(decisions(records_of(kafka.address, "outcomes")))


def test_missing_topic_and_silent_broker_are_refused(kafka: KafkaServer, tmp_path: Path) -> None:
    make_topics(kafka.address, 1, "operations")
    with streaming(tmp_path, kafka.address, "--available-now") as job:
        job.communicate(timeout=TIMEOUT)
    assert job.returncode == 1

    kafka.stop()
    options = [
        f"--kafka-option=kafka.{name}.timeout.ms=2000" for name in ("request", "default.api")
    ]
    with streaming(tmp_path, kafka.address, "--available-now", *options) as job:
        job.communicate(timeout=TIMEOUT)
    assert job.returncode == 1

    assert [
        line
        for line in (tmp_path / "log").read_text().splitlines()
        if line.startswith("cannot stream")
    ] == [
        f"cannot stream: Kafka at {kafka.address} has no topic 'signals'",
        f"cannot stream: Kafka at {kafka.address} does not answer",
    ]
    assert [each.name for each in tmp_path.iterdir()] == ["log"]
