"""The report as one HTML file that needs no network: findings, plots, and tables that a click on a column sorts."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from html import escape
from typing import Any

from purgatory.pipeline.report._findings import Finding
from purgatory.pipeline.report._summary import Line, Summary

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1c1e21; max-width: 1100px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin-top: 2em; border-bottom: 1px solid #ddd; }
ul.findings li { margin: .4em 0; } img { max-width: 100%; } p.note { color: #5f6368; }
div.table { overflow-x: auto; max-height: 32em; } table { border-collapse: collapse; font-size: 13px; }
th, td { padding: .25em .7em; text-align: right; white-space: nowrap; border-bottom: 1px solid #eee; }
th { cursor: pointer; position: sticky; top: 0; background: #f6f7f8; } td.text, th.text { text-align: left; }
"""
SCRIPT = """
document.querySelectorAll("th").forEach(head => head.addEventListener("click", () => {
  const body = head.closest("table").tBodies[0], place = head.cellIndex, down = head.dataset.down !== "yes";
  head.dataset.down = down ? "yes" : "no";
  const value = row => { const v = row.cells[place].dataset.value; return v === "" ? null : isNaN(v) ? v : Number(v); };
  [...body.rows].sort((a, b) => {
    const x = value(a), y = value(b);
    if (x === null || y === null) return (x === null) - (y === null);
    return (x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1);
  }).forEach(row => body.append(row));
}));
"""

TABLES: Mapping[str, tuple[str, str]] = {
    "timeouts": (
        "Timeouts",
        "For each kind: how it ended, and the timeouts that would have let 1 % and 0.1 % expire, by the estimate of Kaplan and "
        "Meier, in seconds. least_expiry_rate is what the longest wait allows to say.",
    ),
    "hot_keys": ("Hot keys", "By the operations that their checks tried; at most a hundred."),
    "missed_keys": ("Missed triggers", "Keys whose operations completed only at their deadline; at most a hundred."),
    "worst_minutes": ("Minutes with the most expiries", "At most fifty."),
    "reconciliation": ("What was read", "Every row that was read is accepted, a duplicate, or rejected with a reason."),
}


def page(title: str, findings: Sequence[Finding], summary: Summary) -> str:
    """The text of the HTML file."""
    body = [
        f"<h1>{escape(title)}</h1>",
        '<ul class="findings">',
        *(f"<li>{escape(each.text)}</li>" for each in findings),
        "</ul>",
    ]
    for name, (heading, note) in TABLES.items():
        lines: list[Line] = getattr(summary, name)
        body.append(f'<h2>{escape(heading)}</h2><p class="note">{escape(note)} A click on a column sorts by it.</p>')
        body.append(table(lines) if lines else "<p>Nothing.</p>")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head><body>\n" + "\n".join(body) + f"\n<script>{SCRIPT}</script></body></html>\n"
    )


def table(lines: Sequence[Line]) -> str:
    """The HTML of a table. All lines have the same columns."""
    is_text = {name: any(isinstance(line[name], str) for line in lines) for name in lines[0]}
    sort = {True: ' class="text"', False: ""}
    head = "".join(f"<th{sort[is_text[name]]}>{escape(name)}</th>" for name in lines[0])
    rows = (
        "<tr>"
        + "".join(
            f'<td{sort[is_text[name]]} data-value="{escape(_sort_value(value))}">{escape(shown(value))}</td>'
            for name, value in line.items()
        )
        + "</tr>"
        for line in lines
    )
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _sort_value(value: Any) -> str:
    return "" if value is None else str(value)


def shown(value: Any) -> str:
    """A value as people read it."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:%Y-%m-%d %H:%M:%S}" if isinstance(value, datetime) else str(value)
