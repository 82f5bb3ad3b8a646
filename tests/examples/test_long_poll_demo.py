"""`--demo` of both boards, as a process, and what it says of a broken promise."""

import re
from dataclasses import replace
from typing import Any

import pytest
from asgi_modules import EXAMPLES, load
from server_process import ENVIRONMENT

import purgatory

demo = load(EXAMPLES / "_long_poll_demo.py")
SEEN = demo.Seen(0.0, latencies=[0.002], late=[0.001], late_sleeps=[0.003])
GOOD = demo.Result({"event": 3, "deadline": 2, "gone": 1}, SEEN, 0, 40, 40, 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("board", ["long_poll.py", "long_poll_board.py"])
def test_demo_finds_every_promise_kept(board: str, program: Any) -> None:
    options = ("--demo", "--pollers", "40", "--seconds", "1.5")
    done = program(EXAMPLES / board, *options, env=ENVIRONMENT)
    assert done.stderr == ""
    first, second, *progress, polls, times, earliest, left, stop = done.stdout.splitlines()
    assert ("with its kernel in C" in first) is purgatory.COMPILED
    assert second.startswith("40 clients poll 4 topics of http://127.0.0.1:")
    assert ("/purgatory" in progress.pop(0)) if board == "long_poll_board.py" else progress
    assert progress and all(re.match(r" +\d+ s: +\d+ wait, ", line) for line in progress)
    total, *endings = map(int, re.findall(r"\d+", polls))
    assert total == sum(endings) and min(endings) > 0
    p50, p99, _ = map(float, re.findall(r"\d+\.\d+", times))
    assert 0 < p50 <= p99
    assert re.fullmatch(r"the earliest answer at a deadline came \d+\.\d+ ms after it", earliest)
    assert left.endswith(": 0")
    assert stop.startswith("SIGTERM with 40 polls open: 40 answered")


@pytest.mark.parametrize(
    "broken",
    [{"pending": 1}, {"stopped": 39}, {"seen": replace(SEEN, late=[0.001, -0.001])}],
    ids=["left behind", "dropped", "early"],
)
def test_each_broken_promise_is_noticed(broken: dict[str, Any]) -> None:
    assert GOOD.kept and not replace(GOOD, **broken).kept
