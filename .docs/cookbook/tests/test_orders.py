"""The recipe for orders: pages wait for a newer version."""

import asyncio

import httpx2
import orders


def client():
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(orders.app), base_url="http://orders")


def test_page_waits_for_a_newer_version(virtual_time_runner):
    async def main():
        async with client() as one:
            seen = (await one.get("/orders/1")).headers["etag"]
            waiting = asyncio.create_task(one.get("/orders/1", headers={"If-None-Match": seen}))
            await asyncio.sleep(10)
            changed = await one.put("/orders/1?state=paid", headers={"If-Match": seen})
            response = await waiting
            assert response.json() == {"order": 1, "state": "paid"}
            assert response.headers["etag"] == changed.headers["etag"] != seen
            assert asyncio.get_running_loop().time() == 10

    virtual_time_runner.run(main())


def test_unchanged_order_is_304_at_deadline(virtual_time_runner):
    async def main():
        async with client() as one:
            seen = (await one.get("/orders/2")).headers["etag"]
            response = await one.get("/orders/2?wait=20", headers={"If-None-Match": seen})
            assert (response.status_code, asyncio.get_running_loop().time()) == (304, 20)

    virtual_time_runner.run(main())


def test_second_change_of_one_version_fails(virtual_time_runner):
    async def main():
        async with client() as one, client() as two:
            seen = (await one.get("/orders/3")).headers["etag"]
            changes = [
                each.put("/orders/3?state=paid", headers={"If-Match": seen}) for each in (one, two)
            ]
            assert sorted(
                [response.status_code for response in await asyncio.gather(*changes)]
            ) == [204, 412]

    virtual_time_runner.run(main())
