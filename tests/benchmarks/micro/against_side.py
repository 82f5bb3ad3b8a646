"""A process that measures one checkout, alternately with another one; `against` starts it, not as a
module but as a file.

`purgatory` comes from the checkout, but `benchmarks` from where this file is: both sides measure
the same rows. The path is set before either is imported, and the processes that a row starts
inherit it.
"""

import pickle
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHECKOUT = Path(sys.argv[1])
sys.path[:1] = [str(CHECKOUT), str(Path(__file__).resolve().parents[2])]


def send(message: object) -> None:
    pickle.dump(message, sys.stdout.buffer)
    sys.stdout.buffer.flush()


def alternately(rounds: int) -> Iterator[int]:
    """Like `range`, but asks before each round, so that the other side has done one."""
    for number in range(rounds):
        send(None)
        pickle.load(sys.stdin.buffer)
        yield number


def measure(loop_name: Any, seed: int, quick: bool, row: bytes) -> object:
    """The row's figures, or the reason why there are none."""
    try:
        import purgatory
        from benchmarks.cases import Setting, run_on

        assert Path(str(purgatory.__file__)).parents[1] == CHECKOUT, purgatory.__file__
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
