"""`examples/orders_workers.py --demo`: nobody misses a payment, although a worker is killed."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "orders_workers.py"


def test_the_demo_loses_no_payment_when_a_worker_is_killed() -> None:
    command = [sys.executable, str(EXAMPLE), "--demo", "--workers", "2", "--clients", "30", "--seconds", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    numbers = dict(re.findall(r"│ (.*?) +│ +(\d+) │", done.stdout))
    assert int(numbers["completed"]) == int(numbers["orders waited for"]) > 30
    assert numbers["missed"] == "0"
    assert re.search(r"killed worker \d+", done.stdout)
