"""What an operator wants to know first, in words. Plain Python on what a `Summary` has."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Final

from purgatory.pipeline.report._queries import Line, Lines, Summary

Apart = defaultdict[tuple[str, str], list[Line]]
"""The lines of each timeout, by purgatory and kind."""

WORTH_SAYING = 3
"""Limit of findings of each sort in words. The tables have all of them."""
ACCEPTABLE_RATE = 0.01
FEW: Final = 20
"""A finding about fewer operations would be noise. The tables have them."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One of the findings."""

    text: str
    place: str = "read"
    """The part of the page that shows it."""
    purgatory: str = ""
    """The choice that the page makes when it goes there; empty for all."""
    kind: str = ""


def findings(summary: Summary) -> list[Finding]:
    """The findings as sentences, the worst first."""
    lines, apart = summary.lines, by_timeout(summary)
    said = [
        *(
            Finding(_timeout(line, apart), "timeouts", line["purgatory"], line["kind"])
            for line in _worst_timeouts(lines["timeouts_in_order"])
        ),
        *_missed(lines),
        *_hot(lines),
        *_pending(lines["peaks"]),
        *(Finding(each) for each in _left_out(lines["account"])),
    ]
    if said:
        return said
    if not lines["timeouts_in_order"]:
        return [Finding("There is nothing to report on: no operation was read.")]
    return [Finding(f"There are no findings about {FEW} operations or more.", "time")]


def set_apart(summary: Summary) -> int:
    """How many files and rows could not be read."""
    apart = ("files unreadable", "rows rejected")
    return sum(line["count"] for line in summary.lines["account"] if line["what"] in apart)


def _worst_timeouts(lines: list[Line]) -> list[Line]:
    bad = [
        line
        for line in lines
        if (line["expiry_rate"] or 0.0) > ACCEPTABLE_RATE and line["operations"] >= FEW
    ]
    return sorted(bad, key=lambda line: -line["expiry_rate"])[:WORTH_SAYING]


def by_timeout(summary: Summary) -> Apart:
    """What the waits of a purgatory and kind did with each of its timeouts, where it has several."""
    apart: Apart = defaultdict(list)
    for line in summary.lines["limits_in_order"]:
        apart[line["purgatory"], line["kind"]].append(line)
    return apart


def _timeout(line: Line, apart: Apart) -> str:
    advice = [
        f"{percent} would have taken {seconds(line[name])}"
        for percent, name in (("1 %", "timeout_1_percent"), ("0.1 %", "timeout_01_percent"))
        if line[name] is not None
    ]
    if advice:
        answer = ", ".join(advice) + "."
    else:
        longest, rate = line["longest_wait_s"], line["least_expiry_rate"]
        answer = (
            "Which timeout 1 % would take is not answerable from this data: "
            f"no operation waited longer than {seconds(longest)}, and {share(rate)} would still "
            "be waiting then."
            if longest is not None
            else "Which timeout 1 % would take is not answerable from this data."
        )
    return (
        f"Of {_what(line)} {share(line['expiry_rate'])} expired, with timeouts of "
        f"{timeouts(line, apart) or 'unknown length'}. {answer}"
    )


def timeouts(line: Line, apart: Apart) -> str:
    """Each timeout and the share that expired, if there are several; otherwise the shortest and the
    longest; empty if none is known."""
    low, high = line["timeout_min_s"], line["timeout_max_s"]
    if low is None:
        return ""
    shown = seconds(low) if low == high else f"{seconds(low)} to {seconds(high)}"
    several = [
        f"{share(each['expiry_rate'])} of {each['operations']:,} with {seconds(each['timeout_s'])}"
        for each in apart[line["purgatory"], line["kind"]]
        if each["timeout_s"] is not None and each["expiry_rate"] is not None
    ]
    return f"{shown} ({', '.join(several)})" if several else shown


def _missed(lines: Lines) -> list[Finding]:
    """Keys that are never triggered; if there are only keys with few operations, kinds."""
    keys = [line for line in lines["missed_keys_in_order"] if line["missed_triggers"] >= FEW]
    kinds = [line for line in lines["timeouts_in_order"] if line["missed_triggers"] >= FEW]
    kinds.sort(key=lambda line: -line["missed_triggers"])
    found = [(line, repr(line["key"])) for line in keys] or [
        (line, f"keys of {line['kind']!r}") for line in kinds
    ]
    return [
        Finding(
            f"check_and_complete was not called for {what} in {line['purgatory']!r} when its "
            "condition held: "
            f"{line['missed_triggers']:,} of {line['operations']:,} operations completed only "
            "at their deadline.",
            "missed",
            line["purgatory"],
        )
        for line, what in found[:WORTH_SAYING]
    ]


def _hot(lines: Lines) -> list[Finding]:
    """The hottest key: its checks tried the most operations."""
    total = sum(line["operations"] for line in lines["timeouts_in_order"])
    return [
        Finding(
            f"The hottest key is {line['key']!r} in {line['purgatory']!r}: its checks tried "
            f"{line['tried']:,} operations, "
            f"{share(line['false_wakeups'] / line['tried'])} of them in vain. "
            f"{line['operations']:,} operations watched it, "
            f"{share(line['operations'] / total)} of all.",
            "keys",
            line["purgatory"],
        )
        for line in lines["hot_keys_in_order"][:1]
        if total and line["tried"] >= FEW
    ]


def _pending(lines: list[Line]) -> list[Finding]:
    many = [line for line in lines if line["pending_max"] >= FEW]
    worst = sorted(many, key=lambda line: -line["pending_max"])[:WORTH_SAYING]
    return [
        Finding(
            f"At the worst moment, at {line['second']:%Y-%m-%d %H:%M:%S} UTC, "
            f"{line['pending_max']:,} operations were pending "
            f"in {line['purgatory']!r}.",
            "time",
            line["purgatory"],
        )
        for line in worst
    ]


LEFT_OUT: Final = {
    "files unreadable": ("unreadable file", "unreadable files"),
    "files passed over": ("file that is no Parquet", "files that are no Parquet"),
    "rows rejected": ("invalid row", "invalid rows"),
    "duplicates dropped": ("duplicate row", "duplicate rows"),
    "ids missing": ("operation with a number but no row", "operations with a number but no row"),
}
"""Rows missing from the figures: name in the table ``reconciliation`` -> a noun and its plural."""


def _left_out(lines: list[Line]) -> list[str]:
    unreadable = [line["reason"] for line in lines if line["what"] == "files unreadable"]
    counts: Counter[tuple[str, str]] = Counter()
    for line in lines:
        counts[line["what"], line["folder"]] += line["count"]
    return [f"Cannot be read: {reason}." for reason in unreadable[:WORTH_SAYING]] + [
        f"Not in these figures: {counts[what, folder]:,} {nouns[counts[what, folder] > 1]}, "
        f"in the folder {folder!r}."
        for what, nouns in LEFT_OUT.items()
        for folder in ("operations", "checks")
        if counts[what, folder]
    ]


def _what(line: Line) -> str:
    return f"{line['kind']!r} in {line['purgatory']!r}"


def share(rate: float) -> str:
    """A rate as a percentage, with three digits."""
    return f"{rate * 100:.3g} %"


def seconds(value: float) -> str:
    """A duration with three digits."""
    if value < 1:
        return f"{value * 1e3:.3g} ms"
    return f"{value:.3g} s" if value < 1000 else f"{value:,.0f} s"
