"""``micro --against PATH``: an older checkout and this one alternately, row by row, and how each
has changed.

Each checkout has a process of its own, in which the rows of this one are measured: `purgatory` comes
from the checkout, but `benchmarks` from here. A round of one is followed by a round of the other, so
other load on the machine affects both. In each round a row also measures its baseline, such as the
loop's own timers: where two runs of the baseline differ, so did the load of the machine, and the
ratios are the fairer comparison.
"""

import argparse
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import LoopName, Measured, Row, Setting, process, run_on

ROOT = Path(__file__).resolve().parents[2]
CAPTION = "Medians. after/before: of the costs, and of the ratios to each row's baseline."


def compared(row: Callable[..., Any], loop: LoopName, options: argparse.Namespace) -> Row:
    """A row on both checkouts, each in a new process."""
    with ExitStack() as stack:
        pipes = [
            stack.enter_context(
                process(measure, path, row, loop, options.seed, options.quick, checkout=path)
            )
            for path in (options.against, ROOT)
        ]
        answers: list[Any] = [None, None]
        while any(answer is None for answer in answers):
            for side, pipe in enumerate(pipes):
                if answers[side] is None:
                    answers[side] = asked(pipe)
    before, after = answers
    for answer in answers:
        if not isinstance(answer, Measured):
            return {"before": f"not measured: {answer}"}
    costs = [median(each.ours) for each in (before, after)]
    found: Row = dict(zip(("before", "after"), costs, strict=True))
    found["after/before"] = costs[1] / costs[0]
    if after.theirs:
        ratios = [median(each.figures) for each in (before, after)]
        found |= {"ratio before": ratios[0], "ratio after": ratios[1]}
        found["ratio after/before"] = ratios[1] / ratios[0]
    return found


def asked(pipe: Connection) -> object:
    """Lets a process do its next round. `None` if more are to come, or else its answer."""
    try:
        pipe.send("next round")
        return pipe.recv()
    except (EOFError, OSError):
        return "its process has ended"


# -- the process of a side


def measure(
    pipe: Connection,
    path: Path,
    row: Callable[..., Any],
    loop_name: LoopName,
    seed: int,
    quick: bool,
) -> None:
    """Answers with the row's figures, or with the reason why there are none."""

    def alternately(rounds: int) -> Iterator[int]:
        """Like `range`, but waits before each round until the other side has done one."""
        for each in range(rounds):
            pipe.send(None)
            pipe.recv()
            yield each

    pipe.recv()
    try:
        import purgatory

        assert Path(str(purgatory.__file__)).parents[1] == path, purgatory.__file__
        found = run_on(loop_name, row(Setting(loop_name, random.Random(seed), quick, alternately)))
    except Exception as error:  # an older checkout may lack anything
        found = f"{type(error).__name__}: {error}"
    pipe.send(found)
