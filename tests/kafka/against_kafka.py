"""Measures the broker of `examples/broker` against Kafka itself, on this machine, with the same
clients.

    python tests/kafka/against_kafka.py

Five measurements, each of new brokers, alternately and several times; a table has the medians.

- *start*: seconds from the start of the process to its first response.
- *latency*: from the moment at which a message of 100 bytes was due to be produced until a consumer
  that waits in fetch has it; both are confluent-kafka, in processes of their own, with acks=all and
  no lingering. The first seconds are a warm-up, which counts for the processor time alone.
- *throughput*: messages of 100 bytes, and of 10 kB, that one producer sends as fast as it can,
  acks=all, and that one consumer reads then; both are confluent-kafka, in this process.
- *idle*: the cost of 5,000 consumers that wait in fetch and get nothing, each on a connection of
  its own: half a second, as clients do by default, or 30 s.
- *group*: seconds until a new group has the first record of a topic that has some, by five clients.
  A broker first waits for more members: ours for 0.1 s by default, and Kafka for 3 s, so Kafka is
  measured with both.

Kafka is one node in KRaft mode, with the JVM options of its own start script; its storage is
formatted beforehand. Our broker keeps everything in memory. Kafka writes to its log files, and
syncs as seldom as it does by default.
"""

import argparse
import asyncio
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from brokers import KINDS, TIMEOUT, Running, running
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from first_record import CLIENTS, fill, first_records
from idle_consumers import let_them_wait
from maven import Unavailable

SIZE: Final = 100
QUIET: Final = {"log_level": 0}


@dataclass(frozen=True)
class Latency:
    """From due to received, in milliseconds."""

    p50: float
    p99: float
    worst: float
    lost: int
    cpu: float
    """Processor time of the broker, in microseconds for each message."""


def make_topic(address: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": address, **QUIET})
    for made in admin.create_topics([NewTopic(name, 1, 1)]).values():
        made.result(TIMEOUT)


def produce(address: str, topic: str, rate: float, count: int) -> None:
    """Produces messages at a constant rate; each contains the time at which it was due."""
    failed = []
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0, "acks": "all", **QUIET})
    on_delivery = lambda error, _: failed.append(error) if error is not None else None  # noqa: E731
    padding = b" " * (SIZE - 16)
    began = time.monotonic_ns()
    for number in range(count):
        due = began + round(number / rate * 1e9)
        while (left := due - time.monotonic_ns()) > 0:
            producer.poll(0)
            time.sleep(min(left / 1e9, 0.01))
        producer.produce(
            topic,
            due.to_bytes(8) + number.to_bytes(8) + padding,
            partition=0,
            on_delivery=on_delivery,
        )
        producer.poll(0)
    producer.flush(TIMEOUT)
    if failed:
        raise KafkaException(failed[0])


def consume(address: str, topic: str, count: int, ready: Any) -> list[tuple[int, int]]:
    """The numbers of the messages and their latencies in nanoseconds, until the last one, or none
    for a while."""
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "latency", "enable.auto.commit": False, **QUIET}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    consumer.poll(1.0)  # it waits in fetch now
    ready.set()
    found = []
    try:
        while message := consumer.poll(TIMEOUT / 4):
            now = time.monotonic_ns()
            if message.error():
                raise KafkaException(message.error())
            value = message.value()
            number = int.from_bytes(value[8:16])
            found.append((number, now - int.from_bytes(value[:8])))
            if number == count - 1:
                break
    finally:
        consumer.close()
    return found


