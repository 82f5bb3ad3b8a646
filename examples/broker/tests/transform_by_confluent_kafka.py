"""confluent-kafka as a program that tests kill: see `test_exactly_once.py`.

python transform_by_confluent_kafka.py ADDRESS
"""

import sys

from confluent_kafka import Consumer, KafkaException, Producer


def main(address: str) -> None:
    # librdkafka 2.16 hangs, with Kafka, too, if it begins from `bootstrap.servers` again in a
    # transaction.
    recovery = {"reconnect.backoff.max.ms": 200, "metadata.recovery.strategy": "none"}
    common = {"bootstrap.servers": address, "log_level": 0} | recovery
    timing = {"session.timeout.ms": 2000, "heartbeat.interval.ms": 300, "enable.auto.commit": False}
    consumer = Consumer(
        common | timing | {"group.id": "transform", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["in"])
    producer = Producer(common | {"transactional.id": "transform", "linger.ms": 0})
    producer.init_transactions(60)
    while True:
        messages = consumer.consume(10, 0.1)
        if not messages:
            continue
        print("transaction", flush=True)
        producer.begin_transaction()
        try:
            for message in messages:
                producer.produce("out", message.value(), partition=int(message.value()) % 2)
            producer.flush(60)
            positions = consumer.position(consumer.assignment())
            producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), 60)
            producer.commit_transaction(60)
        except KafkaException as error:
            if error.args[0].fatal() or not error.args[0].txn_requires_abort():
                raise
            producer.abort_transaction(60)
            committed = consumer.committed(consumer.assignment(), 60)
            for place in committed:
                place.offset = max(0, place.offset)
                consumer.seek(place)


if __name__ == "__main__":
    main(*sys.argv[1:])
