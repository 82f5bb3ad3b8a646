"""The page of `examples/long_poll_board.py` in headless Chromium: two windows of it, on a server
that is stopped and killed."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait
from server_process import TIMEOUT, ServerProcess

pytest_plugins = ["browser"]
pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "long_poll_board.py"
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    "no_proxy": "127.0.0.1",
}


@pytest.fixture
def board(tmp_path: Path) -> Iterator[ServerProcess]:
    words = (EXAMPLE, "--port", "{port}", "--file", tmp_path / "board.jsonl")
    board = ServerProcess(*map(str, words), ready="stats", environment=ENVIRONMENT)
    board.start()
    yield board
    board.end(signal.SIGKILL)


class Window:
    def __init__(self, browser: Chrome, url: str) -> None:
        browser.switch_to.new_window("window")
        self.browser, self.handle = browser, browser.current_window_handle
        browser.get(url)
        self.until(lambda: self.state == "connected")

    def _here(self) -> Chrome:
        self.browser.switch_to.window(self.handle)
        return self.browser

    def _texts(self, selector: str) -> list[str]:
        script = (
            "return Array.from(document.querySelectorAll(arguments[0]), (item) => item.textContent)"
        )
        texts: list[str] = self._here().execute_script(script, selector)
        return texts

    @property
    def messages(self) -> list[str]:
        return self._texts("#messages li")

    @property
    def outbox(self) -> list[str]:
        return self._texts("#outbox li")

    @property
    def state(self) -> str:
        return self._texts("#state")[0]

    def write(self, text: str) -> None:
        self._here().find_element(By.ID, "text").send_keys(text, Keys.ENTER)

    def until(self, holds: Callable[[], bool]) -> None:
        WebDriverWait(self.browser, TIMEOUT, poll_frequency=0.05).until(lambda _: holds())

    def until_it_shows(self, *messages: str) -> None:
        try:
            self.until(lambda: self.messages == list(messages))
        except Exception as error:
            raise AssertionError(
                f"shown: {self.messages}; expected: {list(messages)}; {self.state}"
            ) from error


@pytest.fixture
def windows(browser: Chrome, board: ServerProcess) -> list[Window]:
    return [Window(browser, board.url) for _ in range(2)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_windows_reconnect_after_restart_without_duplicates(
    board: ServerProcess, windows: list[Window], number: int
) -> None:
    left, right = windows
    left.write("<b>before</b>")
    for window in windows:
        window.until_it_shows("<b>before</b>")

    board.end(number)
    right.write("while it was away, 1")
    right.write("while it was away, 2")
    for window in windows:
        window.until(lambda: window.state == "reconnecting")
    assert right.outbox == ["while it was away, 1", "while it was away, 2"]
    assert left.messages == right.messages == ["<b>before</b>"]

    board.start()
    expected = ["<b>before</b>", "while it was away, 1", "while it was away, 2"]
    for window in windows:
        window.until_it_shows(*expected)
    assert right.outbox == []
    left.write("after")
    for window in windows:
        window.until_it_shows(*expected, "after")
        window.until(lambda: window.state == "connected")


def test_message_with_lost_acknowledgement_is_stored_once(
    board: ServerProcess, windows: list[Window]
) -> None:
    left, right = windows
    # The board has the message, but its answer does not reach the window, as when the server is
    # killed in between.
    left._here().execute_script(
        """
        const fetch_ = window.fetch;
        let lost = 0;
        window.fetch = async (target, options) => {
          const response = await fetch_(target, options);
          if (options.method === "POST" && ++lost <= 2) throw new TypeError("the answer was lost");
          return response;
        };
        """
    )
    left.write("once")
    left.write("twice")
    for window in windows:
        window.until_it_shows("once", "twice")
    left.until(lambda: left.outbox == [])
    board.end(signal.SIGTERM)
    board.start()
    right.write("last")
    for window in windows:
        window.until_it_shows("once", "twice", "last")
