"""`stream` on topics of Kafka, as a process; confluent-kafka fills and reads them."""

import json
import os
import signal
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, closing
from datetime import datetime
from pathlib import Path
from typing import Any

import oracle
import pyarrow.parquet as pq
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from kafka_server import KafkaServer, connector, kafka_server
from maven import Unavailable
from orders import START, Row, traffic, write
from ports import free_port
from requirements import unavailable
from shards import outcomes_of_traffic
from streams import JAVA_FOR_TESTS, decided, happens, line_with, started, until, waits

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


def send(address: str, topic: str, rows: Iterable[Any], partition: int | None = None) -> None:
    """Produces rows as JSON, to one of two partitions in turn unless it is given."""
    # With idempotence, since otherwise records sent again after an error come after later ones.
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, **QUIET})
    for number, row in enumerate(rows):
        value = None if row is None else json.dumps(row, default=datetime.isoformat)
        producer.produce(topic, value, partition=number % 2 if partition is None else partition)
    assert producer.flush(TIMEOUT) == 0


def in_topic(address: str) -> list[Row]:
    """The outcomes that a reader of the topic has, without copies."""
    settings = {"bootstrap.servers": address, "group.id": "reader", **QUIET}
    with closing(Consumer(settings)) as consumer:
        numbers = consumer.list_topics("outcomes", TIMEOUT).topics["outcomes"].partitions
        parts = [TopicPartition("outcomes", number, OFFSET_BEGINNING) for number in numbers]
        consumer.assign(parts)
        count = sum(consumer.get_watermark_offsets(part, TIMEOUT)[1] for part in parts)
        found = consumer.consume(count, TIMEOUT) if count else []
    assert len(found) == count
    rows = set()
    for message in found:
        value = json.loads(message.value())
        if value["outcome"] != "late":
            assert message.key().decode() == value["operation_id"]
            at = oracle.micros(datetime.fromisoformat(value["decided_at"]))
            rows.add((value["operation_id"], value["outcome"], at, tuple(value["satisfied_keys"])))
    return sorted(rows)


def words(folder: Path, address: str, *more: str) -> list[str]:
    """Options of `stream` on the topics, with its folders in `folder`."""
    places = [f"--{name}={folder / name}" for name in ("out", "checkpoint")]
    topics = ["--operations=operations", "--signals=signals", "--out-topic=outcomes"]
    kafka = ["--format=kafka", f"--bootstrap-servers={address}", "--shards=2"]
    return [*places, *topics, *kafka, f"--jars={','.join(map(str, connector()))}", *more]


def streaming(
    folder: Path, address: str, *more: str
) -> "AbstractContextManager[subprocess.Popen[str]]":
    return started(folder, *words(folder, address, *more))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    try:
        connector()
        with kafka_server(tmp_path_factory.mktemp("kafka")) as server:
            yield server
    except Unavailable as error:
        unavailable(str(error))


@pytest.fixture
def kafka(server: KafkaServer) -> Iterator[KafkaServer]:
    """Kafka without topics."""
    yield server
    admin = AdminClient({"bootstrap.servers": server.address, **QUIET})
    names = [name for name in admin.list_topics().topics if not name.startswith("_")]
    for deleted in admin.delete_topics(names).values():
        deleted.result(TIMEOUT)


CANNOT_CONNECT = "could not be established. Node may not be available."
"""What Kafka's client logs, in Spark, when its broker is gone."""


