"""Invalid input over a real socket: the client gets an error or is disconnected, with a line in the
log, and memory is bounded."""

import logging
import socket
import struct
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from purgatory_broker import batches
from purgatory_broker.batches import HEADER, check_records, iter_records, read_batch
from purgatory_broker.compression import MAX_SIZE
from purgatory_broker.responses import ApiError
from purgatory_broker.testing import BrokerThread
from purgatory_broker.wire import APIS, BadRequest, Request, read_request
from raw import (
    LOCAL,
    PEER,
    Raw,
    assert_alive,
    at,
    errors,
    fetch_fields,
    framed,
    make_batch,
    new_topic,
    produce_fields,
    with_length,
)
from test_batches import CODECS

ONE = make_batch(b"one")


@pytest.fixture
def broker(kafka_broker: BrokerThread, caplog: pytest.LogCaptureFixture) -> Iterator[BrokerThread]:
    """It may refuse its input, but logs no error of its own, and serves others afterwards."""
    with caplog.at_level(logging.WARNING, "purgatory_broker"):
        yield kafka_broker
        assert_alive(kafka_broker)
    until = time.monotonic() + 60
    while kafka_broker.server.connections and time.monotonic() < until:
        time.sleep(0.01)
    assert not kafka_broker.server.connections
    assert kafka_broker.server.broker.fetches.pending == 0
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
    assert {record.name for record in caplog.records} <= {"purgatory_broker"}


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
    """Bytes of which some, from the one with the index `first`, are replaced, inserted or
    removed."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 5))):
        at = draw(st.integers(first, max(first, len(data) - 1)))
        huge = st.sampled_from([b"\x7f\xff\xff\xff", b"\xff" * 9 + b"\x01"])
        repeated = st.integers(1, 200).map(lambda times, at=at: bytes(data[at : at + 16]) * times)
        new = draw(st.binary(max_size=10) | huge | repeated)
        data[at : at + draw(st.sampled_from([0, 1, 4, len(new), 10]))] = new
    return bytes(data)


def peak_of(function: Callable[[], object]) -> int:
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

        def read() -> None:
            try:
                assert isinstance(read_request(frame, LOCAL, PEER, print), Request)
            except BadRequest:
                return

        read()  # loads the schema
        each = 1000 if way == "monotonous" else 600
        assert peak_of(read) < 100_000 + each * len(frame)
        for sent in [with_length(frame)] + [frame] * (way == "garbage"):
            with Raw(broker.address) as client, suppress(OSError):
                client.socket.sendall(sent)
                client.socket.shutdown(socket.SHUT_WR)
                while client.socket.recv(1 << 16):
                    pass

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
        whole = make_batch(
            b"v",
            attributes=data.draw(st.sampled_from([0, number])),
            compress=lambda _: payload,
            count=data.draw(st.sampled_from([1, 3, 4, 2**31 - 1])),
        )

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
            client.produce("invalid", whole)
            for stamp in (5, -3, 11):
                response = client.ask("list_offsets", topics=at("invalid", timestamp=stamp))
                assert errors(response) == ["none"]

    check()


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
    kafka_broker: BrokerThread, caplog: pytest.LogCaptureFixture
) -> None:
    with Raw(kafka_broker.address) as other:
        whole = {with_length(frame): reason for frame, reason in NO_REQUESTS.items()}
        for data, reason in (LENGTHS | whole).items():
            other.send("metadata", topics=None)
            with Raw(kafka_broker.address) as client:
                client.socket.sendall(data)
                assert client.is_closed()
            assert other.receive("metadata").brokers
            assert reason in caplog.text
    assert "Traceback" not in caplog.text


def test_repeated_mistakes_are_logged_once(
    kafka_broker: BrokerThread, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        with Raw(kafka_broker.address) as client:
            client.socket.sendall(b"\x16\x03\x01\x02\x00\x01\x00")
            assert client.is_closed()
        with Raw(kafka_broker.address) as client:
            response = client.ask("sasl_handshake", mechanism="PLAIN")
            assert (response.error_code.name, response.mechanisms) == ("illegal_sasl_state", ())
    messages = [record.getMessage() for record in caplog.records]
    for message, words in zip(messages, ("begins with TLS", "asks for SASL/PLAIN"), strict=True):
        assert words in message
    kafka_broker.clear()
    with Raw(kafka_broker.address) as client:
        client.ask("sasl_handshake", mechanism="PLAIN")
    assert len(caplog.records) == 3


def test_log_shows_what_clients_send_on_one_line(
    kafka_broker: BrokerThread, caplog: pytest.LogCaptureFixture
) -> None:
    hostile = "\x1b[2J\nforged\x07" + "x" * 300
    with Raw(kafka_broker.address) as client:
        client.ask("sasl_handshake", mechanism=hostile)
        response = client.ask("consumer_group_heartbeat", group_id=hostile)
        assert response.error_code.name == "unsupported_version"
        assert "group.protocol" in response.error_message
        configs = [{"name": "flush.ms", "value": "1" + "\n" * 5}]
        client.ask("create_topics", topics=new_topic(configs=configs))
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 3 and all(message.isprintable() for message in messages)
    assert messages[0].count("x") < 250 and "SASL/\\x1b[2J\\nforged\\x07xxx" in messages[0]


def test_unknown_version_of_api_versions_gets_oldest_response(kafka_broker: BrokerThread) -> None:
    with Raw(kafka_broker.address) as client:
        client.socket.sendall(with_length(struct.pack(">hhihb", 18, 99, 7, -1, 0) + b"who knows"))
        response = client.receive("api_versions", 0)
        assert response.error_code.name == "unsupported_version"
        assert {key.api_key for key in response.api_keys} == set(APIS)
        assert client.ask("api_versions", 3, client_software_name="raw").error_code.name == "none"
