"""The list of other processes, on each kind of store."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from helpers import until
from relay_waits import recorded
from servers import TIMEOUT, on_all_stores

from purgatory.relay import Relay, _membership


@asynccontextmanager
async def relays(url: str, count: int) -> AsyncIterator[list[Relay]]:
    async with AsyncExitStack() as stack:
        opened = (Relay(url, timeout=TIMEOUT) for _ in range(count))
        yield [await stack.enter_async_context(relay) for relay in opened]


async def listing(relay: Relay, *pids: int) -> None:
    """Waits until exactly the processes `pids` are listed."""
    async with asyncio.timeout(TIMEOUT):
        while sorted(worker.about["pid"] for worker in relay.workers()) != sorted(pids):
            await asyncio.sleep(0.02)


@on_all_stores
async def test_announced_process_is_listed_until_it_leaves(url, monkeypatch):
    monkeypatch.setattr(_membership, "CALL_INTERVAL", 0.2)
    monkeypatch.setattr(_membership, "MEMBER_TTL", 2.0)
    async with relays(url, 3) as [first, second, silent]:
        first.introduce(lambda: {"pid": 1})
        second.introduce(lambda: {"pid": 2})
        await listing(silent, 1, 2)
        await listing(first, 2)
        await listing(second, 1)
        second.introduce(lambda: {"pid": 22})
        await listing(first, 22)
        await second.aclose()
        assert second.workers() == []
        await listing(first)


async def test_one_call_serves_all_lists(tmp_path, monkeypatch):
    monkeypatch.setattr(_membership, "CALL_INTERVAL", 60.0)
    async with relays(f"file://{tmp_path}", 2) as [first, second]:
        heard: list[str] = []
        sync = first._sync
        assert sync is not None
        on_settled = sync.membership.on_settled
        monkeypatch.setattr(
            sync.membership, "on_settled", lambda keys: heard.extend(keys) or on_settled(keys)
        )
        calls = recorded(second._store, "settle")
        first.introduce(lambda: {"pid": 1})
        second.introduce(lambda: {"pid": 2})
        assert await first.deliver("a", b"", ttl=TIMEOUT)
        await until(lambda: heard == ["a"])
        for _ in range(100):  # a hundred pages
            first.workers()
            second.workers()
        await listing(second, 1)
        await listing(first, 2)
        assert sorted(key.count("/") for key in heard) == [0, 0, 2, 2]
        assert sum(each.key == _membership.CALL for call in calls for each in call) == 1


@pytest.mark.parametrize("unfit", [ZeroDivisionError("no"), object(), "x" * 5_000])
async def test_failed_announcement_is_reported_and_harmless(tmp_path, reports, unfit):
    def about() -> dict[str, Any]:
        if isinstance(unfit, Exception):
            raise unfit
        return {"pid": unfit}

    async with relays(f"file://{tmp_path}", 2) as [good, bad]:
        good.introduce(lambda: {"pid": 1})
        bad.introduce(about)
        assert good.workers() == []
        await listing(bad, 1)
        assert {report["message"] for report in reports} == {
            f"file://{tmp_path}: cannot announce this process to the others"
        }


async def test_a_relay_that_is_not_open_lists_nobody(tmp_path):
    relay = Relay(f"file://{tmp_path}")
    relay.introduce(lambda: {"pid": 1})
    assert relay.workers() == []
    async with relay:
        assert relay.workers() == []
    assert relay.workers() == []
