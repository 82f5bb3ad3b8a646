"""The rules of transactions, request by request: our broker on virtual time and Kafka itself give the
same answers."""

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest
from brokers import TIMEOUT, running
from maven import Unavailable
from raw import (
    Direct,
    Raw,
    at,
    errors,
    fetch_fields,
    make_batch,
    new_topic,
    produce_fields,
    produced,
    running_broker,
)
from requirements import unavailable
from test_transactions import TransactionalProducer

NOT_YET = {
    *("concurrent_transactions", "coordinator_load_in_progress", "coordinator_not_available"),
    *("not_coordinator", "not_enough_replicas", "not_leader_or_follower"),
    "unstable_offset_commit",
}
"""Errors after which clients ask again: Kafka completes a transaction, and makes a topic, after its
response."""


class Patient:
    """A client over a socket, which asks again as long as the answer is not known yet."""

    def __init__(self, address: str) -> None:
        self.raw = Raw(address)

    async def ask(self, name: str, version: int | None = None, **values: Any) -> Any:
        until = time.monotonic() + TIMEOUT
        response = self.raw.ask(name, version, **values)
        while NOT_YET.intersection(errors(response)) and time.monotonic() < until:
            await asyncio.sleep(0.05)
            response = self.raw.ask(name, version, **values)
        return response


Client = Patient | Direct


async def create(client: Client, name: str) -> None:
    """A topic with one partition, which is there."""
    await client.ask("create_topics", topics=new_topic(name), timeout=timedelta(seconds=10))
    until = time.monotonic() + TIMEOUT
    while time.monotonic() < until:
        found = await client.ask("metadata", 8, topics=[{"name": name}])
        if found.topics[0].partitions and not set(errors(found)) - {"none"}:
            return
        await asyncio.sleep(0.05)


async def committed(client: Client, group: str) -> tuple[str, int]:
    """The committed offset, when no transaction is going to change it."""
    topics = [{"name": "topic", "partition_indexes": [0]}]
    fields = {"group_id": group, "topics": topics, "require_stable": True}
    (partition,) = (await client.ask("offset_fetch", **fields)).topics[0].partitions
    return partition.error_code.name, partition.committed_offset


async def epochs_and_fencing(client: Client) -> None:
    await create(client, "topic")
    one, two = TransactionalProducer(client), TransactionalProducer(client)
    assert await one.init() == "none"
    given_back = {"producer_id": one.id, "producer_epoch": one.epoch}
    for _ in range(2):
        assert await one.init(**given_back) == "none"
        assert one.epoch == given_back["producer_epoch"] + 1
    assert (await one.add("topic"), await one.send()) == (["none"], "none")
    ended = [await one.end(), await one.end(), await one.end(committed=False)]
    assert ended == ["none", "none", "invalid_txn_state"]
    assert await one.init() == "none"
    assert await one.end() == "invalid_txn_state"
    assert (await one.add("topic"), await one.send()) == (["none"], "none")
    assert await two.init() == "none"
    assert (two.id, two.epoch) == (one.id, one.epoch + 2)
    assert await one.send() == "invalid_producer_epoch"
    assert (await one.add("topic"), await one.end()) == (["producer_fenced"], "producer_fenced")
    assert await one.add("topic", version=1) == ["invalid_producer_epoch"]
    one.sequence -= 1
    assert await one.send() == "invalid_producer_epoch"  # although it is a duplicate
    assert await one.init(producer_id=one.id, producer_epoch=one.epoch) == "producer_fenced"
    given_back = {"producer_id": two.id, "producer_epoch": two.epoch}
    assert await two.init(**given_back) == "none"
    for version in range(5):
        assert await two.init(version) == "none"
    assert await two.init(**given_back) == "producer_fenced"
    assert (await two.add("topic"), await two.send()) == (["none"], "none")


