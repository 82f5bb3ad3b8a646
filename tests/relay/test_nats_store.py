"""The store in NATS: streams that are not a relay's, writers of one key, and a channel with other
listeners."""

import asyncio
import json
from contextlib import suppress
from itertools import count
from typing import Any

import nats
import pytest
from servers import TIMEOUT, NatsServer, served

from purgatory import RelayUnavailable
from purgatory.relay import Change, Relay
from purgatory.relay._nats import NatsStore

pytestmark = pytest.mark.slow

prefixes = count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with served("nats", tmp_path_factory.mktemp("nats")) as server:
        yield server


async def ask(server: NatsServer, verb: str, **words: Any) -> Any:
    """JetStream's answer."""
    client = await nats.connect(server.url)
    try:
        payload = json.dumps(words).encode()
        return json.loads((await client.request(f"$JS.API.{verb}", payload, timeout=TIMEOUT)).data)
    finally:
        await client.close()


@pytest.mark.parametrize(
    "config",
    [
        {"name": "foreign_versions", "subjects": ["something.else"], "allow_direct": True},
        {"name": "foreign_versions", "subjects": ["foreign_versions.>"], "storage": "file"},
        {"name": "another", "subjects": ["foreign_versions.*"]},
    ],
)
async def test_foreign_stream_is_left_alone(server, config):
    made = await ask(server, f"STREAM.CREATE.{config['name']}", **config)
    assert "error" not in made
    try:
        with pytest.raises(
            ValueError, match=r"nats://.*its stream foreign_versions .*was left alone"
        ):
            await Relay(server.url, prefix="foreign", timeout=TIMEOUT).__aenter__()
        after = await ask(server, f"STREAM.INFO.{config['name']}")
        assert after["config"] == made["config"]
        assert after["state"]["messages"] == 0
    finally:
        await ask(server, f"STREAM.DELETE.{config['name']}")


async def test_values_beyond_servers_limit_are_refused(server):
    async with Relay(server.url, timeout=TIMEOUT, max_value=3_000_000) as relay:
        assert await relay.deliver("a", bytes(1_000_000), ttl=TIMEOUT)
        assert await relay.receive("a", TIMEOUT) == bytes(1_000_000)
        with pytest.raises(ValueError, match="2000000 bytes to 'b': the server at nats"):
            await relay.deliver("b", bytes(2_000_000), ttl=TIMEOUT)


async def test_write_on_deleted_stream_is_retried_on_next(server):
    prefix = f"test{next(prefixes)}"
    store, other = NatsStore(server.url, prefix), NatsStore(server.url, prefix)
    await store.open()
    before = await store.write([Change("a", 40, 0)])
    publish, calls = store._publish, count()

    async def publish_late(*arguments: Any) -> int | None:
        if next(calls) == 0:  # the stream is replaced after the write has read it
            await ask(server, f"STREAM.DELETE.{prefix}_versions")
            await other.open()
            await other.write([Change("b", 7, 0)])
        return await publish(*arguments)

    store._publish = publish_late
    after = await store.write([Change("a", 0, 1)])
    assert after.versions == {"a": 1}
    assert after.epoch != before.epoch
    assert after.after > before.position
    for each in (store, other):
        await each.close()


async def test_connection_lost_while_sending_is_replaced(tmp_path):
    with served("nats", tmp_path) as server:
        store = NatsStore(server.url, "test")
        await store.open()
        for _ in range(10):
            sending = [asyncio.create_task(keep_sending(store)) for _ in range(3)]
            await asyncio.sleep(0.05)
            server.kill()
            await asyncio.wait(sending)
            await asyncio.to_thread(server.start)
            assert (await store.write([Change("a", 0, 1)])).versions == {"a": 1}
        await store.close()


async def keep_sending(store: NatsStore) -> None:
    """Sends until the connection is lost."""
    with suppress(RelayUnavailable):
        while True:
            await store.send(b'"%s"' % (b"x" * 3_000))
            await asyncio.sleep(0.0)
