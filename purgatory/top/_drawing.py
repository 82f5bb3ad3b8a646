"""A state as text for a terminal of any width from 80 columns on."""

from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from purgatory._core.arguments import printable

MAX_OTHER_WORKERS: Final = 16

MIN_WIDTH_OF_TWO: Final = 96
"""Columns from which two tables are side by side."""

GAP: Final = (0, 2, 0, 0)
"""Two columns on the right of each cell."""

BLOCKS: Final = " ▁▂▃▄▅▆▇█"


def duration(seconds: float | None) -> str:
    """A duration with its unit."""
    if seconds is None:
        return "?"
    for unit, factor, limit in (
        ("µs", 1e6, 1e-3),
        ("ms", 1e3, 1.0),
        ("s", 1.0, 120.0),
        ("min", 1 / 60, 7200.0),
    ):
        if abs(seconds) < limit:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds / 3600:.3g} h"


def shorten(texts: Sequence[str]) -> list[str]:
    """Without their common prefix, up to a separator: it would take the room of the
    differences."""
    if len(set(texts)) < 2:
        return list(texts)
    same = sum(1 for _ in takewhile(lambda chars: len(set(chars)) == 1, zip(*texts, strict=False)))
    while same and texts[0][same - 1] not in ":/.-_ ,|":
        same -= 1
    return list(texts) if same < 8 else [f"…{text[same:]}" for text in texts]


def cut(text: str, width: int) -> str:
    """At most `width` characters of a text, from both of its ends."""
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def sparkline(values: Sequence[float], width: int) -> str:
    """The last values as a line of blocks."""
    shown = list(values)[-width:]
    highest = max(shown, default=0) or 1
    return "".join([BLOCKS[round(value / highest * (len(BLOCKS) - 1))] for value in shown]).rjust(
        width
    )


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
    counts = [
        sum(column)
        for column in zip(*(histogram["counts"] for histogram in histograms), strict=True)
    ]
    bounds, cumulative = histograms[0]["bounds"], 0
    for i, count in enumerate(counts):
        cumulative += count
        if count and cumulative >= share * sum(counts):
            return (
                f"> {duration(bounds[i - 1])}" if bounds[i] is None else f"≤ {duration(bounds[i])}"
            )
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
    """A row for each purgatory.

    Args:
        state: of a page.
        width: of the terminal, in columns.
    """
    is_narrow = width < 100
    spark_width = 0 if is_narrow else min(40, width - 88)
    table = Table(box=None, expand=True, pad_edge=False)
    table.add_column(
        "purgatory", no_wrap=True, overflow="ellipsis", max_width=max(width - 63 - spark_width, 12)
    )
    for name in (
        "pending",
        *(
            ("done/s", "exp/s", "canc/s")
            if is_narrow
            else ("completed/s", "expired/s", "cancelled/s")
        ),
    ):
        table.add_column(
            name,
            justify="right",
            no_wrap=True,
            min_width=max(len(name), 9 if name == "pending" else 6),
        )
    table.add_column("missed", justify="right", no_wrap=True, min_width=6)
    table.add_column("keys", justify="right", no_wrap=True, min_width=9)
    if spark_width:
        table.add_column("", no_wrap=True, min_width=spark_width)
    for index, purgatory in enumerate(state["purgatories"]):
        completed, expired, cancelled = rates(state["history"], index)
        missed = purgatory.get("missed", 0)
        spark = (
            sparkline([point[2][index][0] for point in state["history"]], spark_width)
            if spark_width
            else ""
        )
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


