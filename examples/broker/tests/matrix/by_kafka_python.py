"""kafka-python, feature by feature."""

import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

from features import REFUSAL_TIMEOUT, START, TIMEOUT, VALUES, expect, run, until

with warnings.catch_warnings():
    warnings.simplefilter(
        "ignore", DeprecationWarning
    )  # kafka-python reads its schemas by importlib.resources.read_text
    from kafka import (
        ConsumerRebalanceListener,
        KafkaAdminClient,
        KafkaConsumer,
        KafkaProducer,
        OffsetAndMetadata,
        TopicPartition,
    )
    from kafka.admin import ConfigResource


class Rebalances(ConsumerRebalanceListener):  # type: ignore[misc]
    """Counts them."""

    count = 0

    def on_partitions_revoked(self, revoked: Any) -> None: ...

    def on_partitions_assigned(self, assigned: Any) -> None:
        self.count += 1


def consumer(address: str, *topics: str, group: str | None = None, **options: Any) -> KafkaConsumer:
    common = {
        "bootstrap_servers": address,
        "group_id": group,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
    }
    return KafkaConsumer(
        *topics, **common, heartbeat_interval_ms=300, metadata_max_age_ms=500, **options
    )


@contextmanager
def admin(address: str) -> Iterator[KafkaAdminClient]:
    with closing(KafkaAdminClient(bootstrap_servers=address)) as one:
        yield one


def create(address: str, topic: str, partitions: int) -> None:
    with admin(address) as one:
        one.create_topics({topic: {"num_partitions": partitions}}, wait_for_metadata=True)


def produce(address: str, topic: str, **options: Any) -> list[int]:
    """The offsets that the records got."""
    with closing(
        KafkaProducer(bootstrap_servers=address, acks="all", linger_ms=20, **options)
    ) as one:
        sent = [
            one.send(
                topic,
                value,
                partition=0,
                headers=[("number", b"%d" % number)],
                timestamp_ms=START + 1000 * number,
            )
            for number, value in enumerate(VALUES)
        ]
        return [each.get(TIMEOUT).offset for each in sent]


def take(one: KafkaConsumer, count: int = len(VALUES)) -> list[Any]:
    found: list[Any] = []

    def has_all() -> bool:
        polled = one.poll(100, max_records=count - len(found))
        found.extend(record for records in polled.values() for record in records)
        return len(found) == count

    until(has_all)
    return found


def read(address: str, topic: str, count: int = len(VALUES), **options: Any) -> list[Any]:
    with closing(consumer(address, topic, **options)) as one:
        return take(one, count)


def round_trip(address: str, topic: str, **options: Any) -> None:
    expect(produce(address, topic, **options), list(range(len(VALUES))))
    expect([record.value for record in read(address, topic)], VALUES)


def headers(address: str) -> None:
    produce(address, "headers")
    found = [list(record.headers) for record in read(address, "headers", 2)]
    expect(found, [[("number", b"0")], [("number", b"1")]])


def commit(address: str) -> None:
    produce(address, "commit")
    for half in VALUES[:25], VALUES[25:]:
        with closing(consumer(address, "commit", group="commit")) as one:
            expect([record.value for record in take(one, 25)], half)
            one.commit()


def shares(members: list[KafkaConsumer]) -> list[int]:
    """How many partitions each has, after each has worked a little."""
    for member in members:
        member.poll(50)
    return [len(member.assignment()) for member in members]


def group(address: str) -> None:
    create(address, "group", 4)
    members = [consumer(address, "group", group="group")]
    until(lambda: shares(members) == [4])
    members.append(consumer(address, "group", group="group"))
    until(lambda: shares(members) == [2, 2])
    members.pop().close()
    until(lambda: shares(members) == [4])
    members.pop().close()


def static(address: str) -> None:
    create(address, "static", 2)
    rebalances = Rebalances()
    one, two, again = (
        consumer(address, group="static", group_instance_id=name) for name in ("one", "two", "two")
    )
    one.subscribe(["static"], listener=rebalances)
    two.subscribe(["static"])
    until(lambda: shares([one, two]) == [1, 1])
    before, mine = rebalances.count, two.assignment()
    two.close()
    again.subscribe(["static"])
    until(lambda: shares([one, again]) == [1, 1])
    expect((again.assignment(), rebalances.count), (mine, before))
    one.close()
    again.close()


