"""What the page shows, without Spark: findings in words, and waits by the time in which they began,
counted by steps."""

import random
from collections import Counter, defaultdict
from datetime import timedelta
from typing import Any

import oracle
import pytest
from journals import START, Row, operation, random_operations, report, write

from purgatory.pipeline.report import _data
from purgatory.pipeline.report._data import LATENESS, WAITS, data
from purgatory.pipeline.report._findings import Finding, findings
from purgatory.pipeline.report._page import page
from purgatory.pipeline.report._queries import Line, Page, Summary, Window


def summary(**lists: list[Line]) -> Summary:
    return Summary(defaultdict(list, lists), Page(Window(0, 1_000_000, 1), ["a", "b"]))


def said(**lists: list[Line]) -> list[str]:
    return [each.text for each in findings(summary(**lists))]


POLLS = {"purgatory": "polls", "kind": "Poll"}
RATES = {"expiry_rate": 0.2, "least_expiry_rate": 0.2, "expired": 200, "operations": 1_000}
MICROSECOND = timedelta(microseconds=1)
SECONDS = dict.fromkeys(("timeout_min_s", "timeout_max_s", "longest_wait_s"), 0.2)
ANSWERS = {"timeout_1_percent": None, "timeout_01_percent": None, "missed_triggers": 0}
CHECKS = {"checks": 10, "tried": 50, "completed": 40, "missed_triggers": 0, "false_wakeups": 10}


def timeouts(**columns: Any) -> Line:
    return POLLS | RATES | SECONDS | ANSWERS | columns


def key(name: str, **columns: Any) -> Line:
    return {"purgatory": "polls", "key": name, "operations": 100} | CHECKS | columns


def timeline(**columns: Any) -> Line:
    return POLLS | {"started": 2} | columns


def test_unreportable_timeout_is_not_reported():
    [text] = said(timeouts_in_order=[timeouts()])

    assert text == (
        "Of 'Poll' in 'polls' 20 % expired, with timeouts of 200 ms. Which timeout 1 % would "
        "take is not answerable from this "
        "data: no operation waited longer than 200 ms, and 20 % would still be waiting then."
    )


def test_a_timeout_that_can_be_reported_is_reported():
    line = timeouts(timeout_max_s=30.0, timeout_1_percent=1.25, timeout_01_percent=8.0)

    [text] = said(timeouts_in_order=[line])

    assert text.endswith(
        "with timeouts of 200 ms to 30 s. 1 % would have taken 1.25 s, 0.1 % would have taken 8 s."
    )


def test_timeouts_of_one_kind_are_told_apart():
    line = timeouts(timeout_min_s=2.0, timeout_max_s=15.0, timeout_1_percent=3.0)
    apart = [
        POLLS | {"timeout_s": timeout, "operations": count, "expiry_rate": rate}
        for timeout, count, rate in ((2.0, 400, 0.5), (15.0, 600, 0.001), (None, 30, 0.0))
    ]

    [text] = said(timeouts_in_order=[line], limits_in_order=apart)

    assert text == (
        "Of 'Poll' in 'polls' 20 % expired, with timeouts of 2 s to 15 s (50 % of 400 with 2 s, "
        "0.1 % of 600 with 15 s). 1 % would have taken 3 s."
    )


def test_few_operations_make_no_finding():
    few = key("x", operations=19, tried=19, missed_triggers=19)

    assert said(
        timeouts_in_order=[timeouts(operations=19, expired=19, missed_triggers=19)],
        hot_keys_in_order=[few],
        missed_keys_in_order=[few],
        peaks=[{"purgatory": "polls", "second": None, "pending_max": 19}],
    ) == ["There are no findings about 20 operations or more."]


def test_missed_triggers_of_many_keys_make_one_finding():
    [text] = said(
        timeouts_in_order=[timeouts(expiry_rate=0.0, missed_triggers=300)],
        missed_keys_in_order=[key(f"order-{number}", missed_triggers=1) for number in range(9)],
    )

    assert text.startswith(
        "check_and_complete was not called for keys of 'Poll' in 'polls' when its condition "
        "held: 300 of 1,000"
    )


def test_hottest_key_is_first_in_the_table():
    lines = [key("tried"), key("watched", operations=900, tried=40)]
    polls = timeouts(expiry_rate=0.0)

    [found] = findings(summary(timeouts_in_order=[polls], hot_keys_in_order=lines))

    assert found.place == "keys"
    assert found.text == (
        "The hottest key is 'tried' in 'polls': its checks tried 50 operations, 20 % of "
        "them in vain. 100 operations watched it, 10 % of all."
    )


