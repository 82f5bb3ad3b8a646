"""Programs that consume from `in`, produce to `out` and commit both in one transaction; they and
their broker are killed.

Such a program takes the broker's address. It prints a line at the beginning of each transaction, of
ten records at most. The record with the number n is for partition n % 2. The records are flushed
before the offsets are added: so there is something to abort.
"""

import random
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from ports import free_port
from test_storage import ENVIRONMENT, program

TIMEOUT = 60.0  # seconds; no test passes or fails by how much of it a busy machine takes
COUNT = 4000  # records
KILLS = ["program"] * 5 + ["broker"] * 3
MAX_TRANSACTIONS = 30  # from one kill to the next


def read(address: str, topic: str, level: str, partitions: int = 1) -> list[bytes]:
    """All that a consumer gets from the beginning to the end."""
    options = {
        "bootstrap.servers": address,
        "group.id": "reader",
        "enable.partition.eof": True,
        "log_level": 0,
    }
    consumer = Consumer(options | {"isolation.level": level})
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    found, ended = list[bytes](), 0
    while ended < partitions:
        message = consumer.poll(TIMEOUT)
        assert message is not None
        if message.error() is None:
            found.append(message.value() or b"")
        else:
            ended += 1
    consumer.close()
    return found


class Worker:
    """A program that runs, and is started again when it is killed.

    Also when it has failed, as by a supervisor: for franz-go it is final when the broker was away
    at the end of a transaction. So that may happen as often as the broker is killed.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self.command, self.failures = command, 0

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

    def restart_if_failed(self) -> None:
        """Starts it again if it has ended."""
        if self.process.poll() is not None:
            self.failures += 1
            assert self.failures <= KILLS.count("broker")
            self.kill()

    def wait_for_transaction(self) -> None:
        """Until the program begins the next one."""
        assert self.process.stdout is not None
        while not (line := self.process.stdout.readline()):
            self.process.wait()
            self.restart_if_failed()
            assert self.process.stdout is not None
        assert line == "transaction\n"


def transform_and_kill(command: Sequence[str], directory: Path) -> list[int]:
    """The numbers in `out`, as `read_committed` reads them, when each that was in `in` is there at
    least once.

    The program is killed five times and the broker three times, each in the middle of the work.
    """
    choose = random.Random(7)
    arguments = ("--directory", str(directory), "--port", str(free_port()), "--partitions", "2")
    with ExitStack() as broker:
        _, address = broker.enter_context(program(*arguments))
        producer = Producer(
            {"bootstrap.servers": address, "enable.idempotence": True, "log_level": 0}
        )
        for number in range(COUNT):
            producer.produce("in", str(number).encode(), partition=number % 2)
        assert producer.flush(TIMEOUT) == 0
        producer.list_topics("out", TIMEOUT)
        with Worker([*command, address]) as worker:
            for victim in choose.sample(KILLS, len(KILLS)):
                for _ in range(choose.randint(1, MAX_TRANSACTIONS)):
                    worker.wait_for_transaction()
                time.sleep(choose.uniform(0.0, 0.02))  # to kill it anywhere in a transaction
                if victim == "program":
                    worker.kill()
                else:
                    broker.close()
                    broker.enter_context(program(*arguments))
            found, until = list[int](), time.monotonic() + 4 * TIMEOUT
            while len(set(found)) < COUNT and time.monotonic() < until:
                time.sleep(0.5)
                worker.restart_if_failed()
                found = list(map(int, read(address, "out", "read_committed", 2)))
        everything = read(address, "out", "read_uncommitted", 2)
        print(
            f"{len(everything) - len(found)} records were aborted, and the program has failed "
            f"{worker.failures} times"
        )
        return found
