"""The page of `examples/long_poll_board.py` in headless Chromium: two windows of it, on a server
that is stopped and killed."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from asgi_modules import EXAMPLES
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from server_process import ServerProcess
from window import Window

pytest_plugins = ["browser"]
pytestmark = pytest.mark.slow


@pytest.fixture
def board(tmp_path: Path) -> Iterator[ServerProcess]:
    words = (EXAMPLES / "long_poll_board.py", "--port", "{port}", "--file", "board.jsonl")
    with ServerProcess(*words, ready="stats", folder=tmp_path) as board:
        yield board


class Board(Window):
    def write(self, text: str) -> None:
        self.browser.find_element(By.ID, "text").send_keys(text, Keys.ENTER)

    def until_it_shows(self, *messages: str, state: str = "connected") -> None:
        self.until(lambda: self.texts("#messages li") == [*messages])
        self.until(lambda: self.text("#state") == state)


@pytest.fixture
def windows(browser: Chrome, board: ServerProcess) -> list[Board]:
    windows = [Board(browser, board.url) for _ in range(2)]
    for window in windows:
        window.until_it_shows()
    return windows


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_windows_reconnect_after_restart_without_duplicates(
    board: ServerProcess, windows: list[Board], number: int
) -> None:
    left, right = windows
    before, away = "<b>before</b>", ["while it was away, 1", "while it was away, 2"]
    left.write(before)
    for window in windows:
        window.until_it_shows(before)

    board.end(number)
    for message in away:
        right.write(message)
    for window in windows:
        window.until_it_shows(before, state="reconnecting")
    assert right.texts("#outbox li") == away

    board.start()
    for window in windows:
        window.until_it_shows(before, *away)
    assert right.texts("#outbox li") == []
    left.write("after")
    for window in windows:
        window.until_it_shows(before, *away, "after")


def test_message_with_lost_acknowledgement_is_stored_once(
    board: ServerProcess, windows: list[Board]
) -> None:
    left, right = windows
    # The board has the message, but its answer does not reach the window, as when the server is
    # killed in between.
    left.run(
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
        window.until(lambda: window.texts("#messages li") == ["once", "twice"])
    left.until(lambda: left.texts("#outbox li") == [])
    board.end(signal.SIGTERM)
    board.start()
    right.write("last")
    for window in windows:
        window.until_it_shows("once", "twice", "last")
