"""confluent-kafka as a program that tests kill: see `test_exactly_once`."""

import sys
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer

TIMEOUT: Final = 60.0  # seconds
# librdkafka 2.16 hangs, with Kafka, too, if it begins from `bootstrap.servers` again in a
# transaction.
COMMON: Final[dict[str, Any]] = {
    "bootstrap.servers": sys.argv[1],
    "log_level": 0,
    "metadata.recovery.strategy": "none",
    "reconnect.backoff.max.ms": 200,
}
READING: Final = {
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    "group.id": "transform",
    "heartbeat.interval.ms": 300,
    "session.timeout.ms": 2000,
}

reader = Consumer(COMMON | READING)
reader.subscribe(["in"])
producer = Producer(COMMON | {"transactional.id": "transform", "linger.ms": 0})
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
