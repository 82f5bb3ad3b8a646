"""Unmodified clients against the broker: produce, consume, groups, idempotence, administration."""

import asyncio
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewTopic as AIONewTopic
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, OffsetSpec
from purgatory_broker.testing import BrokerThread

with warnings.catch_warnings():
    warnings.simplefilter(
        "ignore", DeprecationWarning
    )  # kafka-python reads its schemas by importlib.resources.read_text
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
    from kafka import TopicPartition as KPTopicPartition
    from kafka.admin import ConfigResource as KPConfigResource

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


@contextmanager
def admin_of(address: str) -> Iterator[KafkaAdminClient]:
    admin = KafkaAdminClient(bootstrap_servers=address)
    try:
        yield admin
    finally:
        admin.close()


@pytest.mark.parametrize(
    ("codec", "is_idempotent"),
    [
        ("none", False),
        ("none", True),
        ("gzip", False),
        ("snappy", True),
        ("lz4", False),
        ("zstd", True),
    ],
)
def test_librdkafka_gets_back_what_it_has_sent(
    kafka_broker: BrokerThread, codec: str, is_idempotent: bool
) -> None:
    values = [f"{number} ".encode() * 20 for number in range(500)]
    delivered = produce(
        kafka_broker.address,
        "topic",
        values,
        compression_type=codec,
        enable_idempotence=is_idempotent,
    )
    assert [message.offset() for message in delivered] == list(range(500))
    consumer = librdkafka_consumer(kafka_broker.address, "group")
    consumer.subscribe(["topic"])
    messages = poll(consumer, 500)
    assert [message.value() for message in messages] == values
    assert [message.offset() for message in messages] == list(range(500))
    consumer.close()


def test_kafka_python_gets_back_what_it_has_sent(kafka_broker: BrokerThread) -> None:
    producer = KafkaProducer(bootstrap_servers=kafka_broker.address, compression_type="gzip")
    sent = [
        producer.send("topic", str(number).encode(), key=b"k", headers=[("h", b"1")])
        for number in range(200)
    ]
    assert [future.get(TIMEOUT).offset for future in sent] == list(range(200))
    producer.close()
    consumer = KafkaConsumer(
        "topic",
        bootstrap_servers=kafka_broker.address,
        group_id="group",
        auto_offset_reset="earliest",
    )
    messages = [next(consumer) for _ in range(200)]
    assert [message.value for message in messages] == [
        str(number).encode() for number in range(200)
    ]
    assert {tuple(message.headers) for message in messages} == {(("h", b"1"),)}
    consumer.commit()
    assert consumer.committed(KPTopicPartition("topic", 0)) == 200
    consumer.close()


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


def test_members_join_and_leave_and_share_the_partitions(
    start_broker: Callable[..., BrokerThread],
) -> None:
    address = start_broker(partitions=4).address
    Producer({"bootstrap.servers": address}).list_topics("topic", TIMEOUT)
    consumers = [librdkafka_consumer(address, "group", heartbeat_interval_ms=200) for _ in range(3)]

    def shares_become(expected: list[int]) -> bool:
        until = time.monotonic() + TIMEOUT
        while time.monotonic() < until:
            for consumer in consumers:
                assert consumer.poll(0.02) is None
            if sorted(len(consumer.assignment()) for consumer in consumers) == expected:
                return True
        return False

    for consumer in consumers:
        consumer.subscribe(["topic"])
    assert shares_become([1, 1, 2])
    consumers.pop().close()
    assert shares_become([2, 2])
    consumers.pop().close()
    assert shares_become([4])
    consumers.pop().close()
    admin = AdminClient({"bootstrap.servers": address})
    assert admin.describe_consumer_groups(["group"])["group"].result().state.name == "EMPTY"


def test_a_static_member_that_restarts_causes_no_rebalance(
    start_broker: Callable[..., BrokerThread],
) -> None:
    broker = start_broker(partitions=2)
    Producer({"bootstrap.servers": broker.address}).list_topics("topic", TIMEOUT)
    one, two = (
        librdkafka_consumer(broker.address, "group", group_instance_id=name)
        for name in ("one", "two")
    )
    for consumer in (one, two):
        consumer.subscribe(["topic"])
    until = time.monotonic() + TIMEOUT
    while not (len(one.assignment()) == len(two.assignment()) == 1) and time.monotonic() < until:
        one.poll(0.05), two.poll(0.05)
    before = len(broker.server.broker.coordinator.rebalances)
    mine = two.assignment()
    two.close()
    two = librdkafka_consumer(broker.address, "group", group_instance_id="two")
    two.subscribe(["topic"])
    while not two.assignment() and time.monotonic() < until:
        one.poll(0.05), two.poll(0.05)
    assert two.assignment() == mine
    assert len(broker.server.broker.coordinator.rebalances) == before
    one.close(), two.close()


def test_committed_offsets_are_found_by_any_client(kafka_broker: BrokerThread) -> None:
    produce(kafka_broker.address, "topic", [b"0", b"1", b"2", b"3"])
    consumer = librdkafka_consumer(kafka_broker.address, "group")
    (committed,) = consumer.commit(offsets=[TopicPartition("topic", 0, 2)], asynchronous=False)
    assert committed.error is None
    consumer.close()
    with admin_of(kafka_broker.address) as admin:
        assert admin.list_group_offsets("group")["group"][KPTopicPartition("topic", 0)].offset == 2
    consumer = KafkaConsumer("topic", bootstrap_servers=kafka_broker.address, group_id="group")
    assert next(consumer).value == b"2"
    consumer.close()


