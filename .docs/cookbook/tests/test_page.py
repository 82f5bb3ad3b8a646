"""The recipe for access to the page: only administrators see it."""

import asyncio

import admin
import behind_a_proxy
import httpx2
import pytest


def client(app):
    return httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app), base_url="https://admin", follow_redirects=True
    )


def test_page_and_its_requests_need_a_session(monkeypatch):
    monkeypatch.setattr(admin, "SECRET", "tea")

    async def main():
        async with client(admin.app) as visitor:
            assert (await visitor.get("/purgatory/")).status_code == 403
            assert (await visitor.get("/purgatory/state")).status_code == 403
            assert (await visitor.get("/sign-in?token=coffee")).status_code == 403
            page = await visitor.get("/sign-in?token=tea")
            assert (page.status_code, page.url.path) == (200, "/purgatory/")
            assert (await visitor.get("/purgatory/state")).status_code == 200

    asyncio.run(main())


@pytest.mark.parametrize(
    ("email", "status"), [("ann@example.com", 200), ("bob@example.com", 403), (None, 403)]
)
def test_only_administrators_pass_the_proxy(email, status):
    async def main():
        async with client(behind_a_proxy.app) as visitor:
            headers = {"X-Auth-Request-Email": email} if email else {}
            assert (await visitor.get("/purgatory/", headers=headers)).status_code == status

    asyncio.run(main())
