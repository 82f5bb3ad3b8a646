"""Transactions on virtual time: what consumers see, restarts, full disks.

`test_transaction_rules` has the rules of requests, `test_exactly_once` clients that are killed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from purgatory_broker.broker import Broker
from purgatory_broker.settings import Settings
from purgatory_broker.transactions import MAX_EPOCH
from raw import Direct, at, errors, fetch_fields, make_batch, produce_fields, running_broker
from test_groups import Member, form
from test_storage import full

TRANSACTIONAL = 0x10


class TransactionalProducer:
    """A producer whose every request the test makes."""

    def __init__(self, client: Direct, name: str = "mine", timeout: float = 60.0) -> None:
        self.client, self.name, self.timeout, self.sequence = client, name, timeout, 0

    @property
    def identity(self) -> dict[str, Any]:
        return {"transactional_id": self.name, "producer_id": self.id, "producer_epoch": self.epoch}

    async def init(self, version: int = 4, **values: Any) -> str:
        fields = {"transactional_id": self.name, **values}
        fields["transaction_timeout"] = timedelta(seconds=self.timeout)
        response = await self.client.ask("init_producer_id", version, **fields)
        (error,) = errors(response)
        if error == "none":
            self.id, self.epoch, self.sequence = response.producer_id, response.producer_epoch, 0
        return error

    async def begun(self, topic: str = "topic", records: int = 1) -> "TransactionalProducer":
        """Itself, in a transaction with some records."""
        assert await self.init() == "none"
        await self.write(topic, records)
        return self

    async def write(self, topic: str = "topic", records: int = 1) -> None:
        """Records of a further transaction."""
        assert await self.add(topic) == ["none"]
        assert [await self.send(topic=topic) for _ in range(records)] == ["none"] * records

    async def add(self, *topics: str, version: int = 3) -> list[str]:
        wanted = [{"name": topic, "partitions": [0]} for topic in topics]
        fields = {"topics": wanted, **self.identity}
        fields = {f"v3_and_below_{name}": value for name, value in fields.items()}
        return errors(await self.client.ask("add_partitions_to_txn", version, **fields))

    async def send(
        self, topic: str = "topic", transactional_id: str | None = "mine", key: bytes | None = None
    ) -> str:
        numbers = {"producer": self.id, "epoch": self.epoch, "sequence": self.sequence}
        batch = make_batch(b"v", attributes=TRANSACTIONAL, key=key, **numbers)
        named = transactional_id and self.name
        fields = produce_fields(topic, batch) | {"transactional_id": named}
        (error,) = errors(await self.client.ask("produce", **fields))
        self.sequence += error == "none"
        return error

    async def end(self, committed: bool = True, version: int = 3) -> str:
        fields = {"committed": committed, **self.identity}
        (error,) = errors(await self.client.ask("end_txn", version, **fields))
        return error

    async def commit_offset(self, offset: int, group: str = "group") -> list[str]:
        """The errors of the group and of its offset."""
        added = await self.client.ask("add_offsets_to_txn", group_id=group, **self.identity)
        return [*errors(added), await self.commit(group, offset)]

    async def commit(self, group: str = "group", offset: int = 1, **values: Any) -> str:
        fields = {"group_id": group, "generation_id": -1, **self.identity, **values}
        topics = at("topic", committed_offset=offset)
        (error,) = errors(await self.client.ask("txn_offset_commit", topics=topics, **fields))
        return error


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[tuple[Direct, TransactionalProducer]]:
    """A client of a new broker, and a producer that has its id."""
    async with running_broker(**settings) as client:
        producer = TransactionalProducer(client)
        assert await producer.init() == "none"
        yield client, producer


async def stable(
    client: Direct, level: int = 1, offset: int = 0, max_bytes: int = 1 << 20
) -> tuple[int, int, list[tuple[int, int]] | None]:
    """A consumer's answer: the last stable offset, the number of batches to read, and the aborted
    transactions among them."""
    fields = fetch_fields("topic", offset, max_bytes=max_bytes)
    response = await client.ask("fetch", **fields, isolation_level=level)
    partition = response.responses[0].partitions[0]
    aborted, data, count = partition.aborted_transactions, partition.records or b"", 0
    while data:
        count, data = count + 1, data[12 + int.from_bytes(data[8:12]) :]
    found = None if aborted is None else [(each.producer_id, each.first_offset) for each in aborted]
    return partition.last_stable_offset, count, found


async def end(client: Direct, level: int) -> int:
    """The end of a topic for consumers at this level of isolation."""
    return (await client.list_offset("topic", -1, isolation_level=level))[0]


async def committed(client: Direct) -> list[int]:
    """The stable offsets of the group."""
    asked = {"group_id": "group", "topics": None, "require_stable": True}
    found = (await client.ask("offset_fetch", **asked)).topics
    return [partition.committed_offset for topic in found for partition in topic.partitions]


async def test_records_are_readable_when_their_transaction_is_committed(client: Direct) -> None:
    producer = await TransactionalProducer(client).begun(records=2)
    assert await stable(client) == (0, 0, [])
    assert await stable(client, level=0) == (0, 2, None)
    assert [await end(client, level) for level in (1, 0)] == [0, 2]
    waiting = client.send("fetch", **fetch_fields("topic", 0, wait=60), isolation_level=1)
    assert not waiting.done()
    assert await producer.end() == "none"
    assert waiting.done()
    assert await stable(client) == (3, 3, [])
    assert [await end(client, level) for level in (1, 0)] == [3, 3]


async def test_fetch_lists_aborted_transactions() -> None:
    async with running() as (client, producer):
        for _ in range(3):
            await producer.write(records=2)
            await producer.end(committed=False)
        assert await stable(client) == (9, 9, [(producer.id, at) for at in (0, 3, 6)])
        assert await stable(client, max_bytes=1) == (9, 1, [(producer.id, 0)])
        assert await stable(client, offset=1, max_bytes=1) == (9, 1, [(producer.id, 0)])
        assert await stable(client, offset=4, max_bytes=1) == (9, 1, [(producer.id, 3)])


@pytest.mark.parametrize("is_open", [True, False])
async def test_after_the_last_epoch_comes_another_id(tmp_path: Path, is_open: bool) -> None:
    async with running(directory=tmp_path) as (client, producer):
        key = ("transactions", ("mine",))
        value = client.broker.metadata_log.tables["transactions"][key[1]]
        client.broker.metadata_log.append((*key, value | {"epoch": MAX_EPOCH - 1}))
    async with running_broker(directory=tmp_path, topics=()) as client:
        old, new = TransactionalProducer(client), TransactionalProducer(client)
        await old.init()
        assert (old.id, old.epoch) == (producer.id, MAX_EPOCH)
        await old.write()
        if not is_open:
            await old.end()
        given_back = {} if is_open else {"producer_id": old.id, "producer_epoch": old.epoch}
        for _ in range(1 if is_open else 2):
            assert await new.init(**given_back) == "none"
            assert (new.id != old.id, new.epoch) == (True, 0)
        assert await stable(client) == (2, 2, [(old.id, 0)] if is_open else [])
        assert await old.add("topic") == ["invalid_producer_id_mapping"]
        await new.write()


async def test_transaction_is_undecided_until_markers_are_replicated() -> None:
    async with running_broker(replicas=2, replica_timeout=1000) as client:
        producer = await TransactionalProducer(client).begun()
        client.broker.followers.stop(2)
        waiting = client.send("fetch", **fetch_fields("topic", 0, wait=60), isolation_level=1)
        assert await producer.end() == "none"
        assert await stable(client) == (0, 0, [])
        await asyncio.sleep(10)
        assert not waiting.done()
        client.broker.followers.start(2)
        await asyncio.sleep(1)
        assert waiting.done()
        assert await stable(client) == (2, 2, [])


@pytest.mark.parametrize("committed", [True, False])
async def test_offsets_are_committed_with_the_transaction(committed: bool) -> None:
    async with running() as (client, producer):

        async def fetch(is_stable: bool) -> tuple[str, int]:
            topics = [{"name": "topic", "partition_indexes": [0]}]
            asked = {"group_id": "group", "topics": topics, "require_stable": is_stable}
            partition = (await client.ask("offset_fetch", **asked)).topics[0].partitions[0]
            return partition.error_code.name, partition.committed_offset

        assert await producer.commit_offset(5) == ["none", "none"]
        assert await fetch(False) == ("none", -1)
        assert await fetch(True) == ("unstable_offset_commit", -1)
        await producer.end(committed)
        assert await fetch(True) == ("none", 5 if committed else -1)


async def test_offsets_of_an_earlier_generation_are_refused(client: Direct) -> None:
    member = Member(client, "static")
    await member.join_group()
    producer = TransactionalProducer(client)
    await producer.init()
    await client.ask("add_offsets_to_txn", **producer.identity, group_id="group")

    for error, values in (
        ("none", {"generation_id": member.generation, "member_id": member.id}),
        ("none", {}),  # as by clients that do not know of members
        ("illegal_generation", {"generation_id": 0, "member_id": member.id}),
        ("unknown_member_id", {"generation_id": member.generation, "member_id": "unknown"}),
        ("fenced_instance_id", {"group_instance_id": "static"}),
    ):
        assert await producer.commit(**values) == error


def prepare(broker: Broker, name: str) -> None:
    """As if the process had ended before a transaction's marker was written."""
    metadata = broker.metadata_log.tables["transactions"][(name,)]
    broker.metadata_log.append(("transactions", (name,), metadata | {"state": "PrepareCommit"}))


