"""The recipe for webhooks: the reply answers a buyer in another worker."""

import asyncio

import httpx2
from shop import make_app


def test_webhook_answers_buyer_in_another_worker(virtual_time_runner, tmp_path):
    provider = httpx2.AsyncClient(
        transport=httpx2.MockTransport(lambda request: httpx2.Response(202)),
        base_url="https://provider.example",
    )

    async def main():
        one, two = (make_app(f"file://{tmp_path}/shop", provider) for _ in range(2))
        async with (
            one.router.lifespan_context(one),
            two.router.lifespan_context(two),
            httpx2.AsyncClient(transport=httpx2.ASGITransport(one), base_url="http://one") as buyer,
            httpx2.AsyncClient(
                transport=httpx2.ASGITransport(two), base_url="http://two"
            ) as caller,
        ):
            payment = (await buyer.post("/payments?amount=20")).json()["payment"]
            paying = asyncio.create_task(buyer.get(f"/payments/{payment}"))
            await asyncio.sleep(10)
            for state in ("paid", "failed"):  # the second call changes nothing
                await caller.post(f"/webhooks/payment?id={payment}&state={state}")
            assert (await paying).json() == {"payment": payment, "state": "paid"}
            assert (await caller.get(f"/payments/{payment}")).json()["state"] == "paid"
            assert (await buyer.get("/payments/unknown?wait=20")).status_code == 204

    virtual_time_runner.run(main())
