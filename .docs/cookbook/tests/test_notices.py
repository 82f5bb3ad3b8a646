"""The recipe for every worker: a notice answers a request in another worker."""

import asyncio

from httpx2 import ASGITransport, AsyncClient
from notices import make_app


def test_notice_answers_request_in_another_worker(virtual_time_runner, tmp_path):
    async def main():
        one, two = make_app(tmp_path), make_app(tmp_path)
        async with (
            one.router.lifespan_context(one),
            two.router.lifespan_context(two),
            AsyncClient(transport=ASGITransport(one), base_url="http://one") as reader,
            AsyncClient(transport=ASGITransport(two), base_url="http://two") as writer,
        ):
            seen = (await reader.get("/notices/7")).headers["etag"]
            waiting = asyncio.create_task(reader.get("/notices/7", headers={"If-None-Match": seen}))
            await asyncio.sleep(10)
            await writer.put("/notices/7?text=tea")
            response = await waiting
            assert (response.text, response.status_code) == ("tea", 200)
            assert (
                (await writer.get("/notices/7")).headers["etag"] == response.headers["etag"] != seen
            )

    virtual_time_runner.run(main())
