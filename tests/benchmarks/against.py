"""``micro --against PATH``: an older checkout and this one alternately, row by row, and how each
has changed.

Each checkout has a process of its own, in which the rows of this one are measured: this file, run
as a program. `purgatory` comes from the checkout, but `benchmarks` from here. A round of one is
followed by a round of the other, so other load on the machine affects both. In each round a row also
measures its baseline, such as the loop's own timers: where two runs of the baseline differ, so did
the load of the machine, and the ratios are the fairer comparison.
"""

import argparse
import pickle
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from subprocess import PIPE, Popen
from typing import Any

if __name__ == "__main__":  # the processes that a row starts inherit the path
    sys.path[:1] = [sys.argv[1], str(Path(__file__).resolve().parents[1])]

from benchmarks.harness import TESTS, LoopName, Measured, Setting, number, run_on


def checkout(text: str) -> Path:
    """A directory that holds the package."""
    path = Path(text).resolve()
    if not (path / "purgatory" / "__init__.py").is_file():
        raise argparse.ArgumentTypeError(
            f"{text!r} is no checkout: it has no purgatory/__init__.py"
        )
    return path


class Side:
    """The process that measures a checkout."""

    def __init__(self, checkout: Path) -> None:
        command = [sys.executable, __file__, str(checkout)]
        self._process = Popen(command, stdin=PIPE, stdout=PIPE)
        self.answer: Measured | str | None = None
        """`None` while the process waits for its next round."""

    def send(self, message: object) -> None:
        """Lets the process continue until its next request or its answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            pickle.dump(message, self._process.stdin)
            self._process.stdin.flush()
            self.answer = pickle.load(self._process.stdout)
        except (EOFError, BrokenPipeError):
            self.answer = "its process has ended"

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


HEADINGS = (
    *("row", "loop", "before", "after", "after/before"),
    *("ratio before", "ratio after", "after/before"),
)
CAPTION = "Medians. after/before: of the costs, and of the ratios to each row's baseline."


def compared(
    name: str, row: Callable[..., Any], unit: str, loop: LoopName, options: argparse.Namespace
) -> tuple[list[str], dict[str, Any]]:
    """A row on both checkouts, each in a new process: the cells, and the same as plain data."""
    sides = [Side(options.against), Side(TESTS.parent)]
    try:
        for side in sides:
            side.send((loop, options.seed, options.quick, pickle.dumps(row)))
        while any(side.answer is None for side in sides):
            for side in sides:
                if side.answer is None:
                    side.send("next round")
    finally:
        for side in sides:
            side.close()
    before, after = (side.answer for side in sides)
    if not isinstance(before, Measured) or not isinstance(after, Measured):
        reasons = [f"not measured: {each}" for each in (before, after) if isinstance(each, str)]
        return [name, loop, *reasons[:1], *[""] * 5], {"name": name, "loop": loop, "why": reasons}
    costs = [median(each.ours) for each in (before, after)]
    cells = [number(cost, unit) for cost in costs] + [number(costs[1] / costs[0])]
    ratios = [median(each.figures) for each in (before, after)] if after.theirs else []
    cells += [number(ratio) for ratio in ratios] or ["", ""]
    cells.append(number(ratios[1] / ratios[0]) if ratios else "")
    return [name, loop, *cells], {"name": name, "loop": loop, "costs": costs, "ratios": ratios}


# -- the process of a side


def send(message: object) -> None:
    pickle.dump(message, sys.stdout.buffer)
    sys.stdout.buffer.flush()


def alternately(rounds: int) -> Iterator[int]:
    """Like `range`, but asks before each round, so that the other side has done one."""
    for each in range(rounds):
        send(None)
        pickle.load(sys.stdin.buffer)
        yield each


def measure(loop_name: LoopName, seed: int, quick: bool, row: bytes) -> object:
    """The row's figures, or the reason why there are none."""
    try:
        import purgatory

        assert Path(str(purgatory.__file__)).parents[1] == Path(sys.argv[1]), purgatory.__file__
        setting = Setting(loop_name, random.Random(seed), quick, alternately)
        return run_on(loop_name, pickle.loads(row)(setting))
    except Exception as error:  # an older checkout may lack anything
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    while True:
        try:
            request = pickle.load(sys.stdin.buffer)
        except EOFError:
            break
        send(measure(*request))
