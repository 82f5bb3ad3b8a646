"""The page in headless Chromium, on a server that is stopped, killed and started again; and the
same in a terminal."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from socket import gethostname
from typing import Any

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.support.wait import WebDriverWait
from server_process import TIMEOUT, ServerProcess

pytest_plugins = ["browser"]
pytestmark = pytest.mark.slow

HERE = str(Path(__file__).parent)
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([HERE, *filter(None, sys.path)]),
    "no_proxy": "127.0.0.1",
    "COLUMNS": "140",
}


class Server(ServerProcess):
    """`console_server`, with a relay in a folder if one is given.

    Args:
        workers: processes behind one address, which no page then knows.
    """

    def __init__(self, folder: Path | None = None, workers: int = 1) -> None:
        relay = {} if folder is None else {"RELAY": f"file://{folder}/store"}
        environment = ENVIRONMENT | relay
        options = ["--port={port}", f"--workers={workers}", "--log-level=warning"]
        command = ["-m", "uvicorn", *options, "console_server:app"]
        super().__init__(*command, ready="hello", environment=environment)
        if workers == 1:
            environment["ADDRESS"] = f"{self.url}/purgatory/"

    def change(self, path: str) -> str:
        """Has it change its purgatory."""
        return self.get(path)


def top(url: str) -> str:
    """What `purgatory.top` prints."""
    command = [sys.executable, "-m", "purgatory.top", url, "--once"]
    return subprocess.run(
        command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    server.start()
    yield server
    server.end(signal.SIGKILL)


class Page:
    def __init__(self, browser: Chrome, url: str) -> None:
        self.browser = browser
        browser.get(url)
        self.until(lambda: self.text("#state") == "live")

    def run(self, script: str, *arguments: Any) -> Any:
        return self.browser.execute_script(script, *arguments)

    def text(self, selector: str) -> str | None:
        text: str | None = self.run(
            "return document.querySelector(arguments[0])?.textContent", selector
        )
        return text

    def texts(self, selector: str) -> list[str]:
        texts: list[str] = self.run(
            "return [...document.querySelectorAll(arguments[0])].map((each) => each.textContent)",
            selector,
        )
        return texts

    @property
    def pending(self) -> str | None:
        return self.text("[data-name=jobs] .number b")

    @property
    def complaints(self) -> list[str]:
        """The messages of the browser's console, except for failed connections."""
        entries = self.browser.get_log("browser")
        said = [entry["message"] for entry in entries if entry["level"] == "SEVERE"]
        failed = ("ERR_", "status of 503")
        return [message for message in said if not any(word in message for word in failed)]

    def until(self, holds: Callable[[], bool]) -> None:
        try:
            WebDriverWait(self.browser, TIMEOUT, poll_frequency=0.05).until(lambda _: holds())
        except Exception as error:
            shown = f"the page says: {self.text('body')}; the console: {self.complaints}"
            raise AssertionError(shown) from error


@pytest.fixture
def page(browser: Chrome, server: Server) -> Page:
    return Page(browser, f"{server.url}/purgatory")


def test_the_page_follows_a_run(server: Server, page: Page) -> None:
    assert page.browser.current_url == f"{server.url}/purgatory/"
    page.until(lambda: page.pending == "0")
    server.change("wait/50/order")
    page.until(lambda: page.pending == "50")
    assert page.texts("[data-name=jobs] tbody tr .key")[-1] == "'order'"
    assert "jobs" in page.texts(".overview strong") and "versions" in page.texts(".overview strong")
    # A row is updated in place.
    page.run("window.row = document.querySelector('[data-name=jobs] tbody tr')")
    assert page.run("return window.row.cells[2].textContent") == "×50"
    counted = page.run("return window.row.cells[3].textContent")
    page.until(lambda: page.run("return window.row.cells[3].textContent") != counted)
    assert page.run("return window.row.isConnected")
    server.change("miss/forgotten")
    page.until(lambda: "'forgotten'" in page.texts(".missed .key"))
    # The first frame of the charts has its size, drawn again from nothing.
    sizes = page.run("""
        shape = ""; show();
        return [...document.querySelectorAll("canvas")].filter((each) => each.clientWidth)
            .map((each) => [each.width, Math.round(each.clientWidth * devicePixelRatio)])""")
    assert len(sizes) >= 2 and all(drawn == shown for drawn, shown in sizes)
    server.change("check/order")
    page.until(lambda: page.pending == "0")
    drawn = """
        return [...document.querySelectorAll("canvas")].map((canvas) => canvas.width > 0 &&
            canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.some((each) => each))
    """
    page.until(lambda: len(page.run(drawn)) >= 6 and all(page.run(drawn)))
    server.change("threshold")
    cells = "[data-name=versions] tbody td"
    page.until(lambda: page.texts(cells)[-4:] == ["'orders'", "3", "5", "2"])
    first, kind, count, *_, left = page.texts(cells)[:6]
    assert (first, kind, count) == ("'orders'", "wait", "×2") and left.endswith("min")
    assert page.complaints == []