async def test_restart_completes_or_ends_transactions_in_time(tmp_path: Path) -> None:
    broker = Broker(Settings(directory=tmp_path))
    broker.topics.create("topic", 1, 1, {})
    timeouts = {"open": 600, "prepared": 60, "aborted": 600}
    producers = [TransactionalProducer(Direct(broker), *each) for each in timeouts.items()]
    for producer in producers:
        await producer.begun()
    await producers[0].commit_offset(5, "undecided")
    await producers[1].commit_offset(7)
    await producers[2].end(committed=False)
    prepare(broker, "prepared")
    await broker.aclose()

    broker = Broker(Settings(directory=tmp_path))
    broker.clock.offset = 400.0
    store = broker.topics.partition("topic", 0).log.store
    with full(store):
        broker.start()
    client = Direct(broker)
    assert await stable(client) == (0, 0, [])  # "open" is still undecided
    await asyncio.sleep(61)  # "prepared" is tried again
    assert await committed(client) == [7]
    groups = (await client.ask("list_groups")).groups
    assert {group.group_id for group in groups} == {"group", "undecided"}
    await asyncio.sleep(130)
    assert await stable(client) == (0, 0, [])
    await asyncio.sleep(20)
    aborted = [(producers[2].id, 2), (producers[0].id, 0)]
    assert await stable(client) == (6, 6, aborted)
    for producer in producers:
        producer.client = client
    ended = [await producer.end() for producer in producers]
    assert ended == ["producer_fenced", "none", "invalid_txn_state"]
    await broker.aclose()