def test_offsets_are_found_by_time(kafka_broker: BrokerThread) -> None:
    producer = Producer({"bootstrap.servers": kafka_broker.address, "linger.ms": 100})
    for number in range(10):
        producer.produce("topic", b"", timestamp=1_700_000_000_000 + 1000 * number, partition=0)
    assert producer.flush(TIMEOUT) == 0
    consumer = librdkafka_consumer(kafka_broker.address, "group")

    def offset_at(milliseconds: int) -> int:
        place = TopicPartition("topic", 0, 1_700_000_000_000 + milliseconds)
        (found,) = consumer.offsets_for_times([place], timeout=TIMEOUT)
        return int(found.offset)

    assert [offset_at(at) for at in (-1, 0, 1, 3000, 3001, 9000)] == [0, 0, 1, 3, 4, 9]
    assert offset_at(9001) == -1  # OFFSET_END
    assert consumer.get_watermark_offsets(TopicPartition("topic", 0), timeout=TIMEOUT) == (0, 10)
    consumer.close()


def test_topics_are_created_described_and_deleted(kafka_broker: BrokerThread) -> None:
    admin = AdminClient({"bootstrap.servers": kafka_broker.address})
    config = {"min.insync.replicas": "1", "retention.ms": "1000"}
    admin.create_topics([NewTopic("topic", 3, 1, config=config)])["topic"].result(TIMEOUT)
    assert sorted(admin.list_topics("topic", TIMEOUT).topics["topic"].partitions) == [0, 1, 2]
    resource = ConfigResource(ConfigResource.Type.TOPIC, "topic")
    described = admin.describe_configs([resource])[resource].result(TIMEOUT)
    assert (described["retention.ms"].value, described["retention.ms"].is_default) == (
        "1000",
        False,
    )
    assert (described["cleanup.policy"].value, described["cleanup.policy"].is_default) == (
        "delete",
        True,
    )
    with admin_of(kafka_broker.address) as python_admin:
        shown = python_admin.describe_configs(
            [KPConfigResource("TOPIC", "topic")], config_filter="all"
        )["topic"]["topic"]
        names = (
            "retention.bytes",
            "min.insync.replicas",
            "preallocate",
            "min.cleanable.dirty.ratio",
            "cleanup.policy",
        )
        assert [shown[name]["config_type"] for name in names] == [
            "LONG",
            "INT",
            "BOOLEAN",
            "DOUBLE",
            "LIST",
        ]
    resource = ConfigResource(ConfigResource.Type.BROKER, "1")
    assert (
        admin.describe_configs([resource])[resource].result(TIMEOUT)["num.partitions"].value == "1"
    )

    def refusal(topic: NewTopic) -> str:
        with pytest.raises(KafkaException) as caught:
            admin.create_topics([topic])[topic.topic].result(TIMEOUT)
        return str(caught.value.args[0].name())

    assert refusal(NewTopic("topic", 1, 1)) == "TOPIC_ALREADY_EXISTS"
    assert refusal(NewTopic("../etc", 1, 1)) == "TOPIC_EXCEPTION"
    assert refusal(NewTopic("other", 1, 2)) == "INVALID_REPLICATION_FACTOR"
    assert refusal(NewTopic("other", 20_000, 1)) == "INVALID_PARTITIONS"
    assert refusal(NewTopic("other", 1, 1, config={"no.such": "1"})) == "INVALID_CONFIG"
    admin.create_partitions([NewPartitions("topic", 5)])["topic"].result(TIMEOUT)
    assert len(admin.list_topics("topic", TIMEOUT).topics["topic"].partitions) == 5
    admin.delete_topics(["topic"])["topic"].result(TIMEOUT)
    assert "topic" not in admin.list_topics(timeout=TIMEOUT).topics


def test_kafka_python_and_aiokafka_administer_too(kafka_broker: BrokerThread) -> None:
    async def administer() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=kafka_broker.address)
        await admin.start()
        await admin.create_topics([AIONewTopic("topic", 2, 1)])
        assert await admin.list_topics() == ["topic"]
        await admin.delete_topics(["topic"])
        assert await admin.list_topics() == []
        await admin.close()

    asyncio.run(administer())
    with admin_of(kafka_broker.address) as admin:
        admin.create_topics({"topic": {"num_partitions": 2, "replication_factor": 1}})
        assert admin.list_topics() == ["topic"]
        admin.delete_topics(["topic"])
        assert admin.list_topics() == []


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


def test_records_are_deleted(kafka_broker: BrokerThread) -> None:
    for number in range(4):
        produce(kafka_broker.address, "topic", [str(number).encode()])
    admin = AdminClient({"bootstrap.servers": kafka_broker.address})
    place = TopicPartition("topic", 0, 2)
    assert admin.delete_records([place])[place].result(TIMEOUT).low_watermark == 2
    found = admin.list_offsets({TopicPartition("topic", 0): OffsetSpec.earliest()})
    assert [result.result(TIMEOUT).offset for result in found.values()] == [2]
    consumer = librdkafka_consumer(kafka_broker.address, "group")
    consumer.subscribe(["topic"])
    assert [message.value() for message in poll(consumer, 2)] == [b"2", b"3"]
    consumer.close()
    place = TopicPartition("topic", 0, 5)
    with pytest.raises(KafkaException, match="OFFSET_OUT_OF_RANGE"):
        admin.delete_records([place])[place].result(TIMEOUT)


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


def test_librdkafka_reports_the_new_group_protocol_at_once(
    kafka_broker: BrokerThread,
) -> None:
    consumer = librdkafka_consumer(kafka_broker.address, "group", group_protocol="consumer")
    consumer.subscribe(["topic"])
    message = consumer.poll(TIMEOUT)
    assert message is not None and message.error().name() == "_FATAL"
    assert "API version not supported" in str(message.error())
    consumer.close()
