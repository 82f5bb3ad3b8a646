"""`stream` on topics of Kafka, as a process; confluent-kafka fills and reads them."""

import json
import os
import random
import signal
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, closing
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import oracle
import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from kafka_server import KafkaServer, connector, kafka_server
from maven import Unavailable
from orders import SECOND, START, Row, Traffic, traffic
from pyspark.sql import SparkSession
from requirements import unavailable
from shards import outcomes_of_traffic
from streams import decided, happens, line_with, started, until, waits

from purgatory.pipeline.streaming import reconcile

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

QUIET = {"log_level": 0}
TIMEOUT = 600.0
"""Seconds that anything may take: starting Spark, a batch, an answer of Kafka. Nothing depends on
how long it takes."""


def make_topics(address: str, partitions: int, *names: str) -> None:
    admin = AdminClient({"bootstrap.servers": address, **QUIET})
    for made in admin.create_topics([NewTopic(name, partitions, 1) for name in names]).values():
        made.result(TIMEOUT)


def add_partitions(address: str, total: int, *names: str) -> None:
    admin = AdminClient({"bootstrap.servers": address, **QUIET})
    for made in admin.create_partitions([NewPartitions(name, total) for name in names]).values():
        made.result(TIMEOUT)
    # The broker knows them a little later. Until then it refuses records for them.
    for name in names:
        until(lambda name=name: len(admin.list_topics(name).topics[name].partitions) == total)


def operation(
    operation_id: str, requirements: Iterable[tuple[str, int]], mode: str, at: int, until: int
) -> bytes:
    """The value of a record; instants are in microseconds."""
    wanted = [{"key": key, "threshold": threshold} for key, threshold in requirements]
    row = waits(operation_id, at / SECOND, until / SECOND, since=0)
    return json.dumps(row | {"requirements": wanted, "mode": mode}).encode()


def happening(key: str, value: int, at: int) -> bytes:
    """The value of a record of a signal."""
    return json.dumps(happens(key, at / SECOND, value, since=0)).encode()


def send(address: str, topic: str, records: Iterable[tuple[int, bytes | None]]) -> list[int]:
    """Produces records to partitions, and waits until Kafka has them. Returns their offsets."""
    offsets: dict[int, int] = {}
    # With idempotence, since otherwise records sent again after an error come after later ones.
    settings = {"bootstrap.servers": address, "linger.ms": 5, "enable.idempotence": True}
    producer = Producer({**settings, **QUIET})

    def delivered(number: int, error: Any, message: Any) -> None:
        if error is not None:
            raise KafkaException(error)
        offsets[number] = message.offset()

    for number, (partition, value) in enumerate(records):
        answer = partial(delivered, number)
        producer.produce(topic, value, partition=partition, on_delivery=answer)
        producer.poll(0)
    assert producer.flush(TIMEOUT) == 0
    return [offset for _, offset in sorted(offsets.items())]


def send_traffic(address: str, made: Traffic) -> None:
    """Fills the topics `operations` and `signals`, of two partitions, by the order of arrival: up to
    5 seconds after the event."""
    chance = random.Random(7)
    for topic, rows, when in (("operations", made.operations, 3), ("signals", made.signals, 2)):
        arrived = sorted((row[when] + chance.random() * 5.0 * SECOND, row) for row in rows)
        encode = operation if topic == "operations" else happening
        records = ((number % 2, encode(*row)) for number, (_, row) in enumerate(arrived))
        send(address, topic, records)


def records_of(address: str, topic: str) -> list[tuple[str | None, dict[str, Any]]]:
    """Keys and values, which are JSON, of all records that are in `topic` now."""
    settings = {"bootstrap.servers": address, "group.id": "reader", "enable.partition.eof": True}
    with closing(Consumer({**settings, **QUIET})) as consumer:
        left = {*consumer.list_topics(topic, TIMEOUT).topics[topic].partitions}
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in left])
        found = []
        while left:
            message = consumer.poll(TIMEOUT)
            assert message is not None, f"no record of {topic} came"
            if message.error() is None:
                key = message.key() and message.key().decode()
                found.append((key, json.loads(message.value())))
            elif message.error().code() == KafkaError._PARTITION_EOF:
                left.discard(message.partition())
        return found


def decisions(records: list[tuple[str | None, dict[str, Any]]]) -> set[Row]:
    """The outcomes that a reader of the topic has at the end, without copies."""
    rows = set()
    for key, value in records:
        if value["outcome"] != "late":
            assert key == value["operation_id"]
            at = oracle.micros(datetime.fromisoformat(value["decided_at"]))
            rows.add((key, value["outcome"], at, tuple(value["satisfied_keys"])))
    return rows


def streaming(
    folder: Path, address: str, *more: str
) -> "AbstractContextManager[subprocess.Popen[str]]":
    """`stream` on the topics as a process of its own, with its folders in `folder`."""
    places = [f"--{name}={folder / name}" for name in ("out", "checkpoint")]
    topics = ["--operations=operations", "--signals=signals", "--out-topic=outcomes"]
    kafka = ["--format=kafka", f"--bootstrap-servers={address}", "--shards=2"]
    jars = f"--jars={','.join(map(str, connector()))}"
    return started(folder, *places, *topics, *kafka, jars, *more)


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


def test_killed_stream_has_each_outcome_in_files_once(spark, kafka, tmp_path):
    address = kafka.address
    made = traffic(200, 600, seconds=90, keys=20)
    make_topics(address, 2, "operations", "signals", "outcomes")
    (tombstone,) = send(address, "operations", [(1, None)])
    (garbage,) = send(address, "signals", [(0, b'{"key": "k1", "value": "much"}')])
    send_traffic(address, made)
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


def test_stream_outlives_broker_restart_and_reads_added_partitions(spark, kafka, tmp_path):
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


def test_missing_topic_and_silent_broker_are_refused(kafka, tmp_path):
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
