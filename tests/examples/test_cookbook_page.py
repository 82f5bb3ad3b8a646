"""The cookbook's page that reconnects, in headless Chromium: its server is killed and started
again."""

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

COOKBOOK = ROOT / ".docs" / "cookbook"


class Server(ServerProcess):
    """The recipe under uvicorn."""

    def __init__(self, folder: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
        words = ("-m", "uvicorn", "orders_page:app", "--port", "{port}", "--log-level", "error")
        super().__init__(*words, ready="", environment=environment, folder=folder)

    def change(self, state: str) -> None:
        with httpx2.Client(base_url=self.url, trust_env=False) as client:
            seen = client.get("/orders/7").headers["etag"]
            answer = client.put(f"/orders/7?state={state}", headers={"If-Match": seen})
            assert answer.status_code == 204


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    [page] = blocks(COOKBOOK / "browser.md", "html")
    [module] = blocks(COOKBOOK / "browser.md", "python")
    [orders] = blocks(COOKBOOK / "orders.md", "python")
    for name, block in ("order.html", page), ("orders_page.py", module), ("orders.py", orders):
        (tmp_path / name).write_text(block.text, encoding="utf-8")
    server = Server(tmp_path)
    server.start()
    yield server
    server.end(signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_page_follows_order_across_a_restart(
    browser: Chrome, server: Server, number: signal.Signals
) -> None:
    def until(condition: Callable[[], bool]) -> None:
        WebDriverWait(browser, TIMEOUT, poll_frequency=0.05).until(lambda _: condition())

    def text(name: str) -> str:
        found = browser.execute_script(
            "return document.getElementById(arguments[0]).textContent", name
        )
        return str(found)

    browser.get(server.url)
    until(lambda: (text("state"), text("connection")) == ("new", "connected"))
    server.change("paid")
    until(lambda: text("state") == "paid")
    server.end(number)
    until(lambda: text("connection") == "reconnecting")
    assert text("state") == "paid"
    server.start()
    until(lambda: (text("state"), text("connection")) == ("new", "connected"))
    server.change("sent")
    until(lambda: text("state") == "sent")
