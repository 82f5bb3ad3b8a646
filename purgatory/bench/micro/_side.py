"""A process that measures one checkout, in turns with another one; `_against` starts it, not as a module but as a file.

The package comes from the checkout, but `purgatory.bench` from where this file is: both sides measure the same rows. That is
done before anything is imported, and again in each process that a row starts.
"""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

CHECKOUT, BENCH = Path(sys.argv[1]), Path(__file__).parents[1]

sys.path[0] = str(CHECKOUT)
spec = spec_from_file_location("purgatory.bench", BENCH / "__init__.py", submodule_search_locations=[str(BENCH)])
assert spec is not None and spec.loader is not None
sys.modules["purgatory.bench"] = bench = module_from_spec(spec)
spec.loader.exec_module(bench)

import asyncio  # noqa: E402
import pickle  # noqa: E402
import random  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from typing import Any  # noqa: E402

import purgatory  # noqa: E402

setattr(purgatory, "bench", bench)  # noqa: B010  # as an import would


def send(message: object) -> None:
    """Tells the other process something."""
    pickle.dump(message, sys.stdout.buffer)
    sys.stdout.buffer.flush()


def in_turns(rounds: int) -> Iterator[int]:
    """Like `range`, but asks before each round, so that the other side has its turn."""
    for number in range(rounds):
        send(None)
        pickle.load(sys.stdin.buffer)
        yield number


def measure(loop_name: Any, seed: int, quick: bool, row: bytes) -> object:
    """What the row has measured, or why it could not."""
    try:
        from purgatory.bench._cases import Setting, loop_factory  # noqa: PLC0415  # may fail, as all that follows

        setting = Setting(loop_name, random.Random(seed), quick, in_turns)
        with asyncio.Runner(loop_factory=loop_factory(loop_name)) as runner:
            return runner.run(pickle.loads(row)(setting))
    except Exception as error:  # an older checkout may lack anything
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    assert Path(str(purgatory.__file__)).parents[1] == CHECKOUT, purgatory.__file__
    while True:
        try:
            order = pickle.load(sys.stdin.buffer)
        except EOFError:
            break
        send(measure(*order))