def times(address: str) -> None:
    produce(address, "times")
    place = TopicPartition("times", 0)
    with closing(consumer(address)) as one:
        expect(
            [one.offsets_for_times({place: START + at})[place].offset for at in (0, 1500, 49_000)],
            [0, 2, 49],
        )


def transactions(address: str) -> None:
    place = TopicPartition("transactions", 0)
    with closing(KafkaProducer(bootstrap_servers=address, transactional_id="kafka-python")) as one:
        one.init_transactions()
        for number in range(3):
            one.begin_transaction()
            one.send("transactions", b"%d" % number, partition=0).get(TIMEOUT)
            one.send_offsets_to_transaction(
                {place: OffsetAndMetadata(10 + number, "", -1)}, "transactions"
            )
            if number == 1:
                one.abort_transaction()
            else:
                one.commit_transaction()
    records = read(address, "transactions", 2, isolation_level="read_committed")
    expect([record.value for record in records], [b"0", b"2"])
    with closing(consumer(address, group="transactions")) as reader:
        expect(reader.committed(place), 12)


def topics(address: str) -> None:
    create(address, "topics", 2)
    with admin(address) as one:
        one.create_partitions({"topics": 3})
        until(lambda: len(one.describe_topics(["topics"])[0]["partitions"]) == 3)
        one.delete_topics(["topics"])
        until(lambda: "topics" not in one.list_topics())


def configs(address: str) -> None:
    create(address, "configs", 1)
    with admin(address) as one:
        one.alter_configs([ConfigResource("TOPIC", "configs", {"retention.ms": "5000"})])
        resource = ConfigResource("TOPIC", "configs")

        def is_altered() -> bool:
            found = one.describe_configs([resource], config_filter="all")["topic"]["configs"]
            return bool(found["retention.ms"]["value"] == "5000")

        until(is_altered)


def delete_records(address: str) -> None:
    produce(address, "delete-records")
    place = TopicPartition("delete-records", 0)
    with admin(address) as one:
        one.delete_records({place: 20})
    with closing(consumer(address)) as reader:
        expect(reader.beginning_offsets([place]), {place: 20})


def delete_offsets(address: str) -> None:
    create(address, "delete-offsets", 1)
    place = TopicPartition("delete-offsets", 0)
    with admin(address) as one:
        one.alter_group_offsets("delete-offsets", {place: OffsetAndMetadata(7, "", -1)})
        expect(one.list_group_offsets("delete-offsets")["delete-offsets"][place].offset, 7)
        one.delete_group_offsets("delete-offsets", [place])
        expect(one.list_group_offsets("delete-offsets")["delete-offsets"], {})


def secured(address: str, **options: Any) -> None:
    waits = {"bootstrap_timeout_ms": REFUSAL_TIMEOUT * 1000, "max_block_ms": REFUSAL_TIMEOUT * 1000}
    with closing(KafkaProducer(bootstrap_servers=address, **waits, **options)) as one:
        one.send("secured", b"value").get(REFUSAL_TIMEOUT)


SASL = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}
SASL |= {"sasl_plain_username": "me", "sasl_plain_password": "secret"}

run(
    {
        "acks": partial(round_trip, topic="acks"),
        **{
            codec: partial(round_trip, topic=codec, compression_type=codec)
            for codec in ("gzip", "snappy", "lz4", "zstd")
        },
        "headers": headers,
        "commit": commit,
        "group": group,
        "static": static,
        "times": times,
        "idempotence": partial(round_trip, topic="idempotence", enable_idempotence=True),
        "transactions": transactions,
        "topics": topics,
        "configs": configs,
        "delete-records": delete_records,
        "delete-offsets": delete_offsets,
        "tls": partial(secured, security_protocol="SSL"),
        "sasl": partial(secured, **SASL),
    }
)
