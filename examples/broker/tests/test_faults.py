"""Faults on demand: of single requests on virtual time, and over HTTP."""

import asyncio
import json
import re
from contextlib import closing
from http.client import HTTPConnection
from typing import Any

import pytest
from brokers import program
from purgatory_broker.faults import BY_ITEM, BY_PARTITION
from purgatory_broker.testing import BrokerThread
from purgatory_broker.wire import APIS
from raw import (
    Direct,
    Raw,
    at,
    errors,
    fetch_fields,
    fetched,
    make_batch,
    produce_fields,
    produced,
    running_broker,
)
from test_bad_input import REQUESTS

ONE = make_batch(b"one")
TIMEOUT = 60.0  # seconds; no test passes or fails by how much of it a busy machine takes


async def send(client: Direct) -> tuple[str, int]:
    (outcome,) = await client.produce("topic", ONE)
    return outcome


async def test_fault_for_all_requests_stays_until_cleared(client: Direct) -> None:
    client.broker.faults.fail("produce", "kafka_storage_error", times=None)
    assert [await send(client) for _ in range(20)] == [("kafka_storage_error", -1)] * 20
    with pytest.raises(ConnectionError, match="KAFKA_STORAGE_ERROR, as a test has asked for"):
        await client.ask("produce", **produce_fields("topic", ONE, acks=0))
    client.broker.faults.clear()
    assert await send(client) == ("none", 0)


RESOURCES = [{"resource_type": 2, "resource_name": "topic", "configs": []}]
FIELDS = REQUESTS | {
    "create_partitions": {"topics": [{"name": "topic", "count": 2}]},
    "delete_topics": {"topic_names": ["topic"], "topics": [{"name": "topic"}]},
    "offset_delete": {"group_id": "g", "topics": at("topic")},
    "describe_configs": {"resources": RESOURCES},
    "alter_configs": {"resources": RESOURCES},
    "incremental_alter_configs": {"resources": RESOURCES},
    "describe_groups": {"groups": ["g"]},
    "add_partitions_to_txn": {"v3_and_below_topics": [{"name": "topic", "partitions": [0]}]},
    "txn_offset_commit": {"topics": at("topic")},
    "delete_groups": {"groups_names": ["g"]},
}


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
async def test_every_version_is_answered_or_can_fail(api: Any) -> None:
    async with running_broker(["alive"]) as client:
        for version in range(api.min_version, api.max_version + 1):
            fields = FIELDS.get(api.name, {})
            await client.ask(api.name, version, **fields)
            client.broker.faults.fail(api.name, "UNKNOWN_SERVER_ERROR")
            found = errors(await client.ask(api.name, version, **fields))
            if api.name in BY_ITEM or api.name == "produce":
                assert set(found) == {"unknown_server_error"}, version
            elif (api.name, version) != ("offset_fetch", 1):  # which has no error of its own
                assert "unknown_server_error" in found, version


def test_what_has_errors_by_item_is_offered() -> None:
    assert {*BY_ITEM, *BY_PARTITION} <= {api.name for api in APIS.values()}


async def test_delayed_request_is_handled_at_once(client: Direct) -> None:
    loop = asyncio.get_running_loop()
    client.broker.faults.delay("produce", 5)
    late, begun = client.send("produce", **produce_fields("topic", ONE)), loop.time()
    assert await client.fetch("topic", 0) == [("none", len(ONE))]
    assert produced(await late) == [("none", 0)]
    assert 5 <= loop.time() - begun <= 5.01
    client.broker.faults.delay("metadata", 2)
    begun = loop.time()
    await client.ask("metadata", topics=None)
    assert 2 <= loop.time() - begun <= 2.01


@pytest.mark.parametrize(("handled", "offset"), [(False, 0), (True, 1)])
async def test_dropped_request_closes_its_connection(
    client: Direct, handled: bool, offset: int
) -> None:
    client.broker.faults.drop("produce", handled=handled)
    match = "produce gets no response, as a test has asked for"
    with pytest.raises(ConnectionError, match=match):
        await send(client)
    assert await send(client) == ("none", offset)