def details(purgatory: dict[str, Any], most: int, width: int) -> RenderableType:
    """The operations of a purgatory that wait longest, and its keys with the most waiters.

    Args:
        purgatory: with all of its details.
        most: rows of each table.
        width: of the terminal, in columns.
    """
    inner = width - 4  # within the frame
    hottest = [each for each in purgatory["hottest"][:most] if each["waiting"] > 1]
    is_beside = bool(hottest) and inner >= MIN_WIDTH_OF_TWO
    tables: list[RenderableType] = []
    if purgatory["oldest"]:
        tables.append(_oldest(purgatory["oldest"][:most], inner * 3 // 5 if is_beside else inner))
    if hottest:
        tables.append(_hottest(hottest, inner * 2 // 5 - 4 if is_beside else inner))
    both = Table.grid(expand=True, padding=(0, 3, 0, 0))
    if is_beside:
        both.add_row(*tables)
    else:
        for table in tables or [Text("nothing waits")]:
            both.add_row(table)
    missed = [Text(_missed(each, inner), "red") for each in purgatory["missedLast"][:3]]
    levels = [
        f"{level['waiting']:,} within {duration(level['sector'] * 120)}"
        for level in purgatory["levels"]
        if level["waiting"]
    ]
    if purgatory["withoutDeadline"]:
        levels.append(f"{purgatory['withoutDeadline']:,} without a deadline")
    waited = [distributions(purgatory["kinds"])] if purgatory.get("kinds") else []
    return Panel(
        Group(both, *waited, *missed),
        title=Text(printable(purgatory["name"]), "bold"),
        title_align="left",
        subtitle=Text(", ".join(levels)) if levels else None,
    )


def _missed(each: dict[str, Any], width: int) -> str:
    """A line for a missed trigger."""
    end = f" ({cut(printable(each['kind']), 16)}), {duration(each['ago'])} ago"
    keys = keys_of(each)
    return f"missed trigger: {cut(keys, max(width - len('missed trigger: ') - len(end), 8))}{end}"


def _oldest(operations: Sequence[dict[str, Any]], width: int) -> Table:
    """A row for each operation. The last columns have the width of their text, the keys the
    rest."""
    kinds = [cut(printable(each["kind"]), 16) for each in operations]
    waited = [duration(each["waited"]) for each in operations]
    left = [
        "no limit" if each["left"] is None else duration(max(each["left"], 0.0))
        for each in operations
    ]
    heads = ("kind", "waiting", "left")
    columns = [
        max(map(len, [head, *texts]))
        for head, texts in zip(heads, (kinds, waited, left), strict=True)
    ]
    keys = max(width - sum(columns) - 2 * (len(columns) + 1), 8)
    table = Table(box=None, title="waiting longest", title_justify="left", padding=GAP)
    table.add_column("keys", no_wrap=True, width=keys)
    for head, justify, column in zip(heads, ("left", "right", "right"), columns, strict=True):
        table.add_column(head, justify=justify, no_wrap=True, min_width=column)  # type: ignore[arg-type]
    for text, *cells in zip(
        shorten([keys_of(each) for each in operations]), kinds, waited, left, strict=True
    ):
        table.add_row(Text(cut(text, keys)), *map(Text, cells))
    return table


def _hottest(keys: Sequence[dict[str, Any]], width: int) -> Table:
    """A row for each key with several waiters."""
    counts = [f"{each['waiting']:,}{'+' if each.get('isAtLeast') else ''}" for each in keys]
    column = max(map(len, ["waiting", *counts]))
    table = Table(box=None, title="hottest keys", title_justify="left", padding=GAP)
    room = max(width - column - 4, 8)
    table.add_column("key", no_wrap=True, width=room)
    table.add_column("waiting", justify="right", no_wrap=True, min_width=column)
    for text, number in zip(
        shorten([printable(each["key"]) for each in keys]), counts, strict=True
    ):
        table.add_row(Text(cut(text, room)), number)
    return table


def other_worker(each: dict[str, Any]) -> str:
    """A line for another worker."""
    pid, pending = ("?" if each[name] is None else each[name] for name in ("pid", "pending"))
    polls = "" if each["polls"] is None else f", {each['polls']} polls"
    where = f": {each['address']}" if each["address"] else ""
    return printable(f"worker {pid} on {each['host']}: {pending} pending{polls}{where}")


def total(state: dict[str, Any]) -> Text:
    """The sum over all workers that are known."""
    others = state["others"]
    pending = sum(each["pending"] for each in state["purgatories"])
    pending += sum(each["pending"] for each in others if isinstance(each["pending"], int))
    open_polls = [each["polls"] for each in others if isinstance(each["polls"], int)]
    if state["polls"] is not None:
        open_polls.append(state["polls"]["open"])
    polls = f", {sum(open_polls):,} polls open" if open_polls else ""
    return Text.assemble(
        (f"{pending:,} pending", "bold blue"), f" in {len(others) + 1} workers{polls}"
    )


def screen(
    state: dict[str, Any] | None, error: str, height: int, width: int = 120
) -> RenderableType:
    """The whole screen.

    Args:
        state: of a page; None if there is none yet.
        error: why it is not current.
        height: of the terminal, in lines.
        width: of the terminal, in columns.
    """
    if state is None:
        return Text(printable(error) or "connecting", "yellow")
    worker, lags = state["worker"], [point[1] for point in state["history"][-10:] if len(point) > 1]
    head = Text.assemble(
        ("purgatory", "bold"),
        f"   worker {printable(worker['pid'])}   loop held up for "
        f"{duration(max(lags, default=0.0))} at most   ",
    )
    head.append(printable(error) or "live", "red" if error else "green")
    parts: list[RenderableType] = [head]
    others = state.get("others") or []
    if others:
        parts.append(total(state))
        parts += [Text(other_worker(each)) for each in others[:MAX_OTHER_WORKERS]]
        if len(others) > MAX_OTHER_WORKERS:
            parts.append(Text(f"and {len(others) - MAX_OTHER_WORKERS} more"))
    parts += [Text(), overview(state, width), Text()]
    shown = [purgatory for purgatory in state["purgatories"] if "oldest" in purgatory]
    most = max(min((height - 6 - len(state["purgatories"])) // max(len(shown), 1) - 8, 10), 2)
    parts += [details(purgatory, most, width) for purgatory in shown]
    if state["polls"] is not None:
        endings = ", ".join(
            f"{count:,} {printable(name)}" for name, count in state["polls"]["endings"].items()
        )
        parts.append(
            Text(f"long polls: {state['polls']['open']:,} open; ended: {endings or 'none'}")
        )
    if state["relay"] is not None:
        relay = state["relay"]
        parts.append(
            Text(
                f"relay: {'connected' if relay['isConnected'] else 'AWAY'} for "
                f"{duration(relay['for'])}"
            )
        )
    return Group(*parts)


class Scrolled:
    """What of a screen fits into the terminal from line `top` on, above a line of the keys.

    Args:
        inner: the whole screen.
        top: its first line that is shown.
    """

    def __init__(self, inner: RenderableType, top: int) -> None:
        self.inner = inner
        self.top = top

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The lines that are shown. Limits `top` to what there is."""
        lines = console.render_lines(self.inner, options.update(height=None), pad=False)
        room = max(console.height - 1, 1)
        self.top = min(self.top, max(len(lines) - room, 0))
        for line in lines[self.top : self.top + room]:
            yield from line
            yield Segment.line()
        more = len(lines) - self.top - room
        keys = "q quit   w next worker   ↑ ↓ scroll" + (f"   {more} more lines" if more > 0 else "")
        yield Text(keys[: console.width], "dim", end="")
