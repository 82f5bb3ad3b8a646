"""Invalid input over a real socket: the client gets an error or is disconnected, with a line in the
log, and memory is bounded."""

import asyncio
import logging
import os
import resource
import socket
import struct
import time
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from purgatory_broker import batches, server, testing
from purgatory_broker.batches import HEADER, check_records, iter_records, read_batch
from purgatory_broker.compression import MAX_SIZE
from purgatory_broker.responses import ApiError
from purgatory_broker.testing import BrokerThread
from purgatory_broker.wire import APIS, BadRequest, Request, read_request
from raw import (
    LOCAL,
    PEER,
    Raw,
    at,
    errors,
    fetch_fields,
    fetched,
    framed,
    make_batch,
    new_topic,
    produce_fields,
    produced,
    with_length,
)
from test_batches import CODECS

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


REQUESTS: dict[str, dict[str, Any]] = {
    "produce": produce_fields("alive", ONE, timeout=0.01),
    "fetch": fetch_fields("alive", 0, wait=0.01),
    "metadata": {"topics": [{"name": "alive"}]},
    "join_group": {
        **dict.fromkeys(("session_timeout", "rebalance_timeout"), timedelta(seconds=1)),
        "group_id": "g",
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"x"}],
    },
    "sync_group": {"group_id": "g", "generation_id": 1, "member_id": "m", "assignments": []},
    "offset_commit": {"group_id": "g", "topics": at("alive")},
    "offset_fetch": {"group_id": "g", "topics": [{"name": "alive", "partition_indexes": [0]}]},
    "create_topics": {"topics": new_topic("made")},
    "list_offsets": {"topics": at("alive", timestamp=1)},
    "delete_records": {"topics": at("alive", offset=0)},
}


VERSIONS = [
    (api, version)
    for api in APIS.values()
    for version in range(api.min_version, api.max_version + 1)
]
MANY = pytest.param(20, marks=[pytest.mark.slow, pytest.mark.timeout(900)])


def examples(count: int) -> Any:
    """Settings of Hypothesis: the fixture may be shared by its examples."""
    checks = [HealthCheck.function_scoped_fixture]
    return settings(max_examples=count, deadline=None, suppress_health_check=checks)


