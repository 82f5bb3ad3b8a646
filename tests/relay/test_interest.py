"""A process without waiters is sent no changes, and misses none once it has a waiter; on each kind
of store."""

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from loops import Runner
from relay_soak import connections_killed, remove_sockets
from relay_waits import bumped, set_timeout, until
from servers import SERVERS, TIMEOUT, place, postgres_server, redis_server

from purgatory import Purgatory
from purgatory.relay import Relay, _membership, _store_sync
from purgatory.relay._store import open_store

RESYNC = 600.0  # seconds; too long for a resync to find the tested change
prefixes = count(1)


@pytest.fixture(scope="module", params=["file", *SERVERS])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with place(request.param, tmp_path_factory.mktemp("relay")) as url:
        yield url


@pytest.fixture
def relay(url: str) -> Callable[..., Relay]:
    """Makes relays on one store, which is empty."""
    prefix = f"test{next(prefixes)}"
    return lambda **options: Relay(
        url, **{"prefix": prefix, "timeout": TIMEOUT, "resync": RESYNC, **options}
    )


@pytest.fixture(autouse=True)
def leave_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_store_sync, "LEAVE_DELAY", 0.1)


async def has_left(relay: Relay, other: Relay) -> None:
    """Waits until `relay` does not receive the writes of `other`."""
    await until(lambda: not relay._follower.is_joined)
    received = -1
    while relay.statistics().received > received:
        received = relay.statistics().received
        await other.bump("nobody waits for this")
        await asyncio.sleep(0.05)


def test_process_without_waits_receives_all_but_changes(
    run: Runner, relay: Callable[..., Relay], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_membership, "ANNOUNCE_INTERVAL", 0.2)

    async def main() -> None:
        async with relay() as here, relay() as there:
            there.introduce(lambda: {"pid": 2})
            await has_left(there, here)
            await has_left(here, there)
            before = here.statistics()
            for number in range(100):
                await there.bump(f"key{number}")
            await until(lambda: [worker.about for worker in here.workers()] == [{"pid": 2}])
            assert here.statistics() == before
            assert before.is_connected
            old = here.epoch
            await there._store.renew(old)
            there._follower.resync()
            there._sync.wake()  # type: ignore[union-attr]
            await until(lambda: here.epoch == there.epoch != old)
            assert await here.wait("key7", 0) == await here.version("key7") == 1

    run(main)


def test_waits_that_come_and_go_miss_nothing(
    run: Runner, relay: Callable[..., Relay], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_store_sync, "LEAVE_DELAY", 0.001)
    joins = 0

    async def main() -> None:
        nonlocal joins
        async with relay() as here, relay() as there:
            on_joined = here._follower.on_joined

            def count_join() -> None:
                nonlocal joins
                joins += 1
                on_joined()

            here._follower.on_joined = count_join  # type: ignore[method-assign]
            rng = random.Random(7)
            version = 0
            for _ in range(200):
                waits = [
                    asyncio.create_task(here.wait("a", version))
                    for _ in range(rng.choice((1, 1, 3)))
                ]
                if rng.random() < 0.5:
                    await asyncio.sleep(rng.uniform(0.0, 0.004))
                version = await there.bump("a")
                async with asyncio.timeout(TIMEOUT):
                    assert await asyncio.gather(*waits) == [version] * len(waits)
                if rng.random() < 0.5:
                    await asyncio.sleep(rng.uniform(0.0, 0.004))
            assert joins > 10
            assert here.statistics().healed == 0

    run(main)


def test_attached_purgatory_receives_all_later_writes(
    run: Runner, relay: Callable[..., Relay]
) -> None:
    checked: list[str] = []

    class Recording(Purgatory[Any]):  # type: ignore[misc]
        def check_and_complete(self, key: Any) -> int:
            checked.append(key)
            return 0

    async def main() -> None:
        async with relay() as here, relay() as there, Recording() as purgatory:
            await has_left(here, there)
            here.attach(purgatory)
            keys = [f"key{number}" for number in range(50)]
            for key in keys:
                await there.bump(key)
            await until(lambda: {*keys} <= {*checked})
            await asyncio.sleep(0.3)  # it does not leave again
            await there.bump("last")
            await until(lambda: "last" in checked)

    run(main)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["file", "redis", "postgresql"])
