"""One client of the demo, in a process that can be killed: `demo_client.py CLIENT produce|consume
ADDRESS ...`.

It prints a line for each message: a producer its number when the broker has confirmed it; a
consumer the partition, the offset, the number, and how many seconds ago it was sent. SIGTERM ends
it cleanly: a consumer leaves its group.
"""
# ruff: noqa: PLC0415 - a process imports one client only

import asyncio
import signal
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

SESSION, HEARTBEAT, COMMIT = 3000, 500, 500  # milliseconds

PYTHON_SETTINGS: dict[str, Any] = {
    "session_timeout_ms": SESSION,
    "heartbeat_interval_ms": HEARTBEAT,
    "auto_commit_interval_ms": COMMIT,
    "auto_offset_reset": "earliest",
}

stopping = False


def stop(*_: object) -> None:
    global stopping  # noqa: PLW0603 - a signal handler has no other way to report it
    stopping = True


def confirmed(number: int, error: object = None) -> None:
    if not error:
        print(f"{number}\n", end="")  # in one write: clients call this in their own threads


def received(partition: int | None, offset: int | None, value: bytes | None) -> None:
    number, sent = (value or b"").split()
    print(f"{partition} {offset} {int(number)} {time.time() - float(sent)}", flush=True)


def value_of(number: int) -> bytes:
    return f"{number} {time.time()}".encode()


def seconds_until(begun: float, number: int, rate: float) -> float:
    """How long it is until this message is to be sent."""
    return max(0.0, begun + number / rate - time.monotonic())


# -- confluent-kafka


def confluent_produce(address: str, topic: str, count: int, rate: float) -> None:
    from confluent_kafka import Producer

    producer = Producer(
        {"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 0, "log_level": 0}
    )
    begun = time.monotonic()
    for number in range(count):
        producer.poll(seconds_until(begun, number, rate))
        confirm: Callable[..., None] = lambda error, _, number=number: confirmed(number, error)  # noqa: E731
        producer.produce(topic, value_of(number), partition=number % 6, on_delivery=confirm)
    producer.flush(30)


def confluent_consume(address: str, topic: str, group: str) -> None:
    from confluent_kafka import Consumer

    timing = {
        "session.timeout.ms": SESSION,
        "heartbeat.interval.ms": HEARTBEAT,
        "auto.commit.interval.ms": COMMIT,
    }
    settings = {
        "bootstrap.servers": address,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "log_level": 0,
    }
    consumer = Consumer(settings | timing)
    consumer.subscribe([topic])
    while not stopping:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            received(message.partition(), message.offset(), message.value())
    consumer.close()


# -- kafka-python


def python_produce(address: str, topic: str, count: int, rate: float) -> None:
    from kafka import KafkaProducer  # type: ignore[import-untyped]

    producer = KafkaProducer(bootstrap_servers=address, enable_idempotence=True)
    begun = time.monotonic()
    for number in range(count):
        time.sleep(seconds_until(begun, number, rate))
        sent = producer.send(topic, value_of(number), partition=number % 6)
        sent.add_callback(lambda _, number=number: confirmed(number))
    producer.flush(30)
    producer.close()


def python_consume(address: str, topic: str, group: str) -> None:
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(topic, bootstrap_servers=address, group_id=group, **PYTHON_SETTINGS)
    while not stopping:
        for messages in consumer.poll(timeout_ms=100).values():
            for message in messages:
                received(message.partition, message.offset, message.value)
    consumer.close()


# -- aiokafka


async def started(make: Callable[[], Any]) -> Any:
    """A client that has connected. A client gives up when its first connection is cut, so another
    one is made."""
    from aiokafka.errors import KafkaConnectionError  # type: ignore[import-untyped]

    while True:
        client = make()
        try:
            await client.start()
        except KafkaConnectionError:
            await client.stop()
        else:
            return client


def aio_produce(address: str, topic: str, count: int, rate: float) -> None:
    from aiokafka import AIOKafkaProducer  # type: ignore[import-untyped]

    async def main() -> None:
        producer = await started(
            lambda: AIOKafkaProducer(bootstrap_servers=address, enable_idempotence=True)
        )
        try:
            begun, sent = time.monotonic(), []
            for number in range(count):
                await asyncio.sleep(seconds_until(begun, number, rate))
                future = await producer.send(topic, value_of(number), partition=number % 6)
                future.add_done_callback(
                    lambda done, number=number: confirmed(number, done.exception())
                )
                sent.append(future)
            await asyncio.gather(*sent, return_exceptions=True)
        finally:
            await producer.stop()

    asyncio.run(main())


def aio_consume(address: str, topic: str, group: str) -> None:
    from aiokafka import AIOKafkaConsumer

    async def main() -> None:
        settings = {"bootstrap_servers": address, "group_id": group} | PYTHON_SETTINGS
        consumer = await started(lambda: AIOKafkaConsumer(topic, **settings))
        try:
            while not stopping:
                for messages in (await consumer.getmany(timeout_ms=100)).values():
                    for message in messages:
                        received(message.partition, message.offset, message.value)
        finally:
            await consumer.stop()

    asyncio.run(main())


JOBS: dict[tuple[str, str], Callable[..., None]] = {
    ("confluent-kafka", "produce"): confluent_produce,
    ("confluent-kafka", "consume"): confluent_consume,
    ("kafka-python", "produce"): python_produce,
    ("kafka-python", "consume"): python_consume,
    ("aiokafka", "produce"): aio_produce,
    ("aiokafka", "consume"): aio_consume,
}


def main(client: str, job: str, *arguments: Any) -> None:
    warnings.simplefilter("ignore")  # of the clients
    signal.signal(signal.SIGTERM, stop)
    if job == "produce":
        address, topic, count, rate = arguments
        arguments = (address, topic, int(count), float(rate))
    JOBS[client, job](*arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