def test_keys_are_text_and_nothing_of_them_runs(server: Server, page: Page) -> None:
    server.change("attack")
    page.until(lambda: page.pending == "3")
    keys = page.texts("[data-name=jobs] .key")
    assert {
        "'<script>window.hacked = 1</script>'",
        "'<img src=x onerror=\"window.hacked = 1\">'",
        "'</td><b>bold</b>'",
    } <= {*keys}
    counts = (
        "return [window.hacked, document.images.length, document.querySelectorAll('td b').length]"
    )
    assert page.run(counts) == [None, 0, 0]
    # The policy of the page, were there ever a hole in it.
    script = "Object.assign(document.createElement('script'), {textContent: 'window.hacked = 2'})"
    page.run(f"document.body.append({script})")
    assert page.run("return window.hacked") is None
    assert any("Content Security Policy" in message for message in page.complaints)


def test_filter_shows_matching_keys_only(server: Server, page: Page) -> None:
    server.change("session/30")
    server.change("wait/2/order")
    page.until(lambda: page.pending == "32")
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
    server.change("check/order")
    server.change("session/12345")
    page.until(lambda: page.pending == "12,375")  # counts are exact
    assert page.text(".overview b") == "12,375"
    assert "12,345 keys" in (page.text("[data-name=jobs] .title") or "")
    keys = page.texts("[data-name=jobs] section:first-of-type tbody .key")
    assert len(keys) == len({*keys})  # and what differs between keys is kept
    assert all(key.startswith("…") and key.endswith("'") and len(key) == 7 for key in keys)


def test_phone_hides_what_does_not_fit(server: Server, page: Page) -> None:
    server.change("session/50")
    server.change("miss/forgotten")
    page.until(lambda: page.pending == "50")
    screen = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    wide = "return [...document.querySelectorAll('.desk, .hide')].some((each) => each.offsetHeight)"
    page.until(lambda: page.run("return innerWidth") == 360 and not page.run(wide))
    cut = """return [...document.querySelectorAll(arguments[0])]
        .filter((each) => each.offsetHeight && each.scrollWidth > each.clientWidth)"""
    assert page.run(cut, "td") == []
    server.change("wait/50/" + "x" * 200)
    page.until(lambda: page.pending == "100")
    assert page.run(cut, ".number") == []
    assert page.run("return document.documentElement.scrollWidth") == 360


def test_alerts_are_first_and_title_names_service(server: Server, page: Page) -> None:
    page.until(lambda: page.browser.title == f"0 pending · purgatory on {gethostname()}")
    assert page.run("return document.querySelector('#alerts').hidden")
    server.change("miss/forgotten")
    server.change("refuse")
    page.until(lambda: len(page.texts("#alerts li")) == 2)
    refused, missed = page.texts("#alerts li")
    assert refused.startswith("1 poll was refused: at most ")
    assert missed == "1 missed trigger in jobs"
    assert page.run("return document.querySelector('main').firstElementChild.id") == "alerts"
    above = """const [a, b] = [...arguments].map((each) =>
        document.querySelector(each).getBoundingClientRect().top); return a < b"""
    assert page.run(above, "[data-name=jobs] .missed", "[data-name=jobs] .time")
    assert page.complaints == []


def test_scales_end_at_round_numbers(page: Page) -> None:
    tops = page.run("return Array.from({length: 3000}, (_, i) => [i / 2, ceiling(i / 2)])")
    for value, top in tops:
        assert top and max(value, 1) <= top <= max(2 * value, 2)


def test_sections_without_data_are_hidden(server: Server, page: Page) -> None:
    shown = """return [...document.querySelectorAll("[data-name=jobs] section")].filter((each) => each.offsetHeight)
        .map((each) => each.querySelector("h3").firstChild.textContent)"""
    assert page.run(shown) == ["Pending, and ended per second", "Waiting longest"]
    server.change("session/3")
    page.until(lambda: page.pending == "3")
    assert "Hottest keys" not in page.run(shown)  # each has one waiter
    server.change("wait/5/order")
    page.until(lambda: "Hottest keys" in page.run(shown))
    assert "How long they waited" not in page.run(shown)
    server.change("check/order")
    page.until(lambda: "How long they waited" in page.run(shown))
    assert page.complaints == []


def test_page_requests_carry_the_query(browser: Chrome, server: Server) -> None:
    server.change("wait/5/order")
    page = Page(browser, f"{server.url}/guarded?token=secret")
    assert browser.current_url == f"{server.url}/guarded/?token=secret"
    page.until(lambda: page.pending == "5")
    page.until(lambda: browser.title == f"5 pending · orders service on {gethostname()}")
    browser.get(f"{server.url}/guarded/?token=wrong")
    refused = "This page was not shown: console(authorize=...) has refused this request.\n"
    assert page.text("body") == refused


