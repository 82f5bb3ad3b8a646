"""librdkafka's clients, by confluent-kafka, without faults and with; `test_clients` has Java's."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)
from purgatory_broker.testing import BrokerThread
from raw import Raw, make_batch, new_topic
from test_clients import CODECS, codec_of

TIMEOUT = 60.0  # seconds; no test passes or fails by how much of it a busy machine takes
START = 1_700_000_000_000
"""The time of the first record, in milliseconds."""


def until(is_so: Callable[[], bool]) -> None:
    """Calls a condition, which lets its client work meanwhile, until it is true."""
    deadline = time.monotonic() + TIMEOUT
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def common(broker: BrokerThread, options: dict[str, Any]) -> dict[str, Any]:
    return {"bootstrap.servers": broker.address, "log_level": 0, **options}


def consumer(broker: BrokerThread, options: dict[str, Any] | None = None) -> Consumer:
    """A consumer of the topic from the first record on, or from where its group stopped."""
    reading = {"auto.offset.reset": "earliest", "enable.auto.commit": False, "group.id": "group"}
    return Consumer(common(broker, reading | (options or {})))


def take(one: Consumer, count: int) -> list[Any]:
    """The values, the headers and the times of the next records."""
    found = [one.poll(TIMEOUT) for _ in range(count)]
    return [(each.value(), each.headers(), each.timestamp()[1]) for each in found]


SPECIAL = [{"enable.idempotence": True}, *({"compression.type": codec} for codec in CODECS)]


@pytest.mark.parametrize(
    "options", [{}, *(pytest.param(each, marks=pytest.mark.slow) for each in SPECIAL)], ids=str
)
def test_records_arrive_as_they_were_sent(kafka_broker: BrokerThread, options: Any) -> None:
    producer = Producer(common(kafka_broker, {"acks": "all", "linger.ms": 20, **options}))
    sent = [(b"%d " % n * 20, [("number", b"%d" % n)], START + 1000 * n) for n in range(50)]
    for value, headers, at in sent:
        producer.produce("topic", value, partition=0, headers=headers, timestamp=at)
    assert producer.flush(TIMEOUT) == 0
    assert codec_of(kafka_broker.address, "topic") == options.get("compression.type", "none")
    for half in sent[:25], sent[25:]:
        one = consumer(kafka_broker)
        one.subscribe(["topic"])
        assert take(one, 25) == half
        one.commit(asynchronous=False)
        place = TopicPartition("topic", 0, START + 1500)
        assert one.offsets_for_times([place])[0].offset == 2
        one.close()


@pytest.mark.slow
def test_static_member_returns_without_a_rebalance(kafka_broker: BrokerThread) -> None:
    with Raw(kafka_broker.address) as client:
        client.ask("create_topics", topics=new_topic("topic", 2))
    rebalances: list[Any] = []

    def member(instance: str) -> Consumer:
        made = consumer(kafka_broker, {"group.instance.id": instance, "heartbeat.interval.ms": 100})
        made.subscribe(["topic"], on_assign=lambda *_: rebalances.append(instance))
        return made

    def share(*members: Consumer) -> bool:
        for each in members:
            each.poll(0.05)
        return all(len(each.assignment()) == 1 for each in members)

    one, two = member("one"), member("two")
    until(lambda: share(one, two))
    mine = two.assignment()
    two.close()
    rebalances.clear()
    two = member("two")
    until(lambda: share(one, two))
    assert (two.assignment(), rebalances) == (mine, ["two"])
    one.close()
    two.close()


def test_committed_transactions_are_read_with_offsets(kafka_broker: BrokerThread) -> None:
    producer = Producer(common(kafka_broker, {"transactional.id": "mine"}))
    reader = consumer(kafka_broker, {"isolation.level": "read_committed"})
    producer.init_transactions(TIMEOUT)
    for number, end in enumerate(
        (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction)
    ):
        producer.begin_transaction()
        producer.produce("topic", b"%d" % number, partition=0)
        producer.flush(TIMEOUT)
        offsets = [TopicPartition("topic", 0, 10 + number)]
        producer.send_offsets_to_transaction(offsets, reader.consumer_group_metadata(), TIMEOUT)
        end(TIMEOUT)
    assert reader.committed([TopicPartition("topic", 0)], TIMEOUT)[0].offset == 12
    reader.assign([TopicPartition("topic", 0, 0)])
    assert [value for value, *_ in take(reader, 2)] == [b"0", b"2"]
    reader.close()


def test_topics_are_administered(kafka_broker: BrokerThread) -> None:
    admin = AdminClient(common(kafka_broker, {}))
    admin.create_topics([NewTopic("topic", 2, 1)])["topic"].result(TIMEOUT)
    admin.create_partitions([NewPartitions("topic", 3)])["topic"].result(TIMEOUT)
    assert len(admin.list_topics(timeout=TIMEOUT).topics["topic"].partitions) == 3
    entry = ConfigEntry("retention.ms", "5000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, "topic", incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(TIMEOUT)
    described = admin.describe_configs([resource])[resource].result(TIMEOUT)
    assert described["retention.ms"].value == "5000"
    with Raw(kafka_broker.address) as client:
        for _ in range(3):
            client.produce("topic", make_batch(b"v"))
    place = TopicPartition("topic", 0, 2)
    assert admin.delete_records([place])[place].result(TIMEOUT).low_watermark == 2
    admin.delete_topics(["topic"])["topic"].result(TIMEOUT)
    assert admin.list_topics(timeout=TIMEOUT).topics == {}


LOGIN = {"sasl.mechanism": "PLAIN", "sasl.username": "me", "sasl.password": "secret"}
NOT_OFFERED = [
    {"security.protocol": "SSL"},
    {"security.protocol": "SASL_PLAINTEXT", **LOGIN},
    {"group.protocol": "consumer"},
]


@pytest.mark.parametrize("options", NOT_OFFERED, ids=lambda options: next(iter(options.values())))
def test_what_is_not_offered_is_an_error(
    kafka_broker: BrokerThread, options: dict[str, Any]
) -> None:
    errors: list[Any] = []
    one = consumer(kafka_broker, {"error_cb": errors.append, **options})
    one.subscribe(["topic"])
    until(
        lambda: bool(errors) or ((each := one.poll(0.1)) is not None and each.error() is not None)
    )
    one.close()


def test_idempotent_producer_survives_lost_responses(kafka_broker: BrokerThread) -> None:
    timing = {"linger.ms": 0, "retry.backoff.ms": 10, "reconnect.backoff.ms": 10}
    producer = Producer(common(kafka_broker, {"enable.idempotence": True, **timing}))
    offsets: list[int] = []
    for number in range(5):
        if number == 1:
            kafka_broker.drop("produce", handled=True)
        if number == 2:
            kafka_broker.fail("produce", "NOT_ENOUGH_REPLICAS", times=3)
        note = lambda _, message: offsets.append(message.offset())  # noqa: E731
        producer.produce("topic", str(number), partition=0, on_delivery=note)
        assert producer.flush(TIMEOUT) == 0
    assert offsets == [0, 1, 2, 3, 4]


def test_a_member_that_expires_joins_again(kafka_broker: BrokerThread) -> None:
    one = consumer(kafka_broker, {"heartbeat.interval.ms": 100})
    events: list[str] = []
    noted = {
        f"on_{event}": lambda *_, event=event: events.append(event)
        for event in ("assign", "revoke", "lost")
    }
    one.subscribe(["^topic"], **noted)
    Producer(common(kafka_broker, {})).list_topics("topic", TIMEOUT)
    until(lambda: one.poll(0.05) is None and "assign" in events)
    kafka_broker.expire("group")
    until(lambda: one.poll(0.05) is None and events.count("assign") >= 2)
    assert events[:2] == ["assign", "lost"]
    one.close()
