"""Invalid input over a real socket: the client gets an error or is disconnected, with a line in the
log."""

import asyncio
import logging
import os
import resource
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import uvloop
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from purgatory_broker import batches, server, testing
from purgatory_broker.testing import BrokerThread
from purgatory_broker.wire import APIS, Api
from raw import (
    Raw,
    fetch_fields,
    fetched,
    framed,
    make_batch,
    produce_fields,
    produced,
    with_length,
)

ONE = make_batch(b"one")


@pytest.fixture(scope="module")
def shared() -> Iterator[BrokerThread]:
    """One broker for all tests of invalid input: the input of one may not harm the next."""
    with BrokerThread() as broker:
        yield broker


@pytest.fixture
def broker(shared: BrokerThread, caplog: pytest.LogCaptureFixture) -> Iterator[BrokerThread]:
    """The same; it may refuse its input, but may not log an error of its own."""
    with caplog.at_level(logging.WARNING, "purgatory_broker"):
        yield shared
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
    assert {record.name for record in caplog.records} <= {"purgatory_broker"}


def assert_alive(broker: BrokerThread) -> None:
    """A new client can produce and fetch."""
    with Raw(broker.address) as client:
        client.create("alive")
        ((error, offset),) = client.produce("alive", ONE)
        assert error == "none"
        assert client.fetch("alive", offset, wait=5) == [("none", len(ONE))]


def send_and_hang_up(address: str, data: bytes) -> None:
    with Raw(address) as client:
        try:
            client.socket.sendall(data)
            client.socket.shutdown(socket.SHUT_WR)
            while client.socket.recv(1 << 16):
                pass
        except (ConnectionError, OSError):
            pass


versions = st.sampled_from(
    [
        (api, version)
        for api in APIS.values()
        for version in range(api.min_version, api.max_version + 1)
    ]
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.binary(max_size=200))
def test_garbage(broker: BrokerThread, data: bytes) -> None:
    send_and_hang_up(broker.address, data)
    send_and_hang_up(broker.address, with_length(data))


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(versions, st.binary(max_size=60), st.booleans())
def test_valid_headers_before_invalid_bodies(
    broker: BrokerThread, version: tuple[Api, int], body: bytes, is_flexible: bool
) -> None:
    header = struct.pack(">hhih", version[0].key, version[1], 1, -1) + (
        b"\0" if is_flexible else b""
    )
    send_and_hang_up(broker.address, with_length(header + body))


REQUESTS: dict[str, dict[str, Any]] = {
    "produce": produce_fields("alive", ONE, timeout=0.01),
    "fetch": fetch_fields("alive", 0, wait=0.01),
    "metadata": {"topics": [{"name": "alive"}]},
    "join_group": {
        "group_id": "g",
        "session_timeout": timedelta(seconds=1),
        "rebalance_timeout": timedelta(seconds=1),
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"x"}],
    },
    "sync_group": {"group_id": "g", "generation_id": 1, "member_id": "m", "assignments": []},
    "offset_commit": {
        "group_id": "g",
        "topics": [{"name": "alive", "partitions": [{"partition_index": 0}]}],
    },
    "offset_fetch": {"group_id": "g", "topics": [{"name": "alive", "partition_indexes": [0]}]},
    "create_topics": {"topics": [{"name": "made", "num_partitions": 1, "replication_factor": 1}]},
    "list_offsets": {
        "topics": [{"name": "alive", "partitions": [{"partition_index": 0, "timestamp": 1}]}]
    },
    "delete_records": {
        "topics": [{"name": "alive", "partitions": [{"partition_index": 0, "offset": 0}]}]
    },
}


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.sampled_from(sorted(REQUESTS)), st.data())
def test_requests_with_some_bytes_changed(
    broker: BrokerThread, name: str, data: st.DataObject
) -> None:
    frame = bytearray(framed(name, **REQUESTS[name]))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(frame) - 1))
        frame[at] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del frame[data.draw(st.integers(1, len(frame))) :]
    send_and_hang_up(broker.address, with_length(bytes(frame)))


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.binary(max_size=100), st.integers(0, 3), st.integers(1, 10))
def test_batches_with_invalid_records_can_be_searched(
    broker: BrokerThread, body: bytes, codec: int, count: int
) -> None:
    tail = struct.pack(">hiqqqhii", codec, count - 1, 0, 10, -1, -1, -1, count) + body
    batch = struct.pack(">qiibI", 0, 9 + len(tail), 0, 2, crc32c(tail)) + tail
    found = batches.find_time(batch, 5)
    assert isinstance(found[0], int)
    with Raw(broker.address) as client:
        client.create("invalid")
        client.ask("produce", **produce_fields("invalid", batch))
        for stamp in (5, -3, 11):
            places = [{"partition_index": 0, "timestamp": stamp}]
            response = client.ask(
                "list_offsets", topics=[{"name": "invalid", "partitions": places}]
            )
            assert response.topics[0].partitions[0].error_code.name == "none"


