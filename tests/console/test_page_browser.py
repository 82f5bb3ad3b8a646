"""The page in headless Chromium, on a server that is stopped, killed and started again; and the
same in a terminal."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from socket import gethostname

import pytest
from selenium.webdriver import Chrome
from server_process import ENVIRONMENT, TIMEOUT, ServerProcess
from window import Window

pytest_plugins = ["browser"]
pytestmark = pytest.mark.slow

HERE = Path(__file__).parent


class Server(ServerProcess):
    """`console_server`, with a relay in a folder if one is given.

    Args:
        workers: processes behind one address, which no page then knows.
    """

    def __init__(self, folder: Path | None = None, workers: int = 1) -> None:
        relay = {} if folder is None else {"RELAY": f"file://{folder}/store"}
        options = ["--port={port}", f"--workers={workers}", "--log-level=warning"]
        command = ["-m", "uvicorn", *options, "console_server:app"]
        super().__init__(*command, ready="hello", folder=HERE, **relay)
        self.page = f"{self.url}/purgatory/"
        if workers == 1:
            self._environment["ADDRESS"] = self.page
        else:
            self.last = signal.SIGTERM  # which ends the workers


def top(url: str) -> str:
    """What `purgatory.top` prints."""
    command = [sys.executable, "-m", "purgatory.top", url, "--once"]
    environment = ENVIRONMENT | {"COLUMNS": "140"}
    return subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


class Page(Window):
    def __init__(self, browser: Chrome, url: str) -> None:
        super().__init__(browser, url)
        self.until(lambda: self.text("#state") == "live")

    @property
    def pending(self) -> str | None:
        return self.text("[data-name=jobs] .number b")

    def until_pending(self, count: str) -> None:
        self.until(lambda: self.pending == count)

    @property
    def complaints(self) -> list[str]:
        """The messages of the browser's console, except for failed connections."""
        entries = self.browser.get_log("browser")
        said = [entry["message"] for entry in entries if entry["level"] == "SEVERE"]
        failed = ("ERR_", "status of 503")
        return [message for message in said if not any(word in message for word in failed)]


@pytest.fixture
def page(browser: Chrome, server: Server) -> Iterator[Page]:
    page = Page(browser, server.page.rstrip("/"))
    yield page
    assert page.complaints == []


def test_the_page_follows_a_run(server: Server, page: Page) -> None:
    assert page.browser.current_url == server.page
    page.until_pending("0")
    server.get("wait/50/order")
    page.until_pending("50")
    assert page.texts("[data-name=jobs] tbody tr .key")[-1] == "'order'"
    assert "jobs" in page.texts(".overview strong") and "versions" in page.texts(".overview strong")
    # A row is updated in place.
    page.run("window.row = document.querySelector('[data-name=jobs] tbody tr')")
    assert page.run("return window.row.cells[2].textContent") == "×50"
    counted = page.run("return window.row.cells[3].textContent")
    page.until(lambda: page.run("return window.row.cells[3].textContent") != counted)
    assert page.run("return window.row.isConnected")
    server.get("miss/forgotten")
    page.until(lambda: "'forgotten'" in page.texts(".missed .key"))
    server.get("check/order")
    page.until_pending("0")
    drawn = """
        return [...document.querySelectorAll("canvas")].map((canvas) => canvas.width > 0 &&
            canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.some((each) => each))
    """
    page.until(lambda: len(page.run(drawn)) >= 6 and all(page.run(drawn)))
    server.get("threshold")
    cells = "[data-name=versions] tbody td"
    page.until(lambda: page.texts(cells)[-4:] == ["'orders'", "3", "5", "2"])
    first, kind, count, *_, left = page.texts(cells)[:6]
    assert (first, kind, count) == ("'orders'", "wait", "×2") and left.endswith("min")


def test_keys_are_text_and_nothing_of_them_runs(server: Server, page: Page) -> None:
    server.get("attack")
    page.until_pending("3")
    keys = {"'<script>window.hacked = 1</script>'", "'</td><b>bold</b>'"}
    keys.add("'<img src=x onerror=\"window.hacked = 1\">'")
    assert keys <= {*page.texts("[data-name=jobs] .key")}
    found = "return [window.hacked, document.querySelectorAll('img, td b').length]"
    assert page.run(found) == [None, 0]
    # The policy of the page, were there ever a hole in it.
    script = "Object.assign(document.createElement('script'), {textContent: 'window.hacked = 2'})"
    page.run(f"document.body.append({script})")
    assert page.run("return window.hacked") is None
    assert any("Content Security Policy" in message for message in page.complaints)


def test_filter_shows_matching_keys_only(server: Server, page: Page) -> None:
    server.get("session/30")
    server.get("wait/2/order")
    page.until_pending("32")
    search = """
        const filter = document.getElementById("filter");
        filter.value = arguments[0]; filter.dispatchEvent(new Event("input"));
        return [...document.querySelectorAll("[data-name=jobs] section:not([hidden]) tbody .key")]
            .map((each) => each.title)"""
    assert page.run(search, "00029") == ["'session:eu-west-1:customer:00029'"]
    assert page.run(search, "ORDER") == ["'order'", "'order'"]  # also among the hottest keys
    assert page.run(search, "nothing") == []
    assert "No key has “nothing” in it." in page.texts("[data-name=jobs] .empty")
    assert len(page.run(search, "")) == 11
    server.get("check/order")
    server.get("session/12345")
    page.until_pending("12,375")  # counts are exact
    assert page.text(".overview b") == "12,375"
    assert "12,345 keys" in (page.text("[data-name=jobs] .title") or "")
    keys = page.texts("[data-name=jobs] section:first-of-type tbody .key")
    assert len(keys) == len({*keys})  # and what differs between keys is kept
    assert all(key.startswith("'…") and key.endswith("'") and len(key) == 8 for key in keys)


