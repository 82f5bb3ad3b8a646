"""Draws the plots with matplotlib, from the JSON of the programs.

Each design has its own marker and dashes as well as its own colour, so that the plots can be read in grey.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

DPI = 100
KEPT_UP = 0.98
"""A design has kept up if it had this share of the rate asked. Less than all, because arrivals are random."""

LOOKS: dict[str, tuple[str, str, str]] = {  # colour, marker, dashes
    "ours": ("#000000", "o", "-"),
    "old": ("#c0392b", "s", "--"),
    "kafka": ("#e67e22", "D", "-."),
    "netty": ("#2980b9", "^", ":"),
    "linux": ("#16a085", "v", "--"),
    "call-later": ("#8e44ad", "x", "-."),
    "timeout": ("#7f8c8d", "+", ":"),
}
LATENCIES = {"low": "low timeouts (8 % expire)", "high": "high timeouts (50 % expire)"}
KINDS = {"expiry": "due in one tick", "check": "completed by one check"}

Json = dict[str, Any]


def load(report: Json, directory: Path) -> list[Path]:
    """Draws the rates, the CPU time and the lateness of `load`; returns the files."""
    return [
        _pair(report, "load-rate", "kreq/s had", ("actual_rate", 1e-3), directory, _as_asked),
        _pair(report, "load-cpu", "CPU µs per request", ("cpu_us", 1.0), directory, _own_share),
        _lateness(report, directory),
    ]


def burst(report: Json, directory: Path) -> Path:
    """Draws the longest iteration of the loop over the size of the burst."""
    figure, panels = _panels([kind for kind in KINDS if any(each["kind"] == kind for each in report["runs"])], KINDS)
    for kind, axes in panels.items():
        for design in _designs(report["runs"]):
            runs = [each for each in report["runs"] if (each["design"], each["kind"]) == (design, kind)]
            _draw(axes, design, [each["requests"] for each in runs], [each["longest_ms"] for each in runs])
        axes.set(xscale="log", yscale="log", xlabel="requests at once", ylabel="longest wait of other callbacks, ms")
    return _save(figure, report, directory / "burst.png")


def memory(report: Json, directory: Path) -> Path:
    """Draws the bytes of a pending request over the number of requests."""
    figure, panels = _panels(["memory"], {"memory": "resident memory of a pending request, its payload of 100 bytes included"})
    for design in _designs(report["runs"]):
        runs = [each for each in report["runs"] if each["design"] == design]
        _draw(panels["memory"], design, [each["requests"] for each in runs], [each["bytes_each"] for each in runs])
    panels["memory"].set(xscale="log", xlabel="pending requests", ylabel="bytes each")
    panels["memory"].set_ylim(bottom=0)
    return _save(figure, report, directory / "memory.png")


def _pair(
    report: Json,
    name: str,
    label: str,
    of: tuple[str, float],
    directory: Path,
    reference: Callable[[Axes, Sequence[Json]], None],
) -> Path:
    """Draws a figure, named and scaled by `of`, over the rate asked, with low and high timeouts side by side.

    What lies between the lowest and the highest of several rounds is shaded.
    """
    name_of, scale = of
    figure, panels = _panels(_latencies(report["runs"]), LATENCIES)
    for latency, axes in panels.items():
        here = [each for each in report["runs"] if each["latency"] == latency]
        for design in _designs(here):
            runs = [each for each in here if each["design"] == design and each["rate"] is not None]
            rates = [each["rate"] / 1e3 for each in runs]
            lows, highs = ([each["spread"][name_of][end] * scale for each in runs] for end in (0, 1))
            axes.fill_between(rates, lows, highs, color=LOOKS[design][0], alpha=0.15, linewidth=0)
            _draw(axes, design, rates, [each[name_of] * scale for each in runs])
        axes.set(xlabel="kreq/s asked", ylabel=label)
        axes.set_ylim(bottom=0)
        reference(axes, here)
    return _save(figure, report, directory / f"{name}.png")


def _as_asked(axes: Axes, runs: Sequence[Json]) -> None:
    rates = sorted({each["rate"] / 1e3 for each in runs if each["rate"] is not None})
    axes.plot(rates, rates, color="0.7", linewidth=1, zorder=0)
    fastest = [each for each in runs if each["rate"] is None and each["design"] == "ours"]
    for each in fastest:
        axes.axhline(each["actual_rate"] / 1e3, color="0.5", linewidth=1, linestyle=":", zorder=0)
        axes.annotate("ours, as fast as it goes", (rates[0], each["actual_rate"] / 1e3), va="bottom", fontsize=7, color="0.3")


def _own_share(axes: Axes, runs: Sequence[Json]) -> None:
    own = sorted({(each["rate"] / 1e3, each["own_us"]) for each in runs if each["rate"] is not None})
    axes.fill_between([rate for rate, _ in own], [share for _, share in own], color="0.88", zorder=0)
    axes.annotate("the generator", own[-1], ha="right", va="bottom", fontsize=7, color="0.3")
    # A design that costs many times more is cut off: it would make all others look alike. The table has it.
    ours = [each["cpu_us"] for each in runs if each["design"] == "ours"]
    dearest = max(each["cpu_us"] for each in runs)
    axes.set_ylim(0, 1.05 * min(dearest, 3 * max(ours, default=dearest)))


def _busiest(runs: Sequence[Json]) -> float | None:
    """The highest rate asked at which ours kept up; the first rate if there is none."""
    ours = [each for each in runs if each["design"] == "ours" and each["rate"] is not None]
    kept: list[float] = [each["rate"] for each in ours if each["actual_rate"] >= KEPT_UP * each["rate"]]
    asked: float | None = runs[0]["rate"]
    return max(kept, default=asked)


def _lateness(report: Json, directory: Path) -> Path:
    """Draws how late requests expired, at the highest rate at which ours kept up."""
    here = {name: [each for each in report["runs"] if each["latency"] == name] for name in _latencies(report["runs"])}
    rates = {name: _busiest(runs) for name, runs in here.items()}
    asked = {name: "as fast as it goes" if rate is None else f"{rate:,.0f} requests/s asked" for name, rate in rates.items()}
    figure, panels = _panels(list(here), {name: f"{LATENCIES[name]}, {asked[name]}" for name in here})
    parts = report["percentiles"]
    for latency, axes in panels.items():
        for each in here[latency]:
            if each["rate"] == rates[latency] and each["lateness_ms"]:
                _draw(axes, each["design"], [max(late, 0.01) for late in each["lateness_ms"]], parts, marked=False)
        axes.set(xscale="log", xlabel="expired after the deadline, ms", ylabel="% of the expiries")
    return _save(figure, report, directory / "load-lateness.png")


def _latencies(runs: Iterable[Json]) -> list[str]:
    found = {each["latency"] for each in runs}
    return [latency for latency in LATENCIES if latency in found]


def _designs(runs: Iterable[Json]) -> list[str]:
    found = {each["design"] for each in runs}
    return [design for design in LOOKS if design in found]


def _panels(names: Sequence[str], titles: dict[str, str]) -> tuple[Figure, dict[str, Axes]]:
    figure = Figure(figsize=(1.0 + 4.4 * len(names), 3.9), dpi=DPI, layout="constrained")
    panels = {name: figure.add_subplot(1, len(names), place + 1) for place, name in enumerate(names)}
    for name, axes in panels.items():
        axes.set_title(titles[name], fontsize=9)
        axes.grid(color="0.92")
        axes.set_axisbelow(True)
    return figure, panels


def _draw(axes: Axes, design: str, x: Sequence[float], y: Sequence[float], marked: bool = True) -> None:
    colour, marker, dashes = LOOKS[design]
    axes.plot(
        x,
        y,
        color=colour,
        linestyle=dashes,
        marker=marker if marked else None,
        markersize=4,
        linewidth=2.2 if design == "ours" else 1.2,
        label=design,
        zorder=3 if design == "ours" else 2,
    )


def _save(figure: Figure, report: Json, file: Path) -> Path:
    lines: dict[str, Line2D] = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        lines |= {label: handle for label, handle in zip(labels, handles, strict=True) if isinstance(handle, Line2D)}
    figure.legend(list(lines.values()), list(lines), loc="outside lower center", ncols=len(lines), fontsize=8, frameon=False)
    where = report["environment"]
    loops = " and ".join(sorted({each["loop"] for each in report["runs"]}))
    figure.suptitle(
        f"purgatory.bench {report['program']} on {loops}: {where['python']}, {where['processor']}", fontsize=8, color="0.4"
    )
    with mpl.rc_context({"svg.hashsalt": "purgatory"}):
        figure.savefig(file)
    return file