def test_after_all_invalid_input_it_serves_others(shared: BrokerThread) -> None:
    assert_alive(shared)
    until = time.monotonic() + 60
    while shared.server.connections and time.monotonic() < until:
        time.sleep(0.01)
    assert not shared.server.connections
    assert shared.server.broker.fetches.pending == 0


@pytest.mark.parametrize("length", [0, 7, -1, 2**31 - 1, 100 * 1024 * 1024 + 1])
def test_a_length_that_cannot_be_closes_the_connection(
    start_broker: Callable[..., BrokerThread], caplog: pytest.LogCaptureFixture, length: int
) -> None:
    broker = start_broker()
    with Raw(broker.address) as client:
        client.socket.sendall(struct.pack(">i", length))
        assert client.is_closed()
    assert f"closed: a request of {length} bytes; 8 to 104857600 are possible" in caplog.text
    assert_alive(broker)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (struct.pack(">hhihh", 999, 0, 1, 0, 0), "API key 999 is not known here"),
        (
            struct.pack(">hhihh", 1, 14, 1, 0, 0),
            r"version 14 of fetch is not offered (4 to 13 are)",
        ),
        (
            struct.pack(">hhihi", 3, 1, 1, -1, 2**31 - 1),
            "an array of 2147483647 items is announced, in 0 bytes",
        ),
        (
            struct.pack(">hhihb", 3, 9, 1, -1, 0) + b"\xff\xff\xff\xff\x0f",
            "an array of 4294967294 items is announced, in 0 bytes",
        ),
        (struct.pack(">hhihih", 3, 1, 1, -1, 1, 20) + b"ab", "20 bytes are announced, 2 are there"),
    ],
)
def test_log_names_why_bytes_are_no_request(
    start_broker: Callable[..., BrokerThread],
    caplog: pytest.LogCaptureFixture,
    frame: bytes,
    reason: str,
) -> None:
    broker = start_broker()
    with Raw(broker.address) as other:
        other.send("metadata", topics=None)
        with Raw(broker.address) as client:
            client.socket.sendall(with_length(frame))
            assert client.is_closed()
        assert other.receive("metadata").brokers
    assert reason in caplog.text
    assert "Traceback" not in caplog.text


def test_tls_and_sasl_are_refused_in_words(
    start_broker: Callable[..., BrokerThread], caplog: pytest.LogCaptureFixture
) -> None:
    address = start_broker().address
    host, port = address.split(":")
    with pytest.raises(OSError), socket.create_connection((host, int(port))) as plain:  # noqa: PT011
        ssl.create_default_context().wrap_socket(plain, server_hostname=host)
    assert (
        "the client begins with TLS (security.protocol=SSL or SASL_SSL), this port is PLAINTEXT"
        in caplog.text
    )
    with Raw(address) as client:
        response = client.ask("sasl_handshake", mechanism="PLAIN")
        assert (response.error_code.name, response.mechanisms) == ("illegal_sasl_state", ())
    assert (
        "asks for SASL/PLAIN, and this port is PLAINTEXT: security.protocol is to be PLAINTEXT"
        in caplog.text
    )


def test_repeated_mistakes_are_logged_once(
    start_broker: Callable[..., BrokerThread], caplog: pytest.LogCaptureFixture
) -> None:
    broker = start_broker()
    for _ in range(3):
        with Raw(broker.address) as client:
            client.socket.sendall(b"\x16\x03\x01\x02\x00\x01\x00")
            assert client.is_closed()
        with Raw(broker.address) as client:
            client.ask("sasl_handshake", mechanism="PLAIN")
    assert [record.getMessage().count("PLAINTEXT") for record in caplog.records] == [1, 2]
    broker.clear()
    with Raw(broker.address) as client:
        client.ask("sasl_handshake", mechanism="PLAIN")
    assert len(caplog.records) == 3


