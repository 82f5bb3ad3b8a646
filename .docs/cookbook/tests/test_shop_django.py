"""The recipe for Django: a plain webhook answers views that wait."""

import asyncio

import httpx2
import pytest


@pytest.fixture
def shop(monkeypatch, tmp_path):
    monkeypatch.setenv("SHOP_STORE", f"file://{tmp_path}/shop")
    import shop_django

    return shop_django


def test_plain_webhook_answers_waiting_views(shop):
    async def main():
        transport = httpx2.ASGITransport(shop.app)
        async with (
            shop.relay,
            httpx2.AsyncClient(transport=transport, base_url="http://shop", timeout=60) as client,
        ):
            waiting = [
                asyncio.create_task(client.get(f"{path}payments/7?wait=60"))
                for path in ("/", "/sync/")
            ]
            while shop.polls.open < 2:
                await asyncio.sleep(0.01)
            assert (await client.get("/webhooks/7?state=paid")).status_code == 204
            for response in await asyncio.gather(*waiting):
                assert response.json() == {"payment": "7", "state": "paid"}
            assert (await client.get("/payments/8?wait=0.1")).status_code == 204

    asyncio.run(main())


def test_lifespan_opens_the_relay(shop):
    async def main():
        messages: asyncio.Queue = asyncio.Queue()
        sent = []

        async def send(message):
            sent.append(message["type"])

        messages.put_nowait({"type": "lifespan.startup"})
        lifespan = asyncio.create_task(shop.app({"type": "lifespan"}, messages.get, send))
        while not sent:
            await asyncio.sleep(0.01)
        assert await shop.relay.deliver("payments/9", b"paid", ttl=60)
        messages.put_nowait({"type": "lifespan.shutdown"})
        await lifespan
        assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]

    asyncio.run(main())
