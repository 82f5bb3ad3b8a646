"""aiokafka, feature by feature, except for administration."""

import asyncio
import ssl
import sys
from collections.abc import Awaitable
from typing import Any, Final, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import KafkaError
from features import RECORDS, REFUSAL_TIMEOUT, TIMEOUT, run

T = TypeVar("T")


class ByAiokafka:
    tls: Final = {"ssl_context": ssl.create_default_context()}

    def __init__(self, address: str) -> None:
        self.address, self.runner = address, asyncio.Runner()

    def do(self, work: Awaitable[T], seconds: float = TIMEOUT) -> T:
        async def limited() -> T:
            async with asyncio.timeout(seconds):
                return await work

        return self.runner.run(limited())

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

    def transform(self) -> None:
        self.runner.run(self._transform())

    async def _transform(self) -> None:
        common = {"bootstrap_servers": self.address, "retry_backoff_ms": 50}
        timing = {"session_timeout_ms": 2000, "heartbeat_interval_ms": 300}
        reading = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
        producer = AIOKafkaProducer(transactional_id="transform", **common)
        consumer = AIOKafkaConsumer("in", group_id="transform", **common, **timing, **reading)
        # The producer first: it ends the transaction of its killed predecessor.
        async with producer, consumer:
            while True:
                records = await consumer.getmany(max_records=10, timeout_ms=100)
                if not records:
                    continue
                print("transaction", flush=True)
                try:
                    async with producer.transaction():
                        for record in (record for found in records.values() for record in found):
                            partition = int(record.value) % 2
                            await producer.send("out", record.value, partition=partition)
                        await producer.flush()
                        offsets = {place: found[-1].offset + 1 for place, found in records.items()}
                        await producer.send_offsets_to_transaction(offsets, "transform")
                except KafkaError as error:
                    print(f"aborted: {error!r}", file=sys.stderr)
                    await consumer.seek_to_committed()


class Joined(ConsumerRebalanceListener):  # type: ignore[misc]
    rebalances = 0

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