def test_page_with_relay_lists_other_workers(browser: Chrome, tmp_path: Path) -> None:
    servers = [Server(tmp_path) for _ in range(3)]
    try:
        for server in servers:
            server.start()
        first, second, third = servers
        second.change("wait/5/order")
        page = Page(browser, f"{first.url}/purgatory")
        page.until(lambda: len(page.texts("#others tbody tr")) == 3)
        assert "shown here" in page.texts("#others tr td:last-child")
        links = "return [...document.querySelectorAll('#others a')].map((each) => each.href)"
        addresses = [f"{each.url}/purgatory/" for each in servers]
        assert sorted(page.run(links)) == sorted(addresses[1:])
        page.until(lambda: page.text("#others b") == "5")
        title = "5pending in all workers3 workers, 0 polls open"
        assert (page.text("#others .title") or "").startswith(title)
        first_card = "return document.querySelector('main > :not([hidden])').id"
        assert page.run(first_card) == "others"
        third.end(signal.SIGKILL)
        page.until(lambda: page.run(links) == [addresses[1]])
        page.run("document.querySelector('#others a').click()")
        page.until(lambda: page.browser.current_url == addresses[1] and page.pending == "5")
        page.until(lambda: f"0 pending, 0 polls: {addresses[0]}" in top(addresses[1]))
        assert page.complaints == []
    finally:
        for server in servers:
            server.end(signal.SIGKILL)


@pytest.mark.parametrize("has_relay", [True, False])
def test_four_workers_are_summed_and_linked(
    browser: Chrome, tmp_path: Path, has_relay: bool
) -> None:
    server = Server(tmp_path if has_relay else None, workers=4)
    url = f"{server.url}/purgatory/"
    try:
        server.start()
        busy = server.change("wait/50/order")
        page = Page(browser, url)
        page.until(lambda: len(page.texts("#others tbody tr")) == 4)
        page.until(lambda: page.text("#others b") == "50")
        assert page.run("return document.querySelector('#others').offsetHeight") > 0
        assert page.run("return document.querySelector('#others').offsetTop") < 100
        page.until(lambda: page.pending == "50")  # it opens on the busiest
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
        page.until(lambda: "50 pending in 4 workers, " in top(url))
    finally:
        server.end(signal.SIGTERM)


def test_eight_purgatories_are_lines_that_open(browser: Chrome, server: Server) -> None:
    page = Page(browser, f"{server.url}/eight/")
    page.until(lambda: len(page.texts(".line strong")) == 8)
    height = "return document.documentElement.scrollHeight"
    assert page.run(height) < 1000
    opened = """return [...document.querySelectorAll('.body')]
        .flatMap((each, i) => each.hidden ? [] : [i])"""
    assert page.run(opened) == []
    page.run("document.querySelectorAll('.line')[2].click(); location.hash = '#purgatory-5'")
    page.until(lambda: page.run(opened) == [2, 5])
    page.run("document.querySelectorAll('.line')[2].click()")
    page.until(lambda: page.run(opened) == [5])
    assert page.complaints == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_page_reconnects_after_server_restart(server: Server, page: Page, number: int) -> None:
    server.change("wait/7/order")
    page.until(lambda: page.pending == "7")
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
    server.change("wait/8/order")
    page.until(lambda: page.pending == "8")
    assert page.complaints == []


def test_terminal_shows_the_same(server: Server) -> None:
    url = f"{server.url}/purgatory/"
    server.change("wait/50/order")
    server.change("attack")
    shown = top(url)
    [line] = [line for line in shown.splitlines() if line.startswith("jobs ")]
    assert line.split()[1] == "53"
    assert "'order'" in shown and "'<script>window.hacked = 1</script>'" in shown
    assert "\x1b" not in shown
    # A background process of a shell ignores SIGINT, and so would its children.
    restore_sigint = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(
        [sys.executable, "-m", "purgatory.top", url], env=ENVIRONMENT, text=True,
        stdout=subprocess.PIPE, preexec_fn=restore_sigint,  # noqa: PLW1509
    ) as following:  # fmt: skip
        try:
            assert following.stdout is not None
            lines = iter(following.stdout.readline, "")
            assert any(line.startswith("jobs") and line.split()[1] == "53" for line in lines)
            server.change("check/order")
            assert any(line.startswith("jobs") and line.split()[1] == "3" for line in lines)
            server.end(signal.SIGTERM)
            assert any("reconnecting" in line or "stopping" in line for line in lines)
            server.start()
            assert any(line.startswith("jobs") and line.split()[1] == "0" for line in lines)
            following.send_signal(signal.SIGINT)
            assert following.wait(TIMEOUT) == 0
        finally:
            following.kill()
