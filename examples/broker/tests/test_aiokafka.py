"""aiokafka against the broker. Its first test is the one pass with a real client that the default
suite has."""

import asyncio
from collections.abc import Callable

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from purgatory_broker.testing import BrokerThread

TIMEOUT = 60.0  # seconds; no test passes or fails by how much of it a busy machine takes


async def run_aiokafka(address: str, codec: str | None) -> None:
    async with AIOKafkaProducer(
        bootstrap_servers=address, enable_idempotence=True, compression_type=codec
    ) as producer:
        sent = [await producer.send("topic", str(number).encode()) for number in range(200)]
        assert [(await future).offset for future in sent] == list(range(200))
    consumer = AIOKafkaConsumer(
        "topic", bootstrap_servers=address, group_id="group", auto_offset_reset="earliest"
    )
    async with consumer:
        messages = [await consumer.getone() for _ in range(200)]
        assert [message.value for message in messages] == [
            str(number).encode() for number in range(200)
        ]
        await consumer.commit()
    async with AIOKafkaConsumer("topic", bootstrap_servers=address, group_id="group") as consumer:
        (partition,) = consumer.assignment()
        assert await consumer.committed(partition) == 200


@pytest.mark.parametrize("codec", [None, pytest.param("gzip", marks=pytest.mark.slow)])
def test_aiokafka_gets_back_what_it_has_sent(kafka_broker: BrokerThread, codec: str | None) -> None:
    asyncio.run(run_aiokafka(kafka_broker.address, codec))


@pytest.mark.slow
def test_a_member_without_heartbeats_is_removed(start_broker: Callable[..., BrokerThread]) -> None:
    broker = start_broker(partitions=2)

    async def silence_one() -> None:
        def consumer(session_timeout: int) -> AIOKafkaConsumer:
            return AIOKafkaConsumer(
                "topic",
                bootstrap_servers=broker.address,
                group_id="group",
                session_timeout_ms=session_timeout,
                heartbeat_interval_ms=100,
                auto_offset_reset="earliest",
            )

        silent, alive = consumer(3_000), consumer(120_000)
        await asyncio.gather(silent.start(), alive.start())
        async with asyncio.timeout(TIMEOUT):
            while not len(silent.assignment()) == len(alive.assignment()) == 1:
                await asyncio.sleep(0.05)
            # it sends nothing any more, not even a leave request
            silent._coordinator._heartbeat_task.cancel()
            while len(alive.assignment()) < 2:
                await asyncio.sleep(0.05)
        silent._coordinator._group_subscription = None
        await asyncio.gather(silent.stop(), alive.stop(), return_exceptions=True)

    asyncio.run(silence_one())
    heartbeats = next(
        purgatory
        for purgatory in broker.server.broker.purgatories
        if "heartbeat" in repr(purgatory)
    )
    assert heartbeats.statistics().expired >= 1
