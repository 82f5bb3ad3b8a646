"""The cookbook's payment callback on two real workers: it lands on the one that does not wait."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from servers import SERVERS, TIMEOUT, place

sys.path.insert(0, str(Path(__file__).parent.parent))
from asgi_server import serving
from ports import free_port
from readme_blocks import ROOT, blocks

pytestmark = pytest.mark.slow


@pytest.fixture(params=["file", SERVERS["redis"]])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with place(request.param, tmp_path) as url:
        yield url


@asynccontextmanager
async def provider() -> AsyncIterator[str]:
    """The address of a payment provider, which accepts everything."""

    async def accept(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 202, "headers": []})
        await send({"type": "http.response.body"})

    async with serving(accept) as port:
        yield f"http://127.0.0.1:{port}"


@asynccontextmanager
async def worker(folder: Path, store: str, provider: str) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of a worker, a process of its own."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "uvicorn", "shop:app", "--port", str(port), "--log-level", "error"),
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(folder), *sys.path]),
            "SHOP_STORE": store,
            "SHOP_PROVIDER": provider,
        },
    )
    base = f"http://127.0.0.1:{port}"
    async with httpx2.AsyncClient(base_url=base, timeout=TIMEOUT, trust_env=False) as client:
        try:
            while True:
                try:
                    await client.get("/payments/none?wait=0")
                    break
                except httpx2.TransportError:
                    assert process.returncode is None
                    await asyncio.sleep(0.05)
            yield client
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def test_payment_callback_answers_buyer_in_another_worker(tmp_path: Path, url: str) -> None:
    [code] = [
        block.text
        for block in blocks(ROOT / ".docs" / "cookbook" / "webhooks.md", "python")
        if block.text.startswith("# shop.py\n")
    ]
    (tmp_path / "shop.py").write_text(code, encoding="utf-8")
    async with (
        provider() as address,
        worker(tmp_path, url, address) as buyer,
        worker(tmp_path, url, address) as caller,
    ):
        payment = (await buyer.post("/payments?amount=20")).json()["payment"]
        paying = asyncio.create_task(buyer.get(f"/payments/{payment}?wait=60"))
        await asyncio.sleep(0.2)  # so that it most likely waits, and in any case it is answered
        answer = await caller.post(f"/webhooks/payment?id={payment}&state=paid")
        assert answer.status_code == 204
        paid = {"payment": payment, "state": "paid"}
        assert (await paying).json() == paid
        for client in (
            buyer,
            caller,
        ):  # each client asks again, and the second call changes nothing
            await client.post(f"/webhooks/payment?id={payment}&state=failed")
            assert (await client.get(f"/payments/{payment}?wait=60")).json() == paid
