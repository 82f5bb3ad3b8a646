"""The cookbook's pages in headless Chromium: one whose server is killed and started again, and a
stream of events that is refused at first."""

import signal
from pathlib import Path

import httpx2
import pytest
from readme_blocks import ROOT, blocks
from selenium.webdriver import Chrome
from server_process import TIMEOUT, ServerProcess
from window import Window

pytest_plugins = ["browser"]
pytestmark = pytest.mark.slow

COOKBOOK = ROOT / ".docs" / "cookbook"
EVENTS = """
from fastapi.responses import HTMLResponse
from purgatory.asgi import Ending
from uploads import app, polls

polls.max_open = 1


@app.get("/")
async def page() -> HTMLResponse:
    return HTMLResponse(
        "<script>new EventSource('/uploads/cat.jpg/events').onmessage ="
        " (event) => { document.title = event.data; };</script>"
    )


@app.get("/refused")
async def refused() -> int:
    return polls.endings[Ending.REFUSED]
"""


def server(folder: Path, module: str, **files: str) -> ServerProcess:
    """A recipe under uvicorn, with these files."""
    for name, text in files.items():
        suffix = "html" if "<!doctype" in text[:100].lower() else "py"
        (folder / f"{name}.{suffix}").write_text(text, encoding="utf-8")
    words = ("-m", "uvicorn", f"{module}:app", "--port", "{port}", "--log-level", "error")
    return ServerProcess(*words, ready="", folder=folder)


def block(page: str, language: str) -> str:
    [found] = blocks(COOKBOOK / page, language)
    return found.text


def change(url: str, state: str) -> None:
    with httpx2.Client(base_url=url, trust_env=False) as client:
        seen = client.get("/orders/7").headers["etag"]
        answer = client.put(f"/orders/7?state={state}", headers={"If-Match": seen})
        assert answer.status_code == 204


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_page_follows_order_across_a_restart(
    browser: Chrome, tmp_path: Path, number: signal.Signals
) -> None:
    files = {"order": block("browser.md", "html"), "orders_page": block("browser.md", "python")}
    files["orders"] = block("orders.md", "python")
    with server(tmp_path, "orders_page", **files) as running:
        page = Window(browser, running.url)

        def until(*shown: str) -> None:
            page.until(lambda: (page.text("#state"), page.text("#connection")) == shown)

        until("new", "connected")
        change(running.url, "paid")
        until("paid", "connected")
        running.end(number)
        until("paid", "reconnecting")
        running.start()
        until("new", "connected")
        change(running.url, "sent")
        until("sent", "connected")


def test_browser_returns_to_a_refused_stream(browser: Chrome, tmp_path: Path) -> None:
    files = {"uploads": block("events.md", "python"), "uploads_page": EVENTS}
    with (
        server(tmp_path, "uploads_page", **files) as running,
        httpx2.Client(base_url=running.url, trust_env=False, timeout=TIMEOUT) as client,
    ):
        with client.stream("GET", "/uploads/cat.jpg/events"):
            page = Window(browser, running.url)
            page.until(lambda: int(running.get("refused")) > 0)
        client.post("/uploads/cat.jpg?step=stored")
        page.until(lambda: page.browser.title == "stored")
