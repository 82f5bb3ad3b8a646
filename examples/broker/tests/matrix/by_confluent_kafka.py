"""confluent-kafka, feature by feature."""

from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)
from features import START, TIMEOUT, VALUES, expect, run, until


def consumer(address: str, group: str, **options: Any) -> Consumer:
    common = {
        "bootstrap.servers": address,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    timing = {"heartbeat.interval.ms": 300} if options.get("group.protocol") != "consumer" else {}
    return Consumer(common | timing | {"log_level": 0} | options)


def admin(address: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": address, "log_level": 0})


def create(address: str, topic: str, partitions: int) -> None:
    one = admin(address)
    one.create_topics([NewTopic(topic, partitions, 1)])[topic].result(TIMEOUT)


def produce(address: str, topic: str, values: list[bytes] = VALUES, **options: Any) -> list[int]:
    """The offsets that the records got."""
    delivered: list[Any] = []
    producer = Producer(
        {"bootstrap.servers": address, "acks": "all", "linger.ms": 20, "log_level": 0} | options
    )
    for number, value in enumerate(values):
        producer.produce(
            topic,
            value,
            partition=0,
            headers={"number": str(number)},
            timestamp=START + 1000 * number,
            on_delivery=lambda error, message: delivered.append(error or message.offset()),
        )
    expect(producer.flush(TIMEOUT), 0)
    return delivered


def take(members: Consumer, count: int) -> list[Message]:
    """The next records."""
    found: list[Message] = []

    def has_all() -> bool:
        message = members.poll(0.1)
        if message is not None:
            if message.error():
                raise KafkaException(message.error())
            found.append(message)
        return len(found) == count

    until(has_all)
    return found


def read(address: str, topic: str, count: int = len(VALUES), **options: Any) -> list[Message]:
    """The first records of a topic."""
    one = consumer(address, topic, **options)
    one.assign([TopicPartition(topic, 0, 0)])
    found = take(one, count)
    one.close()
    return found


def round_trip(address: str, topic: str, **options: Any) -> None:
    expect(produce(address, topic, **options), list(range(len(VALUES))))
    expect([message.value() for message in read(address, topic)], VALUES)


def headers(address: str) -> None:
    produce(address, "headers")
    expect(
        [message.headers() for message in read(address, "headers", 2)],
        [[("number", b"0")], [("number", b"1")]],
    )


def commit(address: str) -> None:
    produce(address, "commit")
    for half in VALUES[:25], VALUES[25:]:
        one = consumer(address, "commit")
        one.subscribe(["commit"])
        expect([message.value() for message in take(one, 25)], half)
        one.commit(asynchronous=False)
        one.close()


def shares(members: list[Consumer]) -> list[int]:
    """How many partitions each has, after each has worked a little."""
    for member in members:
        member.poll(0.05)
    return [len(member.assignment()) for member in members]


def group(address: str) -> None:
    create(address, "group", 4)
    members = [consumer(address, "group") for _ in range(2)]
    members[0].subscribe(["group"])
    until(lambda: shares(members[:1]) == [4])
    members[1].subscribe(["group"])
    until(lambda: shares(members) == [2, 2])
    members.pop().close()
    until(lambda: shares(members) == [4])
    members.pop().close()


def static(address: str) -> None:
    create(address, "static", 2)
    rebalances: list[Any] = []
    one, two = (
        consumer(address, "static", **{"group.instance.id": name}) for name in ("one", "two")
    )
    one.subscribe(["static"], on_assign=lambda _, partitions: rebalances.append(partitions))
    two.subscribe(["static"])
    until(lambda: shares([one, two]) == [1, 1])
    before, mine = len(rebalances), two.assignment()
    two.close()
    two = consumer(address, "static", **{"group.instance.id": "two"})
    two.subscribe(["static"])
    until(lambda: shares([one, two]) == [1, 1])
    expect((two.assignment(), len(rebalances)), (mine, before))
    one.close()
    two.close()


def times(address: str) -> None:
    produce(address, "times")
    one = consumer(address, "times")
    found = [
        one.offsets_for_times([TopicPartition("times", 0, START + at)], TIMEOUT)[0].offset
        for at in (0, 1500, 49_000)
    ]
    one.close()
    expect(found, [0, 2, 49])


def transactions(address: str) -> None:
    producer = Producer(
        {"bootstrap.servers": address, "transactional.id": "confluent-kafka", "log_level": 0}
    )
    reader = consumer(address, "transactions")
    producer.init_transactions(TIMEOUT)
    for number in range(3):
        producer.begin_transaction()
        producer.produce("transactions", str(number).encode(), partition=0)
        producer.flush(TIMEOUT)
        place = TopicPartition("transactions", 0, 10 + number)
        producer.send_offsets_to_transaction([place], reader.consumer_group_metadata(), TIMEOUT)
        if number == 1:
            producer.abort_transaction(TIMEOUT)
        else:
            producer.commit_transaction(TIMEOUT)
    isolated = {"isolation.level": "read_committed"}
    expect(
        [message.value() for message in read(address, "transactions", 2, **isolated)], [b"0", b"2"]
    )
    expect(reader.committed([TopicPartition("transactions", 0)], TIMEOUT)[0].offset, 12)
    reader.close()


def topics(address: str) -> None:
    create(address, "topics", 2)
    one = admin(address)
    one.create_partitions([NewPartitions("topics", 3)])["topics"].result(TIMEOUT)
    until(lambda: len(one.list_topics("topics", TIMEOUT).topics["topics"].partitions) == 3)
    one.delete_topics(["topics"])["topics"].result(TIMEOUT)
    until(lambda: "topics" not in one.list_topics(timeout=TIMEOUT).topics)


def configs(address: str) -> None:
    create(address, "configs", 1)
    one = admin(address)
    entry = ConfigEntry("retention.ms", "5000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, "configs", incremental_configs=[entry])
    one.incremental_alter_configs([resource])[resource].result(TIMEOUT)
    until(
        lambda: (
            one.describe_configs([resource])[resource].result(TIMEOUT)["retention.ms"].value
            == "5000"
        )
    )


def delete_records(address: str) -> None:
    produce(address, "delete-records")
    place, one = TopicPartition("delete-records", 0, 20), admin(address)
    expect(one.delete_records([place])[place].result(TIMEOUT).low_watermark, 20)


def new_group(address: str) -> None:
    produce(address, "new-group")
    one = consumer(address, "new-group", **{"group.protocol": "consumer"})
    one.subscribe(["new-group"])
    take(one, len(VALUES))
    one.close()


def secured(address: str, **options: Any) -> None:
    """A producer that is refused: it keeps trying, and reports the reason to a callback."""
    errors: list[Any] = []
    producer = Producer(
        {"bootstrap.servers": address, "error_cb": errors.append, "log_level": 0} | options
    )
    until(lambda: producer.poll(0.1) > 0 or len(errors) > 0)
    raise KafkaException(errors[0])


SASL = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "me",
    "sasl.password": "secret",
}

run(
    {
        "acks": partial(round_trip, topic="acks"),
        **{
            codec: partial(round_trip, topic=codec, **{"compression.type": codec})
            for codec in ("gzip", "snappy", "lz4", "zstd")
        },
        "headers": headers,
        "commit": commit,
        "group": group,
        "static": static,
        "times": times,
        "idempotence": partial(round_trip, topic="idempotence", **{"enable.idempotence": True}),
        "transactions": transactions,
        "topics": topics,
        "configs": configs,
        "delete-records": delete_records,
        "new-group": new_group,
        "tls": partial(secured, **{"security.protocol": "SSL"}),
        "sasl": partial(secured, **SASL),
    }
)
