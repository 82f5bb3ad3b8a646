"""confluent-kafka, feature by feature, as the program in Java has them too.

    python by_confluent_kafka.py ADDRESS FEATURE

A program ends with 0 if its client behaves as expected. Otherwise it prints the error in its
words. Topics with several partitions are there before. Instead of a feature, `transform` is what
`test_exactly_once` kills.
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

TIMEOUT: Final = 60.0
"""How long a client may wait for what has to come, in seconds."""
START: Final = 1_700_000_000_000
"""The time of the first record, in milliseconds; the others follow at intervals of a second."""
VALUES: Final = [f"{number} ".encode() * 20 for number in range(50)]
LOGIN: Final = {"sasl.mechanism": "PLAIN", "sasl.username": "me", "sasl.password": "secret"}
COMMON: Final[dict[str, Any]] = {"bootstrap.servers": sys.argv[1], "log_level": 0}


def until(is_so: Callable[[], bool]) -> None:
    """Calls a condition, which lets its client work meanwhile, until it is true."""
    deadline = time.monotonic() + TIMEOUT
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {TIMEOUT:.0f} s")
        time.sleep(0.01)


def expect(found: object, expected: object) -> None:
    """Raises if they are not equal."""
    if found != expected:
        raise ValueError(f"{found!r} instead of {expected!r}")


def produce(topic: str, options: dict[str, Any] | None = None) -> None:
    """Sends `VALUES` to the first partition, which is empty."""
    delivered: list[Any] = []
    producer = Producer(COMMON | {"acks": "all", "linger.ms": 20} | (options or {}))
    for number, value in enumerate(VALUES):
        producer.produce(
            topic,
            value,
            partition=0,
            headers=[("number", b"%d" % number)],
            timestamp=START + 1000 * number,
            on_delivery=lambda error, message: delivered.append(error or message.offset()),
        )
    expect((producer.flush(TIMEOUT), delivered), (0, [*range(len(VALUES))]))


def consumer(topic: str, options: dict[str, Any] | None = None) -> Consumer:
    """A consumer from the first record on; the group has the name of its topic."""
    common = {"group.id": topic, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    return Consumer(COMMON | common | (options or {}))


def take(one: Consumer, count: int) -> list[Message]:
    found: list[Message] = []

    def has_all() -> bool:
        message = one.poll(0.1)
        if message is not None:
            if message.error():
                raise KafkaException(message.error())
            found.append(message)
        return len(found) == count

    until(has_all)
    return found


def values(messages: list[Message]) -> list[Any]:
    return [message.value() for message in messages]


def read(topic: str, count: int, options: dict[str, Any] | None = None) -> list[Message]:
    """The first messages of the first partition, without a group."""
    one = consumer(topic, options)
    one.assign([TopicPartition(topic, 0, 0)])
    found = take(one, count)
    one.close()
    return found


def round_trip(topic: str, options: dict[str, Any] | None = None) -> None:
    produce(topic, options)
    expect(values(read(topic, len(VALUES))), VALUES)


def headers() -> None:
    produce("headers")
    found = [message.headers() for message in read("headers", 2)]
    expect(found, [[("number", b"0")], [("number", b"1")]])


def commit() -> None:
    produce("commit")
    for half in VALUES[:25], VALUES[25:]:
        one = consumer("commit")
        one.subscribe(["commit"])
        expect(values(take(one, 25)), half)
        one.commit(asynchronous=False)
        one.close()


class Member:
    """A member of a group, which counts its assignments."""

    def __init__(self, topic: str, instance: str | None = None) -> None:
        self.rebalances = 0
        named = {"group.instance.id": instance} if instance else {}
        self.one = consumer(topic, {"heartbeat.interval.ms": 300} | named)
        self.one.subscribe([topic], on_assign=self.count)
        self.close = self.one.close

    def count(self, *_: Any) -> None:
        self.rebalances += 1

    def share(self) -> list[int]:
        self.one.poll(0.05)
        return [place.partition for place in self.one.assignment()]


def shares(*members: Member) -> list[int]:
    return [len(member.share()) for member in members]


def group() -> None:
    one = Member("group")
    until(lambda: shares(one) == [4])
    two = Member("group")
    until(lambda: shares(one, two) == [2, 2])
    two.close()
    until(lambda: shares(one) == [4])
    one.close()


def static() -> None:
    one = Member("static", "one")
    two = Member("static", "two")
    until(lambda: shares(one, two) == [1, 1])
    before, mine = one.rebalances, two.share()
    two.close()
    two = Member("static", "two")
    until(lambda: shares(one, two) == [1, 1])
    expect((two.share(), one.rebalances), (mine, before))
    one.close()
    two.close()


def times() -> None:
    produce("times")
    one = consumer("times")
    places = [TopicPartition("times", 0, START + at) for at in (0, 1500, 49_000)]
    found = [one.offsets_for_times([place], TIMEOUT)[0].offset for place in places]
    expect(found, [0, 2, 49])
    one.close()


def transactions() -> None:
    """Three transactions, each with a record and an offset from 10 on; the second is aborted."""
    topic = "transactions"
    producer = Producer(COMMON | {"transactional.id": "confluent-kafka"})
    reader = consumer(topic)
    producer.init_transactions(TIMEOUT)
    for number in range(3):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number, partition=0)
        producer.flush(TIMEOUT)
        places = [TopicPartition(topic, 0, 10 + number)]
        producer.send_offsets_to_transaction(places, reader.consumer_group_metadata(), TIMEOUT)
        (producer.abort_transaction if number == 1 else producer.commit_transaction)(TIMEOUT)
    expect(values(read(topic, 2, {"isolation.level": "read_committed"})), [b"0", b"2"])
    expect(reader.committed([TopicPartition(topic, 0)], TIMEOUT)[0].offset, 12)
    reader.close()


def topics(admin: AdminClient) -> None:
    admin.create_topics([NewTopic("topics", 2, 1)])["topics"].result(TIMEOUT)
    admin.create_partitions([NewPartitions("topics", 3)])["topics"].result(TIMEOUT)
    listed = lambda: admin.list_topics(timeout=TIMEOUT).topics  # noqa: E731
    until(lambda: len(listed()["topics"].partitions) == 3)
    admin.delete_topics(["topics"])["topics"].result(TIMEOUT)
    until(lambda: "topics" not in listed())


def configs(admin: AdminClient) -> None:
    entry = ConfigEntry("retention.ms", "5000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, "configs", incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(TIMEOUT)
    described = lambda: admin.describe_configs([resource])[resource]  # noqa: E731
    until(lambda: described().result(TIMEOUT)["retention.ms"].value == "5000")


def delete_records(admin: AdminClient) -> None:
    produce("delete-records")
    place = TopicPartition("delete-records", 0, 20)
    expect(admin.delete_records([place])[place].result(TIMEOUT).low_watermark, 20)


def new_group() -> None:
    one = consumer("new-group", {"group.protocol": "consumer"})
    one.subscribe(["new-group"])
    take(one, 1)


def secured(protocol: str, options: dict[str, Any] | None = None) -> None:
    """A producer that is refused: it keeps trying, and reports the reason to a callback."""
    errors: list[Any] = []
    named = {"security.protocol": protocol, "error_cb": errors.append}
    producer = Producer(COMMON | named | (options or {}))
    until(lambda: producer.poll(0.1) > 0 or len(errors) > 0)
    raise KafkaException(errors[0])


def transform() -> None:
    # librdkafka 2.16 hangs, with Kafka, too, if it begins from `bootstrap.servers` again in a
    # transaction.
    recovery = {"reconnect.backoff.max.ms": 200, "metadata.recovery.strategy": "none"}
    timing = {"session.timeout.ms": 2000, "heartbeat.interval.ms": 300}
    reader = consumer("transform", recovery | timing)
    reader.subscribe(["in"])
    producer = Producer(COMMON | recovery | {"transactional.id": "transform", "linger.ms": 0})
    producer.init_transactions(TIMEOUT)
    while True:
        messages = reader.consume(10, 0.1)
        if not messages:
            continue
        print("transaction", flush=True)
        producer.begin_transaction()
        try:
            for message in messages:
                number = int(message.value() or b"")
                producer.produce("out", message.value(), partition=number % 2)
            producer.flush(TIMEOUT)
            places = reader.position(reader.assignment())
            metadata = reader.consumer_group_metadata()
            producer.send_offsets_to_transaction(places, metadata, TIMEOUT)
            producer.commit_transaction(TIMEOUT)
        except KafkaException as error:
            if error.args[0].fatal() or not error.args[0].txn_requires_abort():
                raise
            producer.abort_transaction(TIMEOUT)
            for place in reader.committed(reader.assignment(), TIMEOUT):
                place.offset = max(0, place.offset)
                reader.seek(place)


CODECS: Final = ("gzip", "snappy", "lz4", "zstd")
SCENARIOS: Final[dict[str, Callable[[], None]]] = {
    "acks": partial(round_trip, "acks"),
    **{codec: partial(round_trip, codec, {"compression.type": codec}) for codec in CODECS},
    "headers": headers,
    "commit": commit,
    "group": group,
    "static": static,
    "times": times,
    "idempotence": partial(round_trip, "idempotence", {"enable.idempotence": True}),
    "transactions": transactions,
    "topics": lambda: topics(AdminClient(COMMON)),
    "configs": lambda: configs(AdminClient(COMMON)),
    "delete-records": lambda: delete_records(AdminClient(COMMON)),
    "new-group": new_group,
    "tls": partial(secured, "SSL"),
    "sasl": partial(secured, "SASL_PLAINTEXT", LOGIN),
    "transform": transform,
}

try:
    SCENARIOS[sys.argv[2]]()
except Exception as error:
    print(f"{type(error).__name__}: {error}")
    sys.exit(1)
