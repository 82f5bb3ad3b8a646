"""The report's findings in words, and how the page shows them. Without Spark."""

from collections import defaultdict
from typing import Any

from purgatory.pipeline.report._data import data
from purgatory.pipeline.report._findings import Finding, findings
from purgatory.pipeline.report._page import page
from purgatory.pipeline.report._queries import Line, Page, Summary, Window


def summary(**lists: list[Line]) -> Summary:
    return Summary(defaultdict(list, lists), Page(Window(0, 1_000_000, 1), ["a", "b"]))


def said(**lists: list[Line]) -> list[str]:
    return [each.text for each in findings(summary(**lists))]


POLLS = {"purgatory": "polls", "kind": "Poll"}
RATES = {"expiry_rate": 0.2, "least_expiry_rate": 0.2, "expired": 200, "operations": 1_000}
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


def test_few_operations_make_no_finding() -> None:
    few = key("x", operations=19, tried=19, missed_triggers=19)

    assert said(
        timeouts_in_order=[timeouts(operations=19, expired=19, missed_triggers=19)],
        hot_keys_in_order=[few],
        missed_keys_in_order=[few],
        peaks=[{"purgatory": "polls", "second": None, "pending_max": 19}],
    ) == ["There are no findings about 20 operations or more."]


def test_missed_triggers_of_many_keys_make_one_finding() -> None:
    [text] = said(
        timeouts_in_order=[timeouts(expiry_rate=0.0, missed_triggers=300)],
        missed_keys_in_order=[key(f"order-{number}", missed_triggers=1) for number in range(9)],
    )

    assert text.startswith(
        "check_and_complete was not called for keys of 'Poll' in 'polls' when its condition "
        "held: 300 of 1,000"
    )


def test_hottest_key_is_first_in_the_table() -> None:
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
