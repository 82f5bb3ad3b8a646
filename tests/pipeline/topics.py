"""Traffic in topics of Kafka, by clients that are not Spark's; and `stream` on them, as a
process."""

import json
import random
import subprocess
from collections.abc import Iterable
from contextlib import AbstractContextManager, closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from kafka_server import connector
from orders import SECOND, Row, Traffic
from streams import happens, started, until, waits

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


def send_traffic(
    address: str, made: Traffic, partitions: int, disorder: float = 5.0, seed: int = 7
) -> None:
    """Fills the topics `operations` and `signals`, by the order of arrival: up to `disorder`
    seconds after the event."""
    chance = random.Random(seed)
    for topic, rows, when in (("operations", made.operations, 3), ("signals", made.signals, 2)):
        arrived = sorted((row[when] + chance.random() * disorder * SECOND, row) for row in rows)
        encode = operation if topic == "operations" else happening
        send(
            address,
            topic,
            ((number % partitions, encode(*row)) for number, (_, row) in enumerate(arrived)),
        )


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
            micros = (
                datetime.fromisoformat(value["decided_at"]) - datetime(1970, 1, 1, tzinfo=UTC)
            ) // timedelta(microseconds=1)
            rows.add((key, value["outcome"], micros, tuple(value["satisfied_keys"])))
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
