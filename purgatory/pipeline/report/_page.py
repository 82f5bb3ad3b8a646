"""The report as one HTML file that needs no network.

The file has the findings as text, the data as JSON, Plotly, packed, and the scripts beside this
module: ``page.js`` filters and fills the tables, ``pictures.js`` draws, ``choices.js`` follows the
reader, and ``page.css`` has the colours, light and dark, and how it is printed.
"""

import gzip
import json
import re
from base64 import b64encode
from collections.abc import Sequence
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from purgatory.pipeline.report._data import data
from purgatory.pipeline.report._findings import Finding
from purgatory.pipeline.report._queries import Summary

HERE: Final = Path(__file__).parent


def _folder_of(package: str) -> Path:
    """Where a package is, without the time that importing it takes."""
    found = find_spec(package)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    return Path(found.origin).parent


PLOTLY: Final = _folder_of("plotly") / "package_data" / "plotly.min.js"
SCRIPTS: Final = ("page.js", "pictures.js", "choices.js")
"""Together they are one."""
SECTIONS: Final = {
    "time": (
        "Over time",
        "How operations ended, and how many were pending. Drag over a picture to choose a time: "
        "the figures, the keys and the "
        "tables follow. A double click takes the whole time again.",
    ),
    "timeouts": (
        "Timeouts",
        "How long operations waited, and the share that each timeout would have let expire, "
        "after Kaplan and Meier, with "
        "its 95 % interval. Move the timeout, or click into the picture.",
    ),
    "late": ("Lateness", "How long after their deadline operations expired."),
    "keys": (
        "Hot keys",
        "The keys whose checks tried the most operations, and when. At most a hundred keys are "
        "here; the table `keys` has all.",
    ),
    "missed": (
        "Missed triggers",
        "Operations that completed only by the try at their deadline: check_and_complete was "
        "not called for their key.",
    ),
    "minutes": ("Minutes with the most expiries", "At most fifty. The table `outcomes` has all."),
    "read": (
        "Journals read",
        "Every row that was read is accepted, a duplicate, or rejected with a reason.",
    ),
}
PICTURES: Final = {
    "time": ("ends", "pending"), "timeouts": ("waits", "survival"), "late": ("lateness",),
    "keys": ("heat",), "missed": ("when",),
}  # fmt: skip


def page(title: str, findings: Sequence[Finding], summary: Summary) -> str:
    """The text of the HTML file."""
    shown = json.dumps(data([*findings], summary), separators=(",", ":"), allow_nan=False).replace(
        "<", "\\u003c"
    )
    said = "".join(
        f'<li><a href="#{each.place}" data-purgatory="{escape(each.purgatory)}" data-kind="{escape(each.kind)}">'
        f"{escape(each.text)}</a></li>"
        for each in findings
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_file('page.css')}</style></head><body>\n"
        f'<header><h1>{escape(title)}</h1><button id="theme" title="light or dark">◐</button></header>\n'
        f'<ul class="findings">{said}</ul>\n'
        '<nav><label>purgatory <select id="purgatory"></select></label> <label>kind <select id="kind"></select></label> '
        '<label id="runs">run <select id="run"></select></label> <button id="whole" hidden>whole time</button>'
        '<output id="range"></output></nav>\n<div id="tiles"></div>\n'
        f"{''.join(_section(name) for name in SECTIONS)}"
        "<noscript>Pictures and tables need JavaScript. The tables are in the folder "
        "<code>tables</code>, too.</noscript>\n"
        f'<script type="application/json" id="data">{shown}</script>\n'
        f'<script type="text/plain" id="plotly">{_plotly()}</script>\n'
        f"<script>{''.join(map(_file, SCRIPTS))}</script></body></html>\n"
    )


def _section(name: str) -> str:
    heading, note = SECTIONS[name]
    pictures = "".join(
        f'<div class="picture" id="{each}"></div>' for each in PICTURES.get(name, ())
    )
    mover = (
        '<p class="mover"><label>What would a timeout of <input type="range" id="timeout" min="0" max="1000" step="1"> '
        '<b id="chosen"></b> have given?</label> <output id="answer"></output></p>'
        if name == "timeouts"
        else ""
    )
    covers = '<p class="covers"></p>' if name in ("timeouts", "late") else ""
    return (
        f'<section id="{name}"><h2>{escape(heading)}</h2><p class="note">{_with_code(note)}</p>{covers}'
        f'<div class="pictures">{pictures}</div>{mover}<div class="table"></div></section>\n'
    )


def _with_code(text: str) -> str:
    """As HTML; text between backticks becomes code."""
    return re.sub("`(.*?)`", r"<code>\1</code>", escape(text))


def _file(name: str) -> str:
    return (HERE / name).read_text("utf-8")


def _plotly() -> str:
    """Plotly's script, compressed to a third."""
    return b64encode(gzip.compress(PLOTLY.read_bytes(), 6)).decode("ascii")