def test_transient_waits_miss_nothing_across_lost_connections(
    run: Runner, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_store_sync, "LEAVE_DELAY", 0.001)
    rng = random.Random(7)

    async def keep_failing(url: str, server: Any) -> None:
        while True:
            await asyncio.sleep(rng.uniform(0.01, 0.1))
            if server is None:
                remove_sockets(tmp_path / "app")
            else:
                await connections_killed(server)

    async def main() -> None:
        with ExitStack() as stack:
            server: Any = None
            if kind == "redis":
                server = stack.enter_context(redis_server(tmp_path))
            elif kind == "postgresql":
                server = stack.enter_context(postgres_server())
            url = server.url if server else f"file://{tmp_path}/app"
            async with (
                Relay(url, timeout=TIMEOUT, resync=0.5) as here,
                Relay(url, timeout=TIMEOUT, resync=0.5) as there,
            ):
                await set_timeout(here, 2.0)
                failing = asyncio.create_task(keep_failing(url, server))
                version = 0
                for _ in range(60):
                    waiting = asyncio.create_task(here.wait("a", version))
                    await asyncio.sleep(rng.uniform(0.0, 0.02))
                    await bumped(there, "a")
                    async with asyncio.timeout(TIMEOUT):
                        version = await waiting
                    assert version <= await there.version("a")
                    if rng.random() < 0.5:
                        await asyncio.sleep(rng.uniform(0.0, 0.1))
                failing.cancel()
                await asyncio.gather(failing, return_exceptions=True)
                await until(lambda: here.statistics().is_connected and not here._follower.is_joined)

    run(main)


@pytest.mark.slow
def test_lost_connection_keeps_the_interest(run: Runner, tmp_path: Path) -> None:
    async def main() -> None:
        with redis_server(tmp_path) as server:
            async with (
                Relay(server.url, timeout=TIMEOUT, resync=RESYNC) as idle,
                Relay(server.url, timeout=TIMEOUT, resync=RESYNC) as busy,
            ):
                waiting = asyncio.create_task(busy.wait("never", 0))
                await until(lambda: not idle._follower.is_joined)
                for _ in range(3):
                    subscriptions = idle._follower.subscriptions, busy._follower.subscriptions
                    server.ask("CLIENT", "KILL", "TYPE", "pubsub")
                    await until(
                        lambda before=subscriptions[0]: idle._follower.subscriptions > before
                    )  # type: ignore[misc]
                    await until(
                        lambda before=subscriptions[1]: busy._follower.subscriptions > before
                    )  # type: ignore[misc]
                    await until(
                        lambda: idle.statistics().is_connected and busy.statistics().is_connected
                    )
                    before = idle.statistics().received, busy.statistics().received
                    async with Relay(server.url, timeout=TIMEOUT) as writer:
                        await writer.bump("a")
                    await until(lambda before=before[1]: busy.statistics().received > before)  # type: ignore[misc]
                    assert idle.statistics().received == before[0]
                assert await idle.bump("never") == 1
                assert await waiting == 1

    run(main)


def test_failed_joining_is_retried_while_resyncs_answer(
    run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = 0

    async def main() -> None:
        nonlocal attempts
        store: Any = open_store(f"file://{tmp_path}/app", "purgatory")
        async with Relay(store, resync=0.1) as here, Relay(f"file://{tmp_path}/app") as there:
            await until(lambda: not here._follower.is_joined)
            set_interest = store.set_interest

            async def refuse(is_wanted: bool) -> None:
                nonlocal attempts
                attempts += 1
                if attempts < 3 or not waiting.done():
                    raise OSError("no")
                await set_interest(is_wanted)

            here._sync._set_interest = refuse  # type: ignore[union-attr]
            waiting = asyncio.create_task(here.wait("a", 0))
            await until(lambda: attempts > 0)
            await there.bump("a")
            assert await waiting == 1
            again = asyncio.create_task(here.wait("b", 0))
            await until(lambda: here._follower.is_joined)
            await there.bump("b")
            assert await again == 1
            assert here.statistics().healed == 0

    run(main)


def test_store_without_interest_sends_changes_to_all(run: Runner, tmp_path: Path) -> None:
    class Plain:
        def __init__(self) -> None:
            self._store: Any = open_store(f"file://{tmp_path}/app", "purgatory")
            self.address = self._store.address

        def __getattr__(self, name: str) -> Any:
            if name in ("set_interest", "is_channel_trusted"):
                raise AttributeError(name)
            return getattr(self._store, name)

    async def main() -> None:
        store: Any = Plain()
        async with Relay(store, resync=RESYNC) as here, Relay(f"file://{tmp_path}/app") as there:
            await until(lambda: not there._follower.is_joined)
            await there.bump("a")
            await until(lambda: here.statistics().received == 1)
            assert here._follower.is_joined

    run(main)
