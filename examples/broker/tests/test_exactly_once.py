"""Programs that consume from `in`, produce to `out` and commit both in one transaction; they and
their broker are killed.

Such a program takes the broker's address. It prints a line at the beginning of each transaction, of
ten records at most. The record with the number n is for partition n % 2. The records are flushed
before the offsets are added: so there is something to abort.
"""

import random
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from brokers import ENVIRONMENT, TIMEOUT, program
from confluent_kafka import Consumer, Producer, TopicPartition
from maven import Unavailable
from ports import free_port
from programs import PROGRAMS, command
from requirements import unavailable

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

COUNT = 4000  # records
KILLS = ["program"] * 5 + ["broker"] * 3
MAX_TRANSACTIONS = 30  # from one kill to the next


def read(address: str, topic: str, partitions: int) -> list[int]:
    """The numbers that a consumer reads as `read_committed`, from the beginning to the end."""
    options = {"bootstrap.servers": address, "group.id": "reader", "log_level": 0}
    reading = {"enable.partition.eof": True, "isolation.level": "read_committed"}
    consumer = Consumer(options | reading)
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    found, ended = list[int](), 0
    while ended < partitions:
        message = consumer.poll(TIMEOUT)
        assert message is not None
        if message.error() is None:
            found.append(int(message.value() or b""))
        else:
            ended += 1
    consumer.close()
    return found


class Worker:
    """A program that runs, and is started again when it is killed."""

    def __init__(self, command: list[str]) -> None:
        self.command = command

    def __enter__(self) -> "Worker":
        self.process = subprocess.Popen(
            self.command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        with self.process:
            self.process.kill()

    def kill(self) -> None:
        """Kills it and starts it again."""
        self.__exit__()
        self.__enter__()

    def wait_for_transaction(self) -> None:
        """Until the program begins the next one."""
        while (line := self.process.stdout.readline()) != "transaction\n":  # type: ignore[union-attr]
            assert line, "the program has ended"


@pytest.mark.parametrize("client", PROGRAMS)
def test_killed_transformations_write_each_record_once(tmp_path: Path, client: str) -> None:
    try:
        words = command(client)
    except Unavailable as error:
        unavailable(str(error))
    choose = random.Random(7)
    arguments = ("--directory", str(tmp_path), "--port", str(free_port()), "--partitions", "2")
    with ExitStack() as broker:
        _, address = broker.enter_context(program(*arguments))
        options = {"bootstrap.servers": address, "enable.idempotence": True, "log_level": 0}
        producer = Producer(options)
        for number in range(COUNT):
            producer.produce("in", str(number).encode(), partition=number % 2)
        assert producer.flush(TIMEOUT) == 0
        producer.list_topics("out", TIMEOUT)
        with Worker([*words, address, "transform"]) as worker:
            for victim in choose.sample(KILLS, len(KILLS)):
                for _ in range(choose.randint(1, MAX_TRANSACTIONS)):
                    worker.wait_for_transaction()
                time.sleep(choose.uniform(0.0, 0.02))  # to kill it anywhere in a transaction
                if victim == "program":
                    worker.kill()
                else:
                    broker.close()
                    broker.enter_context(program(*arguments))
            found, until = list[int](), time.monotonic() + 2 * TIMEOUT
            while len(set(found)) < COUNT and time.monotonic() < until:
                time.sleep(0.5)
                found = read(address, "out", 2)
    assert sorted(found) == list(range(COUNT))
