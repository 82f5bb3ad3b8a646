"""Connections without a network: on virtual time, with a transport that records the data written to
it."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

from purgatory_broker.server import IDLE_TIMEOUT, Connection, Server
from raw import (
    LOCAL,
    PEER,
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


class Transport:
    """The methods of a transport that a connection calls, and a client on the other side."""

    def __init__(self, server: Server) -> None:
        self.is_aborted, self.written = False, bytearray()
        self.connection = Connection(server)
        self.connection.connection_made(cast(asyncio.Transport, self))

    def get_extra_info(self, name: str) -> Any:
        return {"sockname": LOCAL, "peername": PEER, "socket": SimpleNamespace(fileno=lambda: 3)}[
            name
        ]

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True
        asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def write(self, data: bytes) -> None:
        self.written += data

    def send(self, name: str, **values: Any) -> None:
        self.connection.data_received(with_length(framed(name, **values)))

    def receive(self, name: str) -> Any:
        """The next response, which is there already."""
        (length,) = struct.unpack_from(">i", self.written)
        frame = bytes(self.written[4 : 4 + length])
        del self.written[: 4 + length]
        return unframed(name, None, frame)


@asynccontextmanager
async def running_server() -> AsyncIterator[Server]:
    """A server with one topic, which does not listen."""
    server = Server()
    server.listener = cast(
        asyncio.Server, SimpleNamespace(is_serving=lambda: True, close=lambda: None)
    )
    server.broker.topics.create("topic", 1, 1, {})
    yield server
    await server.__aexit__()
    await asyncio.sleep(0)
    assert not server.connections


async def test_idle_connection_closes_unless_its_client_waits() -> None:
    async with running_server() as server:
        silent, waiting = Transport(server), Transport(server)
        waiting.send("fetch", **fetch_fields("topic", 0, wait=3 * IDLE_TIMEOUT))
        await asyncio.sleep(IDLE_TIMEOUT - 1)
        assert server.connections == {silent.connection, waiting.connection}
        await asyncio.sleep(2)
        assert silent.is_aborted
        assert server.connections == {waiting.connection}
        await asyncio.sleep(2 * IDLE_TIMEOUT)
        assert fetched(waiting.receive("fetch")) == [("none", 0)]
        await asyncio.sleep(IDLE_TIMEOUT + 1)
        assert waiting.is_aborted


async def test_lost_connection_cancels_its_operation() -> None:
    async with running_server() as server:
        fetches, client = server.broker.fetches, Transport(server)
        client.send("fetch", **fetch_fields("topic", 0, wait=3600))
        assert fetches.pending == 1
        client.connection.connection_lost(None)
        statistics = fetches.statistics()
        assert (statistics.pending, statistics.cancelled) == (0, 1)


async def test_repeated_request_gets_its_own_response() -> None:
    async with running_server() as server:
        reader, writer = Transport(server), Transport(server)
        for number in range(3):
            for correlation_id in (1, 2):
                reader.send("fetch", correlation_id=correlation_id, **fetch_fields("topic", 0))
                assert int.from_bytes(reader.written[4:8]) == correlation_id
                assert fetched(reader.receive("fetch")) == [("none", number * len(ONE))]
            writer.send("produce", **produce_fields("topic", ONE))
            assert produced(writer.receive("produce")) == [("none", number)]


async def test_metadata_has_the_used_or_advertised_address() -> None:
    async with running_server() as server:
        for advertised, address in ((None, LOCAL), (("kafka.test", 19092), ("kafka.test", 19092))):
            server.advertised = advertised
            client = Transport(server)
            client.send("metadata", topics=None)
            (broker,) = client.receive("metadata").brokers
            client.send("find_coordinator", key="group")
            coordinator = client.receive("find_coordinator")
            assert (broker.host, broker.port) == (coordinator.host, coordinator.port) == address
