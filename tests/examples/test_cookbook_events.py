"""The cookbook's stream of events in headless Chromium, which connects again after a refusal."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
from readme_blocks import ROOT, blocks
from selenium.webdriver import Chrome
from selenium.webdriver.support.wait import WebDriverWait
from server_process import TIMEOUT, ServerProcess

pytest_plugins = ["browser"]
pytestmark = pytest.mark.slow

PAGE = """
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


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    [uploads] = blocks(ROOT / ".docs" / "cookbook" / "events.md", "python")
    (tmp_path / "uploads.py").write_text(uploads.text, encoding="utf-8")
    (tmp_path / "uploads_page.py").write_text(PAGE, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    words = ("-m", "uvicorn", "uploads_page:app", "--port", "{port}", "--log-level", "error")
    server = ServerProcess(*words, ready="", environment=environment, folder=tmp_path)
    server.start()
    yield server
    server.end(signal.SIGKILL)


def test_browser_returns_to_a_refused_stream(browser: Chrome, server: ServerProcess) -> None:
    def until(condition: Callable[[], bool]) -> None:
        WebDriverWait(browser, TIMEOUT, poll_frequency=0.05).until(lambda _: condition())

    with httpx2.Client(base_url=server.url, trust_env=False, timeout=TIMEOUT) as client:
        with client.stream("GET", "/uploads/cat.jpg/events"):
            browser.get(server.url)
            until(lambda: int(server.get("refused")) > 0)
        client.post("/uploads/cat.jpg?step=stored")
    until(lambda: bool(browser.title == "stored"))
