"""The plots of the report, as the bytes of PNG files."""

from collections.abc import Callable, Sequence
from io import BytesIO
from itertools import groupby

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from purgatory.pipeline.report._summary import Line, Summary

KINDS = 6
"""How many kinds have a plot of their own: those with the most operations."""
KEYS = 15
GREY, BLUE, ORANGE = "#9aa0a6", "#1f5fa8", "#e07b39"


def plots(summary: Summary) -> dict[str, bytes]:
    """The plots by title. A plot that has nothing to show is left out."""
    with mpl.rc_context({"axes.spines.top": False, "axes.spines.right": False, "font.size": 9, "axes.axisbelow": True}):
        drawn = {
            "How long operations waited": _for_kinds(summary, summary.waits, _waits),
            "What expiry rate each timeout would have given": _for_kinds(summary, summary.survival, _survival),
            "Pending operations over time": _pending(summary.pending),
            "The keys whose checks tried most": _keys(summary.hot_keys[:KEYS]),
        }
    return {title: png for title, png in drawn.items() if png}


def _for_kinds(summary: Summary, lines: Sequence[Line], draw: Callable[[Axes, Sequence[Line], Line], None]) -> bytes | None:
    """A plot for each of the largest kinds, side by side in one picture."""
    by_kind = {name: list(group) for name, group in groupby(lines, _kind)}
    largest = [line for line in sorted(summary.timeouts, key=lambda line: -line["operations"]) if _kind(line) in by_kind][
        :KINDS
    ]
    if not largest:
        return None
    columns = min(len(largest), 3)
    rows = -(-len(largest) // columns)
    figure = Figure(figsize=(3.6 * columns, 2.7 * rows), layout="constrained")
    for place, line in enumerate(largest):
        axes = figure.add_subplot(rows, columns, place + 1)
        axes.set_title(f"{line['kind']} in {line['purgatory']}", loc="left", fontsize=9)
        draw(axes, by_kind[_kind(line)], line)
    return _png(figure)


def _kind(line: Line) -> tuple[str, str]:
    return line["purgatory"], line["kind"]


def _mark_timeouts(axes: Axes, line: Line) -> None:
    for name in {line["timeout_min_s"], line["timeout_max_s"]} - {None}:
        axes.axvline(name, color="black", linestyle="--", linewidth=1, label=f"timeout {name:g} s")


def _waits(axes: Axes, lines: Sequence[Line], line: Line) -> None:
    shown = [each for each in lines if each["wait_s"] > 0]
    waits = [each["wait_s"] for each in shown]
    if waits:
        lowest, highest = min(waits), max(waits)
        steps = 40
        ratio = max(highest / lowest, 1.1) * 1.0001
        edges = [lowest * ratio ** (step / steps) for step in range(steps + 1)]
        counts = [[each["completed"] for each in shown], [each["others"] for each in shown]]
        axes.hist(
            [waits, waits],
            bins=edges,
            weights=counts,
            stacked=True,
            color=[BLUE, ORANGE],
            label=["completed", "expired, cancelled"],
        )
        axes.set_xscale("log")
    _mark_timeouts(axes, line)
    at_once = sum(each["completed"] + each["others"] for each in lines if each["wait_s"] == 0)
    axes.set_xlabel("wait, s" + (f" ({at_once:,} ended at once)" if at_once else ""))
    axes.set_ylabel("operations")
    axes.legend(fontsize=7, frameon=False)


def _survival(axes: Axes, lines: Sequence[Line], line: Line) -> None:
    shown = [each for each in lines if each["timeout_s"] > 0 and each["expiry_rate"] > 0]
    times, rates = [each["timeout_s"] for each in shown], [each["expiry_rate"] for each in shown]
    errors = [1.96 * (each["standard_error"] or 0.0) for each in shown]
    if times:
        low = [max(rate - error, 1e-9) for rate, error in zip(rates, errors, strict=True)]
        high = [min(rate + error, 1.0) for rate, error in zip(rates, errors, strict=True)]
        axes.fill_between(times, low, high, step="post", color=BLUE, alpha=0.25, linewidth=0, label="95 % confidence")
        axes.step(times, rates, where="post", color=BLUE, linewidth=1.3)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_ylim(max(min(*rates, 1e-3) / 2, 1e-6), 1.3)
    for rate in (0.01, 0.001):
        axes.axhline(rate, color=GREY, linewidth=0.8, linestyle=":")
    _mark_timeouts(axes, line)
    axes.set_xlabel("timeout, s")
    axes.set_ylabel("share that expires")
    axes.legend(fontsize=7, frameon=False, loc="lower left")


def _pending(lines: Sequence[Line]) -> bytes | None:
    if not lines:
        return None
    figure = Figure(figsize=(10.8, 2.9), layout="constrained")
    axes = figure.add_subplot()
    colours = [BLUE, ORANGE, "#3b8f5a", "#8e5ea2", GREY]
    for (purgatory, group), colour in zip(groupby(lines, lambda line: line["purgatory"]), colours, strict=False):
        points = list(group)
        seconds = [line["second"] for line in points]
        axes.plot(seconds, [line["pending_max"] for line in points], color=colour, linewidth=1.2, label=f"{purgatory}, most")
        axes.plot(
            seconds,
            [line["pending_mean"] for line in points],
            color=colour,
            linewidth=1,
            linestyle=":",
            label=f"{purgatory}, mean",
        )
    axes.set_ylim(bottom=0)
    axes.set_ylabel("pending operations")
    axes.set_xlabel("time, UTC")
    axes.legend(fontsize=8, frameon=False)
    return _png(figure)


def _keys(lines: Sequence[Line]) -> bytes | None:
    if not lines:
        return None
    figure = Figure(figsize=(10.8, 0.8 + 0.24 * len(lines)), layout="constrained")
    axes = figure.add_subplot()
    names = [f"{line['key'][:40]}  ({line['purgatory']})" for line in lines]
    completed = [line["completed"] for line in lines]
    axes.barh(names, completed, color=BLUE, label="completed")
    axes.barh(names, [line["false_wakeups"] for line in lines], left=completed, color=ORANGE, label="tried in vain")
    axes.invert_yaxis()
    axes.set_xlabel("operations tried by checks")
    axes.legend(fontsize=8, frameon=False)
    return _png(figure)


def _png(figure: Figure) -> bytes:
    file = BytesIO()
    figure.savefig(file, format="png", dpi=110)
    return file.getvalue()
