"""aiokafka as a program that tests kill: see `test_exactly_once.py`.

python transform_by_aiokafka.py ADDRESS
"""

import asyncio
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError


async def main(address: str) -> None:
    common = {"bootstrap_servers": address, "retry_backoff_ms": 50}
    timing = {"session_timeout_ms": 2000, "heartbeat_interval_ms": 300, "enable_auto_commit": False}
    producer = AIOKafkaProducer(transactional_id="transform", **common)
    consumer = AIOKafkaConsumer(
        "in", group_id="transform", auto_offset_reset="earliest", **common, **timing
    )
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
                        await producer.send("out", record.value, partition=int(record.value) % 2)
                    await producer.flush()
                    offsets = {
                        partition: found[-1].offset + 1 for partition, found in records.items()
                    }
                    await producer.send_offsets_to_transaction(offsets, "transform")
            except KafkaError as error:
                print(f"aborted: {error!r}", file=sys.stderr)
                await consumer.seek_to_committed()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
