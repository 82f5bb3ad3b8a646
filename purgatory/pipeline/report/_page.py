"""The report as one HTML file that needs no network.

``page.html`` has a place for the findings as text, the data as JSON, Plotly, compressed to a third,
and the scripts beside this module: ``page.js`` filters and fills the tables, ``pictures.js`` draws,
``choices.js`` follows the reader, and ``page.css`` has the colours, light and dark, and how it is
printed.
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


def page(title: str, findings: Sequence[Finding], summary: Summary) -> str:
    """The text of the HTML file."""
    shown = json.dumps(data([*findings], summary), separators=(",", ":"), allow_nan=False)
    said = "".join(
        f'<li><a href="#{each.place}" data-purgatory="{escape(each.purgatory)}" data-kind="{escape(each.kind)}">'
        f"{escape(each.text)}</a></li>"
        for each in findings
    )
    parts = {
        "title": escape(title),
        "style": _file("page.css"),
        "findings": said,
        "data": shown.replace("<", "\\u003c"),
        "plotly": b64encode(gzip.compress(PLOTLY.read_bytes(), 6)).decode("ascii"),
        "script": "".join(map(_file, SCRIPTS)),
    }
    return re.sub(r"{{(\w+)}}", lambda found: parts[found[1]], _file("page.html"))


def _file(name: str) -> str:
    return (HERE / name).read_text("utf-8")
