"""The recipe for webhooks in one process: the provider answers the buyer, or does not."""

import asyncio
import json

import httpx2
import payments
import pytest


@pytest.fixture
def requested(monkeypatch):
    """The requests to the provider, by id."""
    requested = {}

    def answer(request):
        body = json.loads(request.content)
        requested[body["id"]] = body["amount"]
        return httpx2.Response(202)

    provider = httpx2.AsyncClient(
        transport=httpx2.MockTransport(answer), base_url="https://provider.example"
    )
    monkeypatch.setattr(payments, "provider", provider)
    return requested


def client():
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(payments.app), base_url="http://shop")


def test_webhook_answers_the_buyer(requested, virtual_time_runner):
    async def main():
        async with client() as buyer, client() as provider:
            paying = asyncio.create_task(buyer.post("/orders/7/payment?amount=20"))
            await asyncio.sleep(3)
            [payment] = requested
            await provider.post(f"/webhooks/payment?id={payment}&state=paid")
            assert (await paying).json() == {"payment": payment, "state": "paid"}
            assert asyncio.get_running_loop().time() == 3

    virtual_time_runner.run(main())


def test_payment_without_a_webhook_stays_pending(requested, virtual_time_runner):
    async def main():
        async with client() as buyer:
            response = await buyer.post("/orders/8/payment?amount=20&wait=10")
            assert (response.status_code, asyncio.get_running_loop().time()) == (202, 10)
            refused = await buyer.post("/orders/9/payment?amount=20&wait=soon")
            assert (refused.status_code, len(requested)) == (400, 1)
            assert payments.replies.pending == 0

    virtual_time_runner.run(main())