@st.composite
def damaged(draw: st.DrawFn, whole: bytes, first: int = 0) -> bytes:
    """Bytes of which some, from the one with the index `first`, are changed, inserted or
    removed."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 5))):
        at = draw(st.integers(first, max(first, len(data) - 1)))
        way = draw(st.sampled_from(["set", "insert", "remove", "huge", "repeat"]))
        if way == "set" and at < len(data):
            data[at] = draw(st.integers(0, 255))
        elif way == "insert":
            data[at:at] = draw(st.binary(min_size=1, max_size=10))
        elif way == "remove":
            del data[at : at + draw(st.integers(1, 10))]
        elif way == "huge":
            data[at : at + 4] = draw(st.sampled_from([b"\x7f\xff\xff\xff", b"\xff" * 9 + b"\x01"]))
        else:
            data[at:at] = data[at : at + 16] * draw(st.integers(1, 200))
    return bytes(data)


def peak_of(function: Any) -> int:
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("factor", [1, MANY])
def test_damaged_requests_take_bounded_memory(broker: BrokerThread, factor: int) -> None:
    frames = [framed(api.name, version, **REQUESTS.get(api.name, {})) for api, version in VERSIONS]

    @examples(300 * factor)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        way = data.draw(st.sampled_from(["damaged", "body", "monotonous", "garbage"]))
        api, version = data.draw(st.sampled_from(VERSIONS))
        head = struct.pack(">hhih", api.key, version, 1, -1)
        if way == "damaged":
            frame = data.draw(damaged(data.draw(st.sampled_from(frames)), 4))
        elif way == "body":
            frame = head + data.draw(st.binary(max_size=60))
        elif way == "monotonous":
            size = data.draw(st.integers(0, 3000 if factor == 1 else 300_000))
            frame = head + bytes([data.draw(st.integers(0, 255))]) * size
        else:
            frame = data.draw(st.binary(max_size=200))
            send_and_hang_up(broker.address, frame)

        def read() -> None:
            try:
                request = read_request(frame, LOCAL, PEER, print)
            except BadRequest:
                return
            assert isinstance(request, Request)

        read()  # loads the schema
        each = 1000 if way == "monotonous" else 600
        assert peak_of(read) < 100_000 + each * len(frame)
        send_and_hang_up(broker.address, with_length(frame))

    check()


@pytest.mark.parametrize("factor", [1, MANY])
def test_damaged_batches_take_bounded_memory(broker: BrokerThread, factor: int) -> None:
    @examples(100 * factor)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        number, compress = data.draw(st.sampled_from([*CODECS.values()][1:]))
        value = data.draw(st.binary(max_size=50)) * data.draw(st.integers(0, 50))
        plain = make_batch(value, b"v", None, key=b"k")[HEADER.size :]
        payload = data.draw(damaged(compress(plain)) | st.binary(max_size=100))
        count = data.draw(st.sampled_from([1, 3, 4, 2**31 - 1]))
        number = data.draw(st.sampled_from([0, number]))
        whole = make_batch(b"v", attributes=number, compress=lambda _: payload, count=count)
        codes = set[str]()

        def check_and_search() -> None:
            batch = read_batch(whole)
            try:
                records = check_records(whole, batch)
                assert len(records) <= MAX_SIZE
                list(iter_records(records, batch))
            except ApiError as error:
                codes.add(error.code.name)
            except (IndexError, ValueError):  # only the lengths of records were checked
                pass
            assert isinstance(batches.find_time(whole, 5)[0], int)

        assert peak_of(check_and_search) < 3 * MAX_SIZE
        assert codes <= {"message_too_large", "invalid_record", "unknown_server_error"}
        with Raw(broker.address) as client:
            client.create("invalid")
            client.ask("produce", **produce_fields("invalid", whole))
            for stamp in (5, -3, 11):
                response = client.ask("list_offsets", topics=at("invalid", timestamp=stamp))
                assert errors(response) == ["none"]

    check()


@examples(300)
@given(st.data())
def test_damaged_headers_of_batches_are_refused(data: st.DataObject) -> None:
    whole = data.draw(damaged(make_batch(b"v" * 40, b"w")))
    code = ""
    try:
        assert HEADER.size <= read_batch(whole).size <= len(whole)
    except ApiError as error:
        code = error.code.name
    assert code in ("", "corrupt_message", "unsupported_for_message_format")


def test_after_all_invalid_input_it_serves_others(shared: BrokerThread) -> None:
    assert_alive(shared)
    until = time.monotonic() + 60
    while shared.server.connections and time.monotonic() < until:
        time.sleep(0.01)
    assert not shared.server.connections
    assert shared.server.broker.fetches.pending == 0


REFUSED = "closed: a request of {} bytes; 8 to 104857600 are possible"
LENGTHS = {
    struct.pack(">i", each): REFUSED.format(each) for each in (0, 7, -1, 2**31 - 1, 104857601)
}
NO_REQUESTS = {
    struct.pack(">hhihh", 999, 0, 1, 0, 0): "API key 999 is not known here",
    struct.pack(">hhihh", 1, 14, 1, 0, 0): "version 14 of fetch is not offered (4 to 13 are)",
    struct.pack(">hhihi", 3, 1, 1, -1, 2**31 - 1): "2147483647 items is announced, in 0 bytes",
    struct.pack(">hhihb", 3, 9, 1, -1, 0) + b"\xff\xff\xff\xff\x0f": "an array of 4294967294 items",
    struct.pack(">hhihih", 3, 1, 1, -1, 1, 20) + b"ab": "20 bytes are announced, 2 are there",
}


def test_log_names_why_bytes_are_no_request(
    start_broker: Callable[..., BrokerThread], caplog: pytest.LogCaptureFixture
) -> None:
    broker = start_broker()
    with Raw(broker.address) as other:
        whole = {with_length(frame): reason for frame, reason in NO_REQUESTS.items()}
        for data, reason in (LENGTHS | whole).items():
            other.send("metadata", topics=None)
            with Raw(broker.address) as client:
                client.socket.sendall(data)
                assert client.is_closed()
            assert other.receive("metadata").brokers
            assert reason in caplog.text
    assert "Traceback" not in caplog.text


def test_repeated_mistakes_are_logged_once(
    start_broker: Callable[..., BrokerThread], caplog: pytest.LogCaptureFixture
) -> None:
    broker = start_broker()
    for _ in range(3):
        with Raw(broker.address) as client:
            client.socket.sendall(b"\x16\x03\x01\x02\x00\x01\x00")
            assert client.is_closed()
        with Raw(broker.address) as client:
            response = client.ask("sasl_handshake", mechanism="PLAIN")
            assert (response.error_code.name, response.mechanisms) == ("illegal_sasl_state", ())
    messages = [record.getMessage() for record in caplog.records]
    for message, words in zip(messages, ("begins with TLS", "asks for SASL/PLAIN"), strict=True):
        assert words in message
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
        client.ask("create_topics", topics=new_topic(configs=configs))
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 3 and all(message.isprintable() for message in messages)
    assert messages[0].count("x") < 250 and "SASL/\\x1b[2J\\nforged\\x07xxx" in messages[0]


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_too_many_connections_are_refused_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, loop: str
) -> None:
    module = {"asyncio": asyncio, "uvloop": uvloop}[loop]
    monkeypatch.setattr(testing, "SteppedLoop", module.new_event_loop)
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
    for api, version in VERSIONS:
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


def test_slow_reader_is_not_read_from(start_broker: Callable[..., BrokerThread]) -> None:
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