async def what_is_in_no_transaction(client: Client) -> None:
    one, stranger = TransactionalProducer(client), TransactionalProducer(client, "stranger")
    await one.init()
    stranger.id, stranger.epoch = one.id, one.epoch
    assert await stranger.add("topic") == ["invalid_producer_id_mapping"]
    assert (await stranger.send(), await stranger.end()) == ("invalid_producer_id_mapping",) * 2
    assert await one.send() == "invalid_txn_state"
    assert await one.send(transactional_id=None) == "transactional_id_authorization_failed"
    expected = ["operation_not_attempted", "unknown_topic_or_partition"]
    assert await one.add("topic", "none") == expected
    assert (await one.add("topic"), await one.send()) == (["none"], "none")
    plain = make_batch(b"v", producer=one.id, epoch=one.epoch, sequence=one.sequence)
    response = await client.ask("produce", **produce_fields("topic", plain))
    assert produced(response) == [("invalid_txn_state", -1)]
    assert await TransactionalProducer(client, timeout=901).init() == "invalid_transaction_timeout"
    assert await TransactionalProducer(client, timeout=0).init() == "invalid_transaction_timeout"
    assert await TransactionalProducer(client, "").init() == "invalid_request"


async def offsets_and_groups(client: Client) -> None:
    one = TransactionalProducer(client)
    await one.init()
    await one.add("topic")
    assert await one.commit("group") == "invalid_txn_state"
    await client.ask("add_offsets_to_txn", group_id="group", **one.identity)
    assert await one.commit("group", generation_id=3, member_id="nobody") == "illegal_generation"
    assert await one.commit("group", member_id="nobody") == "none"
    assert await one.commit("group", generation_id=3, member_id="nobody") == "unknown_member_id"
    assert await one.end() == "none"
    assert await committed(client, "group") == ("none", 1)
    await one.commit_offset(5)
    fields = {"group_id": "group", "generation_id_or_member_epoch": -1}
    await client.ask("offset_commit", topics=at("topic", committed_offset=7), **fields)
    assert await one.end() == "none"
    assert await committed(client, "group") == ("none", 7)
    await one.commit_offset(5, "other")
    assert set(errors(await client.ask("delete_groups", groups_names=["other"]))) == {"none"}
    assert await one.end() == "none"
    assert await committed(client, "other") == ("none", -1)


async def records_that_are_deleted_in_a_transaction(client: Client) -> None:
    await create(client, "deleted")
    one = TransactionalProducer(client)
    await one.init()
    await one.add("deleted")
    assert [await one.send(topic="deleted") for _ in range(3)] == ["none"] * 3
    topics = at("deleted", offset=2)
    await client.ask("delete_records", topics=topics, timeout=timedelta(seconds=10))
    topics = at("deleted", timestamp=-1)
    latest = await client.ask("list_offsets", topics=topics, isolation_level=1, replica_id=-1)
    fields = {**fetch_fields("deleted", 2), "isolation_level": 1, "replica_id": -1}
    fetched = await client.ask("fetch", **fields)
    assert latest.topics[0].partitions[0].offset == 2
    assert fetched.responses[0].partitions[0].last_stable_offset == 2


async def a_transaction_that_takes_too_long(client: Client) -> None:
    one = TransactionalProducer(client, timeout=1)
    await one.init()
    await one.add("topic")
    until = time.monotonic() + TIMEOUT
    while (error := await one.send()) == "none" and time.monotonic() < until:
        await asyncio.sleep(0.2)  # Kafka looks every ten seconds
    assert error == "invalid_producer_epoch"
    assert (await one.add("topic"), await one.end()) == (["producer_fenced"], "producer_fenced")
    assert await one.init(producer_id=one.id, producer_epoch=one.epoch) == "producer_fenced"
    before = one.epoch
    assert await one.init() == "none"
    assert one.epoch == before + 2


RULES = (
    epochs_and_fencing,
    what_is_in_no_transaction,
    offsets_and_groups,
    records_that_are_deleted_in_a_transaction,
    a_transaction_that_takes_too_long,
)


async def keep_rules(client: Client) -> None:
    for rule in RULES:
        await rule(client)


async def test_our_broker_keeps_the_rules_of_transactions() -> None:
    async with running_broker() as client:
        await keep_rules(client)


@pytest.mark.slow
def test_kafka_keeps_the_same_rules_of_transactions() -> None:
    try:
        with running("Kafka") as address:
            client = Patient(address)
            with client.raw:
                for key_type in (0, 1):  # Kafka makes the coordinators' topics at the first look
                    client.raw.ask("find_coordinator", key="any", key_type=key_type)
                asyncio.run(keep_rules(client))
    except Unavailable as error:
        unavailable(str(error))
