"""The cost of a small request has limits, in memory and in time."""

import gzip
import struct
import subprocess
import sys
import time
import tracemalloc
from contextlib import suppress
from math import inf
from typing import Any

import pytest
from brokers import ENVIRONMENT
from cramjam import lz4, zstd
from hypothesis import given, settings
from hypothesis import strategies as st
from purgatory_broker.batches import HEADER
from purgatory_broker.codec import MAX_ITEMS
from purgatory_broker.compression import MAX_SIZE, TooLarge, decompress
from purgatory_broker.topics import MAX_PARTITIONS
from purgatory_broker.wire import BadRequest, read_request
from raw import (
    LOCAL,
    PEER,
    errors,
    framed,
    make_batch,
    new_topic,
    running_broker,
)
from test_bad_input import damaged
from test_batches import CODECS, xerial

MB = 1024 * 1024
HALF = MAX_SIZE // 2
COMPRESSED = {name: codec for name, codec in CODECS.items() if name != "none"}
LARGE_CODECS = COMPRESSED | {
    "snappy of Java": (2, lambda data: xerial(data, HALF)),
    "lz4, several frames": (3, lambda data: bytes(lz4.compress(data[:HALF])) * 8),
    "zstd, several frames": (4, lambda data: bytes(zstd.compress(data[:HALF])) * 8),
}
"""The parts of data in several blocks or frames are each below the limit."""


