"""Draws the plots with matplotlib, from the JSON of the programs.

Each implementation has its own marker and dashes as well as its own colour, so that the plots can be read in grey.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

DPI = 100
LOOKS: dict[str, tuple[str, str, str]] = {  # colour, marker, dashes
    "ours": ("#000000", "o", "-"),
    "kafka": ("#e67e22", "D", "-."),
    "call-later": ("#8e44ad", "x", "-."),
    "java": ("#2980b9", "s", "--"),
}
LATENCIES = {"low": "low timeouts (8 % expire)", "high": "high timeouts (50 % expire)"}
KINDS = {"expiry": "due in one tick", "check": "completed by one check"}

Json = dict[str, Any]


def load(report: Json, directory: Path) -> list[Path]:
    """Draws the rates and the CPU time of `load`; returns the files."""
    return [
        _load(report, directory / "load-rate.png", "kreq/s had", ("actual_rate", 1e-3), _draw_asked),
        _load(report, directory / "load-cpu.png", "CPU µs per request", ("cpu_us", 1.0), _draw_own_share),
    ]


def burst(report: Json, directory: Path) -> Path:
    """Draws the longest iteration of the loop over the size of the burst."""
    figure, panels = _panels([kind for kind in KINDS if any(each["kind"] == kind for each in report["runs"])], KINDS)
    for kind, axes in panels.items():
        here = [each for each in report["runs"] if each["kind"] == kind]
        for name, runs in _by_implementation(here):
            _draw(axes, name, [each["requests"] for each in runs], [each["max_stall_ms"] for each in runs])
        axes.set(xscale="log", yscale="log", xlabel="requests at once", ylabel="longest wait of other callbacks, ms")
    return _save(figure, report, directory / "burst.png")


def memory(report: Json, directory: Path) -> Path:
    """Draws the bytes of a pending request over the number of requests."""
    figure, panels = _panels(["memory"], {"memory": "resident memory of a pending request, its payload of 100 bytes included"})
    for name, runs in _by_implementation(report["runs"]):
        _draw(panels["memory"], name, [each["requests"] for each in runs], [each["bytes_each"] for each in runs])
    panels["memory"].set(xscale="log", xlabel="pending requests", ylabel="bytes each")
    panels["memory"].set_ylim(bottom=0)
    return _save(figure, report, directory / "memory.png")


def _load(
    report: Json, file: Path, label: str, figure_of: tuple[str, float], reference: Callable[[Axes, Sequence[Json]], None]
) -> Path:
    """Draws a figure, given by its name and scale, over the rate asked, with low and high timeouts side by side.

    What lies between the lowest and the highest of several rounds is shaded.
    """
    name, scale = figure_of
    found = {each["latency"] for each in report["runs"]}
    figure, panels = _panels([latency for latency in LATENCIES if latency in found], LATENCIES)
    for latency, axes in panels.items():
        here = [each for each in report["runs"] if each["latency"] == latency]
        for implementation, all_runs in _by_implementation(here):
            runs = [each for each in all_runs if each["rate"] is not None]
            rates = [each["rate"] / 1e3 for each in runs]
            lows, highs = ([each["spread"][name][end] * scale for each in runs] for end in (0, 1))
            axes.fill_between(rates, lows, highs, color=LOOKS[implementation][0], alpha=0.15, linewidth=0)
            _draw(axes, implementation, rates, [each[name] * scale for each in runs])
        axes.set(xlabel="kreq/s asked", ylabel=label)
        axes.set_ylim(bottom=0)
        reference(axes, here)
    return _save(figure, report, file)


def _draw_asked(axes: Axes, runs: Sequence[Json]) -> None:
    """The rate asked, and ours as fast as it goes."""
    rates = sorted({each["rate"] / 1e3 for each in runs if each["rate"] is not None})
    axes.plot(rates, rates, color="0.7", linewidth=1, zorder=0)
    for each in runs:
        if each["rate"] is None and each["implementation"] == "ours":
            axes.axhline(each["actual_rate"] / 1e3, color="0.5", linewidth=1, linestyle=":", zorder=0)
            place = (min(rates, default=0.0), each["actual_rate"] / 1e3)
            axes.annotate("ours, as fast as it goes", place, va="bottom", fontsize=7, color="0.3")


def _draw_own_share(axes: Axes, runs: Sequence[Json]) -> None:
    """What the generator itself takes."""
    driven = [each for each in runs if each["rate"] is not None and each["implementation"] != "java"]  # which has its own
    own = sorted({(each["rate"] / 1e3, each["own_us"]) for each in driven})
    axes.fill_between([rate for rate, _ in own], [share for _, share in own], color="0.88", zorder=0)
    if own:
        axes.annotate("the generator", own[-1], ha="right", va="bottom", fontsize=7, color="0.3")
    # What costs many times more is cut off: it would make all others look alike. The table has it.
    ours = [each["cpu_us"] for each in runs if each["implementation"] == "ours"]
    highest = max(each["cpu_us"] for each in runs)
    axes.set_ylim(0, 1.05 * min(highest, 3 * max(ours, default=highest)))


def _by_implementation(runs: Iterable[Json]) -> list[tuple[str, list[Json]]]:
    found = list(runs)
    grouped = [(name, [each for each in found if each["implementation"] == name]) for name in LOOKS]
    return [(name, same) for name, same in grouped if same]


def _panels(names: Sequence[str], titles: dict[str, str]) -> tuple[Figure, dict[str, Axes]]:
    figure = Figure(figsize=(1.0 + 4.4 * len(names), 3.9), dpi=DPI, layout="constrained")
    panels = {name: figure.add_subplot(1, len(names), position) for position, name in enumerate(names, 1)}
    for name, axes in panels.items():
        axes.set_title(titles[name], fontsize=9)
        axes.grid(color="0.92")
        axes.set_axisbelow(True)
    return figure, panels


def _draw(axes: Axes, name: str, x: Sequence[float], y: Sequence[float]) -> None:
    colour, marker, dashes = LOOKS[name]
    width, order = (2.2, 3) if name == "ours" else (1.2, 2)
    axes.plot(x, y, color=colour, linestyle=dashes, marker=marker, markersize=4, linewidth=width, label=name, zorder=order)


def _save(figure: Figure, report: Json, file: Path) -> Path:
    lines: dict[str, Line2D] = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        lines |= {label: handle for label, handle in zip(labels, handles, strict=True) if isinstance(handle, Line2D)}
    figure.legend(list(lines.values()), list(lines), loc="outside lower center", ncols=len(lines), fontsize=8, frameon=False)
    where = report["environment"]
    loops = " and ".join(sorted({each["loop"] for each in report["runs"]}))
    title = f"purgatory, {report['program']} on {loops}: {where['python']}, {where['processor']}"
    figure.suptitle(title, fontsize=8, color="0.4")
    figure.savefig(file)
    return file
