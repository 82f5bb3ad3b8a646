"""A window of a browser, in tests of pages."""

from collections.abc import Callable
from typing import Any

from selenium.webdriver import Chrome
from selenium.webdriver.support.wait import WebDriverWait


class Window:
    """A new window with a page."""

    def __init__(self, browser: Chrome, url: str) -> None:
        browser.switch_to.new_window("window")
        self._browser, self._handle = browser, browser.current_window_handle
        browser.get(url)

    @property
    def browser(self) -> Chrome:
        """The browser, with this window at the front."""
        self._browser.switch_to.window(self._handle)
        return self._browser

    def run(self, script: str, *arguments: Any) -> Any:
        return self.browser.execute_script(script, *arguments)

    def texts(self, selector: str) -> list[str]:
        """The text of each element that the selector finds."""
        script = (
            "return [...document.querySelectorAll(arguments[0])].map((each) => each.textContent)"
        )
        texts: list[str] = self.run(script, selector)
        return texts

    def text(self, selector: str) -> str | None:
        """The text of the first of them; None without any."""
        return next(iter(self.texts(selector)), None)

    def until(self, holds: Callable[[], bool]) -> None:
        try:
            WebDriverWait(self._browser, 60, poll_frequency=0.05).until(lambda _: holds())
        except Exception as error:
            console = self.browser.get_log("browser")
            raise AssertionError(
                f"the page: {self.text('body')}; its console: {console}"
            ) from error