def test_alerts_are_first_and_title_names_service(server: Server, page: Page) -> None:
    page.until(lambda: page.browser.title == f"0 pending · purgatory on {gethostname()}")
    assert page.run("return document.querySelector('#alerts').hidden")
    server.get("miss/forgotten")
    server.get("refuse")
    page.until(lambda: len(page.texts("#alerts li")) == 2)
    refused, missed = page.texts("#alerts li")
    assert refused.startswith("1 poll was refused: at most ")
    assert missed == "1 missed trigger in jobs"
    assert page.run("return document.querySelector('main').firstElementChild.id") == "alerts"


def test_page_requests_carry_the_query(browser: Chrome, server: Server) -> None:
    server.get("wait/5/order")
    page = Page(browser, f"{server.url}/guarded?token=secret")
    assert browser.current_url == f"{server.url}/guarded/?token=secret"
    page.until_pending("5")
    page.until(lambda: browser.title == f"5 pending · orders service on {gethostname()}")


def test_page_with_relay_lists_other_workers(browser: Chrome, tmp_path: Path) -> None:
    with Server(tmp_path) as first, Server(tmp_path) as second, Server(tmp_path) as third:
        second.get("wait/5/order")
        page = Page(browser, first.page)
        page.until(lambda: len(page.texts("#others tbody tr")) == 3)
        assert "shown here" in page.texts("#others tr td:last-child")
        links = "return [...document.querySelectorAll('#others a')].map((each) => each.href)"
        assert {*page.run(links)} == {second.page, third.page}
        page.until(lambda: page.text("#others b") == "5")
        title = "5pending in all workers3 workers, 0 polls open"
        assert (page.text("#others .title") or "").startswith(title)
        third.end(signal.SIGKILL)
        page.until(lambda: page.run(links) == [second.page])
        page.run("document.querySelector('#others a').click()")
        page.until(lambda: page.browser.current_url == second.page and page.pending == "5")
        page.until(lambda: f"0 pending, 0 polls: {first.page}" in top(second.page))
        assert page.complaints == []


@pytest.mark.parametrize("has_relay", [True, False])
def test_four_workers_are_summed_and_linked(
    browser: Chrome, tmp_path: Path, has_relay: bool
) -> None:
    with Server(tmp_path if has_relay else None, workers=4) as server:
        busy = server.get("wait/50/order")
        page = Page(browser, server.page)
        page.until(lambda: len(page.texts("#others tbody tr")) == 4)
        page.until(lambda: page.text("#others b") == "50")
        assert page.run("return document.querySelector('main > :not([hidden])').id") == "others"
        page.until_pending("50")  # it opens on the busiest
        for pid in [busy, *page.texts("#others tbody td:first-child")[:2]]:
            pid = pid.split()[0]
            click = """
                const row = [...document.querySelectorAll("#others tbody tr")]
                    .find((each) => each.cells[0].textContent.startsWith(`${arguments[0]} on`));
                row?.querySelector("a")?.click();
                return Boolean(row)"""
            page.until(lambda pid=pid: page.run(click, pid))
            page.until(lambda pid=pid: f" worker {pid} on" in (page.text("#facts") or ""))
            page.until(lambda pid=pid: page.pending == ("50" if pid == busy else "0"))
        assert page.complaints == []
        # Which worker answers, or is in time with its announcement, is up to the machine.
        page.until(lambda: "50 pending in 4 workers, " in top(server.page))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_page_reconnects_after_server_restart(server: Server, page: Page, number: int) -> None:
    server.get("wait/7/order")
    page.until_pending("7")
    worker = lambda: (page.text("#facts") or "").split(" · ")[1]  # noqa: E731
    before = worker()
    server.end(number)
    page.until(lambda: page.text("#state") in ("reconnecting", "the server is stopping"))
    old = "No answer from the server: these figures are "
    page.until(lambda: (page.text("#banner:not([hidden])") or "").startswith(old))
    assert page.browser.title.startswith("⚠ ") and page.pending == "7"
    server.start()
    page.until(lambda: page.text("#state") == "live" and page.pending == "0")
    page.until(lambda: page.text("#banner:not([hidden])") is None)
    assert page.browser.title.startswith("0 pending")
    assert worker() != before
    server.get("wait/8/order")
    page.until_pending("8")


def test_terminal_shows_the_same(server: Server) -> None:
    server.get("wait/50/order")
    server.get("attack")
    shown = top(server.page)
    assert "'order'" in shown and "'<script>window.hacked = 1</script>'" in shown
    assert "\x1b" not in shown
    # A background process of a shell ignores SIGINT, and so would its children.
    restore_sigint = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(
        [sys.executable, "-m", "purgatory.top", server.page], env=ENVIRONMENT, text=True,
        stdout=subprocess.PIPE, preexec_fn=restore_sigint,  # noqa: PLW1509
    ) as following:  # fmt: skip
        try:
            lines = iter(following.stdout.readline, "")
            until = lambda pending: any(each.split()[:2] == ["jobs", pending] for each in lines)  # noqa: E731
            assert until("53")
            server.get("check/order")
            assert until("3")
            server.end(signal.SIGTERM)
            assert any("reconnecting" in line or "stopping" in line for line in lines)
            server.start()
            assert until("0")
            following.send_signal(signal.SIGINT)
            assert following.wait(TIMEOUT) == 0
        finally:
            following.kill()
