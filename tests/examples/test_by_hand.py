"""`examples/by_hand.py` and `examples/quick.py`, as processes."""

from collections.abc import Callable
from subprocess import CompletedProcess

import pytest
from asgi_modules import EXAMPLES

Program = Callable[..., CompletedProcess[str]]


@pytest.mark.slow
def test_unanswered_wait_leaks_its_key_only_by_hand(program: Program) -> None:
    table = program(
        EXAMPLES / "by_hand.py", "--waits", "20000", "--rounds", "1"
    ).stdout.splitlines()
    rows = {
        name: (keys, float(held), float(pause))
        for name, keys, _, held, _, _, _, pause, *_ in map(str.split, table[1:])
    }
    assert {name: keys for name, (keys, _, _) in rows.items()} == {
        "EventByHand": "20,000", "FuturesByHand": "0", "WithPurgatory": "0"
    }  # fmt: skip
    assert rows["EventByHand"][1] > 10  # megabytes
    assert rows["WithPurgatory"][1] < 2
    assert (
        rows["WithPurgatory"][2] < rows["EventByHand"][2]
    )  # milliseconds: some four against fifty


def test_quick_example_prints_its_documented_output(program: Program) -> None:
    assert program(EXAMPLES / "quick.py").stdout == "ready\n"