def test_what_keys_are_called_cannot_break_the_page():
    key = '<script>alert("x")</script>'
    lines = [{"purgatory": key, "key": key, "missed_triggers": 1, "operations": 1}]

    made = page(key, [Finding(key, purgatory=key)], summary(missed_keys_in_order=lines))

    assert key not in made
    assert made.count("&lt;script&gt;alert(") == made.count("\\u003cscript>alert(") == 4


def test_excess_runs_are_added_up(monkeypatch):
    lines = [timeline(run=run, place=place) for run in (0, 1) for place in (3, 4)]

    by_run = data([], summary(timeouts_in_order=[timeouts()], timeline=lines))
    monkeypatch.setattr("purgatory.pipeline.report._data.ROWS", 3)
    added = data([], summary(timeouts_in_order=[timeouts()], timeline=lines))

    assert by_run["runs"] == ["a", "b", "the others"]
    assert by_run["timeline"]["run"] == [0, 0, 1, 1] and by_run["timeline"]["started"] == [2] * 4
    assert added["runs"] == []
    assert added["timeline"] == {"group": [0, 0], "run": [0, 0], "place": [3, 4], "started": [4, 4]}


def test_excess_kinds_are_merged_into_one(monkeypatch):
    monkeypatch.setattr("purgatory.pipeline.report._data.GROUPS", 2)
    kinds = [timeouts(kind=f"Poll {number}", operations=100 - number) for number in range(5)]
    lines = [timeline(kind=f"Poll {number}", run=0, place=7) for number in range(5)]

    shown = data([], summary(timeouts_in_order=kinds, timeline=lines))

    others = ("the others", "the others")
    assert shown["groups"] == [("polls", "Poll 0"), ("polls", "Poll 1"), others]
    assert shown["timeline"]["group"] == [0, 1, 2] and shown["timeline"]["started"] == [2, 2, 6]


def cells(found: dict[str, Any], name: str) -> Counter[tuple[Any, ...]]:
    """By group, run, span (the first of joined ones), step and counter."""
    counts: Counter[tuple[Any, ...]] = Counter()
    what = {"waits": WAITS, "lateness": LATENESS}[name]
    columns = found[name]
    for group, run, place, flat in zip(
        *(columns[each] for each in ("group", "run", "place", "cells")), strict=True
    ):
        for step, *numbers in zip(*[iter(flat)] * (len(what) + 1), strict=True):
            for each, number in zip(what, numbers, strict=True):
                counts[
                    *map(str, found["groups"][group]), found["runs"][run], place, step, each
                ] += number
    return +counts


def simple(rows: list[Row], found: dict[str, Any], name: str) -> Counter[tuple[Any, ...]]:
    counts: Counter[tuple[Any, ...]] = Counter()
    last: dict[str, Any] = defaultdict(lambda: START)
    for row in rows:
        last[row["run_id"]] = max(
            filter(None, (last[row["run_id"]], row["started_at"], row["ended_at"]))
        )
    for row in rows:
        if row["started_at"] is None:
            continue
        wait = ((row["ended_at"] or last[row["run_id"]]) - row["started_at"]) // MICROSECOND
        what = {"completed": "completed", None: "open"}.get(row["outcome"], "others")
        if name == "lateness":
            if row["outcome"] != "expired":
                continue
            wait, what = max(wait - round(row["timeout_s"] * 1e6), 0), "expired"
        window = found["window"]
        place = (row["started_at"].timestamp() * 1000 - window["start"]) // window["width"]
        place = place // found[name]["width"] if 0 <= place < window["count"] else -1
        step = oracle.step_of(wait)
        counts[row["purgatory"], row["kind"], row["run_id"], place, step, what] += 1
    return counts


@pytest.mark.parametrize(("most", "width"), [(1_000_000, 1), (2_000, 16)])
def test_operation_is_counted_by_wait_and_start(most, width, tmp_path, monkeypatch):
    monkeypatch.setattr(_data, "MOST_CELLS", {WAITS: most, LATENESS: most})
    rows = random_operations(random.Random(21), 4000)
    early = START - timedelta(days=300)  # outside of the page's time
    rows.append(operation(4000, started_at=early, ended_at=early + timedelta(seconds=1)))
    write(tmp_path / "journal", "operations", "x", rows)

    found = data([], report(tmp_path / "journal", tmp_path / "out"))

    assert found["waits"]["width"] == width
    assert sum(map(len, found["waits"]["cells"])) <= 4 * most
    for name in ("waits", "lateness"):
        assert cells(found, name) == simple(rows, found, name)
