"""How long a new group waits for the first record of a topic that has some, for each client.

The time includes making the consumer, connecting, finding the coordinator, joining, syncing and the
first fetch. The first group does not count: clients load and compile their code, and Kafka
creates its topic of offsets.
"""

import asyncio
import time
import warnings
from collections.abc import Callable
from typing import Final

from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer, Producer
from other_clients import java, kafkajs

with warnings.catch_warnings():
    warnings.simplefilter(
        "ignore", DeprecationWarning
    )  # kafka-python reads its schemas by importlib.resources.read_text
    from kafka import KafkaConsumer

TOPIC: Final = "first"
COUNT: Final = 100
TIMEOUT: Final = 120.0


def fill(address: str) -> None:
    """Makes the topic, with records."""
    producer = Producer({"bootstrap.servers": address, "log_level": 0})
    for number in range(COUNT):
        producer.produce(TOPIC, str(number).encode())
    if producer.flush(TIMEOUT):
        raise TimeoutError(f"{address} has not confirmed the records")


def by_confluent_kafka(address: str, group: str) -> float:
    began = time.monotonic()
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    try:
        consumer.subscribe([TOPIC])
        message = consumer.poll(TIMEOUT)
        assert message is not None and message.error() is None
        return time.monotonic() - began
    finally:
        consumer.close()


def by_aiokafka(address: str, group: str) -> float:
    async def main() -> float:
        began = time.monotonic()
        async with AIOKafkaConsumer(
            TOPIC, bootstrap_servers=address, group_id=group, auto_offset_reset="earliest"
        ) as consumer:
            await asyncio.wait_for(consumer.getone(), TIMEOUT)
            return time.monotonic() - began

    return asyncio.run(main())


def by_kafka_python(address: str, group: str) -> float:
    began = time.monotonic()
    consumer = KafkaConsumer(
        TOPIC,
        bootstrap_servers=address,
        group_id=group,
        auto_offset_reset="earliest",
        consumer_timeout_ms=TIMEOUT * 1000,
    )
    try:
        next(consumer)
        return time.monotonic() - began
    finally:
        consumer.close()


def each_group(once: Callable[[str, str], float]) -> Callable[[str, int], list[float]]:
    """Measures one group after the other."""
    return lambda address, count: [
        once(address, f"{once.__name__}-{number}") for number in range(count)
    ]


def each_line(run: Callable[..., str], program: str) -> Callable[[str, int], list[float]]:
    """Reads the times that a program prints for all of them, in milliseconds."""
    return lambda address, count: [
        float(line) / 1e3 for line in run(program, address, TOPIC, str(count)).split()
    ]


CLIENTS: Final[dict[str, Callable[[str, int], list[float]]]] = {
    "confluent-kafka": each_group(by_confluent_kafka),
    "aiokafka": each_group(by_aiokafka),
    "kafka-python": each_group(by_kafka_python),
    "Java": each_line(java, "FirstRecord.java"),
    "kafkajs": each_line(kafkajs, "first_record.js"),
}


def first_records(address: str, client: str, groups: int) -> list[float]:
    """Seconds from the making of a consumer to its first record, for `groups` new groups.

    Args:
        address: of a broker whose topic is there: see `fill`.
        client: of `CLIENTS`.
        groups: how many count.

    Raises:
        Unavailable: the client is not installed and cannot be downloaded.
    """
    return CLIENTS[client](address, groups + 1)[1:]
