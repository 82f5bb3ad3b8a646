"""What `purgatory.asgi.console` shows, in a terminal: `python -m purgatory.top http://127.0.0.1:8000/purgatory`. Extra `top`.

Like the page, it long-polls for the next version of the state, and draws it. Ctrl-C ends it.
"""

import argparse
import json
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import urlsplit, urlunsplit
from urllib.request import ProxyHandler, Request, build_opener

from purgatory._errors import how_to_install

try:
    from rich.console import Console, Group, RenderableType
    from rich.live import Live
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text
except ImportError as error:
    raise ImportError(f"purgatory.top needs rich: {how_to_install('top')}") from error

RESPONSE_TIMEOUT: Final = 60.0
"""Seconds. There is a response for each refresh of the page."""

RETRY_DELAY: Final = 1.0
"""Seconds after which an unreachable server is asked again."""

MAX_RESPONSE_BYTES: Final = 8 * 1024 * 1024
MAX_OTHER_WORKERS: Final = 16

BLOCKS: Final = " ▁▂▃▄▅▆▇█"


class Source:
    """The server of the page, polled for one version after the other.

    Args:
        url: of the page, or of its folder.
        headers: further request headers, for `authorize`.
    """

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        parts = urlsplit(url)
        self.url = urlunsplit(parts._replace(path=parts.path.rstrip("/") + "/state"))
        self.headers = headers
        self.tag = ""
        # A proxy would look for a local address on its own machine.
        host = parts.hostname or ""
        is_local = host == "localhost" or host == "::1" or host.startswith("127.")
        self._opener = build_opener(ProxyHandler({})) if is_local else build_opener()
        self._history: deque[list[Any]] = deque(maxlen=300)
        self._worker = ""

    def next(self) -> dict[str, Any] | None:
        """Returns the next version, with the whole known history; None if there was none in time.

        Raises:
            OSError: the server is unreachable, or refuses; `HTTPError` is a subclass.
            ValueError: the response is not the state of a page.
        """
        headers = self.headers | ({"If-None-Match": self.tag} if self.tag else {})
        try:
            with self._opener.open(Request(self.url, headers=headers), timeout=RESPONSE_TIMEOUT) as response:
                state: dict[str, Any] = json.loads(response.read(MAX_RESPONSE_BYTES))
                self.tag = response.headers.get("ETag", "")
        except HTTPError as error:
            if error.code == 304:
                return None
            raise
        except HTTPException as error:
            raise OSError(f"the connection broke: {error!r}") from error
        if not isinstance(state, dict) or "worker" not in state:
            raise ValueError(f"{self.url} is not of a page of purgatory.asgi.console")
        if state["worker"]["id"] != self._worker:
            self._history.clear()
            self._worker = state["worker"]["id"]
        self._history.extend(state["history"])
        return state | {"history": list(self._history)}


# -- drawing


def duration(seconds: float | None) -> str:
    """A duration with its unit."""
    if seconds is None:
        return "?"
    for unit, factor, limit in (("µs", 1e6, 1e-3), ("ms", 1e3, 1.0), ("s", 1.0, 120.0), ("min", 1 / 60, 7200.0)):
        if abs(seconds) < limit:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds / 3600:.3g} h"


def printable(text: object) -> str:
    """Text from a server, without control characters that a terminal would execute."""
    return "".join([char if char.isprintable() else "\ufffd" for char in str(text)])


def sparkline(values: Sequence[float], width: int) -> str:
    """The last values as a line of blocks."""
    shown = list(values)[-width:]
    highest = max(shown, default=0) or 1
    return "".join([BLOCKS[round(value / highest * (len(BLOCKS) - 1))] for value in shown]).rjust(width)


def keys_of(each: dict[str, Any]) -> str:
    """The keys of an operation."""
    more = f" and {each['moreKeys']} more" if each["moreKeys"] else ""
    return printable(", ".join(each["keys"]) + more)


def rates(history: Sequence[Sequence[Any]], index: int) -> list[float]:
    """Completed, expired and cancelled in each of the last few seconds."""
    recent = history[-6:]
    seconds = recent[-1][0] - recent[0][0] if recent else 0.0
    if seconds <= 0:
        return [0.0, 0.0, 0.0]
    return [(recent[-1][2][index][way] - recent[0][2][index][way]) / seconds for way in (1, 2, 3)]