GROWTH = """
import resource, sys
from purgatory_broker.compression import TooLarge, decompress
codec, data = int(sys.argv[1]), sys.stdin.buffer.read()
try:
    decompress(codec, b"damaged")  # which loads the decompressor
except ValueError:
    pass
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    decompress(codec, data)
except TooLarge:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("codec", LARGE_CODECS)
def test_large_batches_take_bounded_memory(codec: str) -> None:
    number, compress = LARGE_CODECS[codec]
    data = compress(b"\0" * (256 * MB))
    command = [sys.executable, "-c", GROWTH, str(number)]  # alone: the peak is a process's
    growth = subprocess.run(
        command, input=data, env=ENVIRONMENT, stdout=subprocess.PIPE, check=True
    ).stdout
    assert int(growth) < 100_000  # KB; 262,000 without a limit


@pytest.mark.parametrize("codec", COMPRESSED)
@settings(max_examples=30, deadline=None)
@given(st.data())
def test_data_below_the_limit_are_the_same(codec: str, data: st.DataObject) -> None:
    number, compress = COMPRESSED[codec]
    plain = data.draw(st.binary(max_size=300)) * data.draw(st.integers(1, 300))
    compressed = compress(plain)
    assert decompress(number, compressed, len(plain)) == plain
    if plain:
        with pytest.raises(TooLarge):
            decompress(number, compressed, len(plain) - 1)
    with suppress(ValueError):
        assert len(decompress(number, data.draw(damaged(compressed)), 1000)) <= 1000


async def test_many_small_records_are_refused_at_once() -> None:
    data = gzip.compress(b"\0" * (MAX_SIZE - MB))  # 32 million records of no bytes
    before = time.process_time()
    gzip.decompress(data)
    decompressing = time.process_time() - before
    async with running_broker() as client:
        for count, error in ((1, "invalid_record"), (32_000_000, "message_too_large")):
            batch = make_batch(b"v", attributes=1, compress=lambda _: data, count=count)
            fastest = inf
            for _ in range(3):  # one may be slow on a busy machine
                before = time.process_time()
                assert await client.produce("topic", batch) == [(error, -1)]
                fastest = min(fastest, time.process_time() - before)
            assert fastest < 20 * decompressing  # some 200 times without a limit


async def test_batches_of_one_request_share_a_limit() -> None:
    data = gzip.compress(make_batch(b"v" * (MAX_SIZE // 3))[HEADER.size :])
    batch = make_batch(b"v", attributes=1, compress=lambda _: data)
    async with running_broker(partitions=4) as client:
        found = await client.produce("topic", *[batch] * 4)
        assert found == [("none", 0)] * 2 + [("message_too_large", -1)] * 2
        assert await client.produce("topic", batch) == [("none", 1)]


async def test_metadata_of_many_topics_takes_bounded_memory() -> None:
    topics = [{"name": f"topic-{number:05}"} for number in range(30_000)]
    async with running_broker() as client:
        frame = framed("metadata", topics=topics, allow_auto_topic_creation=True)
        responses: list[Any] = []
        tracemalloc.start()
        client.broker.handle(read_request(frame, LOCAL, PEER, responses.append))
        kept, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    codes = [topic.get("error_code") for topic in responses[0]["topics"]]
    assert len(client.broker.topics.by_name) == MAX_PARTITIONS
    assert codes.count(None) == MAX_PARTITIONS - 1  # one was there
    assert {code.name for code in codes if code is not None} == {"policy_violation"}
    assert kept < 90 * MB and peak < 110 * MB  # 154 MB without a limit


async def test_partitions_of_all_topics_share_a_limit() -> None:
    async with running_broker(topics=["one"]) as client:

        async def create(name: str, count: int, *, validate_only: bool = False) -> str:
            fields = {"topics": new_topic(name, count), "validate_only": validate_only}
            (error,) = errors(await client.ask("create_topics", **fields))
            return error

        assert await create("two", MAX_PARTITIONS, validate_only=True) == "policy_violation"
        assert await create("two", MAX_PARTITIONS) == "policy_violation"
        assert await create("two", MAX_PARTITIONS - 2) == "none"
        for count, error in ((3, "policy_violation"), (2, "none")):
            for validate_only in (True, False):
                fields = {"topics": [{"name": "one", "count": count}]}
                fields |= {"validate_only": validate_only}
                assert errors(await client.ask("create_partitions", **fields)) == [error]
        assert await create("three", 1) == "policy_violation"
        client.broker.delete_topic(client.broker.topics.topic("two"))
        assert await create("three", 1) == "none"
        assert len(list(client.broker.topics)) == 3


def test_requests_of_too_many_items_are_refused() -> None:
    empty = struct.pack(">hhihi", 3, 1, 1, -1, MAX_ITEMS + 1) + b"\0\0" * (MAX_ITEMS + 1)
    nested = [{"name": "t", "partitions": [{"partition_index": 0}] * 400} for _ in range(300)]
    count = 1_000_000
    number = bytes([count & 0x7F | 0x80, count >> 7 & 0x7F | 0x80, count >> 14])
    tags = struct.pack(">hhih", 3, 12, 1, -1) + number + b"\0\0" * count + b"\0\0\0\0"
    for frame in (empty, framed("list_offsets", topics=nested), tags):
        with pytest.raises(BadRequest, match=f"it has more than {MAX_ITEMS} items"):
            read_request(frame, LOCAL, PEER, print)


async def test_offset_of_a_repeated_partition_is_refused() -> None:
    async with running_broker(partitions=2) as client:
        partitions = [{"partition_index": index, "timestamp": -1} for index in (0, 1, 0)]
        topics = [{"name": "topic", "partitions": partitions}]
        found = errors(await client.ask("list_offsets", topics=topics))
        assert found == ["invalid_request", "none", "invalid_request"]


async def test_many_topics_are_created_in_linear_time() -> None:
    topics = [{"name": f"{number}", "num_partitions": 0} for number in range(30_000)]
    async with running_broker() as client:
        frame = framed("create_topics", topics=topics)
        reading = handling = inf
        for _ in range(3):  # one may be slow on a busy machine
            begun = time.process_time()
            request = read_request(frame, LOCAL, PEER, lambda _: None)
            was_read = time.process_time()
            client.broker.handle(request)
            reading = min(reading, was_read - begun)
            handling = min(handling, time.process_time() - was_read)
        assert handling < 20 * reading  # some 40 times if each name is compared with each


def test_negative_block_of_java_is_refused() -> None:
    with pytest.raises(ValueError, match="a block of -1 bytes"):
        decompress(2, xerial(b"abc") + struct.pack(">i", -1))
