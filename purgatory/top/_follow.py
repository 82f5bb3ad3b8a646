"""Draws each version, and handles pressed keys."""

import os
import re
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Final
from urllib.error import HTTPError

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from purgatory._core.arguments import printable
from purgatory.top._drawing import plural, screen
from purgatory.top._source import Source, name_of, of_a_page, reason

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

News = tuple[dict[str, Any] | None, str] | Exception
"""A state, or the reason why there is none; or the end."""


def _follow(source: Source, news: "SimpleQueue[News]") -> None:
    """Asks for one version after the other, in a thread of its own: a request may take long, and a
    key is to be answered at once."""
    while True:
        try:
            state = source.next()
            if state is not None and source.is_probed(state):
                source.probe()
            news.put((state, ""))
            time.sleep(PAUSE)
        except OSError as error:
            if isinstance(error, HTTPError) and 400 <= error.code < 500:
                news.put(error)
                return
            source.wanted = ""  # it may have been replaced
            news.put((None, f"reconnecting to {reason(source, error)}"))
            time.sleep(RETRY_DELAY)
        except ValueError as error:
            news.put(error)
            return


@contextmanager
def _keyboard() -> Iterator[int | None]:
    """The terminal that keys are read from as they are pressed; None if there is no terminal."""
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


def _pressed(file: int | None, seconds: float) -> list[str]:
    """The keys that were pressed by now, or within `seconds`."""
    if file is None:
        time.sleep(seconds)
        return []
    ready, _, _ = select.select([file], [], [], seconds)
    text = os.read(file, 64).decode(errors="replace") if ready else ""
    return re.findall(r"\x1b\[[0-9;]*[A-Za-z~]|.", text)


SCROLLS: Final = {
    "\x1b[A": -1, "k": -1, "\x1b[B": 1, "j": 1, "\x1b[5~": -10, "\x1b[6~": 10, " ": 10
}  # fmt: skip
"""The lines that a key scrolls: arrows, and page up and down."""


def next_worker(state: dict[str, Any] | None, chosen: str) -> str:
    """The name of the worker after the chosen one, or else after the shown one; empty if there is
    no other worker."""
    if state is None or not state.get("others"):
        return ""
    current = chosen or name_of(state["worker"])
    names = sorted({current, name_of(state["worker"]), *map(name_of, state["others"])})
    return names[(names.index(current) + 1) % len(names)]


def visible(lines: list[Text], top: int, height: int) -> list[Text]:
    """The lines that fit into the terminal from line `top` on, above a line of the keys."""
    room = max(height - 1, 1)
    more = len(lines) - top - room
    keys = "q quit   w next worker   ↑ ↓ scroll"
    return [
        *lines[top : top + room],
        Text(f"{keys}   {plural(more, 'more line')}" if more > 0 else keys, "dim"),
    ]


def follow(source: Source, console: Console) -> None:
    """Draws each version until `q` or an interrupt; if the output is no terminal, one below the
    other.

    Raises:
        HTTPError: the server refuses, and would again.
        ValueError: the answer is not from a page.
    """
    news: SimpleQueue[News] = SimpleQueue()
    Thread(target=_follow, args=(source, news), daemon=True).start()
    state: dict[str, Any] | None = None
    message, chosen, notice = f"connecting to {source.shown}", "", ""
    top, drawn_at = 0, 0.0
    with (
        _keyboard() if console.is_terminal else nullcontext() as keyboard,
        Live(console=console, screen=True, auto_refresh=False)
        if console.is_terminal
        else nullcontext() as live,
    ):
        while True:
            keys = [] if live is None else _pressed(keyboard, 0.05)
            if "q" in keys:
                return
            latest: News | None = None
            with suppress(Empty):
                latest = news.get(block=live is None)
            if isinstance(latest, Exception):
                raise latest
            if latest is not None:
                state, message = latest[0] or state, latest[1]
                if message or (state is not None and chosen in ("", name_of(state["worker"]))):
                    chosen = notice = ""
            for _ in range(keys.count("w")):
                chosen = next_worker(state, chosen)
                source.choices.put(chosen)
                notice = (
                    f"waiting for worker {chosen} to answer"
                    if chosen
                    else "no other worker is known"
                )
            if latest is None and not keys and time.monotonic() - drawn_at < 1.0:
                continue
            drawn_at = time.monotonic()
            with of_a_page():
                lines = screen(state, message, console.height - 1, console.width, time.time())
            if live is None:
                console.print(Group(*lines))
                continue
            if notice:
                lines[0] = Text(printable(notice), "bold yellow")
            scrolled = top + sum(SCROLLS.get(key, 0) for key in keys)
            top = max(min(scrolled, len(lines) - console.height + 1), 0)
            live.update(Group(*visible(lines, top, console.height)), refresh=True)
