"""Kafka itself as a process: it serves, and its data survive a restart."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from kafka_server import KafkaServer, kafka_server
from maven import Unavailable
from requirements import unavailable

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
]  # a busy machine takes minutes to start JVMs

QUIET = {"log_level": 0}


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[KafkaServer]:
    try:
        with kafka_server(tmp_path / "kafka") as server:
            yield server
    except Unavailable as error:
        unavailable(str(error))


def test_records_survive_a_restart(kafka: KafkaServer) -> None:
    producer = Producer({"bootstrap.servers": kafka.address, **QUIET})
    producer.produce("news", b"first")
    assert producer.flush(120) == 0

    kafka.stop()
    kafka.start()

    consumer = Consumer(
        {
            "bootstrap.servers": kafka.address,
            "group.id": "g",
            "auto.offset.reset": "earliest",
            **QUIET,
        }
    )
    try:
        consumer.subscribe(["news"])
        message = consumer.poll(120)
        assert message is not None and message.value() == b"first"
    finally:
        consumer.close()


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    try:
        server = KafkaServer(tmp_path / "kafka", settings="listeners=PLAINTEXT://127.0.0.1:1\n")
    except Unavailable as error:
        unavailable(str(error))

    with pytest.raises(
        RuntimeError, match=r"Kafka does not start: (.|\n)*IllegalArgumentException"
    ):
        server.start()

    assert server.process is None