async def test_full_disk_delays_the_end_of_transactions(tmp_path: Path) -> None:
    async with running(directory=tmp_path) as (client, producer):
        partition = client.broker.topics.partition("topic", 0)
        for store in (client.broker.metadata_log._store, partition.log.store):
            await producer.write()
            with full(store):
                assert await producer.end() == "not_coordinator"  # after which clients ask again
                assert partition.last_stable_offset < partition.high_watermark
            if store is partition.log.store:  # the decision is written
                assert await producer.end(committed=False) == "invalid_txn_state"
                assert await producer.add("topic") == ["concurrent_transactions"]
            assert await producer.end() == "none"
        assert await stable(client) == (4, 4, [])
        await producer.write()
        with full(partition.log.store):
            await asyncio.sleep(61)
        await asyncio.sleep(61)
        assert await stable(client) == (6, 6, [(producer.id, 4)])


async def test_full_disk_refuses_what_a_transaction_adds(tmp_path: Path) -> None:
    async with running(directory=tmp_path) as (client, producer):
        store: Any = client.broker.metadata_log._store
        with full(store):
            assert await producer.add("topic") == ["not_coordinator"]
            assert await producer.send() == "invalid_txn_state"
        await producer.commit_offset(5)
        with full(store):
            assert await producer.commit_offset(6) == ["none", "not_coordinator"]
        with full(store, 1):  # the decision can be written, the offset cannot
            assert await producer.end() == "not_coordinator"
        assert await producer.end() == "none"
        assert await committed(client) == [5]


async def test_offsets_of_a_deleted_topic_are_not_committed() -> None:
    async with running() as (client, producer):
        await producer.commit_offset(9)
        client.broker.delete_topic(client.broker.topics.topic("topic"))
        client.broker.topics.create("topic", 1, 1, {})
        assert await producer.end() == "none"
        assert await committed(client) == []


async def test_clear_leaves_nothing() -> None:
    async with running() as (client, producer):
        one, two = Member(client), Member(client)
        await form(one)
        assert await one.commit(5) == "none"
        joining = two.join()  # it waits for the other member to join again
        await producer.write()
        await asyncio.sleep(0.1)
        client.broker.clear()
        assert [purgatory.pending for purgatory in client.broker.purgatories] == [0] * 6
        assert not joining.done() or joining.result().error_code.name == "member_id_required"
        assert (await client.ask("metadata", topics=None)).topics == ()
        assert (await client.ask("list_groups", states_filter=[])).groups == ()
        assert client.broker.metadata_log.tables["offsets"] == {}
        client.broker.topics.create("topic", 1, 1, {})
        assert await producer.end() == "invalid_producer_id_mapping"
        await asyncio.sleep(100)
        assert await stable(client) == (0, 0, [])
        await form(Member(client))


async def test_markers_survive_compaction() -> None:
    async with running_broker([]) as client:
        client.broker.topics.create("topic", 1, 1, {"cleanup.policy": "compact"})
        producer = TransactionalProducer(client)
        await producer.init()
        for is_committed in (True, False):
            await producer.add("topic")
            assert [await producer.send(key=b"k") for _ in range(2)] == ["none"] * 2
            await producer.end(is_committed)
        client.broker.cleaner.clean()
        assert await stable(client) == (6, 3, [(producer.id, 3)])
        log = client.broker.topics.partition("topic", 0).log
        # Aborted records do not replace committed ones.
        assert [batch.base_offset for batch, _ in log._batches()] == [1, 2, 5]
