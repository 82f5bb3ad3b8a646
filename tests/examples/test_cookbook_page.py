"""The cookbook's pages in headless Chromium: one whose server is killed and started again, and a
stream of events that is refused at first."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from readme_blocks import ROOT, blocks
from selenium.webdriver import Chrome
from selenium.webdriver.support.wait import WebDriverWait
from server_process import TIMEOUT, ServerProcess

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


@contextmanager
def server(folder: Path, module: str, **files: str) -> Iterator[ServerProcess]:
    """A recipe under uvicorn, with these files."""
    for name, text in files.items():
        suffix = "html" if "<!doctype" in text[:100].lower() else "py"
        (folder / f"{name}.{suffix}").write_text(text, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    words = ("-m", "uvicorn", f"{module}:app", "--port", "{port}", "--log-level", "error")
    running = ServerProcess(*words, ready="", environment=environment, folder=folder)
    running.start()
    yield running
    running.end(signal.SIGKILL)


def block(page: str, language: str) -> str:
    [found] = blocks(COOKBOOK / page, language)
    return found.text


def until(browser: Chrome, condition: Callable[[], bool]) -> None:
    WebDriverWait(browser, TIMEOUT, poll_frequency=0.05).until(lambda _: condition())


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

    def text(name: str) -> str:
        found = browser.execute_script(
            "return document.getElementById(arguments[0]).textContent", name
        )
        return str(found)

    with server(tmp_path, "orders_page", **files) as running:
        browser.get(running.url)
        until(browser, lambda: (text("state"), text("connection")) == ("new", "connected"))
        change(running.url, "paid")
        until(browser, lambda: text("state") == "paid")
        running.end(number)
        until(browser, lambda: text("connection") == "reconnecting")
        assert text("state") == "paid"
        running.start()
        until(browser, lambda: (text("state"), text("connection")) == ("new", "connected"))
        change(running.url, "sent")
        until(browser, lambda: text("state") == "sent")


def test_browser_returns_to_a_refused_stream(browser: Chrome, tmp_path: Path) -> None:
    files = {"uploads": block("events.md", "python"), "uploads_page": EVENTS}
    with (
        server(tmp_path, "uploads_page", **files) as running,
        httpx2.Client(base_url=running.url, trust_env=False, timeout=TIMEOUT) as client,
    ):
        with client.stream("GET", "/uploads/cat.jpg/events"):
            browser.get(running.url)
            until(browser, lambda: int(running.get("refused")) > 0)
        client.post("/uploads/cat.jpg?step=stored")
        until(browser, lambda: bool(browser.title == "stored"))
