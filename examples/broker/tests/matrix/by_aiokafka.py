"""aiokafka, feature by feature."""

import asyncio
import ssl
from collections.abc import Awaitable
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from features import RECORDS, REFUSAL_TIMEOUT, TIMEOUT, Client, Member, run

T = TypeVar("T")


class ByAiokafka(Client):
    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.runner = asyncio.Runner()

    def do(self, work: Awaitable[T], seconds: float = TIMEOUT) -> T:
        async def limited() -> T:
            async with asyncio.timeout(seconds):
                return await work

        return self.runner.run(limited())

    def admin(self, method: str, *arguments: Any) -> Any:
        async def call() -> Any:
            one = AIOKafkaAdminClient(bootstrap_servers=self.address)
            await one.start()
            try:
                return await getattr(one, method)(*arguments)
            finally:
                await one.close()

        return self.do(call())

    def create(self, topic: str, partitions: int) -> None:
        self.admin("create_topics", [NewTopic(topic, partitions, 1)])

    def add_partitions(self, topic: str, count: int) -> None:
        self.admin("create_partitions", {topic: NewPartitions(count)})

    def partitions(self, topic: str) -> int:
        return len(self.admin("describe_topics", [topic])[0]["partitions"])

    def delete(self, topic: str) -> None:
        self.admin("delete_topics", [topic])

    def topics(self) -> list[str]:
        return [*self.admin("list_topics")]

    def set_config(self, topic: str, name: str, value: str) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, {name: value})
        self.admin("alter_configs", [resource])

    def config(self, topic: str, name: str) -> str:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, {name: None})
        return str(self.admin("describe_configs", [resource])[0].resources[0][4][0][1])

    def delete_records(self, topic: str, before: int) -> int:
        place = TopicPartition(topic, 0)
        return int(self.admin("delete_records", {place: RecordsToDelete(before)})[place])

    def produce(self, topic: str, **options: Any) -> list[int]:
        return self.do(self._produce(topic, options))

    async def _produce(self, topic: str, options: dict[str, Any]) -> list[int]:
        common = {"bootstrap_servers": self.address, "acks": "all", "linger_ms": 20}
        async with AIOKafkaProducer(**common, **options) as one:
            sent = [await one.send(topic, **record) for record in RECORDS]
            return [(await each).offset for each in sent]

    def transact(self, topic: str, group: str, *are_committed: bool) -> None:
        self.do(self._transact(topic, group, are_committed))

    async def _transact(self, topic: str, group: str, are_committed: tuple[bool, ...]) -> None:
        named = {"bootstrap_servers": self.address, "transactional_id": "aiokafka"}
        async with AIOKafkaProducer(**named) as one:
            for number, is_committed in enumerate(are_committed):
                await one.begin_transaction()
                await one.send_and_wait(topic, b"%d" % number, partition=0)
                offsets = {TopicPartition(topic, 0): 10 + number}
                await one.send_offsets_to_transaction(offsets, group)
                await (one.commit_transaction() if is_committed else one.abort_transaction())

    def member(self, topic: str, group: str | None = None, **options: Any) -> "Joined":
        return Joined(self, topic, group, **options)

    def connect(self, **options: Any) -> None:
        async def send() -> None:
            async with AIOKafkaProducer(bootstrap_servers=self.address, **options) as one:
                await one.send_and_wait("secured", b"value")

        self.do(send(), REFUSAL_TIMEOUT)

    def connect_by_tls(self) -> None:
        self.connect(security_protocol="SSL", ssl_context=ssl.create_default_context())


class Joined(Member, ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, client: ByAiokafka, topic: str, group: str | None, **options: Any) -> None:
        self.client = client
        client.do(self._start(topic, group, options))

    async def _start(self, topic: str, group: str | None, options: dict[str, Any]) -> None:
        address = self.client.address
        common = {"bootstrap_servers": address, "group_id": group, "heartbeat_interval_ms": 300}
        reading = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
        self.one = AIOKafkaConsumer(metadata_max_age_ms=500, **common, **reading, **options)
        self.one.subscribe([topic], listener=self)
        await self.one.start()

    def on_partitions_revoked(self, revoked: Any) -> None:
        self.rebalances += 1

    def on_partitions_assigned(self, assigned: Any) -> None:
        self.rebalances += 1

    def take(self, count: int) -> list[tuple[bytes, list[Any]]]:
        async def take() -> list[Any]:
            return [await self.one.getone() for _ in range(count)]

        return [(record.value, list(record.headers)) for record in self.client.do(take())]

    def share(self) -> list[int]:
        self.client.do(asyncio.sleep(0.05))
        return [place.partition for place in self.one.assignment()]

    def commit(self) -> None:
        self.client.do(self.one.commit())

    def committed(self, topic: str) -> int | None:
        found: int | None = self.client.do(self.one.committed(TopicPartition(topic, 0)))
        return found

    def offset_at(self, topic: str, milliseconds: int) -> int:
        place = TopicPartition(topic, 0)
        return int(self.client.do(self.one.offsets_for_times({place: milliseconds}))[place].offset)

    def close(self) -> None:
        self.client.do(self.one.stop())


run(ByAiokafka)