def test_log_shows_what_clients_send_on_one_line(
    start_broker: Callable[..., BrokerThread], caplog: pytest.LogCaptureFixture
) -> None:
    hostile = "\x1b[2J\nforged\x07" + "x" * 300
    with Raw(start_broker().address) as client:
        client.ask("sasl_handshake", mechanism=hostile)
        client.ask("consumer_group_heartbeat", group_id=hostile)
        configs = [{"name": "flush.ms", "value": "1" + "\n" * 5}]
        topic = {"name": "t", "num_partitions": 1, "replication_factor": 1, "configs": configs}
        client.ask("create_topics", topics=[topic])
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 3 and all(message.isprintable() for message in messages)
    assert messages[0].count("x") < 250 and "SASL/\\x1b[2J\\nforged\\x07xxx" in messages[0]


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_too_many_connections_are_refused_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, loop: str
) -> None:
    monkeypatch.setattr(
        testing,
        "SteppedLoop",
        asyncio.new_event_loop if loop == "asyncio" else uvloop.new_event_loop,
    )
    with BrokerThread() as broker, Raw(broker.address) as first:
        assert first.ask("metadata", topics=None).brokers
        monkeypatch.setattr(server, "max_open_files", lambda: 8)
        for _ in range(3):
            with Raw(broker.address) as other:
                assert other.is_closed()
        assert first.ask("metadata", topics=None).brokers
        monkeypatch.undo()
        assert_alive(broker)
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        "connections are refused: 1 are open, and the limit of open files (ulimit -n) is 8"
    ]


def test_unknown_version_of_api_versions_gets_oldest_response(
    start_broker: Callable[..., BrokerThread],
) -> None:
    with Raw(start_broker().address) as client:
        client.socket.sendall(with_length(struct.pack(">hhihb", 18, 99, 7, -1, 0) + b"who knows"))
        response = client.receive("api_versions", 0)
        assert response.error_code.name == "unsupported_version"
        assert {key.api_key for key in response.api_keys} == set(APIS)
        assert client.ask("api_versions", 3, client_software_name="raw").error_code.name == "none"


def test_every_version_that_is_offered_is_answered(
    start_broker: Callable[..., BrokerThread],
) -> None:
    broker = start_broker()
    for api in APIS.values():
        for version in range(api.min_version, api.max_version + 1):
            with Raw(broker.address) as client:
                client.ask(api.name, version, **REQUESTS.get(api.name, {}))


def test_half_a_request_waits_for_the_other_half(start_broker: Callable[..., BrokerThread]) -> None:
    broker = start_broker()
    with Raw(broker.address) as client:
        data = with_length(framed("metadata", topics=None))
        for at in range(len(data)):
            client.socket.sendall(data[at : at + 1])
        assert client.receive("metadata").brokers
        client.socket.sendall(data[:-1])
        assert_alive(broker)


def test_responses_to_pipelined_requests_come_in_order(
    start_broker: Callable[..., BrokerThread],
) -> None:
    broker = start_broker(replicas=2, replica_lag=0.01)
    with Raw(broker.address) as client:
        client.create("topic")
        produce = with_length(framed("produce", **produce_fields("topic", ONE)))
        fetch = with_length(framed("fetch", **fetch_fields("topic", 0, wait=5)))
        client.socket.sendall((produce + fetch) * 20)
        for number in range(20):
            assert produced(client.receive("produce")) == [("none", number)]
            assert fetched(client.receive("fetch")) == [("none", (number + 1) * len(ONE))]


def test_slow_reader_is_not_read_from(
    start_broker: Callable[..., BrokerThread],
) -> None:
    broker = start_broker()
    large = make_batch(os.urandom(900_000))
    with Raw(broker.address) as slow:
        slow.create("topic")
        assert slow.produce("topic", large) == [("none", 0)]
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        fetch = with_length(framed("fetch", **fetch_fields("topic", 0)))
        slow.socket.setblocking(False)
        sent = 0
        until = time.monotonic() + 60
        while sent < 100_000 * len(fetch) and time.monotonic() < until:  # responses would be 90 GB
            try:
                sent += slow.socket.send(fetch * 1000)
            except BlockingIOError:
                break
        assert_alive(broker)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KB
        slow.socket.setblocking(True)
        for _ in range(10):
            assert fetched(slow.receive("fetch")) == [("none", len(large))]


@pytest.mark.slow
def test_thousands_of_connections_without_a_request(
    start_broker: Callable[..., BrokerThread],
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(5000, hard // 2 - 200)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * wanted + 200), hard))
    broker = start_broker()
    host, port = broker.address.split(":")
    silent = [socket.create_connection((host, int(port)), 120) for _ in range(wanted)]
    try:
        assert_alive(broker)
    finally:
        for connection in silent:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
