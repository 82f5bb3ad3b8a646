"""`examples/orders_workers.py --demo`: no client misses a payment, although a worker and the
store are killed."""

import re
from pathlib import Path

import pytest
from servers import SERVERS, served

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "orders_workers.py"
OPTIONS = ("--demo", "--workers", "2", "--clients", "30", "--seconds", "3")


def check(shown: str, *others: str) -> None:
    """Checks what the demo has printed: no client misses anything."""
    numbers = dict(re.findall(r"│ (.*?) +│ +(\d+) │", shown))
    waited = int(numbers["orders waited for"])
    assert int(numbers["completed"]) == waited >= 30  # one for each client at least
    assert numbers["missed"] == "0"
    paths = ("the same worker", "another worker", "any, around a kill")
    answers = (rf"write to answer on {path}: \d+ times, p50 +│ +[\d.na]+ ms │" for path in paths)
    for pattern in (r"killed worker \d+", *answers, *others):
        assert re.search(pattern, shown), pattern


@pytest.mark.parametrize("kind", ["file", SERVERS["redis"], SERVERS["postgresql"]])
def test_demo_loses_no_payment_when_killed(program, tmp_path, kind):
    if kind == "file":
        check(program(EXAMPLE, *OPTIONS).stdout)
        return
    with served(kind, tmp_path):  # or it is skipped
        shown = program(EXAMPLE, *OPTIONS, "--store", kind).stdout
    check(shown, rf"killed\s+{kind},\s+and\s+started\s+it\s+again")


def test_demo_never_kills_a_foreign_store(program, tmp_path):
    with served("redis", tmp_path) as server:
        shown = program(EXAMPLE, *OPTIONS, "--store", server.url).stdout
        check(shown, r"which\s+is\s+yours\s+and\s+was\s+not\s+killed")
        assert server.ask("PING").startswith(b"+PONG")
