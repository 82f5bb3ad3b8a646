"""kafka-python, feature by feature."""

import warnings
from contextlib import closing
from threading import Thread
from typing import Any

from features import RECORDS, REFUSAL_TIMEOUT, TIMEOUT, Client, Member, run, until

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


class ByKafkaPython(Client):
    @property
    def admin(self) -> Any:
        return closing(KafkaAdminClient(bootstrap_servers=self.address))

    def create(self, topic: str, partitions: int) -> None:
        with self.admin as one:
            one.create_topics({topic: {"num_partitions": partitions}}, wait_for_metadata=True)

    def add_partitions(self, topic: str, count: int) -> None:
        with self.admin as one:
            one.create_partitions({topic: count})

    def partitions(self, topic: str) -> int:
        with self.admin as one:
            return len(one.describe_topics([topic])[0]["partitions"])

    def delete(self, topic: str) -> None:
        with self.admin as one:
            one.delete_topics([topic])

    def topics(self) -> list[str]:
        with self.admin as one:
            return [*one.list_topics()]

    def set_config(self, topic: str, name: str, value: str) -> None:
        with self.admin as one:
            one.alter_configs([ConfigResource("TOPIC", topic, {name: value})])

    def config(self, topic: str, name: str) -> str:
        with self.admin as one:
            found = one.describe_configs([ConfigResource("TOPIC", topic)], config_filter="all")
        return str(found["topic"][topic][name]["value"])

    def delete_records(self, topic: str, before: int) -> int:
        place = TopicPartition(topic, 0)
        with self.admin as one:
            one.delete_records({place: before})
        with closing(KafkaConsumer(bootstrap_servers=self.address)) as reader:
            return int(reader.beginning_offsets([place])[place])

    def produce(self, topic: str, **options: Any) -> list[int]:
        common = {"bootstrap_servers": self.address, "acks": "all", "linger_ms": 20}
        with closing(KafkaProducer(**common, **options)) as one:
            sent = [one.send(topic, **record) for record in RECORDS]
            return [each.get(TIMEOUT).offset for each in sent]

    def transact(self, topic: str, group: str, *are_committed: bool) -> None:
        place = TopicPartition(topic, 0)
        named = {"bootstrap_servers": self.address, "transactional_id": "kafka-python"}
        with closing(KafkaProducer(**named)) as one:
            one.init_transactions()
            for number, is_committed in enumerate(are_committed):
                one.begin_transaction()
                one.send(topic, b"%d" % number, partition=0).get(TIMEOUT)
                offset = OffsetAndMetadata(10 + number, "", -1)
                one.send_offsets_to_transaction({place: offset}, group)
                if is_committed:
                    one.commit_transaction()
                else:
                    one.abort_transaction()

    def member(self, topic: str, group: str | None = None, **options: Any) -> "Joined":
        return Joined(self.address, topic, group, **options)

    def commit_and_delete_offset(self, topic: str, group: str, offset: int) -> list[int | None]:
        place, found = TopicPartition(topic, 0), list[int | None]()
        with self.admin as one:
            one.alter_group_offsets(group, {place: OffsetAndMetadata(offset, "", -1)})
            for _ in range(2):
                offsets = one.list_group_offsets(group)[group]
                found.append(offsets[place].offset if place in offsets else None)
                one.delete_group_offsets(group, [place])
        return found

    def connect(self, **options: Any) -> None:
        limit = REFUSAL_TIMEOUT * 1000
        waits = {"bootstrap_timeout_ms": limit, "max_block_ms": limit}
        with closing(KafkaProducer(bootstrap_servers=self.address, **waits, **options)) as one:
            one.send("secured", b"value").get(REFUSAL_TIMEOUT)


class Joined(Member, ConsumerRebalanceListener):  # type: ignore[misc]
    """From its first `share` on it polls in a thread: kafka-python 3.0.12 drops a join that ends
    while nothing polls, and joins again, so members that poll by turns may rebalance forever."""

    def __init__(self, address: str, topic: str, group: str | None, **options: Any) -> None:
        common = {"bootstrap_servers": address, "group_id": group, "heartbeat_interval_ms": 300}
        reading = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
        self.one = KafkaConsumer(metadata_max_age_ms=500, **common, **reading, **options)
        self.one.subscribe([topic], listener=self)
        self.is_closed, self.thread = False, Thread(target=self._keep_polling)

    def _keep_polling(self) -> None:
        while not self.is_closed:
            self.one.poll(50)

    def on_partitions_revoked(self, revoked: Any) -> None: ...

    def on_partitions_assigned(self, assigned: Any) -> None:
        self.rebalances += 1

    def take(self, count: int) -> list[tuple[bytes, list[Any]]]:
        found: list[Any] = []

        def has_all() -> bool:
            polled = self.one.poll(100, max_records=count - len(found))
            for records in polled.values():
                found.extend((record.value, list(record.headers)) for record in records)
            return len(found) == count

        until(has_all)
        return found

    def share(self) -> list[int]:
        if self.thread.ident is None:
            self.thread.start()
        return [place.partition for place in self.one.assignment()]

    def commit(self) -> None:
        self.one.commit()

    def committed(self, topic: str) -> int | None:
        found: int | None = self.one.committed(TopicPartition(topic, 0))
        return found

    def offset_at(self, topic: str, milliseconds: int) -> int:
        place = TopicPartition(topic, 0)
        return int(self.one.offsets_for_times({place: milliseconds})[place].offset)

    def close(self) -> None:
        self.is_closed = True
        if self.thread.ident is not None:
            self.thread.join()
        self.one.close()


run(ByKafkaPython)
