"""Connections: idle and lost ones, pipelined requests, slow readers, and how many there may
be."""

import asyncio
import os
import resource
import time
from typing import Any

import pytest
import uvloop
from purgatory_broker import server, testing
from purgatory_broker.server import IDLE_TIMEOUT
from purgatory_broker.settings import Settings
from purgatory_broker.testing import BrokerThread
from raw import (
    Raw,
    assert_alive,
    fetch_fields,
    fetched,
    framed,
    make_batch,
    produce_fields,
    produced,
    unframed,
    with_length,
)

ONE = make_batch(b"one")


def test_idle_connection_closes_unless_its_client_waits(kafka_broker: BrokerThread) -> None:
    connections = kafka_broker.server.connections
    with Raw(kafka_broker.address) as waiting, Raw(kafka_broker.address) as silent:
        waiting.create("topic")
        waiting.send("fetch", **fetch_fields("topic", 0, wait=3 * IDLE_TIMEOUT))
        silent.ask("metadata", topics=None)  # so that the fetch has arrived
        kafka_broker.advance(IDLE_TIMEOUT - 1)
        assert len(connections) == 2
        kafka_broker.advance(2)
        assert silent.is_closed() and len(connections) == 1
        kafka_broker.advance(2 * IDLE_TIMEOUT)
        assert fetched(waiting.receive("fetch")) == [("none", 0)]
        kafka_broker.advance(IDLE_TIMEOUT + 1)
        assert waiting.is_closed()


def test_lost_connection_cancels_its_operation(kafka_broker: BrokerThread) -> None:
    fetches = kafka_broker.server.broker.fetches
    before = fetches.statistics().cancelled
    with Raw(kafka_broker.address) as client:
        client.create("topic")
        client.send("fetch", **fetch_fields("topic", 0, wait=3600))
        while not fetches.pending:
            time.sleep(0.01)
    while fetches.pending:
        time.sleep(0.01)
    assert fetches.statistics().cancelled == before + 1


def test_repeated_request_gets_its_own_response(kafka_broker: BrokerThread) -> None:
    with Raw(kafka_broker.address) as reader, Raw(kafka_broker.address) as writer:
        writer.create("topic")
        for number in range(3):
            for correlation_id in (1, 2):
                reader.send("fetch", correlation_id=correlation_id, **fetch_fields("topic", 0))
                frame = reader.frame()
                assert int.from_bytes(frame[:4]) == correlation_id
                assert fetched(unframed("fetch", None, frame)) == [("none", number * len(ONE))]
            assert writer.produce("topic", ONE) == [("none", number)]


@pytest.mark.parametrize("advertised", [None, ("kafka.test", 19092)])
def test_metadata_has_the_used_or_advertised_address(advertised: tuple[str, int] | None) -> None:
    with BrokerThread() as broker:
        broker.server.advertised = advertised  # read for each new connection
        host, port = broker.address.split(":")
        with Raw(broker.address) as client:
            (node,) = client.ask("metadata", topics=None).brokers
            coordinator = client.ask("find_coordinator", key="group")
        assert (node.host, node.port) == (coordinator.host, coordinator.port)
        assert (node.host, node.port) == (advertised or (host, int(port)))


def test_responses_to_pipelined_requests_come_in_order() -> None:
    settings = Settings(replicas=2, replica_lag=0.01)
    with BrokerThread(settings) as broker, Raw(broker.address) as client:
        client.create("topic")
        produce = with_length(framed("produce", **produce_fields("topic", ONE)))
        fetch = with_length(framed("fetch", **fetch_fields("topic", 0, wait=5)))
        client.socket.sendall((produce + fetch) * 20)
        for number in range(20):
            assert produced(client.receive("produce")) == [("none", number)]
            assert fetched(client.receive("fetch")) == [("none", (number + 1) * len(ONE))]


def test_slow_reader_is_not_read_from(kafka_broker: BrokerThread) -> None:
    large = make_batch(os.urandom(900_000))
    with Raw(kafka_broker.address) as slow:
        slow.create("topic")
        assert slow.produce("topic", large) == [("none", 0)]
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        fetch = with_length(framed("fetch", **fetch_fields("topic", 0)))
        slow.socket.setblocking(False)
        sent, until = 0, time.monotonic() + 60
        while sent < 100_000 * len(fetch) and time.monotonic() < until:  # responses would be 90 GB
            try:
                sent += slow.socket.send(fetch * 1000)
            except BlockingIOError:
                break
        assert_alive(kafka_broker)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KB
        slow.socket.setblocking(True)
        for _ in range(10):
            assert fetched(slow.receive("fetch")) == [("none", len(large))]


@pytest.mark.parametrize("loop", [asyncio, uvloop])
def test_too_many_connections_are_refused_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, loop: Any
) -> None:
    monkeypatch.setattr(testing, "SteppedLoop", loop.new_event_loop)
    with BrokerThread() as broker, Raw(broker.address) as first:
        assert first.ask("metadata", topics=None).brokers
        monkeypatch.setattr(server, "max_open_files", lambda: 8)
        for _ in range(3):
            with Raw(broker.address) as other:
                assert other.is_closed()
        assert first.ask("metadata", topics=None).brokers
        monkeypatch.undo()
        assert_alive(broker)
    expected = "connections are refused: 1 are open, and the limit of open files (ulimit -n) is 8"
    assert [record.getMessage() for record in caplog.records] == [expected]
