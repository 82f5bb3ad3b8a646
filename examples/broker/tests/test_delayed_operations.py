"""The conditions of the delayed operations, and their responses; on virtual time, without a
network."""

import asyncio
from collections.abc import Awaitable
from datetime import timedelta
from typing import Any

import pytest
from raw import (
    Direct,
    at,
    fetch_fields,
    fetched,
    make_batch,
    new_topic,
    produce_fields,
    produced,
    running_broker,
)

ONE, TWO = make_batch(b"one"), make_batch(b"two", b"three")


async def timed(work: Awaitable[Any]) -> tuple[Any, float]:
    """The result, and the tenths of a second that it took, rounded down."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    return await work, int(10 * (loop.time() - begun)) / 10


async def test_fetch_sums_min_bytes_over_partitions() -> None:
    async with running_broker(partitions=2) as client:
        size = len(ONE)
        waiting = client.send("fetch", **fetch_fields("topic", 0, 0, wait=60, min_bytes=2 * size))
        await client.produce("topic", ONE)
        assert not waiting.done()
        fields = produce_fields("topic", ONE)
        fields["topic_data"][0]["partition_data"][0]["index"] = 1
        await client.ask("produce", **fields)
        assert fetched(waiting.result()) == [("none", size), ("none", size)]


async def test_fetch_limits_cut_at_whole_batches() -> None:
    async with running_broker(partitions=2) as client:
        for _ in range(3):
            await client.produce("topic", ONE, ONE)
        size = len(ONE)

        async def sizes(**limits: int) -> list[int]:
            return [count for _, count in await client.fetch("topic", 0, 0, **limits)]

        assert await sizes() == [3 * size, 3 * size]
        assert await sizes(partition_bytes=2 * size) == [2 * size, 2 * size]
        assert await sizes(max_bytes=4 * size) == [3 * size, size]
        assert await sizes(max_bytes=1) == [size, 0]
        assert await sizes(partition_bytes=1) == [size, 0]


async def test_fetch_response_has_a_megabyte_at_most(client: Direct) -> None:
    huge = dict.fromkeys(("min_bytes", "max_bytes", "partition_bytes"), 1 << 30)
    waiting = client.send("fetch", **fetch_fields("topic", 0, wait=60, **huge))
    batch = make_batch(b"x" * 300_000)
    for _ in range(4):
        assert not waiting.done()
        await client.produce("topic", batch)
    assert fetched(waiting.result()) == [("none", 3 * len(batch))]


@pytest.mark.parametrize(
    ("number", "epoch", "error"),
    [
        *((*numbers, "none") for numbers in ((0, -1), (-1, -1), (0, 0), (7, -1), (7, 0))),
        (7, 1, "fetch_session_id_not_found"),
    ],
)
async def test_only_new_fetch_sessions_are_served(
    client: Direct, number: int, epoch: int, error: str
) -> None:
    await client.produce("topic", ONE)
    session = {"session_id": number, "session_epoch": epoch}
    response = await client.ask("fetch", **fetch_fields("topic", 0, wait=60), **session)
    assert (response.error_code.name, response.session_id) == (error, 0)
    assert fetched(response) == ([("none", len(ONE))] if error == "none" else [])


async def test_a_fetch_with_an_error_does_not_wait(client: Direct) -> None:
    await client.produce("topic", ONE)
    for topic, error in (
        ("topic", "offset_out_of_range"),
        ("other", "unknown_topic_or_partition"),
    ):
        assert await timed(client.fetch(topic, 2, wait=60)) == ([(error, 0)], 0)


async def test_deleted_topic_fails_its_operations() -> None:
    async with running_broker(replicas=2, replica_lag=10.0) as client:
        fetching = client.send("fetch", **fetch_fields("topic", 0, wait=60))
        producing = client.send("produce", **produce_fields("topic", ONE))
        assert not fetching.done() and not producing.done()
        await client.ask("delete_topics", topic_names=["topic"])
        assert fetched(fetching.result()) == [("unknown_topic_or_partition", 0)]
        assert produced(producing.result()) == [("unknown_topic_or_partition", -1)]


async def test_acks_all_and_consumers_wait_for_replicas() -> None:
    async with running_broker(replicas=3, replica_lag=2.0) as client:
        fetching = client.send("fetch", **fetch_fields("topic", 0, wait=60))
        assert await timed(client.produce("topic", ONE, acks=1)) == ([("none", 0)], 0)
        assert not fetching.done()
        # The first batch is on its way for 2 s, the second comes after it.
        assert await timed(client.produce("topic", TWO)) == ([("none", 1)], 4)
        assert fetched(fetching.result()) == [("none", len(ONE))]


async def test_stopped_replica_times_acks_all_out() -> None:
    async with running_broker(replicas=3) as client:

        async def replicas() -> tuple[Any, Any]:
            (topic,) = (await client.ask("metadata", topics=[{"name": "topic"}])).topics
            return topic.partitions[0].isr_nodes, topic.partitions[0].offline_replicas

        client.broker.followers.stop(3)
        assert await client.produce("topic", ONE, timeout=5) == [("request_timed_out", -1)]
        # Out of sync after 30 s, 5 of which are over.
        assert await timed(client.produce("topic", ONE, timeout=60)) == ([("none", 1)], 25)
        assert await replicas() == ((1, 2), (3,))
        client.broker.followers.start(3)
        await asyncio.sleep(1)
        assert await replicas() == ((1, 2, 3), ())
        client.broker.followers.stop(3)
        await asyncio.sleep(20)
        client.broker.followers.start(3)
        client.broker.followers.stop(3)  # it has its whole time again
        assert await timed(client.produce("topic", ONE, timeout=60)) == ([("none", 2)], 30)


async def test_too_few_replicas_refuse_or_fail_appends() -> None:
    async with running_broker(replicas=2) as client:
        client.broker.topics.create("safe", 1, 2, {"min.insync.replicas": "2"})
        client.broker.followers.stop(2)
        late = "not_enough_replicas_after_append"
        assert await client.produce("safe", ONE, timeout=60) == [(late, -1)]
        assert await client.produce("safe", ONE) == [("not_enough_replicas", -1)]
        assert await client.produce("safe", ONE, acks=1) == [("none", 1)]
        client.broker.followers.start(2)
        await asyncio.sleep(1)
        assert await client.produce("safe", ONE) == [("none", 2)]


@pytest.mark.parametrize("node", [1, 3, -1])
async def test_only_followers_that_are_there_can_be_stopped(node: int) -> None:
    async with running_broker(replicas=2) as client:
        with pytest.raises(ValueError, match=rf"node {node} cannot be stopped: \[2\] can"):
            client.broker.followers.stop(node)
        with pytest.raises(ValueError, match=rf"node {node} cannot be started: \[\] can"):
            client.broker.followers.start(node)


async def test_deleted_records_wait_for_the_replicas() -> None:
    async with running_broker(replicas=2, replica_lag=2.0) as client:
        await client.produce("topic", TWO)

        async def delete(topic: str) -> tuple[int, str]:
            fields = {"timeout": timedelta(seconds=60), "topics": at(topic, offset=1)}
            (partition,) = (await client.ask("delete_records", **fields)).topics[0].partitions
            return partition.low_watermark, partition.error_code.name

        assert await timed(delete("topic")) == ((1, "none"), 2)
        client.broker.followers.stop(2)  # the records are deleted already
        assert await delete("topic") == (1, "none")
        assert await delete("other") == (-1, "unknown_topic_or_partition")


async def test_acks_of_zero_get_no_response(client: Direct) -> None:
    assert await client.ask("produce", **produce_fields("topic", ONE, acks=0)) is None
    with pytest.raises(ConnectionError, match="no partition 0 of 'other'"):
        await client.ask("produce", **produce_fields("other", ONE, acks=0))
    assert await client.produce("topic", ONE, acks=2) == [("invalid_required_acks", -1)]


async def test_repeated_batch_is_appended_once(client: Direct) -> None:

    async def send(sequence: int, count: int = 1, epoch: int = 0) -> tuple[str, int]:
        batch = make_batch(*[b"v"] * count, producer=7, epoch=epoch, sequence=sequence)
        (outcome,) = await client.produce("topic", batch)
        return outcome

    for number in (*range(6), 5, 1, 3):
        assert await send(number) == ("none", number)
    out_of_order = ("out_of_order_sequence_number", -1)
    assert await send(0) == out_of_order  # older than the last five batches
    assert await send(7) == out_of_order
    assert await send(6, count=3) == ("none", 6)
    assert await send(6, count=2) == await send(1, epoch=1) == out_of_order
    assert await send(0, epoch=1) == ("none", 9)
    assert await send(9, epoch=0) == ("invalid_producer_epoch", -1)
    assert (await client.list_offset("topic", -1))[0] == 10


async def test_sequence_numbers_begin_again_after_the_last(client: Direct) -> None:
    last = 2**31 - 1
    for producer, sequence, count in ((7, last - 1, 4), (7, 2, 1), (8, last, 1), (8, 0, 1)):
        batch = make_batch(*[b"v"] * count, producer=producer, epoch=0, sequence=sequence)
        ((error, _),) = await client.produce("topic", batch)
        assert error == "none"


async def test_producer_is_forgotten_after_a_silent_day(client: Direct) -> None:
    producers = client.broker.topics.partition("topic", 0).producers

    async def send(producer: int, sequence: int) -> str:
        batch = make_batch(b"v", producer=producer, epoch=0, sequence=sequence)
        ((error, _),) = await client.produce("topic", batch)
        return error

    assert [await send(7, 0), await send(8, 0)] == ["none", "none"]
    client.broker.clock.offset += 86_000
    assert [await send(7, 1), await send(8, 9)] == ["none", "out_of_order_sequence_number"]
    assert len(producers) == 2
    client.broker.clock.offset += 1_000
    assert [await send(7, 2), len(producers)] == ["none", 1]
    assert [await send(8, 9), len(producers)] == ["none", 2]  # with any number, as in Kafka


async def test_a_repeated_batch_waits_for_the_replicas_too() -> None:
    async with running_broker(replicas=2, replica_lag=2.0) as client:
        fields = produce_fields("topic", make_batch(b"v", producer=7, epoch=0, sequence=0))
        first, again = client.send("produce", **fields), client.send("produce", **fields)
        await asyncio.sleep(1)
        assert not first.done() and not again.done()
        assert produced(await first) == produced(await again) == [("none", 0)]


async def test_topic_ids_differ_for_one_name() -> None:
    async with running_broker([]) as client:

        async def create() -> Any:
            return (await client.ask("create_topics", topics=new_topic())).topics[0].topic_id

        async def fetch(topic_id: Any, wait: float = 0.0) -> list[tuple[str, int]]:
            fields = fetch_fields("topic", 0, wait=wait)
            fields["topics"][0]["topic_id"] = topic_id
            response = await client.ask("fetch", 13, **fields)
            assert [topic.topic_id for topic in response.responses] == [topic_id]
            return fetched(response)

        async def by_id(name: str, version: int, topic_id: Any) -> tuple[Any, str, str | None]:
            wanted = [{"name": None, "topic_id": topic_id}]
            response = await client.ask(name, version, topics=wanted)
            (topic,) = getattr(response, "responses", None) or response.topics
            return topic.topic_id, topic.error_code.name, topic.name

        first = await create()
        await client.produce("topic", ONE)
        assert await fetch(first) == [("none", len(ONE))]
        requests = ("metadata", 12), ("delete_topics", 6)
        found = [await by_id(*request, first) for request in requests]
        assert found == [(first, "none", "topic")] * 2
        second = await create()
        assert second != first
        assert await fetch(first, wait=60) == [("unknown_topic_id", 0)]
        assert await fetch(second) == [("none", 0)]
        for request in requests:
            assert (await by_id(*request, first))[1:] == ("unknown_topic_id", None)