def test_killed_stream_has_each_outcome_in_files_once(spark, kafka, tmp_path):
    address = kafka.address
    made = traffic(200, 600, seconds=90, keys=20)
    make_topics(address, 2, "operations", "signals", "outcomes")
    send(address, "operations", [None], 1)
    send(address, "signals", [{"key": "k1", "value": "much"}], 0)
    write(made, tmp_path, files=1)
    for name in ("operations", "signals"):
        send(address, name, pq.read_table(tmp_path / name).to_pylist())
    more = ("--delay", "6", "--records-per-batch", "300", "--available-now")
    with streaming(tmp_path, address, *more) as job:
        assert "batch 0" in line_with(job, "batch")
        os.killpg(job.pid, signal.SIGKILL)

    with streaming(tmp_path, address, *more) as job:
        said = job.communicate(timeout=TIMEOUT)[0]
    assert job.returncode == 0, said + (tmp_path / "log").read_text()[-2000:]

    newest = max(made.operations[-1][3], made.signals[-1][2])
    expected = [row for row in outcomes_of_traffic(made) if row[2] <= newest]
    assert decided(spark, tmp_path) == in_topic(address) == expected
    late = spark.read.parquet(str(tmp_path / "out")).where("outcome = 'late'").collect()
    assert sorted((row.topic, row.partition, row.offset, row.reason) for row in late) == [
        ("operations", 1, 0, "it has no value"),
        ("signals", 0, 0, "it is not JSON with key string, value bigint, at timestamp"),
    ]
    account = reconcile(str(tmp_path / "checkpoint"), spark)
    assert (account.missing, account.late, account.late_signals) == (0, 1, 1)
    assert account.registered == len(made.operations) + 1


def test_stream_outlives_broker_restart_and_reads_added_partitions(spark, kafka, tmp_path):
    place = kafka.address
    make_topics(place, 1, "operations", "signals", "outcomes")
    # Both streams have to move for the watermark to move.
    send(place, "operations", [waits("first", 1, 500, "x"), waits("second", 61, 62, "y")], 0)
    send(place, "signals", [happens("x", 5), happens("z", 60)], 0)
    with streaming(tmp_path, place, "--delay=1", "--idle=never", "--verbose") as job:
        until(lambda: job.poll() is not None or [row[0] for row in in_topic(place)] == ["first"])
        kafka.stop()
        until(lambda: job.poll() is not None or CANNOT_CONNECT in (tmp_path / "log").read_text())
        kafka.start()
        add_partitions(place, 3, "operations", "signals")
        send(place, "operations", [waits("third", 70, 300, "v")], 2)
        send(place, "signals", [happens("v", 90)], 1)
        send(place, "signals", [happens("z", 120)], 2)
        send(place, "operations", [waits("fourth", 121, 300, "w")], 1)
        until(lambda: job.poll() is not None or len(in_topic(place)) == 3)
        job.terminate()
        said = job.communicate(timeout=TIMEOUT)[0]

    assert job.returncode == 0, said + (tmp_path / "log").read_text()[-2000:]
    expected = [
        ("first", "completed", START + 5_000_000, ("x",)),
        ("second", "expired", START + 62_000_000, ()),
        ("third", "completed", START + 90_000_000, ("v",)),
    ]
    assert in_topic(place) == decided(spark, tmp_path) == expected
    assert "4 operations = 2 completed + 1 expired + 1 pending + 0 late: nothing is missing" in said


def test_missing_topic_and_silent_broker_are_refused(kafka, program, tmp_path):
    make_topics(kafka.address, 1, "operations")
    places = [kafka.address, f"127.0.0.1:{free_port()}"]
    limits = [f"--kafka-option=kafka.{name}.timeout.ms=2000" for name in ("request", "default.api")]
    more = ("--available-now", "--master=local[1]", *limits)
    runs = [["stream", *words(tmp_path, place, *more)] for place in places]
    code = "from purgatory.pipeline._command_line import main; print([main(each) for each in {}])"

    environment = {**os.environ, **JAVA_FOR_TESTS}
    failed = program("-c", code.format(runs), env=environment, timeout=TIMEOUT)

    assert failed.stdout == "[1, 1]\n"
    assert failed.stderr.splitlines() == [
        f"cannot stream: Kafka at {places[0]} has no topic 'signals'",
        f"cannot stream: Kafka at {places[1]} does not answer",
    ]
    assert list(tmp_path.iterdir()) == []
