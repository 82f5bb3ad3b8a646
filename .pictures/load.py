"""Draws `load-light.svg` and `load-dark.svg` beside this file: `python .pictures/load.py FILE.json ...`,
of `python tests/benchmarks load --java --json FILE.json`.

Needs the dependency group `pictures`.
"""

import json
import sys
from math import nan
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

# After Okabe's and Ito's colours for colour-blind readers; the markers differ, too.
SERIES = {
    "pure": ("plain Python", "#d55e00", "s"),
    "call-later": ("call_later", "#e69f00", "^"),
    "kafka-jvm": ("Kafka on a JVM", "#009e73", "D"),
    "kafka": ("Kafka in Python", "#cc79a7", "v"),
    "ours": ("purgatory", "#2f81d6", "o"),
}
PANELS = {"low": "8 % of the requests time out", "high": "50 % of the requests time out"}
THEMES = {"light": ("#1f2328", "#59636e", "#ffffff"), "dark": ("#e6edf3", "#9198a1", "#0d1117")}
"""The colours of text, of axes, and of the page."""
APART = 1.17
"""The least ratio between the heights of two labels."""
TICKS = (0.5, 1, 2, 3, 5, 10, 20, 50)


def rate(row: dict[str, Any]) -> float:
    """Requests a second, as asked for."""
    return float(row["asked/s"])


def draw(axes: Axes, rows: list[dict[str, Any]], text: str, page: str) -> None:
    """A line for each implementation, with its name at its end."""
    ends: list[tuple[float, str]] = []
    for name, (_, colour, marker) in SERIES.items():
        own = sorted((row for row in rows if row["implementation"] == name), key=rate)
        rates, costs = [rate(row) for row in own], [row["net µs"] for row in own]
        look: Any = {"color": colour, "marker": marker, "markersize": 8, "markeredgewidth": 2}
        axes.plot(rates, costs, linewidth=2.4, **look)
        needs_more = [row["cpu µs"] * rate(row) > 1e6 for row in own]  # than a core
        hollow = [cost if more else nan for cost, more in zip(costs, needs_more, strict=True)]
        axes.plot(rates, hollow, linestyle="", markerfacecolor=page, zorder=3, **look)
        ends += [(cost, name) for cost in costs[-1:]]
    height = 0.0
    for cost, name in sorted(ends):
        height = max(cost, height * APART)
        look = {"color": text, "weight": "bold" if name == "ours" else "normal", "va": "center"}
        place = (max(map(rate, rows)), height)
        axes.annotate(SERIES[name][0], place, (12, 0), textcoords="offset points", **look)


def save(rows: list[dict[str, Any]], theme: str) -> None:
    """Draws both panels in the colours of a theme."""
    text, soft, page = THEMES[theme]
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "", "font.size": 14})
    mpl.rcParams.update({"text.color": text, "axes.labelcolor": text})
    mpl.rcParams.update({"xtick.color": text, "ytick.color": text})
    figure, both = plt.subplots(1, 2, figsize=(12.8, 5.2), sharey=True, layout="constrained")
    rates = sorted(set(map(rate, rows)))
    for axes, (timeouts, title) in zip(both, PANELS.items(), strict=True):
        draw(axes, [row for row in rows if row["timeouts"] == timeouts], text, page)
        axes.set(
            xscale="log", yscale="log", xlabel="requests a second (hollow: takes more than a core)"
        )
        axes.set_title(title, size=15, weight="bold")
        axes.set_xticks(rates, [f"{each:,.0f}" for each in rates])
        low, high = axes.get_ylim()
        ticks = [each for each in TICKS if low <= each <= high]
        axes.set_yticks(ticks, [f"{each:g}" for each in ticks])
        axes.minorticks_off()
        axes.grid(axis="y", color=soft, alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(soft)
    both[0].set_ylabel("CPU time of a request, in µs,\nwithout the generator's share")
    file = Path(__file__).with_name(f"load-{theme}.svg")
    figure.savefig(file, transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    found = [row for file in sys.argv[1:] for row in json.loads(Path(file).read_text())["rows"]]
    for each in THEMES:
        save([row for row in found if row["asked/s"] != "max"], each)
