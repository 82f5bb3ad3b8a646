"""`examples/by_hand.py` and `examples/quick.py`, as processes."""

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def output_of(*command: str) -> list[str]:
    run = subprocess.run([sys.executable, *command], check=True, capture_output=True, text=True, timeout=200)
    return run.stdout.splitlines()


def test_by_hand_a_wait_that_nobody_answers_leaves_its_key_and_with_a_purgatory_nothing() -> None:
    table = output_of(str(EXAMPLES / "by_hand.py"), "--waits", "2000", "--rounds", "1")
    rows = {name: (keys, held) for name, keys, held, *_ in (line.split() for line in table[1:])}
    assert {name: keys for name, (keys, _) in rows.items()} == {
        "EventByHand": "2,000", "FuturesByHand": "0", "WithPurgatory": "0"
    }  # fmt: skip
    assert float(rows["EventByHand"][1]) > 500
    assert float(rows["WithPurgatory"][1]) < 100


def test_the_quick_example_prints_what_it_says_it_prints() -> None:
    assert output_of(str(EXAMPLES / "quick.py")) == ["ready"]