def quantile(histograms: Sequence[dict[str, Any]], share: float) -> str:
    """The bound of some histograms that is not exceeded by a share of all their durations."""
    counts = [sum(column) for column in zip(*(histogram["counts"] for histogram in histograms), strict=True)]
    bounds, cumulative = histograms[0]["bounds"], 0
    for i, count in enumerate(counts):
        cumulative += count
        if count and cumulative >= share * sum(counts):
            return f"> {duration(bounds[i - 1])}" if bounds[i] is None else f"≤ {duration(bounds[i])}"
    return "–"


def distributions(kinds: Sequence[dict[str, Any]]) -> Text:
    """How long operations have waited, by outcome, and how late they were after their deadlines."""
    parts = []
    for name in ("completed", "expired", "cancelled"):
        waits = [kind["waits"][name] for kind in kinds if name in kind["waits"]]
        if waits:
            parts.append(f"{name}: half {quantile(waits, 0.5)}, 99 % {quantile(waits, 0.99)}")
    late = [kind["lateness"] for kind in kinds]
    if any(any(histogram["counts"]) for histogram in late):
        parts.append(f"late after the deadline: 99 % {quantile(late, 0.99)}")
    return Text("waited, " + "; ".join(parts) if parts else "none has waited yet")


def overview(state: dict[str, Any], width: int) -> Table:
    """A row for each purgatory, in so many columns of the terminal."""
    is_narrow = width < 100
    spark_width = 0 if is_narrow else min(40, width - 88)
    table = Table(box=None, expand=True, pad_edge=False)
    table.add_column("purgatory", no_wrap=True, overflow="ellipsis", max_width=max(width - 63 - spark_width, 12))
    for name in ("pending", *(("done/s", "exp/s", "canc/s") if is_narrow else ("completed/s", "expired/s", "cancelled/s"))):
        table.add_column(name, justify="right", no_wrap=True, min_width=max(len(name), 9 if name == "pending" else 6))
    table.add_column("missed", justify="right", no_wrap=True, min_width=6)
    table.add_column("keys", justify="right", no_wrap=True, min_width=9)
    if spark_width:
        table.add_column("", no_wrap=True, min_width=spark_width)
    for index, purgatory in enumerate(state["purgatories"]):
        completed, expired, cancelled = rates(state["history"], index)
        missed = purgatory.get("missed", 0)
        spark = sparkline([point[2][index][0] for point in state["history"]], spark_width) if spark_width else ""
        table.add_row(
            Text(printable(purgatory["name"]), "bold"),
            Text(f"{purgatory['pending']:,}", "bold blue"),
            Text(f"{completed:,.1f}", "green"),
            Text(f"{expired:,.1f}", "yellow"),
            f"{cancelled:,.1f}",
            Text(f"{missed:,}", "bold red" if missed else ""),
            f"{purgatory['keys']:,}",
            *([Text(spark, "blue")] if spark else []),
        )
    return table


def details(purgatory: dict[str, Any], most: int) -> RenderableType:
    """The operations of a purgatory that wait longest, and its keys with the most waiters."""
    oldest = Table(box=None, expand=True, title="waiting longest", title_justify="left", pad_edge=False)
    for name, justify in (("keys", "left"), ("what", "left"), ("waits for", "right"), ("left", "right")):
        oldest.add_column(name, justify=justify, no_wrap=True, overflow="ellipsis")  # type: ignore[arg-type]
    for each in purgatory["oldest"][:most]:
        left = "no limit" if each["left"] is None else duration(max(each["left"], 0.0))
        oldest.add_row(Text(keys_of(each)), Text(printable(each["kind"])), duration(each["waited"]), left)
    hottest = Table(box=None, expand=True, title="hottest keys", title_justify="left", pad_edge=False)
    hottest.add_column("key", no_wrap=True, overflow="ellipsis")
    hottest.add_column("waiting", justify="right", no_wrap=True)
    for each in purgatory["hottest"][:most]:
        hottest.add_row(Text(printable(each["key"])), f"{each['waiting']:,}{'+' if each['isAtLeast'] else ''}")
    both = Table.grid(expand=True, padding=(0, 3))
    both.add_column(ratio=3)
    both.add_column(ratio=2)
    both.add_row(oldest, hottest)
    missed = [
        Text(f"missed trigger: {keys_of(each)} ({printable(each['kind'])}), {duration(each['ago'])} ago", "red")
        for each in purgatory["missedLast"][:3]
    ]
    levels = [
        f"{level['waiting']:,} within {duration(level['sector'] * 120)}" for level in purgatory["levels"] if level["waiting"]
    ]
    if purgatory["withoutDeadline"]:
        levels.append(f"{purgatory['withoutDeadline']:,} without a deadline")
    waited = [distributions(purgatory["kinds"])] if purgatory.get("kinds") else []
    return Panel(
        Group(both, *waited, *missed),
        title=Text(printable(purgatory["name"]), "bold"),
        title_align="left",
        subtitle=", ".join(levels) or None,
    )


