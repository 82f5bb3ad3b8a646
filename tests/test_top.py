"""What `python -m purgatory.top` makes of a state; how it follows a server is told in the tests of the page."""

import io

import pytest
from rich.console import Console

from purgatory import top

BOUNDS = [0.001, 1.0, 8.0, None]


def histogram(*counts):
    return {"bounds": BOUNDS, "counts": list(counts), "sum": 0.0}


@pytest.mark.parametrize(
    ("counted", "share", "words"),
    [
        ([(1, 0, 0, 0)], 0.5, "≤ 1 ms"),
        ([(1, 1, 0, 0)], 0.5, "≤ 1 ms"),
        ([(1, 1, 1, 0)], 0.5, "≤ 1 s"),
        ([(99, 0, 1, 0)], 0.99, "≤ 1 ms"),
        ([(98, 0, 2, 0)], 0.99, "≤ 8 s"),
        ([(0, 0, 0, 1)], 0.5, "> 8 s"),
        ([(1, 0, 0, 0), (0, 0, 2, 0)], 0.5, "≤ 8 s"),
        ([(0, 0, 0, 0)], 0.5, "–"),
    ],
)
def test_a_quantile_is_told_by_the_bound_below_which_it_lies(counted, share, words):
    assert top.quantile([histogram(*counts) for counts in counted], share) == words


def test_how_long_operations_of_all_kinds_have_waited_is_told_by_how_they_ended():
    kinds = [
        {"waits": {"completed": histogram(1, 0, 0, 0), "expired": histogram(0, 0, 1, 0)}, "lateness": histogram(1, 0, 0, 0)},
        {"waits": {"completed": histogram(0, 2, 0, 0)}, "lateness": histogram(0, 0, 0, 0)},
    ]
    assert top.distributions(kinds).plain == (
        "waited, completed: half ≤ 1 s, 99 % ≤ 1 s; expired: half ≤ 8 s, 99 % ≤ 8 s; late after the deadline: 99 % ≤ 1 ms"
    )
    assert top.distributions([{"waits": {}, "lateness": histogram(0, 0, 0, 0)}]).plain == "none has waited yet"


def state(**more):
    return {"worker": {"id": "a", "pid": 7}, "history": [], "purgatories": [], "polls": None, "relay": None, **more}


def shown(state):
    console = Console(file=io.StringIO(), width=120)
    console.print(top.screen(state, "", 40))
    return console.file.getvalue()


def test_other_workers_are_listed_and_what_they_say_moves_no_cursor():
    known = {
        "pid": 12345,
        "host": "db-1",
        "began": 1.0,
        "pending": 1234,
        "polls": 5,
        "address": "http://db-1:8000/purgatory/",
        "ago": 1.0,
    }
    rude = {"pid": None, "host": "\x1b[2J\nworker", "began": None, "pending": None, "polls": None, "address": None, "ago": 1.0}
    lines = shown(state(others=[known, rude])).splitlines()
    assert [line.rstrip() for line in lines if line.startswith("worker")] == [
        "worker 12345 on db-1: 1234 pending, 5 polls: http://db-1:8000/purgatory/",
        "worker ? on \ufffd[2J\ufffdworker: ? pending",
    ]
    assert len([line for line in shown(state(others=[known] * 100)).splitlines() if line.startswith("worker")]) == 16
    for none in (state(), state(others=None), state(others=[])):
        assert "worker" not in shown(none).partition("\n")[2]


def test_a_server_that_is_a_stranger_moves_no_cursor():
    rude = "\x1b]0;title\x07"
    other = dict.fromkeys(("pid", "host", "began", "pending", "polls", "address"), rude)
    lines = shown(state(worker={"id": "a", "pid": rude}, others=[other]))
    assert "\x1b" not in lines and lines.count("title") == 6
    assert top.keys_of({"keys": [rude], "moreKeys": rude}) == "\ufffd]0;title\ufffd and \ufffd]0;title\ufffd more"
