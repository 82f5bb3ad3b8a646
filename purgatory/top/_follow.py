"""Draws each version, and handles pressed keys."""

import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Final
from urllib.error import HTTPError

from rich.console import Console
from rich.live import Live

from purgatory.top._drawing import Scrolled, screen
from purgatory.top._shape import name_of
from purgatory.top._source import Source

try:
    import termios
    import tty
except ImportError:  # on Windows
    termios = tty = None  # type: ignore[assignment]

RETRY_DELAY: Final = 1.0
"""Seconds after which an unreachable server is asked again."""

PAUSE: Final = 0.05
"""Seconds between an answer and the next request. Without a tag, which a proxy may drop, each
request is answered at once."""


class _Follower:
    """Asks for one version after the other, in a thread of its own: a request may take long, and a
    key is to be answered at once."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.news: SimpleQueue[tuple[dict[str, Any] | None, str] | Exception] = SimpleQueue()
        """States, reasons why there is none, or the end."""
        Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                state = self.source.next()
                if state is not None and self.source.is_probed(state):
                    self.source.probe()
                self.news.put((state, ""))
                time.sleep(PAUSE)
            except HTTPError as error:
                if 400 <= error.code < 500:
                    self.news.put(error)
                    return
                self.source.wanted = ""  # it may be replaced
                with error:
                    text = error.read(500).decode(errors="replace").strip()
                self.news.put((None, f"{self.source.shown}: {text or error}"))
                time.sleep(RETRY_DELAY)
            except OSError as error:
                self.source.wanted = ""  # it may have been replaced
                self.news.put((None, f"reconnecting to {self.source.shown}: {error}"))
                time.sleep(RETRY_DELAY)
            except ValueError as error:
                self.news.put(error)
                return


@contextmanager
def _keyboard() -> Iterator[int | None]:
    """The file whose input is keys, each as soon as it is pressed; None if it is no terminal."""
    if termios is None or tty is None:
        yield None
        return
    try:
        file = sys.stdin.fileno()
        before = termios.tcgetattr(file)
    except (OSError, ValueError, termios.error):
        yield None
        return
    tty.setcbreak(file)
    try:
        yield file
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)


def _pressed(file: int | None, seconds: float) -> str:
    """The keys that were pressed by now, or within `seconds`."""
    if file is None:
        time.sleep(seconds)
        return ""
    ready, _, _ = select.select([file], [], [], seconds)
    return os.read(file, 64).decode(errors="replace") if ready else ""


SCROLLS: Final = {
    "\x1b[A": -1, "k": -1, "\x1b[B": 1, "j": 1, "\x1b[5~": -10, "\x1b[6~": 10, " ": 10
}  # fmt: skip
"""The lines that a key scrolls: arrows, and page up and down."""


def next_worker(state: dict[str, Any] | None) -> str:
    """The name of the worker after the current one; empty if there is no other worker."""
    if state is None or not state.get("others"):
        return ""
    names = sorted([name_of(state["worker"]), *map(name_of, state["others"])])
    return names[(names.index(name_of(state["worker"])) + 1) % len(names)]


def follow(source: Source, console: Console) -> None:
    """Draws each version until `q` or an interrupt; if the output is no terminal, one below the
    other.

    Raises:
        HTTPError: the server refuses, and would again.
        ValueError: the answer is not from a page.
    """
    follower = _Follower(source)
    state: dict[str, Any] | None = None
    message, top = f"connecting to {source.shown}", 0
    is_terminal = console.is_terminal
    with (
        _keyboard() if is_terminal else nullcontext() as keyboard,
        Live(console=console, screen=True, auto_refresh=False)
        if is_terminal
        else nullcontext() as live,
    ):
        while True:
            is_new = True
            try:
                news = follower.news.get(timeout=None if live is None else 0.05)
            except Empty:
                is_new = False
            else:
                if isinstance(news, Exception):
                    raise news
                state, message = news[0] or state, news[1]
            if live is None:
                console.print(screen(state, message, console.height, console.width))
                continue
            keys = _pressed(keyboard, 0.05)
            if "q" in keys:
                return
            if "w" in keys:
                source.wanted = next_worker(state)
            top = max(top + SCROLLS.get(keys, 0), 0)
            if is_new or keys:
                shown = Scrolled(screen(state, message, console.height, console.width), top)
                live.update(shown, refresh=True)
                top = shown.top