def measure_latency(broker: Running, rate: float, warm_up: float, seconds: float) -> Latency:
    topic = f"latency-{rate:g}"
    make_topic(broker.address, topic)
    warm, count = round(rate * warm_up), round(rate * (warm_up + seconds))
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, ProcessPoolExecutor(2, mp_context=context) as clients:
        ready = manager.Event()
        consuming = clients.submit(consume, broker.address, topic, count, ready)
        ready.wait(TIMEOUT)
        cpu = broker.cpu()
        clients.submit(produce, broker.address, topic, rate, count).result()
        found = consuming.result()
        cpu = broker.cpu() - cpu
    counted = sorted(latency / 1e6 for number, latency in found if number >= warm)
    quantile = lambda part: counted[int(part * (len(counted) - 1))]  # noqa: E731
    lost = count - len({number for number, _ in found})
    return Latency(quantile(0.5), quantile(0.99), counted[-1], lost, cpu / count * 1e6)


def measure_throughput(broker: Running, size: int, count: int) -> tuple[float, float]:
    """Messages a second that are produced, and consumed afterwards."""
    topic = f"throughput-{size}"
    make_topic(broker.address, topic)
    limits = {"queue.buffering.max.messages": 0, "queue.buffering.max.kbytes": 1 << 20}
    producer = Producer({"bootstrap.servers": broker.address, "acks": "all", **limits, **QUIET})
    value, began = b"x" * size, time.monotonic()
    for _ in range(count):
        producer.produce(topic, value, partition=0)
        producer.poll(0)
    if producer.flush(TIMEOUT):
        raise TimeoutError(f"{broker.address} has not confirmed all messages")
    produced = time.monotonic() - began
    unlimited = {
        "queued.min.messages": 10_000_000,
        "queued.max.messages.kbytes": 1 << 20,
    }  # or librdkafka pauses for a second
    consumer = Consumer(
        {"bootstrap.servers": broker.address, "group.id": "throughput", **unlimited, **QUIET}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    left, began = count, time.monotonic()
    while left:
        left -= len(consumer.consume(min(left, 10_000), TIMEOUT))
    consumed = time.monotonic() - began
    consumer.close()
    return count / produced, count / consumed


def rounds(options: argparse.Namespace, measure: Callable[[Running], Any]) -> dict[str, list[Any]]:
    """The results of a measurement for each kind of broker."""
    results: dict[str, list[Any]] = {kind: [] for kind in options.only}
    for _ in range(options.rounds):
        for kind in options.only:
            with running(kind) as broker:
                results[kind].append(measure(broker))
    return results


def middle(values: Iterable[float]) -> float:
    return median(list(values))


def print_start(options: argparse.Namespace) -> None:
    print("\nstart            first response, s   CPU by then, s   memory, MiB")
    for kind, found in rounds(
        options, lambda broker: (broker.seconds, broker.cpu(), broker.resident() / 2**20)
    ).items():
        seconds, cpu, memory = (middle(column) for column in zip(*found, strict=True))
        print(f"{kind:16} {seconds:17.2f} {cpu:16.2f} {memory:13.0f}", flush=True)


def print_latency(options: argparse.Namespace) -> None:
    print(
        "\nlatency, in milliseconds         p50       p99     worst    lost   broker's µs of "
        "CPU a message"
    )
    for rate in options.rates:

        def measure(broker, rate=rate):
            return measure_latency(broker, rate, options.warm_up, options.seconds)

        for kind, found in rounds(options, measure).items():
            p50, p99, worst, cpu = (
                middle(getattr(each, name) for each in found)
                for name in ("p50", "p99", "worst", "cpu")
            )
            lost = sum(each.lost for each in found)
            print(
                f"{kind:8} {rate:10,.0f}/s   {p50:12.2f} {p99:9.2f} {worst:9.2f} {lost:7} "
                f"{cpu:12.0f}",
                flush=True,
            )


def print_throughput(options: argparse.Namespace) -> None:
    print("\nthroughput, messages a second      produced     consumed   MB/s of both")
    for size, count in ((100, options.messages), (10_000, options.messages // 30)):
        measure = lambda broker, size=size, count=count: measure_throughput(broker, size, count)  # noqa: E731
        for kind, found in rounds(options, measure).items():
            produced, consumed = (middle(column) for column in zip(*found, strict=True))
            both = f"{produced * size / 1e6:,.0f}, {consumed * size / 1e6:,.0f}"
            print(
                f"{kind:8} {size:10,} bytes   {produced:12,.0f} {consumed:12,.0f} {both:>14}",
                flush=True,
            )


def print_idle(options: argparse.Namespace) -> None:
    print(
        f"\n{options.consumers:,} idle consumers     µs of CPU each a second   of a processor "
        "responses/s   KiB each   closed"
    )
    for max_wait in options.waits:

        def measure(broker: Running, max_wait: float = max_wait) -> Any:
            make_topic(broker.address, "idle")
            return asyncio.run(
                let_them_wait(
                    broker, "idle", options.consumers, max_wait, max(options.seconds, max_wait)
                )
            )

        for kind, found in rounds(options, measure).items():
            names = ("cpu", "share", "responses", "bytes_each")
            cpu, share, responses, each = (
                middle(getattr(one, name) for one in found) for name in names
            )
            print(
                f"{kind:8} wait {max_wait:4g} s {cpu:26.1f} {share:15.0%} {responses:12,.0f} "
                f"{each / 1024:10.1f}"
                f" {sum(one.lost for one in found):8}",
                flush=True,
            )


def print_group(options: argparse.Namespace) -> None:
    print("\nfirst record of a new group, s" + "".join(f"{client:>16}" for client in CLIENTS))
    delays = [
        ("ours", "0.1 s", ""),
        ("Kafka", "0.1 s", ""),
        ("Kafka", "3 s", "group.initial.rebalance.delay.ms=3000\n"),
    ]
    for kind, delay, settings in delays:
        if kind not in options.only:
            continue
        with running(kind, settings=settings) as broker:
            fill(broker.address)
            cells = []
            for client in CLIENTS:
                try:
                    cells.append(
                        f"{middle(first_records(broker.address, client, options.groups)):16.2f}"
                    )
                except Unavailable as error:
                    print(f"without {client}: {error}", file=sys.stderr)
                    cells.append(f"{'-':>16}")
        print(f"{kind:8} waits {delay:15}" + "".join(cells), flush=True)


MEASUREMENTS: Final = {
    "start": print_start,
    "latency": print_latency,
    "throughput": print_throughput,
    "idle": print_idle,
    "group": print_group,
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    numbers = lambda text: [float(each) for each in text.split(",")]  # noqa: E731
    parser.add_argument(
        "measurements",
        nargs="*",
        metavar="MEASUREMENT",
        help=f"of {', '.join(MEASUREMENTS)} (default: all)",
    )
    parser.add_argument(
        "--rates", type=numbers, default=[100.0, 1000.0, 10_000.0], help="messages a second"
    )
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="for how long to measure (default: %(default)s)"
    )
    parser.add_argument(
        "--warm-up",
        type=float,
        default=5.0,
        help="seconds of messages that do not count: a JVM compiles",
    )
    parser.add_argument(
        "--messages",
        type=int,
        default=300_000,
        help="of 100 bytes, for the throughput (default: %(default)s)",
    )
    parser.add_argument("--consumers", type=int, default=5000)
    parser.add_argument(
        "--waits", type=numbers, default=[0.5, 30.0], help="seconds that a fetch waits"
    )
    parser.add_argument(
        "--groups", type=int, default=5, help="of each client (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", choices=KINDS, help="default: both")
    options = parser.parse_args(arguments)
    options.only = options.only or list(KINDS)
    if unknown := set(options.measurements) - set(MEASUREMENTS):
        parser.error(
            f"there is no measurement {', '.join(sorted(unknown))}: choose of "
            f"{', '.join(MEASUREMENTS)}"
        )
    try:
        for name in options.measurements or MEASUREMENTS:
            MEASUREMENTS[name](options)
    except Unavailable as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
