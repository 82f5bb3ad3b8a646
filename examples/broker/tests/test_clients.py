"""Unmodified clients against the broker, in what the features of `client_matrix` leave out: clients
that read each other's records, rebalances, and refusals."""

import asyncio
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic
from purgatory_broker.testing import BrokerThread

with warnings.catch_warnings():
    warnings.simplefilter(
        "ignore", DeprecationWarning
    )  # kafka-python reads its schemas by importlib.resources.read_text
    from kafka import KafkaConsumer, KafkaProducer

pytestmark = [
    pytest.mark.slow,  # test_aiokafka.py has the pass of the default suite
    pytest.mark.filterwarnings("ignore:read_text is deprecated:DeprecationWarning"),
]

TIMEOUT = 60.0  # seconds; no test passes or fails by how much of it a busy machine takes


def librdkafka_consumer(address: str, group: str, **configuration: Any) -> Consumer:
    return Consumer(
        {"bootstrap.servers": address, "group.id": group, "auto.offset.reset": "earliest"}
        | {name.replace("_", "."): value for name, value in configuration.items()}
    )


def poll(consumer: Consumer, count: int) -> list[Any]:
    messages: list[Any] = []
    until = time.monotonic() + TIMEOUT
    while len(messages) < count and time.monotonic() < until:
        if (message := consumer.poll(0.2)) is not None:
            assert message.error() is None, message.error()
            messages.append(message)
    return messages


def produce(address: str, topic: str, values: list[bytes], **configuration: Any) -> list[Any]:
    delivered: list[Any] = []
    settings = {name.replace("_", "."): value for name, value in configuration.items()}
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0} | settings)
    for number, value in enumerate(values):
        producer.produce(
            topic,
            value,
            on_delivery=lambda error, message: delivered.append(error or message),
            partition=0,
        )
        if number % 100 == 0:
            producer.poll(0)
    assert producer.flush(TIMEOUT) == 0
    return delivered


def test_what_one_client_sends_every_other_one_reads(kafka_broker: BrokerThread) -> None:
    produce(kafka_broker.address, "topic", [b"from librdkafka"])
    producer = KafkaProducer(bootstrap_servers=kafka_broker.address)
    producer.send("topic", b"from kafka-python").get(TIMEOUT)
    producer.close()

    async def send_and_read() -> list[bytes]:
        async with AIOKafkaProducer(bootstrap_servers=kafka_broker.address) as producer:
            await producer.send_and_wait("topic", b"from aiokafka")
        async with AIOKafkaConsumer(
            "topic", bootstrap_servers=kafka_broker.address, auto_offset_reset="earliest"
        ) as consumer:
            return [(await consumer.getone()).value for _ in range(3)]

    sent = [b"from librdkafka", b"from kafka-python", b"from aiokafka"]
    assert asyncio.run(send_and_read()) == sent
    consumer = KafkaConsumer(
        "topic", bootstrap_servers=kafka_broker.address, auto_offset_reset="earliest"
    )
    assert [next(consumer).value for _ in range(3)] == sent
    consumer.close()
    consumer = librdkafka_consumer(kafka_broker.address, "group")
    consumer.subscribe(["topic"])
    assert [message.value() for message in poll(consumer, 3)] == sent
    consumer.close()


def test_new_group_reads_after_one_rebalance(
    start_broker: Callable[..., BrokerThread],
) -> None:
    broker = start_broker()
    produce(broker.address, "topic", [b"first"])
    consumer = librdkafka_consumer(broker.address, "group")
    consumer.subscribe(["topic"])
    assert poll(consumer, 1)
    assert len(broker.server.broker.coordinator.rebalances) == 1
    consumer.close()


def test_groups_are_listed_described_and_deleted(kafka_broker: BrokerThread) -> None:
    produce(kafka_broker.address, "topic", [b"0"])
    consumer = librdkafka_consumer(kafka_broker.address, "group", client_id="me")
    consumer.subscribe(["topic"])
    assert len(poll(consumer, 1)) == 1
    admin = AdminClient({"bootstrap.servers": kafka_broker.address})
    assert [group.group_id for group in admin.list_consumer_groups().result(TIMEOUT).valid] == [
        "group"
    ]
    described = admin.describe_consumer_groups(["group"])["group"].result(TIMEOUT)
    assert described.state.name == "STABLE"
    (member,) = described.members
    assert (member.client_id, member.host) == ("me", "/127.0.0.1")
    assert [place.topic for place in member.assignment.topic_partitions] == ["topic"]
    with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
        admin.delete_consumer_groups(["group"])["group"].result(TIMEOUT)
    consumer.commit(asynchronous=False)
    consumer.close()
    asked = [ConsumerGroupTopicPartitions("group", [TopicPartition("topic", 0)])]
    offsets = admin.list_consumer_group_offsets(asked)["group"].result(TIMEOUT)
    assert [place.offset for place in offsets.topic_partitions] == [1]
    admin.delete_consumer_groups(["group"])["group"].result(TIMEOUT)
    assert admin.list_consumer_groups().result(TIMEOUT).valid == []


def test_message_above_the_topics_limit_is_refused(kafka_broker: BrokerThread) -> None:
    admin = AdminClient({"bootstrap.servers": kafka_broker.address})
    admin.create_topics([NewTopic("topic", 1, 1, config={"max.message.bytes": "1000"})])[
        "topic"
    ].result(TIMEOUT)
    (error,) = produce(kafka_broker.address, "topic", [b"x" * 2000])
    assert error.name() == "MSG_SIZE_TOO_LARGE"


def test_without_auto_create_metadata_creates_no_topic(
    start_broker: Callable[..., BrokerThread],
) -> None:
    address = start_broker(auto_create_topics=False).address
    assert (
        Producer({"bootstrap.servers": address}).list_topics("topic", TIMEOUT).topics["topic"].error
        is not None
    )
    assert AdminClient({"bootstrap.servers": address}).list_topics(timeout=TIMEOUT).topics == {}
