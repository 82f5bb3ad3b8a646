"""`examples/orders_workers.py --demo`: nobody misses a payment, although a worker and the store are killed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from servers import PostgresServer, RedisServer, need, redis_server

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "orders_workers.py"


def demo(*options: str) -> str:
    """What the demo prints, in which nobody has missed anything."""
    command = [sys.executable, str(EXAMPLE), "--demo", "--workers", "2", "--clients", "30", "--seconds", "3", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    numbers = dict(re.findall(r"│ (.*?) +│ +(\d+) │", done.stdout))
    assert int(numbers["completed"]) == int(numbers["orders waited for"]) >= 30  # one for each client at least
    assert numbers["missed"] == "0"
    for place in ("the same worker", "another worker", "any, around a kill"):
        assert re.search(rf"from write to answer on {place}: \d+ times, p50 +│ +([\d.]+|nan) ms │", done.stdout)
    assert re.search(r"killed worker \d+", done.stdout)
    return done.stdout


def test_the_demo_loses_no_payment_when_a_worker_is_killed() -> None:
    demo()


@pytest.mark.parametrize("kind", ["redis", "postgresql"])
def test_the_demo_loses_no_payment_when_its_own_store_is_killed_as_well(kind: str) -> None:
    if kind == "redis":
        need("redis-server", "needs redis-server: apt-get install redis-server")
    else:
        PostgresServer._binaries()
    assert re.search(rf"killed\s+{kind},\s+and\s+started\s+it\s+again", demo("--store", kind))


def test_the_demo_does_not_kill_a_store_that_is_not_its_own(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        assert isinstance(server, RedisServer)
        assert re.search(r"which\s+is\s+yours\s+and\s+was\s+not\s+killed", demo("--store", server.url))
        assert server.ask("PING").startswith(b"+PONG")


def test_a_server_of_its_own_is_for_the_demo_alone() -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE), "--store", "redis"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "a server of its own is for the --demo" in " ".join(done.stderr.split())
