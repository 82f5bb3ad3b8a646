"""A state as lines of text, for a terminal of any width from 80 columns on."""

import time
from collections.abc import Sequence
from typing import Any, Final

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from purgatory._core.arguments import printable

MIN_ROWS: Final = 3
"""Rows of a table of details, however low the terminal is: it scrolls."""
MAX_ROWS: Final = 10

SILENT: Final = 5.0
"""Seconds after which a worker is late. Workers announce themselves every three seconds."""

BLOCKS: Final = " ▁▂▃▄▅▆▇█"

Cell = tuple[str, str]
"""A text, and its style."""


def duration(seconds: float | None) -> str:
    """A duration with its unit."""
    if seconds is None:
        return "?"
    for unit, factor, limit in (("µs", 1e6, 1e-3), ("ms", 1e3, 1.0), ("s", 1.0, 120.0)):
        if abs(seconds) < limit:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds / 60:.3g} min" if abs(seconds) < 7200 else f"{seconds / 3600:.3g} h"


def plural(count: int, noun: str) -> str:
    """A number with its noun."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


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
    return "".join([BLOCKS[round(value / highest * (len(BLOCKS) - 1))] for value in shown])


def table(heads: Sequence[str], rows: Sequence[Sequence[Cell]], width: int) -> list[Text]:
    """A line for the heads and one for each row. The first column gives way if the terminal is
    narrow; numbers and durations are on the right of their columns."""
    heading = [(head, "dim") for head in heads]
    columns = [
        max(cell_len(text) for text, _ in column) for column in zip(heading, *rows, strict=True)
    ]
    columns[0] = max(min(columns[0], width - sum(columns[1:]) - 2 * len(columns[1:])), 8)
    lines = []
    for row in (heading, *rows):
        line = Text()
        for head, (text, style), column in zip(heads, row, columns, strict=True):
            shown, is_right = cut(text, column), head not in (heads[0], "kind", "pending in time")
            line.append("  " if line else "")
            line.append(" " * (column - cell_len(shown)) if is_right else "")
            line.append(shown if is_right else set_cell_size(shown, column), style)
        lines.append(line)
    return lines


def keys_of(each: dict[str, Any], width: int) -> str:
    """The keys of an operation, as far as whole keys fit, and the number of operations that wait
    for the same keys."""
    keys = [printable(key) for key in each["keys"]]
    same, end = f" ×{each['count']}" if each.get("count", 1) > 1 else "", ""
    for count in range(len(keys), 0, -1):
        more = len(keys) - count + each["moreKeys"]
        end = (f" and {more} more" if more else "") + printable(same)
        if len(text := ", ".join(keys[:count]) + end) <= width:
            return text
    return cut(keys[0], max(width - len(end), 8)) + end if keys else ""


def rates(history: Sequence[Sequence[Any]], index: int) -> list[float]:
    """Completed, expired and cancelled in each of the last few seconds."""
    recent = history[-6:]
    seconds = recent[-1][0] - recent[0][0] if recent else 0.0
    if seconds <= 0:
        return [0.0, 0.0, 0.0]
    return [(recent[-1][2][index][way] - recent[0][2][index][way]) / seconds for way in (1, 2, 3)]


def overview(state: dict[str, Any], width: int) -> list[Text]:
    """A row for each purgatory."""
    heads = ["purgatory", "pending", "completed/s", "expired/s", "cancelled/s", "missed"]
    spark = min(40, width - 88)
    rows = []
    for index, purgatory in enumerate(state["purgatories"]):
        completed, expired, cancelled = rates(state["history"], index)
        missed = purgatory.get("missed", 0)
        row = [
            (printable(purgatory["name"]), "bold"),
            (f"{purgatory['pending']:,}", "bold blue"),
            (f"{completed:,.1f}", "green"),
            (f"{expired:,.1f}", "yellow"),
            (f"{cancelled:,.1f}", ""),
            (f"{missed:,}", "bold red" if missed else ""),
        ]
        if spark > 10:
            pending = [point[2][index][0] for point in state["history"]]
            row.append((sparkline(pending, spark), "blue"))
        rows.append(row)
    return table([*heads, "pending in time"] if spark > 10 else heads, rows, width)


def details(purgatory: dict[str, Any], room: int, width: int) -> list[Text]:
    """The missed triggers of a purgatory, and its operations that wait longest.

    Args:
        purgatory: state of the purgatory, with its details.
        room: lines that it may fill, as far as it can.
        width: columns of the terminal.
    """
    facts = [plural(purgatory["keys"], "key")]
    if purgatory["withoutDeadline"]:
        facts.append(f"{purgatory['withoutDeadline']:,} without a deadline")
    title = Text.assemble((printable(purgatory["name"]), "bold"), f": {', '.join(facts)} ")
    title.append("─" * max(width - title.cell_len, 0), "dim")
    lines = [title]
    for each in purgatory["missedLast"][:MIN_ROWS]:
        end = f" ({cut(printable(each['kind']), 16)}), {duration(each['ago'])} ago"
        keys = keys_of(each, max(width - len("missed trigger: ") - len(end), 8))
        lines.append(Text(f"missed trigger: {keys}{end}", "red"))
    rows = min(max(room - len(lines) - 1, MIN_ROWS), MAX_ROWS)
    if purgatory["oldest"]:
        heads = ["waiting longest", "kind", "waiting", "left"]
        times = [_times(each) for each in purgatory["oldest"][:rows]]
        taken = [
            max(map(len, column)) + 2
            for column in zip(
                heads[1:], *([text for text, _ in each] for each in times), strict=True
            )
        ]
        cells = [
            [(keys_of(each, width - sum(taken)), ""), *cells]
            for each, cells in zip(purgatory["oldest"], times, strict=False)
        ]
        lines += table(heads, cells, width)
    return lines


def _times(each: dict[str, Any]) -> list[Cell]:
    left = "no limit" if each["left"] is None else duration(max(each["left"], 0.0))
    kind = cut(printable(each["kind"]), 16)
    return [(kind, ""), (duration(each["waited"]), ""), (left, "")]


def other_worker(each: dict[str, Any], *, is_gone: bool = False) -> Text:
    """A line for another worker."""
    ago = each.get("ago") or 0.0
    if is_gone:
        text = f"worker {each['pid']} on {each['host']}: gone, last heard {duration(ago)} ago"
        return Text(printable(text), "yellow")
    pid, pending = ("?" if each[name] is None else each[name] for name in ("pid", "pending"))
    polls = "" if each["polls"] is None else f", {plural(each['polls'], 'poll')}"
    silent = f", not heard for {duration(ago)}" if ago >= SILENT else ""
    where = f": {each['address']}" if each["address"] else ""
    text = f"worker {pid} on {each['host']}: {pending} pending{polls}{silent}{where}"
    return Text(printable(text), "yellow" if silent else "")


def total(state: dict[str, Any]) -> Text:
    """The sum over all workers that are known."""
    others = state["others"]
    pending = sum(each["pending"] for each in [*state["purgatories"], *others] if each["pending"])
    polls = [*(each["polls"] for each in others), (state["polls"] or {}).get("open")]
    known = [each for each in polls if each is not None]
    more = f", {plural(sum(known), 'poll')} open" if known else ""
    workers = plural(len(others) + 1, "worker")
    return Text.assemble((f"{pending:,} pending", "bold blue"), f" in {workers}{more}")


def head(state: dict[str, Any], error: str, now: float) -> list[Text]:
    """Whether the figures are current, of which worker they are, and the lines for all of it."""
    worker, lags = state["worker"], [point[1] for point in state["history"][-10:] if len(point) > 1]
    service, worker_pid = printable(state.get("service", "purgatory")), printable(worker["pid"])
    title = Text.assemble((service, "bold"), f"   worker {worker_pid}   ")
    if "at" in state:
        title.append(time.strftime("%H:%M:%S   ", time.localtime(state["at"])))
    lines = [title]
    if error:
        age = f", {duration(round(max(now - state['at'], 0.0)))} ago" if "at" in state else ""
        title.append(f"OLD FIGURES{age}", "bold red")
        lines.append(Text(printable(error), "red"))
    else:
        title.append("live", "green")
        if lags:
            title.append(f"   event loop held up for at most {duration(max(lags))}")
    if state.get("others"):
        lines.append(total(state))
    relay, polls = state["relay"], state["polls"]
    if relay is not None:
        connection, style = ("connected", "") if relay["isConnected"] else ("AWAY", "bold red")
        lines.append(Text(f"relay: {connection} for {duration(relay['for'])}", style))
    if polls is not None:
        ends = [f"{count:,} {printable(name)}" for name, count in polls["endings"].items() if count]
        ended = f"; ended: {', '.join(ends)}" if ends else ""
        lines.append(Text(f"long polls: {polls['open']:,} open{ended}"))
    return lines


def screen(
    state: dict[str, Any] | None, error: str, height: int, width: int = 120, now: float = 0.0
) -> list[Text]:
    """The whole screen, as lines of at most `width` columns.

    Args:
        state: state of a page; None if there is none yet.
        error: reason why the state is not current.
        height: lines of the terminal.
        width: columns of the terminal.
        now: seconds since 1970.
    """
    if state is None:
        return [Text(printable(error) or "connecting", "yellow")]
    lines = head(state, error, now)
    others = sorted(state.get("others") or [], key=lambda each: -(each["pending"] or 0))
    most = min(max(height // 6, MIN_ROWS), 16)
    lines += [other_worker(each) for each in others[:most]]
    if len(others) > most:
        lines.append(Text(f"and {plural(len(others) - most, 'more worker')}"))
    lines += [other_worker(each, is_gone=True) for each in (state.get("gone") or [])[-most:]]
    lines += [Text(), *overview(state, width)]
    shown = [each for each in state["purgatories"] if each.get("oldest") or each.get("missedLast")]
    for number, purgatory in enumerate(shown):
        room = (height - 1 - len(lines)) // (len(shown) - number) - 1
        lines += [Text(), *details(purgatory, room, width)]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines
