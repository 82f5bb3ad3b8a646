"""confluent-kafka, feature by feature."""

from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)
from features import RECORDS, TIMEOUT, expect, run, until


def dotted(options: dict[str, Any]) -> dict[str, Any]:
    names = {name: name.replace("sasl_plain", "sasl").replace("_", ".") for name in options}
    return {names[name]: value for name, value in options.items()}


class ByConfluentKafka:
    tls: Final = dict[str, Any]()

    def __init__(self, address: str) -> None:
        self.common = {"bootstrap.servers": address, "log_level": 0}
        self.admin = AdminClient(self.common)

    def topics(self) -> None:
        self.admin.create_topics([NewTopic("topics", 2, 1)])["topics"].result(TIMEOUT)
        self.admin.create_partitions([NewPartitions("topics", 3)])["topics"].result(TIMEOUT)
        listed = lambda: self.admin.list_topics(timeout=TIMEOUT).topics  # noqa: E731
        until(lambda: len(listed()["topics"].partitions) == 3)
        self.admin.delete_topics(["topics"])["topics"].result(TIMEOUT)
        until(lambda: "topics" not in listed())

    def configs(self) -> None:
        entry = ConfigEntry("retention.ms", "5000", incremental_operation=AlterConfigOpType.SET)
        kind = ConfigResource.Type.TOPIC
        resource = ConfigResource(kind, "configs", incremental_configs=[entry])
        self.admin.incremental_alter_configs([resource])[resource].result(TIMEOUT)
        described = lambda: self.admin.describe_configs([resource])[resource]  # noqa: E731
        until(lambda: described().result(TIMEOUT)["retention.ms"].value == "5000")

    def delete_records(self) -> None:
        self.produce("delete-records")
        place = TopicPartition("delete-records", 0, 20)
        expect(self.admin.delete_records([place])[place].result(TIMEOUT).low_watermark, 20)

    def produce(self, topic: str, **options: Any) -> list[int]:
        delivered: list[Any] = []
        producer = Producer(self.common | {"acks": "all", "linger.ms": 20} | dotted(options))
        note = lambda error, message: delivered.append(error or message.offset())  # noqa: E731
        for record in RECORDS:
            fields = {name.removesuffix("_ms"): value for name, value in record.items()}
            producer.produce(topic, on_delivery=note, **fields)
        expect(producer.flush(TIMEOUT), 0)
        return delivered

    def transact(self, topic: str, group: str, *are_committed: bool) -> None:
        producer = Producer(self.common | {"transactional.id": "confluent-kafka"})
        reader = Consumer(self.common | {"group.id": group})
        producer.init_transactions(TIMEOUT)
        for number, is_committed in enumerate(are_committed):
            producer.begin_transaction()
            producer.produce(topic, str(number).encode(), partition=0)
            producer.flush(TIMEOUT)
            places = [TopicPartition(topic, 0, 10 + number)]
            producer.send_offsets_to_transaction(places, reader.consumer_group_metadata(), TIMEOUT)
            if is_committed:
                producer.commit_transaction(TIMEOUT)
            else:
                producer.abort_transaction(TIMEOUT)
        reader.close()

    def member(self, topic: str, group: str | None = None, **options: Any) -> "Joined":
        return Joined(self, topic, group, **options)

    def connect(self, **options: Any) -> None:
        """A producer that is refused: it keeps trying, and reports the reason to a callback."""
        errors: list[Any] = []
        producer = Producer(self.common | {"error_cb": errors.append} | dotted(options))
        until(lambda: producer.poll(0.1) > 0 or len(errors) > 0)
        raise KafkaException(errors[0])

    def transform(self) -> None:
        # librdkafka 2.16 hangs, with Kafka, too, if it begins from `bootstrap.servers` again in a
        # transaction.
        recovery = {"reconnect.backoff.max.ms": 200, "metadata.recovery.strategy": "none"}
        common = self.common | recovery
        timing = {"session.timeout.ms": 2000, "heartbeat.interval.ms": 300}
        reading = {"auto.offset.reset": "earliest", "enable.auto.commit": False}
        consumer = Consumer(common | timing | reading | {"group.id": "transform"})
        consumer.subscribe(["in"])
        producer = Producer(common | {"transactional.id": "transform", "linger.ms": 0})
        producer.init_transactions(TIMEOUT)
        while True:
            messages = consumer.consume(10, 0.1)
            if not messages:
                continue
            print("transaction", flush=True)
            producer.begin_transaction()
            try:
                for message in messages:
                    producer.produce("out", message.value(), partition=int(message.value()) % 2)
                producer.flush(TIMEOUT)
                places = consumer.position(consumer.assignment())
                group = consumer.consumer_group_metadata()
                producer.send_offsets_to_transaction(places, group, TIMEOUT)
                producer.commit_transaction(TIMEOUT)
            except KafkaException as error:
                if error.args[0].fatal() or not error.args[0].txn_requires_abort():
                    raise
                producer.abort_transaction(TIMEOUT)
                for place in consumer.committed(consumer.assignment(), TIMEOUT):
                    place.offset = max(0, place.offset)
                    consumer.seek(place)


class Joined:
    rebalances = 0

    def __init__(self, client: ByConfluentKafka, topic: str, group: str | None, **options: Any):
        common = {"group.id": group or topic, "auto.offset.reset": "earliest"}
        if options.get("group_protocol") != "consumer":
            common |= {"heartbeat.interval.ms": 300}
        common |= {"enable.auto.commit": False}
        self.one = Consumer(client.common | common | dotted(options))
        if group is None:
            self.one.assign([TopicPartition(topic, 0, 0)])
        else:
            self.one.subscribe([topic], on_assign=self.count)

    def count(self, *_: Any) -> None:
        self.rebalances += 1

    def take(self, count: int) -> list[tuple[bytes, list[Any]]]:
        found: list[Any] = []

        def has_all() -> bool:
            message = self.one.poll(0.1)
            if message is not None:
                if message.error():
                    raise KafkaException(message.error())
                found.append((message.value(), message.headers()))
            return len(found) == count

        until(has_all)
        return found

    def share(self) -> list[int]:
        self.one.poll(0.05)
        return [place.partition for place in self.one.assignment()]

    def commit(self) -> None:
        self.one.commit(asynchronous=False)

    def committed(self, topic: str) -> int | None:
        return int(self.one.committed([TopicPartition(topic, 0)], TIMEOUT)[0].offset)

    def offset_at(self, topic: str, milliseconds: int) -> int:
        place = TopicPartition(topic, 0, milliseconds)
        return int(self.one.offsets_for_times([place], TIMEOUT)[0].offset)

    def close(self) -> None:
        self.one.close()


run(ByConfluentKafka)