def other_worker(each: dict[str, Any]) -> str:
    """A line for another worker of the relay."""
    pid, pending = ("?" if each[name] is None else each[name] for name in ("pid", "pending"))
    polls = "" if each["polls"] is None else f", {each['polls']} polls"
    where = f": {each['address']}" if each["address"] else ""
    return printable(f"worker {pid} on {each['host']}: {pending} pending{polls}{where}")


def screen(state: dict[str, Any] | None, error: str, height: int, width: int = 120) -> RenderableType:
    """The whole screen."""
    if state is None:
        return Text(error or "connecting", "yellow")
    worker, lags = state["worker"], [point[1] for point in state["history"][-10:]]
    head = Text.assemble(
        ("purgatory", "bold"),
        f"   worker {printable(worker['pid'])}   loop held up for {duration(max(lags, default=0.0))} at most   ",
    )
    head.append(printable(error) or "live", "red" if error else "green")
    parts: list[RenderableType] = [head, Text(), overview(state, width), Text()]
    shown = [purgatory for purgatory in state["purgatories"] if "oldest" in purgatory]
    most = max(min((height - 6 - len(state["purgatories"])) // max(len(shown), 1) - 8, 10), 2)
    parts += [details(purgatory, most) for purgatory in shown]
    if state["polls"] is not None:
        endings = ", ".join(f"{count:,} {printable(name)}" for name, count in state["polls"]["endings"].items())
        parts.append(Text(f"long polls: {state['polls']['open']:,} open; ended: {endings or 'none'}"))
    if state["relay"] is not None:
        relay = state["relay"]
        parts.append(Text(f"relay: {'connected' if relay['isConnected'] else 'AWAY'} for {duration(relay['for'])}"))
    parts += [Text(other_worker(each)) for each in (state.get("others") or [])[:MAX_OTHER_WORKERS]]
    return Group(*parts)


def follow(source: Source, console: Console) -> None:
    """Draws each version until interrupted; if the output is not a terminal, one below the other.

    Raises:
        HTTPError: the server refuses, and would again.
    """
    state: dict[str, Any] | None = None
    with Live(console=console, screen=True, auto_refresh=False) if console.is_terminal else nullcontext() as live:
        while True:
            message = ""
            try:
                state = source.next() or state
            except HTTPError as error:
                if 400 <= error.code < 500:
                    raise
                message = error.read(500).decode(errors="replace").strip() or str(error)
            except OSError as error:
                message = f"reconnecting: {error}"
            drawn = screen(state, message, console.height, console.width)
            if live is None:
                console.print(drawn)
            else:
                live.update(drawn, refresh=True)
            if message:
                time.sleep(RETRY_DELAY)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m purgatory.top", description="What purgatory.asgi.console shows, in a terminal."
    )
    parser.add_argument("url", help="address of the page, for instance http://127.0.0.1:8000/purgatory")
    parser.add_argument("--header", action="append", default=[], metavar="NAME:VALUE", help="request header, for authorize")
    parser.add_argument("--once", action="store_true", help="show the current state, and exit")
    options = parser.parse_args(arguments)
    if urlsplit(options.url).scheme not in ("http", "https"):
        parser.error(f"url must begin with http:// or https://, not {options.url!r}")
    headers = {}
    for header in options.header:
        name, colon, value = header.partition(":")
        if not colon:
            parser.error(f"a header is NAME:VALUE, not {header!r}")
        headers[name.strip()] = value.strip()
    source, console = Source(options.url, headers), Console()
    try:
        if options.once:
            console.print(screen(source.next(), "", console.height, console.width))
        else:
            with suppress(KeyboardInterrupt):
                follow(source, console)
    except HTTPError as error:
        print(f"{options.url}: {error.code}: {printable(error.read(500).decode(errors='replace').strip())}", file=sys.stderr)
        return 1
    except (OSError, ValueError) as error:
        print(f"{options.url}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