async def test_what_cannot_be_asked_for_is_refused() -> None:
    seconds = "seconds must be a number of zero or more, got "
    async with running_broker() as client:
        faults = client.broker.faults
        for message, call, *arguments in [
            ("'no_such' is not offered here: add_offsets_to_txn, ", faults.fail, "no_such", "NONE"),
            ("'NO_SUCH' is not the name of an error of Kafka's", faults.fail, "produce", "NO_SUCH"),
            ("None for all requests, got 0", lambda: faults.fail("produce", "NONE", times=0)),
            (f"{seconds}-1", faults.delay, "produce", -1),
            (f"{seconds}-1", faults.advance, -1),
            (f"{seconds}True", faults.advance, True),
            ("group 'group' has no member", faults.expire, "group"),
        ]:
            with pytest.raises(ValueError, match=re.escape(message)):
                call(*arguments)
        with pytest.raises(RuntimeError, match="time cannot be moved on"):
            faults.advance(1)
        assert await send(client) == ("none", 0)


@pytest.mark.parametrize("number", range(2))
def test_broker_of_the_fixture_is_empty_again(kafka_broker: BrokerThread, number: int) -> None:
    with Raw(kafka_broker.address) as client:
        assert client.ask("metadata", topics=None).topics == ()
        client.create("topic")
        assert client.produce("topic", ONE) == [("none", 0)]
        kafka_broker.fail("produce", "REQUEST_TIMED_OUT", times=2)
        assert client.produce("topic", ONE) == [("request_timed_out", -1)]


@pytest.mark.slow
def test_faults_are_asked_for_over_http() -> None:
    with program("--control", "0") as (process, address):
        assert process.stdout is not None
        control = process.stdout.readline().split()[-1]

        def post(path: str, *header: str, **arguments: Any) -> tuple[int, str]:
            sent = {"Content-Type": "application/json"} | dict([header] if header else [])
            with closing(HTTPConnection(control, timeout=TIMEOUT)) as connection:
                connection.request("POST", path, json.dumps(arguments), sent)
                response = connection.getresponse()
                return response.status, response.read().decode()

        with Raw(address) as client:
            client.create("topic")
            assert post("/fail", api="produce", error="REQUEST_TIMED_OUT", times=2) == (204, "")
            timed_out = [("request_timed_out", -1)]
            outcomes = [client.produce("topic", ONE) for _ in range(3)]
            assert outcomes == [timed_out, timed_out, [("none", 0)]]
            client.send("fetch", **fetch_fields("topic", 1, wait=300))
            assert post("/advance", seconds=301) == (204, "")
            assert fetched(client.receive("fetch")) == [("none", 0)]
            assert post("/reset") == (204, "")
            assert client.is_closed()
        with Raw(address) as client:
            assert client.ask("metadata", topics=None).topics == ()
        port = control.rpartition(":")[2]
        for host in (control, "localhost"):
            assert post("/fail", "Host", host)[0] == 400
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", ""):
            assert post("/fail", "Host", host)[0] == 403
        assert post("/reset", "Origin", "http://evil.example")[0] == 403
        assert post("/reset", "Content-Length", "-1")[0] == 400
        assert post("/fail", api=5, error="NONE")[1].startswith("5 is not offered here: ")
        seconds = "seconds must be a number of zero or more, got '2'"
        assert post("/delay", api="fetch", seconds="2") == (400, seconds)
        assert post("/fail", api="x", error="NONE")[0] == post("/fail", api="produce")[0] == 400
        paths = "/fail, /delay, /drop, /expire, /advance, /clear, /reset"
        assert post("/nothing") == (400, f"/nothing is not one of {paths}")
        json_only = "Content-Type has to be application/json"
        assert post("/reset", "Content-Type", "text/plain") == (400, json_only)
        process.terminate()
        _, errors = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, errors) == (0, "")
