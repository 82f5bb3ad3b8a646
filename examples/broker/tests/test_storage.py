"""Storage: the log against a list, and a broker that ends in all ways and is started again."""

import errno
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import time as time_of_day
from typing import Any

import pytest
from brokers import program
from hypothesis import given, settings
from hypothesis import strategies as st
from purgatory_broker import topics
from purgatory_broker.batches import read_batch
from purgatory_broker.broker import Broker
from purgatory_broker.log import Log, Store
from purgatory_broker.settings import Settings
from raw import (
    Direct,
    Raw,
    at,
    errors,
    fetch_fields,
    fetched,
    make_batch,
    new_topic,
    produce_fields,
    running_broker,
)

ONE, TWO = make_batch(b"one"), make_batch(b"two", b"three")


def batches_of(data: bytes) -> list[tuple[int, int]]:
    """First offset and number of records of each batch."""
    found, at = [], 0
    while at < len(data):
        batch = read_batch(data[at:])
        found.append((batch.base_offset, batch.record_count))
        at += batch.size
    return found


sizes = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 50)), max_size=12)


@settings(deadline=None)
@given(sizes, st.data())
def test_a_log_reads_what_a_list_would(batches: list[tuple[int, int]], data: st.DataObject) -> None:
    log, oracle, offset = Log(), [], 0
    for count, time in batches:
        batch = make_batch(*[b"x"] * count, time=time)
        assert log.append(batch, read_batch(batch)).base_offset == offset
        oracle.append((offset, count, len(batch), time))
        offset += count
    assert log.end == offset
    cut = data.draw(st.integers(0, offset))
    log.delete_before(cut)
    oracle = [entry for entry in oracle if entry[0] + entry[1] > cut]
    assert log.start == cut
    ends = [entry[0] for entry in oracle] + [offset]
    start, end = data.draw(st.integers(cut, offset)), data.draw(st.sampled_from(ends))
    wanted = [entry for entry in oracle if start < entry[0] + entry[1] and entry[0] < end]
    wanted = wanted if start < end else []
    assert log.size(start, end) == sum(entry[2] for entry in wanted)
    limit = data.draw(st.integers(0, 400))
    taken, left = [], limit
    for entry in wanted:
        left -= entry[2]
        if left < 0 and taken:
            break
        taken.append(entry[:2])
        if left < 0:
            break
    read, after = log.read(start, end, limit, at_least_one=True)
    assert batches_of(read) == taken
    assert after == (sum(taken[-1]) if taken else start)
    time = data.draw(st.integers(0, 60))
    records = [
        (base + number, first + number)
        for base, count, _, first in oracle
        for number in range(count)
    ]
    since = next(((place, stamp) for place, stamp in records if stamp >= time), None)
    found = log.find_time(time, offset)
    assert found == since or (since is not None and found == (max(since[0], cut), since[1]))


