"""`examples/by_hand.py` and `examples/quick.py`, as processes."""

from collections.abc import Callable
from subprocess import CompletedProcess

import pytest
from asgi_modules import EXAMPLES

Program = Callable[..., CompletedProcess[str]]


@pytest.mark.slow
def test_by_hand_a_wait_that_nobody_answers_leaves_its_key_and_with_a_purgatory_nothing(program: Program) -> None:
    table = program(EXAMPLES / "by_hand.py", "--waits", "2000", "--rounds", "1").stdout.splitlines()
    rows = {name: (keys, held) for name, keys, held, *_ in (line.split() for line in table[1:])}
    assert {name: keys for name, (keys, _) in rows.items()} == {
        "EventByHand": "2,000", "FuturesByHand": "0", "WithPurgatory": "0"
    }  # fmt: skip
    assert float(rows["EventByHand"][1]) > 500
    assert float(rows["WithPurgatory"][1]) < 100


def test_the_quick_example_prints_what_it_says_it_prints(program: Program) -> None:
    assert program(EXAMPLES / "quick.py").stdout == "ready\n"
