"""What an operator wants to know first, in words. Plain Python on what `_summary` has collected."""

from collections import Counter
from dataclasses import dataclass
from typing import Final

from purgatory.pipeline.report._queries import Line
from purgatory.pipeline.report._summary import Summary

WORTH_SAYING = 3
"""How many findings of each sort are put into words. The tables have the rest."""
ACCEPTABLE_RATE = 0.01


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
    said = [
        *(Finding(_timeout(line), "timeouts", line["purgatory"], line["kind"]) for line in _worst_timeouts(summary)),
        *(Finding(_missed(line), "missed", line["purgatory"]) for line in summary.missed_keys_in_order[:WORTH_SAYING]),
        *_hot(summary),
        *_pending(summary),
        *(Finding(each) for each in _left_out(summary)),
    ]
    return said or [Finding("There is nothing to report on: no operation was read.")]


def set_apart(summary: Summary) -> int:
    """How many files and rows could not be read."""
    apart = ("files unreadable", "rows rejected")
    return sum(line["count"] for line in summary.account if line["what"] in apart)


def _worst_timeouts(summary: Summary) -> list[Line]:
    bad = [line for line in summary.timeouts_in_order if (line["expiry_rate"] or 0.0) > ACCEPTABLE_RATE]
    return sorted(bad, key=lambda line: -line["expiry_rate"])[:WORTH_SAYING]


def _timeout(line: Line) -> str:
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
            f"nobody waited longer than {seconds(longest)}, and {share(rate)} would still be waiting then."
            if longest is not None
            else "Which timeout 1 % would take is not answerable from this data."
        )
    return f"Of {_what(line)} {share(line['expiry_rate'])} expired, with timeouts of {_timeouts(line)}. {answer}"


def _timeouts(line: Line) -> str:
    low, high = line["timeout_min_s"], line["timeout_max_s"]
    if low is None:
        return "no length that was written"
    return seconds(low) if low == high else f"{seconds(low)} to {seconds(high)}"


def _missed(line: Line) -> str:
    return (
        f"Nobody had called check_and_complete for {line['key']!r} in {line['purgatory']!r} when its condition held: "
        f"{line['missed_triggers']:,} of {line['operations']:,} operations completed only at their deadline."
    )


def _hot(summary: Summary) -> list[Finding]:
    total = sum(line["operations"] for line in summary.timeouts_in_order)
    hottest = sorted(summary.hot_keys_in_order, key=lambda line: -line["operations"])[:1]
    said = [
        (
            line,
            f"The hottest key is {line['key']!r} in {line['purgatory']!r}: {line['operations']:,} operations watched it, "
            f"{share(line['operations'] / total)} of all.",
        )
        for line in hottest
        if total
    ]
    said += [
        (
            line,
            f"Checks of {line['key']!r} in {line['purgatory']!r} tried {line['tried']:,} operations and completed "
            f"{line['completed']:,}: {share(line['false_wakeups'] / line['tried'])} of the tries were in vain.",
        )
        for line in summary.hot_keys_in_order[:1]
        if line["false_wakeups"] > line["completed"]
    ]
    return [Finding(text, "keys", line["purgatory"]) for line, text in said]


def _pending(summary: Summary) -> list[Finding]:
    worst = sorted(summary.peaks, key=lambda line: -line["pending_max"])[:WORTH_SAYING]
    return [
        Finding(
            f"At the worst moment, at {line['second']:%Y-%m-%d %H:%M:%S} UTC, {line['pending_max']:,} operations were pending "
            f"in {line['purgatory']!r}.",
            "time",
            line["purgatory"],
        )
        for line in worst
    ]


LEFT_OUT: Final = {
    "files unreadable": "files that cannot be read",
    "rows rejected": "rows that cannot be right",
    "duplicates dropped": "further copies of rows",
    "ids missing": "operations that were numbered, and are in no row",
}
"""What the figures do not have, in words, by the name that it has in the table ``reconciliation``."""


def _left_out(summary: Summary) -> list[str]:
    unreadable = [line["reason"] for line in summary.account if line["what"] == "files unreadable"]
    counts: Counter[tuple[str, str]] = Counter()
    for line in summary.account:
        counts[line["what"], line["folder"]] += line["count"]
    return [f"Cannot be read: {reason}." for reason in unreadable[:WORTH_SAYING]] + [
        f"Not in these figures, of {folder}: {counts[what, folder]:,} {words}."
        for what, words in LEFT_OUT.items()
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