@pytest.mark.parametrize(
    "tail", [b"", ONE[:-1], ONE[:30], ONE[:5], b"\0" * 100, make_batch(b"x")[:-1] + b"y"]
)
def test_an_incomplete_batch_at_the_end_is_truncated(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(ONE + TWO + tail)
    log = Log(Store(path))
    assert [batch.record_count for batch, _ in log.load()] == [1, 2]
    assert path.stat().st_size == len(ONE + TWO)
    log.append(ONE, read_batch(ONE))
    log.store.file.close()
    assert path.stat().st_size == len(ONE + TWO + ONE)


async def test_a_broker_continues_where_it_ended(tmp_path: Path) -> None:
    now = int(time_of_day() * 1000)  # of older producers a restart knows nothing

    def batch(sequence: int) -> bytes:
        return make_batch(b"v", producer=0, epoch=0, sequence=sequence, time=now)

    async def life(first: int) -> None:
        broker = Broker(Settings(directory=tmp_path, partitions=2))
        client = Direct(broker)
        await client.ask("metadata", topics=[{"name": "topic"}], allow_auto_topic_creation=True)
        for number in range(first, first + 3):
            expected = [("none", number), ("none", number)]
            assert await client.produce("topic", batch(number), ONE) == expected
        again = await client.produce("topic", batch(first + 1))
        assert again == [("none", first + 1)]
        await client.ask("delete_records", topics=at("topic", 1, offset=first + 2))
        await broker.aclose()

    for number in range(3):
        await life(3 * number)
    client = Direct(Broker(Settings(directory=tmp_path)))
    response = await client.ask("fetch", **fetch_fields("topic", 0, 0))
    assert fetched(response) == [("none", 9 * len(batch(0))), ("offset_out_of_range", 0)]
    response = await client.ask("fetch", **fetch_fields("topic", 9, 8))
    assert fetched(response) == [("none", 0), ("none", len(ONE))]
    assert await client.produce("topic", batch(8)) == [("none", 8)]
    await client.ask("delete_topics", topic_names=["topic"])
    await client.broker.aclose()
    assert list((tmp_path / "topics").iterdir()) == []


async def test_a_topic_of_the_same_name_begins_empty(tmp_path: Path) -> None:
    async with running_broker(directory=tmp_path) as client:
        await client.produce("topic", ONE)
        await commit(client, 1)
        stale = tmp_path / "topics" / "topic" / "0.log"
        data = stale.read_bytes()
        await client.ask("delete_topics", topic_names=["topic"])
        stale.parent.mkdir()
        stale.write_bytes(data)  # as if the process had ended before the file was deleted
        client.broker.topics.create("topic", 1, 1, {})
        assert await client.fetch("topic", 0) == [("none", 0)]
        assert (await client.ask("offset_fetch", group_id="group", topics=None)).topics == ()


async def commit(client: Direct, offset: int) -> str:
    """The error of a committed offset."""
    topics = at("topic", committed_offset=offset)
    (error,) = errors(await client.ask("offset_commit", group_id="group", topics=topics))
    return error


async def test_producer_ids_are_unique_across_restarts(tmp_path: Path) -> None:
    ids = []
    for _ in range(3):
        broker = Broker(Settings(directory=tmp_path))
        ids += [(await Direct(broker).ask("init_producer_id")).producer_id for _ in range(2)]
        broker.metadata_log.close()  # and nothing else, as if the process were killed
        broker._lock.close()
    assert len(set(ids)) == 6


@pytest.mark.slow
@pytest.mark.parametrize("extra", [[], ["--fsync"]])
def test_what_had_a_response_survives_a_kill(tmp_path: Path, extra: list[str]) -> None:
    arguments = ("--directory", str(tmp_path), *extra)
    with program(*arguments) as (process, address), Raw(address) as client:
        client.create("topic")
        for number in range(50):
            assert client.produce("topic", TWO) == [("none", 2 * number)]
        client.send("produce", **produce_fields("topic", TWO))  # which may or may not survive
        process.send_signal(signal.SIGKILL)
        process.wait()
    with program(*arguments) as (_, address), Raw(address) as client:
        response: Any = client.ask("fetch", **fetch_fields("topic", 0))
        found = batches_of(response.responses[0].partitions[0].records)
        assert found[:50] == [(2 * number, 2) for number in range(50)]
        assert len(found) <= 51


class Full:
    """A file on a disk that is full after some more writes, in the middle of the next one."""

    def __init__(self, file: Any, writes: int = 0) -> None:
        self.file, self.writes = file, writes

    def write(self, data: bytes) -> int:
        self.writes -= 1
        return int(self.file.write(data if self.writes >= 0 else data[:10]))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


@contextmanager
def full(store: Any, writes: int = 0) -> Iterator[None]:
    """The disk of a store is full during the block, after some more writes."""
    file, store.file = store.file, Full(store.file, writes)
    yield
    store.file = file


async def test_full_disk_is_an_error_without_effect(tmp_path: Path) -> None:
    async with running_broker(directory=tmp_path) as client:
        store = client.broker.topics.partition("topic", 0).log.store
        with full(store):
            assert await client.produce("topic", ONE) == [("kafka_storage_error", -1)]
        assert await client.produce("topic", ONE) == [("none", 0)]
        response = await client.ask("fetch", **fetch_fields("topic", 0))
        assert batches_of(response.responses[0].partitions[0].records) == [(0, 1)]


async def test_a_full_disk_leaves_the_metadata_log_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_broker(directory=tmp_path) as client:
        assert await commit(client, 1) == "none"
        store: Any = client.broker.metadata_log._store
        with full(store):
            assert await commit(client, 2) == "not_coordinator"
            for response in (
                await client.ask("create_topics", topics=new_topic("no")),
                await client.ask("init_producer_id"),
            ):
                assert errors(response) == ["kafka_storage_error"]
        (message,) = (record.getMessage() for record in caplog.records)
        assert "kept.jsonl cannot be written, requests that need it are refused" in message
        assert "[Errno 28] No space left on device" in message
        await client.ask("metadata", topics=[{"name": "other"}], allow_auto_topic_creation=True)
    async with running_broker([], directory=tmp_path) as client:
        response = await client.ask("offset_fetch", group_id="group", topics=None)
        assert [partition.committed_offset for partition in response.topics[0].partitions] == [1]
        topics = (await client.ask("metadata", topics=None)).topics
        assert {topic.name for topic in topics} == {"topic", "other"}


async def test_a_second_broker_on_one_directory_is_refused(tmp_path: Path) -> None:
    broker = Broker(Settings(directory=tmp_path))
    with pytest.raises(OSError, match=f"another broker uses the directory {tmp_path}"):
        Broker(Settings(directory=tmp_path))
    await broker.aclose()
    await Broker(Settings(directory=tmp_path)).aclose()


async def test_topic_beyond_the_open_files_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(Settings(directory=tmp_path))
    client, opened = Direct(broker), list[Store]()

    class Limited(Store):
        def __init__(self, path: Path, fsync: bool) -> None:
            if len(opened) == 2:
                raise OSError(errno.EMFILE, "Too many open files", str(path))
            super().__init__(path, fsync)
            opened.append(self)

    wanted = new_topic(partitions=3)
    with monkeypatch.context() as patch:
        patch.setattr(topics, "Store", Limited)
        (refused,) = (await client.ask("create_topics", topics=wanted)).topics
    assert refused.error_code.name == "kafka_storage_error"
    assert "Too many open files" in refused.error_message
    assert all(store.file.closed for store in opened)
    assert errors(await client.ask("create_topics", topics=wanted)) == ["none"]
    await broker.aclose()
