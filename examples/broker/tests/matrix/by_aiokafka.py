"""aiokafka, feature by feature."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import (
    AIOKafkaConsumer,
    AIOKafkaProducer,
    ConsumerRebalanceListener,
    ConsumerRecord,
    TopicPartition,
)
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from features import REFUSAL_TIMEOUT, START, TIMEOUT, VALUES, Feature, expect, run


class Rebalances(ConsumerRebalanceListener):  # type: ignore[misc]
    """Assigned partitions, and an empty list for each revocation."""

    def __init__(self) -> None:
        self.assigned: list[Any] = []

    def on_partitions_revoked(self, revoked: Any) -> None:
        self.assigned.append(())

    def on_partitions_assigned(self, assigned: Any) -> None:
        self.assigned.append(assigned)


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not await is_so():
            await asyncio.sleep(0.05)


def consumer(
    address: str, *topics: str, group: str | None = None, **options: Any
) -> AIOKafkaConsumer:
    common = {
        "bootstrap_servers": address,
        "group_id": group,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
    }
    return AIOKafkaConsumer(
        *topics, **common, heartbeat_interval_ms=300, metadata_max_age_ms=500, **options
    )


def producer(address: str, **options: Any) -> AIOKafkaProducer:
    return AIOKafkaProducer(bootstrap_servers=address, **options)


@asynccontextmanager
async def admin(address: str) -> AsyncIterator[AIOKafkaAdminClient]:
    one = AIOKafkaAdminClient(bootstrap_servers=address)
    await one.start()
    try:
        yield one
    finally:
        await one.close()


async def create(address: str, topic: str, partitions: int) -> None:
    async with admin(address) as one:
        await one.create_topics([NewTopic(topic, partitions, 1)])


async def produce(address: str, topic: str, **options: Any) -> list[int]:
    """The offsets that the records got."""
    async with producer(address, acks="all", linger_ms=20, **options) as one:
        sent = [
            await one.send(
                topic,
                value,
                partition=0,
                headers=[("number", b"%d" % number)],
                timestamp_ms=START + 1000 * number,
            )
            for number, value in enumerate(VALUES)
        ]
        return [(await each).offset for each in sent]


async def take(one: AIOKafkaConsumer, count: int = len(VALUES)) -> list[ConsumerRecord]:
    async with asyncio.timeout(TIMEOUT):
        return [await one.getone() for _ in range(count)]


async def read(
    address: str, topic: str, count: int = len(VALUES), **options: Any
) -> list[ConsumerRecord]:
    async with consumer(address, topic, **options) as one:
        return await take(one, count)


async def round_trip(address: str, topic: str, **options: Any) -> None:
    expect(await produce(address, topic, **options), list(range(len(VALUES))))
    expect([record.value for record in await read(address, topic)], VALUES)


async def headers(address: str) -> None:
    await produce(address, "headers")
    expect(
        [record.headers for record in await read(address, "headers", 2)],
        [(("number", b"0"),), (("number", b"1"),)],
    )


async def commit(address: str) -> None:
    await produce(address, "commit")
    for half in VALUES[:25], VALUES[25:]:
        async with consumer(address, "commit", group="commit") as one:
            expect([record.value for record in await take(one, 25)], half)
            await one.commit()


async def group(address: str) -> None:
    await create(address, "group", 4)
    members = [consumer(address, "group", group="group") for _ in range(2)]

    async def share(*expected: int) -> None:
        async def is_so() -> bool:
            return [len(member.assignment()) for member in members][: len(expected)] == list(
                expected
            )

        await until(is_so)

    await members[0].start()
    await share(4)
    await members[1].start()
    await share(2, 2)
    await members.pop().stop()
    await share(4)
    await members.pop().stop()


async def static(address: str) -> None:
    await create(address, "static", 2)
    one, two, again = (
        consumer(address, group="static", group_instance_id=name) for name in ("one", "two", "two")
    )
    rebalances = Rebalances()
    one.subscribe(["static"], listener=rebalances)

    async def share_with(other: AIOKafkaConsumer) -> None:
        async def is_so() -> bool:
            return len(rebalances.assigned[-1]) == len(other.assignment()) == 1

        await until(is_so)

    await one.start()
    two.subscribe(["static"])
    await two.start()
    await share_with(two)
    before, mine = len(rebalances.assigned), two.assignment()
    await two.stop()
    again.subscribe(["static"])
    await again.start()
    await share_with(again)
    expect((again.assignment(), len(rebalances.assigned)), (mine, before))
    await one.stop()
    await again.stop()


async def times(address: str) -> None:
    await produce(address, "times")
    place = TopicPartition("times", 0)
    async with consumer(address) as one:
        found = [
            (await one.offsets_for_times({place: START + at}))[place].offset
            for at in (0, 1500, 49_000)
        ]
    expect(found, [0, 2, 49])


async def transactions(address: str) -> None:
    place = TopicPartition("transactions", 0)
    async with producer(address, transactional_id="aiokafka") as one:
        for number in range(3):
            await one.begin_transaction()
            await one.send_and_wait("transactions", b"%d" % number, partition=0)
            await one.send_offsets_to_transaction({place: 10 + number}, "transactions")
            await (one.abort_transaction() if number == 1 else one.commit_transaction())
    records = await read(address, "transactions", 2, isolation_level="read_committed")
    expect([record.value for record in records], [b"0", b"2"])
    async with consumer(address, group="transactions") as reader:
        expect(await reader.committed(place), 12)


async def topics(address: str) -> None:
    await create(address, "topics", 2)
    async with admin(address) as one:
        await one.create_partitions({"topics": NewPartitions(3)})

        async def has_three() -> bool:
            (found,) = await one.describe_topics(["topics"])
            return len(found["partitions"]) == 3

        async def is_gone() -> bool:
            return "topics" not in await one.list_topics()

        await until(has_three)
        await one.delete_topics(["topics"])
        await until(is_gone)


async def configs(address: str) -> None:
    await create(address, "configs", 1)
    async with admin(address) as one:
        await one.alter_configs(
            [ConfigResource(ConfigResourceType.TOPIC, "configs", {"retention.ms": "5000"})]
        )

        async def is_altered() -> bool:
            (found,) = await one.describe_configs(
                [ConfigResource(ConfigResourceType.TOPIC, "configs", {"retention.ms": None})]
            )
            return found.resources[0][4][0][1] == "5000"

        await until(is_altered)


async def delete_records(address: str) -> None:
    await produce(address, "delete-records")
    place = TopicPartition("delete-records", 0)
    async with admin(address) as one:
        expect(await one.delete_records({place: RecordsToDelete(20)}), {place: 20})


async def secured(address: str, **options: Any) -> None:
    async with asyncio.timeout(REFUSAL_TIMEOUT), producer(address, **options) as one:
        await one.send_and_wait("secured", b"value")


def feature(work: Callable[..., Awaitable[None]], **arguments: Any) -> Feature:
    async def main(address: str) -> None:
        await work(address, **arguments)

    return lambda address: asyncio.run(main(address))


SASL = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}
SASL |= {"sasl_plain_username": "me", "sasl_plain_password": "secret"}
TLS = {"security_protocol": "SSL", "ssl_context": ssl.create_default_context()}

run(
    {
        "acks": feature(round_trip, topic="acks"),
        **{
            codec: feature(round_trip, topic=codec, compression_type=codec)
            for codec in ("gzip", "snappy", "lz4", "zstd")
        },
        "headers": feature(headers),
        "commit": feature(commit),
        "group": feature(group),
        "static": feature(static),
        "times": feature(times),
        "idempotence": feature(round_trip, topic="idempotence", enable_idempotence=True),
        "transactions": feature(transactions),
        "topics": feature(topics),
        "configs": feature(configs),
        "delete-records": feature(delete_records),
        "tls": feature(secured, **TLS),
        "sasl": feature(secured, **SASL),
    }
)
